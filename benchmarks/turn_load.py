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

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from keepwell.agent.spec import AgentSpec
from keepwell.runtime import Runtime
from keepwell.stores import NoCounter

from .adder import ANSWER, QUESTION, Adder, add
from .benchmark import Question, Scale
from .open_loop import Operation, latency_question

_CONVERSATIONS = 256
_RATES = (100, 200, 400, 600, 800, 1_200, 1_600, 2_400)


def questions(scale: Scale) -> Sequence[Question]:
    """Return the question."""
    return [
        latency_question(
            "turn", "How late is an answer, at how many turns a second?", "answers", _turns, scale,
            rates=scale.pick(_RATES, _RATES[::3]),
            most=scale.pick(1_200, 600),  # more of them past the knee would only wait longer
            warm_up=50,
        ),
    ]  # fmt: skip


@asynccontextmanager
async def _turns(path: Path, operations: int) -> AsyncIterator[Operation]:
    async with Runtime(path, counter=NoCounter()) as runtime:
        spec = AgentSpec(Adder(), tools=[add])
        several = min(_CONVERSATIONS, operations)
        agents = [await runtime.spawn(spec, f"c{number}") for number in range(several)]

        async def turn(number: int) -> None:
            result = await agents[number % several].run(QUESTION)
            assert result.text == ANSWER

        yield turn
