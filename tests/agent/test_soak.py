"""Many conversations at once; a model server, tools and a store that fail in every way.

Errors, delays, malformed replies, cancellations, and a crash of the store's owner in one turn of a
hundred. Nine conversations of ten have a model in this process, the tenth one behind HTTP. Every
conversation must end with a history that the strict checker of providers' rules accepts, with
nothing lost, doubled or interleaved.

A small run is part of every run of the tests; KEEPWELL_SOAK=1 makes the long one 1,000
conversations of 20 turns.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.errors import KeepwellError
from keepwell.agent.errors import ModelError, ToolError
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.openai_model import OpenAIModel
from keepwell.agent.retry import RetryPolicy
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.turn_errors import TurnCancelled
from keepwell.memory.default_provider import DefaultProvider
from keepwell.memory.repair import in_call_order, repair
from keepwell.runtime import Runtime
from keepwell.stores import DiskStore, NoCounter
from keepwell.stores.errors import StoreUnavailable
from keepwell.stores.message import Message, ToolCall
from keepwell.supervision import ChildSpec, Supervisor
from keepwell.testing.provider_rules import check_completions_payload, check_history, check_requests
from keepwell.testing.raw_server import Disconnect, Pause, http, raw_server

INTENSITY = {"max_restarts": 1_000, "max_seconds": 10}
"""Of the supervisor of the store: the default one gives up at six crashes in ten seconds."""


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
            # Some servers number the calls of each reply from nought.
            call_id = f"c{self.number}" if self.rng.random() < 0.9 else f"call_{len(made)}"
            made.append(ToolCall(call_id, name, arguments))
        return made

    async def reply(self, request: Any) -> Any:
        check_history(m for m in request.messages if m.role != "system")
        if self.rng.random() < 0.05:
            check_requests(request.messages)
        await asyncio.sleep(self.rng.random() * 0.002)
        match self.rng.randrange(16):
            case 0:
                raise ModelError("overloaded", retryable=True, retry_after=0.001)
            case 1:
                raise ModelError("refused", code="refused")
            case 2:
                return Message("assistant", "")
            case 3:
                return self.rng.choice([None, 5, Message("user", "I am you"), "\ud83d\0"])
            case 4 | 5 | 6 | 7:
                return Message("assistant", None, self.calls(self.rng.randrange(1, 4)))
        return "an answer <|endoftext|> \0"


class Responses(Sequence[Any]):
    """What an endpoint in trouble answers; as long as anyone asks."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos = chaos

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, _index: Any) -> Any:
        match self.chaos.rng.randrange(16):
            case 0:
                return http({"error": {"message": "down"}}, status="500 Internal Server Error")
            case 1:
                return http({"error": {"message": "slow down"}}, status="429 Too Many Requests")
            case 2:
                return [*http(completion("half"))[:1], b'{"choi', Disconnect()]
            case 3:
                return http('{"choices": [{"message": {"content": "cut')
            case 4:
                return http(completion(""))
            case 5:
                return [Pause(0.005), *http(completion("late"))]
            case 6 | 7 | 8 | 9:
                calls = self.chaos.calls(self.chaos.rng.randrange(1, 4))
                return http(completion(None, calls))
        return http(completion("an answer \ud83d <|endoftext|>"))


def completion(text: str | None, calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {
                "name": c.name,
                "arguments": c.arguments if isinstance(c.arguments, str)
                else json.dumps(dict(c.arguments)),
            }} for c in calls
        ]  # fmt: skip
    reason = "tool_calls" if calls else "stop"
    return {"choices": [{"index": 0, "finish_reason": reason, "message": message}], "model": "m"}


@dataclass
class Tally:
    """What happened. A cancelled turn may never have begun."""

    outcomes: Counter[str] = field(default_factory=Counter)
    cancelled: set[tuple[str, int]] = field(default_factory=set)


async def converse(
    agent: Any, store: DiskStore, chaos: Chaos, turns: int, share: float, tally: Tally
) -> None:
    """All turns of one conversation. `share` of them crash the owner of the store."""
    for number in range(turns):
        turn_id = f"t{number}"
        crash = chaos.rng.random() < share
        cancel = chaos.rng.random() < 0.05
        running = agent.run(f"question {number}", turn_id=turn_id)
        if crash or cancel:
            await asyncio.sleep(chaos.rng.random() * 0.004)
        if crash:
            while (owner := store.port.ref) is None:  # noqa: ASYNC110 - its restart is state
                await asyncio.sleep(0)
            owner.kill()
            tally.outcomes["store crashes"] += 1
        if cancel:
            try:
                await agent.cancel(turn_id)
            except KeepwellError:
                pass  # it was over already
        while True:
            try:
                result = await running
                tally.outcomes[result.status] += 1
                break
            except StoreUnavailable:
                # Two crashes met its append: the turn is open, and the same call goes on with it.
                tally.outcomes["run again"] += 1
                running = agent.run(f"question {number}", turn_id=turn_id)
            except (ModelError, TurnCancelled) as error:
                tally.outcomes[type(error).__name__] += 1
                if isinstance(error, TurnCancelled):
                    tally.cancelled.add((agent.conversation_id, number))
                break


def check_log(log: Sequence[Any], name: str, turns: int, tally: Tally) -> None:
    """Whole, in order, each turn once and by itself, acceptable to providers."""
    assert [r.seq for r in log] == list(range(1, len(log) + 1))
    messages = tuple(r.message for r in log if r.message is not None)
    check_history(messages)
    check_requests(in_call_order(repair(messages)))
    assert in_call_order(repair(messages)) == in_call_order(messages)
    asked = [str(m.content) for m in messages if m.role == "user"]
    began = [i for i in range(turns)
             if (name, i) not in tally.cancelled or f"question {i}" in asked]  # fmt: skip
    assert asked == [f"question {i}" for i in began]  # none lost, doubled, mixed up
    order = [r.turn_id for r in log if r.turn_id is not None]
    assert order == sorted(order, key=lambda turn: int(turn[1:])), "turns are interleaved"
    ended = Counter(r.turn_id for r in log if r.mark and "ended" in r.mark)
    assert ended == {f"t{i}": 1 for i in began}


async def soak(path: Path, conversations: int, turns: int, share: float, seed: int) -> Tally:
    chaos, tally = Chaos(seed), Tally()
    store = DiskStore(path, counter=NoCounter(), durability="process")
    async with Runtime(counter=NoCounter()) as runtime, raw_server(*[()]) as server:
        server.responses = Responses(chaos)
        supervisor = await Supervisor.spawn(
            [ChildSpec("store", store.child_start("soaked"))], **INTENSITY
        )
        endpoint = OpenAIModel(
            "m", base_url=server.url, api_key="k", retry=RetryPolicy(retries=1, base=0.0)
        )
        memory = DefaultProvider(store, window=30)
        options: dict[str, Any] = {"tools": chaos.tools, "memory": memory, "max_rounds": 30}
        inside = AgentSpec(FunctionModel(chaos.reply), **options)
        outside = AgentSpec(endpoint, **options)
        names = [f"c{n}" for n in range(conversations)]
        agents = [
            await runtime.spawn(outside if n % 10 == 9 else inside, name)
            for n, name in enumerate(names)
        ]
        await asyncio.gather(
            *(converse(agent, store, chaos, turns, share, tally) for agent in agents)
        )
        for name in names:
            check_log(tuple(await store.read(name, marks=True)), name, turns, tally)
        for request in server.requests:
            check_completions_payload(request.json)
        tally.outcomes["requests over HTTP"] = len(server.requests)
        await supervisor.stop(block=False)
    return tally


async def run_soak(path: Path, size: tuple[int, int], share: float, record_property: Any) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    tally = await soak(path, *size, share=share, seed=3)
    outcomes = tally.outcomes
    turns = sum(outcomes[kind] for kind in ("completed", "ModelError", "TurnCancelled"))
    assert turns == size[0] * size[1]
    assert outcomes["completed"] > turns / 3
    assert min(outcomes[k] for k in ("ModelError", "TurnCancelled", "requests over HTTP")) > 0
    assert outcomes["store crashes"] > turns * share / 3
    figures = ", ".join(f"{n:,} {what}" for what, n in outcomes.most_common())
    record_property(
        "counts",
        f"soak: {size[0]:,} conversations of {size[1]} turns: {figures}; 0 lost, 0 interleaved; "
        f"{time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s CPU, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB at most",
    )


async def test_a_few_conversations_end_with_a_history_that_providers_accept(
    tmp_path: Path, record_property: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    await run_soak(tmp_path, (20, 6), 0.05, record_property)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_every_conversation_ends_with_a_history_that_providers_accept(
    tmp_path: Path, record_property: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    factor = float(os.environ.get("KEEPWELL_SOAK", "0"))
    size = (250, 10) if factor < 1 else (1000, int(20 * factor))
    await run_soak(tmp_path, size, 0.01, record_property)
