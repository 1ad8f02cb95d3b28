"""Cancellation: every way to stop early, at every moment, leaves a history that is valid and true.

*Valid*: the strict checker accepts it, and the next message is answered. *True*: a call that is
said to be cancelled or interrupted has that result once and for ever, and what was said to be done
was done.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from keepwell.agent.errors import ModelError
from keepwell.agent.events import ToolStarted
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.model import ModelReply, TextDelta
from keepwell.agent.tool import tool
from keepwell.agent.tool_result import cancelled, error_type_of
from keepwell.agent.turn_errors import (
    ConversationCleared,
    LimitReached,
    Superseded,
    TurnCancelled,
    TurnNotRunning,
)
from keepwell.stores.message import Message, ToolCall
from keepwell.testing.provider_rules import check_history, check_requests

WAYS = ["cancel", "task", "interrupt", "timeout", "stream", "clear", "crash", "add"]
EXPECTED = (
    TurnCancelled, Superseded, LimitReached, ConversationCleared, TurnNotRunning,
    asyncio.CancelledError,
)  # fmt: skip


class Work:
    """Three rounds of an async and a sync tool; counts what was really done."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.requests: list[Any] = []

        @tool
        async def walk(step: str) -> str:
            """Take a few turns of the loop."""
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.done[step] += 1
            return f"did {step}"

        @tool
        def lift(step: str) -> str:
            """Work in a thread."""
            self.done[step] += 1
            return f"did {step}"

        self.tools = [walk, lift]

    def reply(self, request: Any) -> Any:
        self.requests.append(request.messages)
        if request.messages[-1].text == "next":
            return "still here"
        rounds = sum(m.role == "assistant" for m in request.messages)
        if rounds == 3:
            return "a long answer in many pieces"
        return Message(
            "assistant", "thinking",
            [ToolCall(f"w{rounds}", "walk", {"step": f"w{rounds}"}),
             ToolCall(f"l{rounds}", "lift", {"step": f"l{rounds}"})],
        )  # fmt: skip


async def stop(way: str, bench: Any, agent: Any, running: Any) -> Any:
    match way:
        case "cancel":
            await agent.cancel()
        case "task":
            running.cancel()
        case "interrupt" | "add":
            return await agent.run("next")
        case "clear":
            await agent.clear()
        case "crash":
            await bench.crash(agent)
        case "stream":
            await running.aclose()
    return None


@pytest.mark.parametrize("way", WAYS)
async def test_faults_f26_f27_every_way_at_every_moment(bench: Any, way: str) -> None:
    """Faults F26, F27, F29; D-8: nothing dangles, and nothing that comes late is written.

    One conversation for each moment of a turn, side by side.
    """
    outcomes: Counter[str] = Counter()

    async def one(moment: int) -> None:
        cid, work = f"c{moment}", Work()
        expected = (LimitReached,) if way == "timeout" else EXPECTED
        options: dict[str, Any] = {}
        if way == "timeout":
            options["turn_timeout"] = 0.0005 * (moment + 1)
        agent = await bench.agent(
            FunctionModel(work.reply), cid, tools=work.tools,
            on_busy="interrupt" if way == "interrupt" else "queue", **options,
        )  # fmt: skip
        if way == "stream":
            running: Any = agent.stream("go", on_abandon="cancel")
            for _ in range(moment):
                if await anext(running, None) is None:
                    break
        else:
            future = agent.run("go")
            running = asyncio.ensure_future(_awaited(future)) if way == "task" else future
            if way != "timeout":
                for _ in range(moment):
                    await asyncio.sleep(0)
        try:
            await stop(way, bench, agent, running)
            result = None if way == "stream" else await running
            outcomes["completed" if result is not None else "stopped"] += 1
        except expected:
            outcomes["stopped"] += 1
        if way == "timeout":
            agent = await bench.agent(FunctionModel(work.reply), cid)  # with all the time it needs
        assert (await agent.run("next")).text == "still here"
        log = await agent.messages()
        check_history(log)
        for messages in work.requests:
            check_requests(messages)
        told = {m.tool_call_id: m.content for m in log if m.role == "tool"}
        for call_id, content in told.items():
            kind = error_type_of(content)
            assert kind in (None, "cancelled", "interrupted", "skipped"), content
            done = work.done[str(call_id)]
            if kind is None:
                assert content == f"did {call_id}" and done == 1
            elif kind == "skipped" or content == cancelled(started=False):
                assert done == 0
        assert max(work.done.values(), default=0) <= 1  # no tool here is idempotent

    await asyncio.gather(*(one(moment) for moment in range(45)))
    if way in ("crash", "add"):
        assert outcomes == {"completed": 45}
    else:
        assert outcomes["stopped"] > 5, outcomes


async def _awaited(future: Any) -> Any:
    return await future


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize("way", ["cancel", "task", "interrupt", "timeout", "stream", "clear"])
async def test_fault_f27_late_output_is_dropped(bench: Any, how: str, way: str) -> None:
    """A tool that goes on after its turn was stopped: the same outcome, sync or async."""
    started, leave = asyncio.Event(), threading.Event()
    left = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool
    async def stubborn() -> str:
        """Take no cancellation."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return "late"

    @tool
    def blocking() -> str:
        """Take none either."""
        loop.call_soon_threadsafe(started.set)
        leave.wait(20)
        loop.call_soon_threadsafe(left.set)
        return "late"

    name = "stubborn" if how == "async" else "blocking"

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        return "still here" if last.text == "next" else ToolCall("x", name, {})

    options: dict[str, Any] = {"turn_timeout": 0.05} if way == "timeout" else {}
    agent = await bench.agent(
        FunctionModel(reply), tools=[stubborn, blocking],
        on_busy="interrupt" if way == "interrupt" else "queue", **options,
    )  # fmt: skip
    if way == "stream":
        running: Any = agent.stream("go", on_abandon="cancel")
        while not isinstance(await anext(running), ToolStarted):
            pass
    else:
        running = asyncio.ensure_future(_awaited(agent.run("go")))
    await started.wait()
    try:
        await stop(way, bench, agent, running)
        if way != "stream":
            await running
    except EXPECTED:
        pass
    leave.set()
    await left.wait()
    if way == "timeout":
        agent = await bench.agent(FunctionModel(reply))
    assert (await agent.run("next")).text == "still here"
    results = bench.store.results("c")
    kinds = {call_id: error_type_of(content) for call_id, content in results.items()}
    assert kinds == ({} if way == "clear" else {"x": "cancelled"})
    check_history(await agent.messages())


@pytest.mark.parametrize(
    ("ending", "partial"),
    [("an error", ""), ("an error", "half an answer"), ("no end", "half an answer")],
)
async def test_fault_f28_half_an_answer_is_never_the_answer(
    bench: Any, ending: str, partial: str
) -> None:
    """A stream that breaks, and one that just ends; before and after some text; at every try."""

    class Breaking:
        name = "breaking"

        async def complete(self, request: Any) -> ModelReply:
            return ModelReply(Message("assistant", "still here"))

        async def stream(self, request: Any) -> Any:
            if partial:
                yield TextDelta(partial)
            if ending == "an error":
                raise ModelError("gone", partial=partial)

    agent = await bench.agent(Breaking())
    with pytest.raises(ModelError) as caught:
        async for _event in agent.stream("go"):
            pass
    assert caught.value.partial == partial
    assert [m.role for m in await agent.messages()] == ["user"]
    assert (await agent.run("next")).text == "still here"
    check_history(await agent.messages())
