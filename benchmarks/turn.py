"""How many durable turns a second, beside the OpenAI Agents SDK and LangGraph?

How: one turn is a question, a model call, one tool call, a second model call and the answer: four
appends. The model answers without delay and the tool adds two numbers, so that what is measured is
what the framework adds. Each conversation awaits its turn before the next, and is as long for
all: 8 turns at 64, 40 alone, after one to warm up. Every contender keeps its conversations in
files, so that a new process could go on with them.

- keepwell: `DiskStore`, durability "power": each step is flushed before an outside effect, a turn
  that was interrupted is resumed. Token counting is excluded (the others do none).
- OpenAI Agents SDK: its SQLite session on one file; nothing is resumed.
- LangGraph: its agent with the SQLite checkpointer on one file.
- `at 10,000`: a window of 50 messages over a conversation that has none, or 10,000, before.

What it does not say: what a real model's latency hides. With 64 conversations and a model that
takes a second none of the three would be busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keepwell.agent.spec import AgentSpec
from keepwell.memory.window import Window
from keepwell.runtime import Runtime
from keepwell.stores import Message, NoCounter

from .adder import Adder, add, converse
from .benchmark import Contender, Question, Ratio, Results, Scale, Stopwatch, faster, growth
from .disk import described, directory
from .turn_opponents import (
    langgraph,
    langgraph_missing,
    openai_agents,
    openai_agents_missing,
)

Run = Callable[[Stopwatch, int], Mapping[str, float] | None]


def questions(scale: Scale) -> Sequence[Question]:
    """Return the questions."""
    # As many turns a conversation for everyone: each turn takes what came before it along.
    each = 64 * scale.pick(8, 2)
    alone = scale.pick(40, 8)
    many = [
        Contender("keepwell", _keepwell(64), each, note=described()),
        Contender("openai-agents", openai_agents(64), each, opponent=True,
                  missing=openai_agents_missing(), note="SQLite session"),
        Contender("langgraph", langgraph(64), each, opponent=True,
                  missing=langgraph_missing(), note="SQLite checkpointer"),
    ]  # fmt: skip
    one = [
        Contender("keepwell", _keepwell(1), alone, note=described()),
        Contender("openai-agents", openai_agents(1), alone, opponent=True,
                  missing=openai_agents_missing(), note="SQLite session"),
        Contender("langgraph", langgraph(1), alone, opponent=True,
                  missing=langgraph_missing(), note="SQLite checkpointer"),
    ]  # fmt: skip
    length = scale.pick(10_000, 2_000)
    turns = scale.pick(150, 40)
    return [
        Question(
            "turns_64", "How many durable turns a second, 64 conversations at once?", "turn", many,
            [faster("turns_64_vs_openai_agents", "keepwell", "openai-agents", floor=30),
             faster("turns_64_vs_langgraph", "keepwell", "langgraph", floor=35),
             _rate("turns_per_s_64"), _cpu("turn_cpu_ms_64", ceiling=0.7)],
            rounds=scale.pick(5, 2)),
        Question(
            "turns_1", "And one conversation alone?", "turn", one,
            [faster("turns_1_vs_openai_agents", "keepwell", "openai-agents", floor=6),
             faster("turns_1_vs_langgraph", "keepwell", "langgraph", floor=6)],
            rounds=scale.pick(5, 2)),
        Question(
            "turn_long", "Does a turn cost more in a long conversation behind a window?", "turn",
            [Contender("at 0", _windowed(0), turns),
             Contender(f"at {length:,}", _windowed(length), turns)],
            [growth("turn_at_10k_history_vs_at_0", "at 0", f"at {length:,}", ceiling=1.3)]),
    ]  # fmt: skip


def _keepwell(conversations: int) -> Run:
    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        async with Runtime(path, counter=NoCounter()) as runtime:
            spec = AgentSpec(Adder(), tools=[add])
            agents = [await runtime.spawn(spec, f"c{n}") for n in range(conversations)]
            await asyncio.gather(*(converse(agent, 1) for agent in agents))
            with watch:
                await asyncio.gather(
                    *(converse(agent, operations // conversations) for agent in agents)
                )

    return _in_a_directory(run)


def _windowed(length: int) -> Run:
    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        async with Runtime(path, counter=NoCounter()) as runtime:
            old = [Message("user" if n % 2 == 0 else "assistant", f"{n}") for n in range(length)]
            for start in range(0, length, 1000):
                await runtime.store.add("c", old[start : start + 1000])
            agent = await runtime.spawn(AgentSpec(Adder(), tools=[add], memory=Window(50)), "c")
            await converse(agent, 20)  # both begin with the window full
            with watch:
                await converse(agent, operations)

    return _in_a_directory(run)


def _in_a_directory(run: Callable[[Stopwatch, int, Path], Any]) -> Run:
    def contend(watch: Stopwatch, operations: int) -> None:
        with directory() as path:
            asyncio.run(run(watch, operations, path))

    return contend


def _rate(name: str) -> Ratio:
    def value(results: Results) -> float | None:
        ours = results.get("keepwell")
        return 1e6 / ours.median(lambda s: s.wall_us) if ours and ours.samples else None

    return Ratio(name, value, "keepwell does {value} {unit}s a second.")


def _cpu(name: str, ceiling: float) -> Ratio:
    def value(results: Results) -> float | None:
        ours = results.get("keepwell")
        return ours.median(lambda s: s.cpu_us) / 1e3 if ours and ours.samples else None

    return Ratio(name, value, "One {unit} takes {value} ms of processor time.", ceiling=ceiling)
