"""How late is a durable append when appends come at a fixed rate, and where is the knee?

How: appends of 600 characters arrive at random moments (a Poisson process) at each of several
rates, in turn for 256 conversations, whether or not earlier ones have been answered; durability
"power". The latency of an append runs from the moment at which it was due to its acknowledgement,
so that a stall is charged to all that were due meanwhile (no coordinated omission). The knee is the
highest rate with answers that keep up and a p99 of at most five times that of the lowest rate.

Past the knee a figure only says for how long the queue had been growing.

Percentiles are those of a round, medians over the rounds: a round of fewer than 1,000 appends has
its worst one as p99.9.

What it does not say: what the event loop's other work adds in your service, nor what happens for
hours (`soak` does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keepwell.stores import DiskStore, NoCounter

from .append_opponents import TEXT
from .benchmark import Contender, Question, Scale, Stopwatch, figure
from .disk import described, directory
from .open_loop import Load, at_knee, knee, open_loop, run

_CONVERSATIONS = 256
_RATES = (500, 1_000, 2_000, 4_000, 6_000, 8_000, 12_000, 16_000)


def questions(scale: Scale) -> Sequence[Question]:
    """Return the question."""
    # More of them past the knee would only wait longer.
    most = scale.pick(8_000, 4_000)
    rates = scale.pick(_RATES, _RATES[1::3])
    seconds = scale.pick(2.0, 0.8)
    return [
        Question(
            "append_latency", "How late is an append, at how many a second?", "append",
            [Contender(f"{rate:,}/s", _appends(rate), min(round(rate * seconds), most),
                       note=described() if rate == rates[0] else "")
             for rate in rates],
            [figure("append_p99_ms_at_ease", f"{rates[0]:,}/s", "p99_ms",
                    "With little to do, 99 of 100 appends take at most {value} ms."),
             knee("append_knee_per_s"),
             at_knee("append_p50_ms_at_knee", "p50_ms", "half of the appends take at most"),
             at_knee("append_p999_ms_at_knee", "p999_ms", "999 of 1,000 appends take at most")],
            rounds=scale.pick(3, 1), chart="curve"),
    ]  # fmt: skip


def _appends(rate: int) -> Any:
    async def loaded(watch: Stopwatch, operations: int, path: Path, found: list[Load]) -> None:
        store = await DiskStore(path, counter=NoCounter()).spawn()
        try:
            async def append(number: int) -> None:
                await store.add(f"conversation-{number % _CONVERSATIONS}",
                                [{"role": "user", "content": TEXT}], append_id=f"turn-{number}/0")

            await open_loop(append, rate=rate, count=min(operations, 100), seed=2)
            with watch:
                found.append(await open_loop(_shifted(append, 1 << 20), rate=rate,
                                             count=operations))
        finally:
            await store.stop()

    def contend(watch: Stopwatch, operations: int) -> Mapping[str, float]:
        found: list[Load] = []
        with directory() as path:
            run(loaded(watch, operations, path, found))
        return found[0].figures()

    return contend


def _shifted(append: Any, by: int) -> Any:
    """The same with other numbers, so that no append id comes twice."""
    return lambda number: append(number + by)
