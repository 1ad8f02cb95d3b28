"""Stopping early leaves a valid, true history (CN, BZ, F26)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from keepwell.agent.errors import ModelError
from keepwell.agent.events import TextDelta as TextShown
from keepwell.agent.model import ModelReply, TextDelta
from keepwell.agent.scripted_model import Call, Held, ScriptedModel
from keepwell.agent.tool import tool
from keepwell.agent.tool_result import cancelled, interrupted
from keepwell.agent.turn_errors import Busy, Superseded, TurnCancelled, TurnNotRunning
from keepwell.memory.turn_gate import turn_gates
from keepwell.stores.message import Message
from keepwell.stores.record import NewRecord


class Slow:
    """A tool that says when it has started and never returns by itself."""

    def __init__(self, how: str) -> None:
        self.started = asyncio.Event()
        self.leave = threading.Event()
        loop = asyncio.get_running_loop()
        if how == "async":

            @tool
            async def slow() -> str:
                """Wait."""
                self.started.set()
                await asyncio.Event().wait()
                return "late"
        else:

            @tool
            def slow() -> str:
                """Wait."""
                loop.call_soon_threadsafe(self.started.set)
                self.leave.wait(20)
                return "late"

        self.tool = slow


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_cn_1_f26_f27_cancel_while_a_tool_runs(bench: Any, how: str) -> None:
    slow = Slow(how)

    @tool
    async def quick() -> str:
        """Be quick."""
        return "done"

    model = ScriptedModel([Call("quick"), Call("slow")], "next")
    agent = await bench.agent(model, tools=[slow.tool, quick])
    running = agent.run("go", turn_id="T")
    await slow.started.wait()
    await bench.until(lambda: "t(call_1)" in bench.store.shape("c"))
    await agent.cancel()
    with pytest.raises(TurnCancelled):
        await running
    slow.leave.set()
    assert bench.store.results("c") == {"call_1": "done", "call_2": cancelled(started=True)}
    assert bench.store.last_mark("c")["ended"] == "cancelled"
    assert (await agent.run("again")).text == "next"
    assert bench.store.shape("c") == "u a(call_1,call_2) t(call_1) t(call_2) u a"
    assert [m.role for m in model.requests[-1].messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]


async def test_cn_1_serial_calls_that_had_not_started_say_so(bench: Any) -> None:
    slow = Slow("async")
    model = ScriptedModel([Call("slow"), Call("slow")], "next")
    agent = await bench.agent(model, tools=[slow.tool], parallel_tools=False)
    running = agent.run("go")
    await slow.started.wait()
    await agent.cancel()
    with pytest.raises(TurnCancelled):
        await running
    assert list(bench.store.results("c").values()) == [
        cancelled(started=True),
        cancelled(started=False),
    ]


async def test_cn_1_partial_text_is_kept(bench: Any) -> None:
    class Streaming:
        name = "streaming"

        async def complete(self, request: Any) -> ModelReply:
            raise AssertionError

        async def stream(self, request: Any) -> Any:
            yield TextDelta("half an ")
            yield TextDelta("answer")
            await asyncio.Event().wait()

    agent = await bench.agent(Streaming())

    async def read() -> None:
        seen = ""
        async for event in agent.stream("go"):
            if isinstance(event, TextShown):
                seen += event.text
                if seen == "half an answer":
                    await agent.cancel()

    with pytest.raises(TurnCancelled):
        await read()
    assert [m.content for m in await agent.messages()] == ["go", "half an answer"]


async def test_cn_1_what_is_not_running_cannot_be_cancelled(bench: Any) -> None:
    agent = await bench.agent(ScriptedModel("one"))
    with pytest.raises(TurnNotRunning):
        await agent.cancel()
    await agent.run("q", turn_id="T")
    for turn_id in (None, "T", "other"):
        with pytest.raises(TurnNotRunning):
            await agent.cancel(turn_id)


async def test_cn_1_a_waiting_turn_is_cancelled_without_having_begun(bench: Any) -> None:
    gate = asyncio.Event()
    agent = await bench.agent(ScriptedModel(Held(gate, "one")))
    first = agent.run("q1")
    second = agent.run("q2", turn_id="T")
    await agent.cancel("T")
    with pytest.raises(TurnCancelled):
        await second
    gate.set()
    assert (await first).text == "one"
    assert bench.store.shape("c") == "u a"


async def test_cn_2_cancelling_the_only_waiter_cancels_the_turn(bench: Any) -> None:
    slow = Slow("async")
    agent = await bench.agent(ScriptedModel([Call("slow")], "x"), tools=[slow.tool])
    task = asyncio.create_task(agent.run("go"))
    await slow.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bench.until(lambda: (bench.store.last_mark("c") or {}).get("ended") == "cancelled")


async def test_cn_2_shield_and_joined_waiters_keep_the_turn(bench: Any) -> None:
    gate = asyncio.Event()
    agent = await bench.agent(ScriptedModel(Held(gate, "one"), Held(gate, "two")))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(run := agent.run("q1", turn_id="T")), 0.01)
    other = asyncio.create_task(agent.run("q1", turn_id="T"))
    await asyncio.sleep(0)
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    gate.set()
    assert (await run).text == "one"


async def test_ag_6_a_cancelled_turn_run_again_goes_on(bench: Any) -> None:
    slow = Slow("async")
    agent = await bench.agent(ScriptedModel([Call("slow")], "went on"), tools=[slow.tool])
    running = agent.run("go", turn_id="T")
    await slow.started.wait()
    await agent.cancel("T")
    with pytest.raises(TurnCancelled):
        await running
    assert (await agent.run("go", turn_id="T")).text == "went on"
    assert bench.store.shape("c") == "u a(call_1) t(call_1) a"


# -- on_busy ----------------------------------------------------------------------------------


async def busy_agent(bench: Any, on_busy: str, **options: Any) -> tuple[Any, Any, asyncio.Event]:
    gate = asyncio.Event()
    model = ScriptedModel(Held(gate, "first"), "second", "third", "fourth")
    agent = await bench.agent(model, on_busy=on_busy, **options)
    running = agent.run("q1", turn_id="T1")
    await bench.until(lambda: bench.store.shape("c") == "u")
    return agent, running, gate


async def test_bz_1_f01_queue_is_first_come_first_served_and_bounded(bench: Any) -> None:
    agent, running, gate = await busy_agent(bench, "queue", max_queue=2)
    waiting = [agent.run("q2"), agent.run("q3")]
    with pytest.raises(Busy) as caught:
        await agent.run("q4")
    assert caught.value.turn_id == "T1"
    gate.set()
    assert [(await run).text for run in (running, *waiting)] == ["first", "second", "third"]
    assert bench.store.shape("c") == "u a u a u a"


async def test_bz_2_reject_leaves_the_running_turn_alone(bench: Any) -> None:
    agent, running, gate = await busy_agent(bench, "reject")
    with pytest.raises(Busy) as caught:
        await agent.run("q2")
    assert caught.value.turn_id == "T1"
    gate.set()
    assert (await running).text == "first"
    assert (await agent.run("q3")).text == "second"


async def test_bz_3_interrupt_cancels_the_running_turn(bench: Any) -> None:
    agent, running, _gate = await busy_agent(bench, "interrupt")
    second = agent.run("q2", turn_id="T2")
    with pytest.raises(Superseded) as caught:
        await running
    assert caught.value.by == "T2"
    assert (await second).text == "second"
    assert bench.store.shape("c") == "u u a"
    ended = [r.mark["ended"] for r in bench.store.logs["c"] if r.mark and "ended" in r.mark]
    assert ended == ["cancelled", "completed"]


async def test_bz_3_a_new_agent_that_is_interrupted_reports_no_turn(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that comes before an agent has looked for unfinished turns gives up none."""
    gates, kernel = turn_gates(bench.store), object()
    gates.acquire("c", kernel)
    agent = await bench.agent(ScriptedModel("second"), on_busy="interrupt")
    await bench.until(lambda: agent._queue.running is not None)  # it waits for the conversation
    replaced, answer = agent.run("q2"), agent.run("q3")
    with pytest.raises(Superseded):
        await replaced
    gates.release("c", kernel)
    assert (await answer).text == "second"
    assert "unfinished turn" not in caplog.text


async def second_agent(bench: Any, model: ScriptedModel, on_busy: str) -> Any:
    """Another agent of the same conversation, over the same store."""
    return await bench.agent(model, on_busy=on_busy, name="other")


async def test_bz_3_interrupt_cancels_another_agents_turn_of_the_conversation(bench: Any) -> None:
    """It is the conversation that is busy (KF-9), whichever agent's turn runs."""
    _agent, running, _gate = await busy_agent(bench, "queue")
    other = await second_agent(bench, ScriptedModel("of the other"), "interrupt")
    second = other.run("q2", turn_id="T2")
    with pytest.raises(Superseded) as caught:
        await running
    assert (caught.value.turn_id, caught.value.by) == ("T1", "T2")
    assert (await second).text == "of the other"
    assert bench.store.shape("c") == "u u a"
    marks = [r.mark for r in bench.store.logs["c"] if r.mark and "ended" in r.mark]
    assert [mark["ended"] for mark in marks] == ["cancelled", "completed"]
    assert marks[0]["superseded_by"] == "T2"


async def test_bz_3_two_agents_that_interrupt_each_other_both_go_on(bench: Any) -> None:
    agents = [await second_agent(bench, ScriptedModel(*["x"] * 40), "interrupt") for _ in range(2)]
    runs = [agents[n % 2].run(f"q{n}") for n in range(40)]
    ends = await asyncio.gather(*runs, return_exceptions=True)
    assert all(isinstance(end, Superseded) or end.text == "x" for end in ends)
    assert (await agents[0].run("last")).text == "x"


async def test_bz_2_reject_refuses_while_another_agents_turn_runs(bench: Any) -> None:
    _agent, running, gate = await busy_agent(bench, "queue")
    other = await second_agent(bench, ScriptedModel("of the other"), "reject")
    with pytest.raises(Busy) as caught:
        await other.run("q2")
    assert caught.value.turn_id == "T1"
    gate.set()
    assert (await running).text == "first"
    assert (await other.run("q3")).text == "of the other"


async def test_bz_2_bz_3_a_kernel_at_work_is_refused_or_waited_for(bench: Any) -> None:
    reject = await second_agent(bench, ScriptedModel("x"), "reject")
    interrupt = await second_agent(bench, ScriptedModel("in its turn"), "interrupt")
    gates, kernel = turn_gates(bench.store), object()
    assert gates.acquire("c", kernel).done()
    with pytest.raises(Busy, match="kernel") as caught:
        await reject.run("q")
    assert caught.value.turn_id == ""
    waits = interrupt.run("q")
    gates.release("c", kernel)
    assert (await waits).text == "in its turn"


async def test_bz_3_a_turn_found_in_the_log_gives_way_too(bench: Any) -> None:
    bench.store.add("c", [NewRecord(Message("user", "old"), "T1")])
    model = ScriptedModel(Held(asyncio.Event(), "never"), "new")
    agent = await bench.agent(model, on_busy="interrupt")
    await bench.until(lambda: len(model.requests) == 1)  # it has been resumed
    joined = agent.run("old", turn_id="T1")
    assert (await agent.run("q2", turn_id="T2")).text == "new"
    with pytest.raises(Superseded):
        await joined
    marks = [r.mark for r in bench.store.logs["c"] if r.mark and "ended" in r.mark]
    assert [mark["ended"] for mark in marks] == ["cancelled", "completed"]


async def test_bz_3_a_message_that_waits_interrupts_what_recovery_finds(bench: Any) -> None:
    bench.store.add("c", [NewRecord(Message("user", "old"), "T1", {"agent": "other"})])
    model = ScriptedModel("new")
    agent = await second_agent(bench, model, "interrupt")
    assert (await agent.run("q2", turn_id="T2")).text == "new"
    marks = [r.mark for r in bench.store.logs["c"] if r.mark and "ended" in r.mark]
    assert [mark["ended"] for mark in marks] == ["cancelled", "completed"]
    assert marks[0]["superseded_by"] == "T2"
    assert len(model.requests) == 1


async def test_bz_4_latest_keeps_only_the_newest_waiting(bench: Any) -> None:
    agent, running, gate = await busy_agent(bench, "latest")
    second, third = agent.run("q2"), agent.run("q3")
    with pytest.raises(Superseded):
        await second
    gate.set()
    assert (await running).text == "first"
    assert (await third).text == "second"


# -- healing ----------------------------------------------------------------------------------


async def test_cn_3_imported_open_calls_are_healed_before_the_turn_and_only_once(
    bench: Any,
) -> None:
    call = {"id": "old", "name": "gone", "arguments": {}}
    await bench.store.add("c", [Message("user", "u"), Message("assistant", None, [call])])
    model = ScriptedModel("fine", "again")
    agent = await bench.agent(model)
    await agent.run("hello")
    assert bench.store.shape("c") == "u a(old) t(old) u a"
    assert bench.store.results("c") == {"old": interrupted()}
    assert ("c", "heal/2/0") in bench.store.ids
    await agent.run("more")
    assert bench.store.shape("c") == "u a(old) t(old) u a u a"


async def test_ag_10_messages_added_beside_a_turn_keep_pairs_and_are_seen_next(bench: Any) -> None:
    slow = Slow("async")
    gate = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        slow.started.set()
        await gate.wait()
        return "result"

    model = ScriptedModel([Call("wait")], "one", "two")
    agent = await bench.agent(model, tools=[wait])
    running = agent.run("go")
    await slow.started.wait()
    await bench.store.add("c", [NewRecord({"role": "user", "content": "aside"})])
    gate.set()
    await running
    assert bench.store.shape("c") == "u a(call_1) u t(call_1) a"
    assert [m.content for m in model.requests[1].messages] == ["go", None, "result"]
    await agent.run("next")
    assert [m.content for m in model.requests[2].messages] == [
        "go",
        None,
        "result",
        "aside",
        "one",
        "next",
    ]


async def test_hp_5_ag_5_a_turn_that_was_left_open_is_abandoned_for_a_new_one(bench: Any) -> None:
    call = {"id": "x", "name": "gone", "arguments": {}}
    records = [
        NewRecord(Message("user", "old"), turn_id="OLD", mark={"agent": "someone else"}),
        NewRecord(Message("assistant", None, [call]), turn_id="OLD"),
    ]
    await bench.store.add("c", records)
    agent = await bench.agent(ScriptedModel("fine"))
    assert (await agent.run("new")).text == "fine"
    assert bench.store.shape("c") == "u a(x) t(x) u a"
    marks = [r.mark["ended"] for r in bench.store.logs["c"] if r.mark and "ended" in r.mark]
    assert marks == ["abandoned", "completed"]


async def test_a_model_error_after_tools_leaves_calls_and_results_paired(bench: Any) -> None:
    @tool
    async def work() -> str:
        """Work."""
        return "ok"

    model = ScriptedModel([Call("work")], ModelError("down"), "fine")
    agent = await bench.agent(model, tools=[work])
    with pytest.raises(ModelError):
        await agent.run("go")
    assert (await agent.run("again")).text == "fine"
    assert bench.store.shape("c") == "u a(call_1) t(call_1) u a"
