"""Many conversations, a model and tools that fail in every way, a store that crashes (issue's bar).

KEEPWELL_SOAK=1 makes it 1,000 conversations of 20 turns.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.errors import KeepwellError
from keepwell.agent.errors import ModelError, ToolError
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.turn_errors import TurnCancelled
from keepwell.memory.repair import in_call_order, repair
from keepwell.memory.window import Window
from keepwell.runtime import Runtime
from keepwell.stores import NoCounter
from keepwell.stores.message import Message, ToolCall


def check_history(messages: tuple[Message, ...]) -> None:
    """What providers demand: every call answered, once, before anything else is said."""
    waiting: Counter[str] = Counter()
    for message in messages:
        if message.role == "tool":
            waiting[message.tool_call_id or ""] -= 1
            assert waiting[message.tool_call_id or ""] >= 0, "a result without its call"
            continue
        assert not +waiting, f"{message.role} before all results are there"
        if message.role == "assistant":
            assert message.content or message.tool_calls
            waiting.update(call.id for call in message.tool_calls)
    assert not +waiting, "a call without result"


class Chaos:
    """A model and tools with seeded faults."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.number = 0
        chaos = self

        @tool(idempotent=True, retries=1)
        async def look(what: str) -> Any:
            """Look something up."""
            await asyncio.sleep(chaos.rng.random() * 0.002)
            match chaos.rng.randrange(12):
                case 0:
                    raise ConnectionError("gone")
                case 1:
                    raise ValueError("no such thing")
                case 2:
                    raise SystemExit(1)
                case 3:
                    return {"value": float("nan"), what: "a\ud83d"}
                case 4:
                    raise ToolError("no key", type="environment")
            return f"seen {what}"

        @tool
        def write(text: str) -> str:
            """Write."""
            return text * chaos.rng.randrange(3)

        self.tools = [look, write]

    def calls(self, count: int) -> list[ToolCall]:
        made = []
        for _ in range(count):
            self.number += 1
            name = self.rng.choice(["look", "look", "write", "lok"])
            key = "text" if name == "write" else "what"
            arguments: Any = {key: "x"}
            if self.rng.random() < 0.1:
                arguments = '{"what": "cut o'
            made.append(ToolCall(f"c{self.number}", name, arguments))
        return made

    async def reply(self, request: Any) -> Any:
        check_history(tuple(m for m in request.messages if m.role != "system"))
        await asyncio.sleep(self.rng.random() * 0.002)
        match self.rng.randrange(14):
            case 0:
                raise ModelError("overloaded", retryable=True, retry_after=0.001)
            case 1:
                raise ModelError("refused", code="refused")
            case 2:
                return Message("assistant", "")
            case 3 | 4 | 5 | 6:
                return Message("assistant", None, self.calls(self.rng.randrange(1, 4)))
        return "an answer <|endoftext|> \0"


async def converse(
    agent: Any, chaos: Chaos, turns: int, outcomes: Counter[str], cancelled: set[tuple[int, int]]
) -> None:
    for number in range(turns):
        running = agent.run(f"question {number}", turn_id=f"t{number}")
        if chaos.rng.random() < 0.05:
            await asyncio.sleep(chaos.rng.random() * 0.004)
            try:
                await agent.cancel(f"t{number}")
            except KeepwellError:
                pass  # it was over already
        try:
            result = await running
            outcomes[result.status] += 1
        except (ModelError, TurnCancelled) as error:
            outcomes[type(error).__name__] += 1
            if isinstance(error, TurnCancelled):
                cancelled.add((int(agent.conversation_id[1:]), number))


async def soak(path: Path, conversations: int, turns: int, seed: int) -> Counter[str]:
    chaos = Chaos(seed)
    outcomes: Counter[str] = Counter()
    cancelled: set[tuple[int, int]] = set()
    spec = AgentSpec(
        FunctionModel(chaos.reply), tools=chaos.tools, memory=Window(30), max_rounds=30
    )
    async with Runtime(path, counter=NoCounter(), durability="process") as runtime:
        agents = [await runtime.spawn(spec, f"c{n}") for n in range(conversations)]
        talks = asyncio.gather(
            *(converse(agent, chaos, turns, outcomes, cancelled) for agent in agents)
        )

        async def crash_the_store() -> None:
            for _ in range(4):  # its supervisor allows five in ten seconds
                await asyncio.sleep(0.3)
                ref = runtime.store.port.ref
                if ref is not None:
                    ref.kill()
                    outcomes["store crashes"] += 1

        crashes = asyncio.ensure_future(crash_the_store())
        await talks
        crashes.cancel()
        for number in range(conversations):
            log = tuple(await runtime.store.read(f"c{number}", marks=True))
            assert [r.seq for r in log] == list(range(1, len(log) + 1))
            messages = tuple(r.message for r in log if r.message is not None)
            check_history(messages)
            assert in_call_order(repair(messages)) == in_call_order(messages)
            asked = [str(m.content) for m in messages if m.role == "user"]
            began = [
                i for i in range(turns) if (number, i) not in cancelled or f"question {i}" in asked
            ]  # a turn may be cancelled before it has begun
            assert asked == [f"question {i}" for i in began]  # none lost, doubled, mixed up
            order = [r.turn_id for r in log if r.turn_id is not None]
            assert order == sorted(order, key=lambda turn: int(turn[1:])), "turns are interleaved"
            ended = Counter(r.turn_id for r in log if r.mark and "ended" in r.mark)
            assert ended == {f"t{i}": 1 for i in began}
    return outcomes


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_every_conversation_ends_with_a_history_that_providers_accept(tmp_path: Path) -> None:
    factor = float(os.environ.get("KEEPWELL_SOAK", "0"))
    size = (40, 8) if factor < 1 else (1000, int(20 * factor))
    outcomes = await soak(tmp_path, *size, seed=3)
    turns = sum(outcomes[kind] for kind in ("completed", "ModelError", "TurnCancelled"))
    assert turns == size[0] * size[1]
    assert outcomes["completed"] > turns / 3
    assert min(outcomes["ModelError"], outcomes["TurnCancelled"], outcomes["store crashes"]) > 0
