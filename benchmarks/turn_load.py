"""How late is a durable turn's answer when questions come at a fixed rate, and where is the knee?

How: questions arrive at random moments (a Poisson process) at each of several rates, in turn for
256 conversations with an agent each, whether or not earlier ones have been answered. A turn is a
model call, a tool, a second model call and the answer, four durable appends; the model answers
without delay. The latency of a turn runs from the moment at which its question was due to the
answer (no coordinated omission); a question to a conversation that is busy waits its turn. The knee
is the highest rate with answers that keep up and a p99 of at most five times that of the lowest.

Past the knee a figure only says for how long the queue had been growing.

Percentiles are those of a round, medians over the rounds: a round of fewer than 1,000 turns has its
worst one as p99.9.

What it does not say: what a real model's latency adds to each answer. It is the framework's part
that bends here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keepwell.agent.spec import AgentSpec
from keepwell.runtime import Runtime
from keepwell.stores import NoCounter

from .adder import ANSWER, QUESTION, Adder, add
from .benchmark import Contender, Question, Scale, Stopwatch, figure
from .disk import described, directory
from .open_loop import Load, at_knee, knee, open_loop, run

_CONVERSATIONS = 256
_RATES = (100, 200, 400, 600, 800, 1_200, 1_600, 2_400)


def questions(scale: Scale) -> Sequence[Question]:
    """Return the question."""
    # More of them past the knee would only wait longer.
    most = scale.pick(1_200, 600)
    rates = scale.pick(_RATES, _RATES[::3])
    seconds = scale.pick(2.0, 0.8)
    return [
        Question(
            "turn_latency", "How late is an answer, at how many turns a second?", "turn",
            [Contender(f"{rate:,}/s", _turns(rate), min(round(rate * seconds), most),
                       note=described() if rate == rates[0] else "")
             for rate in rates],
            [figure("turn_p99_ms_at_ease", f"{rates[0]:,}/s", "p99_ms",
                    "With little to do, 99 of 100 answers take at most {value} ms."),
             knee("turn_knee_per_s"),
             at_knee("turn_p50_ms_at_knee", "p50_ms", "half of the answers take at most"),
             at_knee("turn_p999_ms_at_knee", "p999_ms", "999 of 1,000 answers take at most")],
            rounds=scale.pick(3, 1), chart="curve"),
    ]  # fmt: skip


def _turns(rate: int) -> Any:
    async def loaded(watch: Stopwatch, operations: int, path: Path, found: list[Load]) -> None:
        async with Runtime(path, counter=NoCounter()) as runtime:
            spec = AgentSpec(Adder(), tools=[add])
            several = min(_CONVERSATIONS, operations)
            agents = [await runtime.spawn(spec, f"c{number}") for number in range(several)]

            async def turn(number: int) -> None:
                result = await agents[number % several].run(QUESTION)
                assert result.text == ANSWER

            await open_loop(turn, rate=rate, count=min(operations, 50), seed=2)
            with watch:
                found.append(await open_loop(turn, rate=rate, count=operations))

    def contend(watch: Stopwatch, operations: int) -> Mapping[str, float]:
        found: list[Load] = []
        with directory() as path:
            run(loaded(watch, operations, path, found))
        return found[0].figures()

    return contend
