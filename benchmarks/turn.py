"""How many durable turns a second, beside the OpenAI Agents SDK and LangGraph?

How: one turn is a question, a model call, one tool call, a second model call and the answer: four
appends. The model answers without delay and the tool adds two numbers, so that what is measured is
what the framework adds. Each conversation awaits its turn before the next; every contender keeps
its conversations in files, so that a new process could go on with them.

- keepwell: `DiskStore`, durability "power": each step is flushed before an outside effect, a turn
  that was interrupted is resumed. Token counting is excluded (the others do none).
- OpenAI Agents SDK: its SQLite session on one file; nothing is resumed.
- LangGraph: its agent with the SQLite checkpointer on one file.
- `at 10,000`: a window of 50 messages over a conversation that has none, or 10,000, before.
- `fleet`: memory of agents that hold a conversation each and are idle.

What it does not say: what a real model's latency hides. With 64 conversations and a model that
takes a second none of the three would be busy.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keepwell.agent.model import ModelReply, ModelRequest, Usage
from keepwell.agent.spec import AgentSpec
from keepwell.memory.window import Window
from keepwell.runtime import Runtime
from keepwell.stores import Message, NoCounter, ToolCall

from .benchmark import Contender, Question, Ratio, Results, Scale, Stopwatch, faster, figure, growth
from .disk import described, directory
from .turn_opponents import (
    ANSWER,
    QUESTION,
    add,
    langgraph,
    langgraph_missing,
    openai_agents,
    openai_agents_missing,
)

Run = Callable[[Stopwatch, int], Mapping[str, float] | None]


def questions(scale: Scale) -> Sequence[Question]:
    """Return the questions."""
    each = scale.pick(15, 4)
    theirs = scale.pick(3, 1)
    many = [
        Contender("keepwell", _keepwell(64), 64 * each, note=described()),
        Contender("openai-agents", openai_agents(64), 64 * theirs, opponent=True,
                  missing=openai_agents_missing(), note="SQLite session"),
        Contender("langgraph", langgraph(64), 64 * theirs, opponent=True,
                  missing=langgraph_missing(), note="SQLite checkpointer"),
    ]  # fmt: skip
    one = [
        Contender("keepwell", _keepwell(1), scale.pick(150, 30), note=described()),
        Contender("openai-agents", openai_agents(1), scale.pick(15, 5), opponent=True,
                  missing=openai_agents_missing(), note="SQLite session"),
        Contender("langgraph", langgraph(1), scale.pick(10, 4), opponent=True,
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
        Question(
            "fleet", "What does an agent take that is idle?", "agent",
            [Contender("keepwell", _idle_agents, scale.pick(2_000, 200))],
            [figure("agent_bytes_idle", "keepwell", "bytes_each")], rounds=1),
        Question(
            "fleet_100k", "And a conversation of a fleet that is passive?", "conversation",
            [Contender("keepwell", _passive(scale.pick(1_000, 50)), scale.pick(100_000, 2_000))],
            [figure("fleet_100k_bytes_passive", "keepwell", "bytes_each", ceiling=2_000)],
            rounds=1),
    ]  # fmt: skip


class _Adder:
    """The same model for every contender: calls `add`, then answers."""

    name = "adder"

    async def complete(self, request: ModelRequest) -> ModelReply:
        if request.messages[-1].role == "tool":
            return ModelReply(Message("assistant", ANSWER), Usage(50, 20), "stop", "adder")
        call = ToolCall(f"c{request.step}", "add", {"a": 1, "b": 2})
        return ModelReply(Message("assistant", None, [call]), Usage(50, 20), "tool_calls", "adder")

    def stream(self, request: ModelRequest) -> Any:
        raise NotImplementedError


async def _converse(agent: Any, turns: int) -> None:
    for _ in range(turns):
        result = await agent.run(QUESTION)
        assert result.text == ANSWER


def _keepwell(conversations: int) -> Run:
    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        async with Runtime(path, counter=NoCounter()) as runtime:
            spec = AgentSpec(_Adder(), tools=[add])
            agents = [await runtime.spawn(spec, f"c{n}") for n in range(conversations)]
            await asyncio.gather(*(_converse(agent, 1) for agent in agents))
            with watch:
                await asyncio.gather(
                    *(_converse(agent, operations // conversations) for agent in agents)
                )

    return _in_a_directory(run)


def _windowed(length: int) -> Run:
    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        async with Runtime(path, counter=NoCounter()) as runtime:
            old = [Message("user" if n % 2 == 0 else "assistant", f"{n}") for n in range(length)]
            for start in range(0, length, 1000):
                await runtime.store.add("c", old[start : start + 1000])
            agent = await runtime.spawn(AgentSpec(_Adder(), tools=[add], memory=Window(50)), "c")
            await _converse(agent, 20)  # both begin with the window full
            with watch:
                await _converse(agent, operations)

    return _in_a_directory(run)


def _idle_agents(watch: Stopwatch, operations: int) -> Mapping[str, float]:
    async def run() -> float:
        async with Runtime(counter=NoCounter()) as runtime:
            spec = AgentSpec(_Adder(), tools=[add])
            await runtime.spawn(spec)
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            with watch:
                agents = [await runtime.spawn(spec, f"c{n}") for n in range(operations)]
            gc.collect()
            after = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert len(agents) == operations
            return (after - before) / operations

    return {"bytes_each": asyncio.run(run())}


def _passive(active: int) -> Run:
    """Conversations that were talked to once, `active` at a time; only handles are left of them."""

    def contend(watch: Stopwatch, operations: int) -> Mapping[str, float]:
        async def run(path: Path) -> float:
            async with Runtime(path, counter=NoCounter(), durability="process") as runtime:
                spec = AgentSpec(_Adder(), tools=[add])
                fleet = runtime.fleet(spec, max_active=active)
                await fleet.agent("first").run(QUESTION)
                handles = [fleet.agent(f"c{n}") for n in range(operations)]
                with watch:
                    for start in range(0, operations, active):
                        part = handles[start : start + active]
                        await asyncio.gather(*(handle.run(QUESTION) for handle in part))
                await asyncio.gather(*(handle.stop() for handle in handles[-active:]))
                del handles
                gc.collect()
                tracemalloc.start()
                handles = [fleet.agent(f"c{n}") for n in range(operations)]
                after = tracemalloc.get_traced_memory()[0]
                tracemalloc.stop()
                assert len(handles) == operations
                return after / operations

        with directory() as path:
            return {"bytes_each": asyncio.run(run(path))}

    return contend


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
