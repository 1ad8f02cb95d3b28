"""Tool pairs: a call and its results are one unit, under every cut, cancel, repair and habit.

The strict checker looks at every request that the model gets and at the log that remains.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from keepwell.agent.approval import Ask
from keepwell.agent.events import TextDelta
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.scripted_model import Call, ScriptedModel
from keepwell.agent.tool import tool
from keepwell.agent.tool_result import error_type_of
from keepwell.agent.turn_errors import LimitReached, Superseded, TurnCancelled
from keepwell.memory.repair import in_call_order, repair
from keepwell.memory.window import Window
from keepwell.stores.message import Message, ToolCall
from keepwell.testing.provider_rules import check_history, check_requests


class Shed:
    """Tools of every habit; each result names the argument that it answers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.requests: list[Any] = []
        self.made = 0
        self.wanted: dict[str, str] = {}  # call id -> what a result of it may say

        @tool
        async def quick(what: str) -> str:
            """Answer at once."""
            return f"did {what}"

        @tool(idempotent=True)
        async def slow(what: str) -> str:
            """Answer after others."""
            for _ in range(self.rng.randrange(1, 9)):
                await asyncio.sleep(0)
            return f"did {what}"

        @tool
        def blocking(what: str) -> str:
            """Answer from a thread."""
            return f"did {what}"

        @tool
        async def failing(what: str) -> str:
            """Raise, after the others or before."""
            for _ in range(self.rng.randrange(3)):
                await asyncio.sleep(0)
            raise self.rng.choice([ValueError(what), SystemExit(3), asyncio.CancelledError()])

        @tool(timeout=0.002)
        async def late(what: str) -> str:
            """Never answer."""
            await asyncio.Event().wait()
            return f"did {what}"

        @tool(serial=True)
        async def alone(what: str) -> str:
            """Have the whole batch run in order."""
            await asyncio.sleep(0)
            return f"did {what}"

        self.tools = [quick, slow, blocking, failing, late, alone]

    def batch(self) -> list[ToolCall]:
        calls = []
        names = ["quick", "slow", "blocking", "failing", "late", "lst_files"]
        names += ["alone"] * self.rng.randrange(2)
        for _ in range(self.rng.randrange(1, 5)):
            self.made += 1
            call_id = f"c{self.made}"
            arguments: Any = {"what": call_id}
            if self.rng.random() < 0.1:
                arguments = '{"what": "cut'
            self.wanted[call_id] = f"did {call_id}"
            calls.append(ToolCall(call_id, self.rng.choice(names), arguments))
        return calls

    def reply(self, request: Any) -> Any:
        self.requests.append(request.messages)
        rounds = 0
        for message in reversed(request.messages):
            if message.role == "user":
                break
            rounds += message.role == "assistant"
        if request.messages[-1].text == "next" or self.rng.random() < rounds / 3:
            return "an answer"
        return Message("assistant", self.rng.choice([None, "so"]), self.batch())


@pytest.mark.parametrize("end", ["by itself", "cancel", "limit", "crash", "new message"])
async def test_fault_f11_to_f16_batches_of_every_kind(bench: Any, end: str) -> None:
    """Faults F11…F16: any batches, ended in any way, and the next message."""

    async def one(seed: int) -> None:
        shed = Shed(seed)
        options: dict[str, Any] = {"parallel_tools": bool(seed % 2)}
        if end == "limit":
            options |= {"max_rounds": 2, "max_tool_calls": 3}
        if seed % 3 == 0:
            options["memory"] = Window(3)
        agent = await bench.agent(
            FunctionModel(shed.reply), f"c{seed}", tools=shed.tools,
            on_busy="interrupt" if end == "new message" else "queue", **options,
        )  # fmt: skip
        running = agent.run("go")
        if end in ("cancel", "crash", "new message"):
            for _ in range(shed.rng.randrange(1, 40)):
                await asyncio.sleep(0)
        if end == "crash":
            await bench.crash(agent)
        elif end == "cancel" and not running.done():
            await asyncio.gather(agent.cancel(), return_exceptions=True)
        elif end == "new message":
            assert (await agent.run("next")).text == "an answer"
        try:
            await running
        except (TurnCancelled, LimitReached, Superseded):
            pass
        assert (await agent.run("next")).text == "an answer"
        log = [r.message for r in bench.store.logs[f"c{seed}"] if r.message is not None]
        check_history(log)
        for messages in [*shed.requests, repair(log)]:
            check_history(messages)
            check_requests(messages)
        assert in_call_order(repair(log)) == in_call_order(log)  # there is nothing to repair
        for message in log:
            if message.role == "tool" and error_type_of(message.content) is None:
                assert message.content == shed.wanted[message.tool_call_id or ""]

    await asyncio.gather(*(one(seed) for seed in range(40)))


async def test_fault_f11_a_question_that_a_new_message_cancels(bench: Any) -> None:
    """Every call has its result in one commit, before the new question stands in the log."""

    @tool(ask_human=True)
    def ask_user(question: str) -> str:
        """Ask."""
        raise AssertionError("an ask-human tool is never run")

    @tool
    async def spend() -> str:
        """Spend."""
        return "spent"

    shown: list[Any] = []

    def reply(request: Any) -> Any:
        shown.append(request.messages)
        if len(shown) > 1:
            return "moved on"
        return [ToolCall("x", "ask_user", {"question": "?"}), ToolCall("y", "spend", {})]

    agent = await bench.agent(
        FunctionModel(reply), tools=[ask_user, spend], gate=lambda _call: Ask("sure?")
    )
    assert (await agent.run("go")).status == "paused"
    bench.store.held = True
    running = agent.run("never mind")
    await bench.until(lambda: bench.store.queue)
    (_future, (_cid, records, *_)) = bench.store.queue[0]
    results = [r.message.tool_call_id for r in records if r.message and r.message.role == "tool"]
    assert results == ["x", "y"]
    bench.store.held = False
    bench.store.commit()
    assert (await running).text == "moved on"
    assert bench.store.shape("c") == "u a(x,y) t(x) t(y) u a"
    assert {error_type_of(text) for text in bench.store.results("c").values()} == {"cancelled"}
    check_requests(shown[-1])


async def test_fault_f12_nothing_of_a_reply_is_shown_before_the_results_are_stored(
    bench: Any,
) -> None:
    @tool
    async def look(what: str) -> str:
        """Look."""
        bench.store.held = True
        return f"saw {what}"

    def last(request: Any) -> str:
        assert [m.content for m in request.messages[-2:]] == ["saw x", "saw y"]
        return "an answer in several pieces"

    calls = [Call("look", {"what": "x"}, id="x"), Call("look", {"what": "y"}, id="y")]
    agent = await bench.agent(ScriptedModel(calls, last), tools=[look])
    shown: list[str] = []

    async def read() -> None:
        async for event in agent.stream("go"):
            if not isinstance(event, TextDelta):
                continue
            shown.append(bench.store.shape("c"))

    reading = asyncio.create_task(read())
    await bench.until(lambda: bench.store.queue)  # a result waits for its commit
    for _ in range(100):
        await asyncio.sleep(0)
    before = list(shown)
    bench.store.held = False
    bench.store.commit()
    await reading
    assert before == []
    assert shown
    assert all("t(x)" in shape and "t(y)" in shape for shape in shown)


async def test_fault_f13_finished_and_running_work_is_not_thrown_away(bench: Any) -> None:
    failed, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        """Work for long."""
        await go_on.wait()
        return "slow"

    @tool
    async def quick() -> str:
        """Work."""
        return "quick"

    @tool
    async def bad() -> str:
        """Fail at once."""
        failed.set()
        raise ValueError("no")

    calls = [Call("slow", id="x"), Call("quick", id="y"), Call("bad", id="z")]
    model = ScriptedModel(calls, "done")
    agent = await bench.agent(model, tools=[slow, quick, bad])
    running = agent.run("go")
    await failed.wait()
    await bench.until(lambda: {"y", "z"} <= bench.store.results("c").keys())
    assert not running.done()
    go_on.set()
    assert (await running).text == "done"
    shown = [m for m in model.requests[-1].messages if m.role == "tool"]
    assert [m.tool_call_id for m in shown] == ["x", "y", "z"]  # in call order
    assert [error_type_of(m.content) for m in shown] == [None, None, "semantic"]
