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

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from keepwell.stores import DiskStore, NoCounter

from .append_opponents import TEXT
from .benchmark import Question, Scale
from .open_loop import Operation, latency_question

_CONVERSATIONS = 256
_RATES = (500, 1_000, 2_000, 4_000, 6_000, 8_000, 12_000, 16_000)


def questions(scale: Scale) -> Sequence[Question]:
    """Return the question."""
    return [
        latency_question(
            "append", "How late is an append, at how many a second?", "appends", _appends, scale,
            rates=scale.pick(_RATES, _RATES[1::3]),
            most=scale.pick(8_000, 4_000),  # more of them past the knee would only wait longer
            warm_up=100,
        ),
    ]  # fmt: skip


@asynccontextmanager
async def _appends(path: Path, _operations: int) -> AsyncIterator[Operation]:
    store = await DiskStore(path, counter=NoCounter()).spawn()
    try:
        async def append(number: int) -> None:
            await store.add(f"conversation-{number % _CONVERSATIONS}",
                            [{"role": "user", "content": TEXT}], append_id=f"turn-{number}/0")

        yield append
    finally:
        await store.stop()
