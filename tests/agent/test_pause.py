"""Gates, pauses and decisions, also across restarts (HP-1…6, F38)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.approval import Allow, Answer, Approve, Ask, Deny, Proceed, Reject, Retry
from keepwell.agent.errors import ToolError
from keepwell.agent.events import Paused
from keepwell.agent.scripted_model import Call, ScriptedModel
from keepwell.agent.tool import tool
from keepwell.agent.tool_result import denied, error_type_of
from keepwell.agent.turn_errors import DecisionConflict, NotPaused, TurnCancelled


class Desk:
    """Tools that count, a gate that asks about `risky`."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.gated: list[str] = []
        desk = self

        @tool
        async def risky(amount: int) -> str:
            """Spend."""
            desk.ran.append(amount)
            return f"spent {amount}"

        @tool
        async def safe() -> str:
            """Look."""
            desk.ran.append("safe")
            return "looked"

        @tool(ask_human=True)
        def ask_user(question: str) -> str:
            """Ask the user."""
            raise AssertionError("an ask-human tool is never run")

        self.tools = [risky, safe, ask_user]

    async def gate(self, call: Any) -> Any:
        self.gated.append(call.name)
        return Ask("over budget?") if call.name == "risky" else Allow()


async def test_hp_2_allowed_calls_run_at_once_and_the_turn_pauses(bench: Any) -> None:
    desk = Desk()
    model = ScriptedModel([Call("safe"), Call("risky", {"amount": 9})], "done")
    agent = await bench.agent(model, tools=desk.tools, gate=desk.gate)
    result = await agent.run("go")
    assert (result.status, result.text) == ("paused", "")
    (pending,) = result.pending
    assert (pending.call_id, pending.name, pending.kind) == ("call_2", "risky", "gate")
    assert (pending.arguments, pending.reason) == ({"amount": 9}, "over budget?")
    assert desk.ran == ["safe"]
    assert desk.gated == ["safe", "risky"]
    assert await agent.pending() == result.pending
    final = await agent.resume(Approve())
    assert (final.text, final.status, desk.ran) == ("done", "completed", ["safe", 9])
    assert len(model.requests) == 2
    assert [s.name for s in final.steps if s.kind == "tool"] == ["safe", "risky"]


async def test_hp_4_reject_answer_and_changed_arguments(bench: Any) -> None:
    desk = Desk()
    calls = [Call("risky", {"amount": n}) for n in (1, 2, 3)]
    agent = await bench.agent(ScriptedModel(calls, "done"), tools=desk.tools, gate=desk.gate)
    await agent.run("go")
    decisions = {
        "call_1": Approve({"amount": 100}), "call_2": Reject("too much"), "call_3": "skip it",
    }  # fmt: skip
    await agent.resume(decisions)
    assert desk.ran == [100]
    assert bench.store.results("c") == {
        "call_1": "spent 100", "call_2": denied("too much"), "call_3": "skip it",
    }  # fmt: skip


async def test_hp_2_two_questions_to_a_human_both_wait(bench: Any) -> None:
    desk = Desk()
    calls = [Call("ask_user", {"question": q}) for q in ("name?", "age?")]
    agent = await bench.agent(ScriptedModel(calls, "done"), tools=desk.tools)
    paused = await agent.run("go")
    assert [p.kind for p in paused.pending] == ["human", "human"]
    half = await agent.resume({"call_1": "Ada"})
    assert (half.status, [p.call_id for p in half.pending]) == ("paused", ["call_2"])
    assert (await agent.resume("36")).text == "done"
    assert bench.store.results("c") == {"call_1": "Ada", "call_2": "36"}


async def test_hp_1_a_gate_sees_ask_human_calls_too_and_may_deny_them(bench: Any) -> None:
    desk = Desk()

    def deny(call: Any) -> Any:
        desk.gated.append(call.name)
        return Deny("not now")

    agent = await bench.agent(
        ScriptedModel([Call("ask_user", {"question": "x"})], "done"), tools=desk.tools, gate=deny
    )
    assert (await agent.run("go")).text == "done"
    assert desk.gated == ["ask_user"]
    assert error_type_of(bench.store.results("c")["call_1"]) == "denied"


@pytest.mark.parametrize("fault", ["raises", "exits", "late", "no verdict"])
async def test_hp_1_a_faulty_gate_asks_and_never_allows(bench: Any, fault: str) -> None:
    desk = Desk()

    async def gate(_call: Any) -> Any:
        match fault:
            case "raises":
                raise RuntimeError("gate down")
            case "exits":
                raise SystemExit
            case "late":
                await asyncio.Event().wait()
        return True

    agent = await bench.agent(
        ScriptedModel([Call("safe")], "done"), tools=desk.tools, gate=gate, tool_timeout=0.02
    )
    result = await agent.run("go")
    assert (result.status, desk.ran) == ("paused", [])


async def test_hp_3_after_a_restart_the_gate_is_not_asked_again(bench: Any) -> None:
    desk = Desk()
    model = ScriptedModel([Call("risky", {"amount": 9})], "done")
    agent = await bench.agent(model, tools=desk.tools, gate=desk.gate)
    result = await agent.run("go", turn_id="T")
    await bench.crash(agent)
    assert await agent.pending() == result.pending
    assert (await agent.run("go", turn_id="T")) == result  # AG-6: the same pause
    assert (desk.gated, desk.ran) == (["risky"], [])
    assert (await agent.resume(Approve())).text == "done"
    assert (desk.gated, desk.ran) == (["risky"], [9])


async def test_f38_hp_4_a_decision_that_arrives_three_times_counts_once(bench: Any) -> None:
    desk = Desk()
    model = ScriptedModel([Call("safe")], [Call("risky", {"amount": 9})], "done")
    agent = await bench.agent(model, tools=desk.tools, gate=desk.gate)
    await agent.run("go")
    results = await asyncio.gather(*(agent.resume(Approve()) for _ in range(3)))
    assert [r.text for r in results] == ["done"] * 3
    assert desk.ran == ["safe", 9]
    with pytest.raises(DecisionConflict):
        await agent.resume(Reject("changed my mind"))


@pytest.mark.parametrize(
    "decision", ["", {}, None, 7, {"call_9": Approve()}, Retry(), Approve({"amount": "x"})]
)
async def test_hp_4_what_decides_nothing_leaves_it_paused(bench: Any, decision: Any) -> None:
    desk = Desk()
    agent = await bench.agent(
        ScriptedModel([Call("risky", {"amount": 9})], "done"), tools=desk.tools, gate=desk.gate
    )
    await agent.run("go")
    with pytest.raises(InvalidValue):
        await agent.resume(decision)
    assert len(await agent.pending()) == 1
    assert (await agent.resume(Approve())).text == "done"


async def test_hp_4_nothing_pending(bench: Any) -> None:
    agent = await bench.agent(ScriptedModel("done"))
    with pytest.raises(NotPaused):
        await agent.resume(Approve())
    await agent.run("go")
    with pytest.raises(NotPaused):
        await agent.resume(Approve())
    assert await agent.pending() == ()


async def test_hp_5_a_new_message_abandons_the_pause(bench: Any) -> None:
    desk = Desk()
    model = ScriptedModel([Call("risky", {"amount": 9})], "moved on")
    agent = await bench.agent(model, tools=desk.tools, gate=desk.gate)
    await agent.run("go")
    assert (await agent.run("never mind")).text == "moved on"
    assert desk.ran == []
    assert error_type_of(bench.store.results("c")["call_1"]) == "cancelled"
    marks = [r.mark["ended"] for r in bench.store.logs["c"] if r.mark and "ended" in r.mark]
    assert marks == ["abandoned", "completed"]


async def test_cn_1_a_paused_turn_can_be_cancelled(bench: Any) -> None:
    desk = Desk()
    agent = await bench.agent(
        ScriptedModel([Call("risky", {"amount": 9})], "x"), tools=desk.tools, gate=desk.gate
    )
    await agent.run("go")
    await agent.cancel()
    assert await agent.pending() == ()
    assert bench.store.shape("c") == "u a(call_1) t(call_1)"


async def test_cn_1_cancelling_while_a_decision_is_carried_out(bench: Any) -> None:
    started = asyncio.Event()

    @tool
    async def risky() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return ""

    agent = await bench.agent(
        ScriptedModel([Call("risky")], "x"), tools=[risky], gate=lambda _call: Ask()
    )
    await agent.run("go")
    resumed = agent.resume(Approve())
    await started.wait()
    await agent.cancel()
    with pytest.raises(TurnCancelled):
        await resumed


async def test_hp_6_environment_errors_wait_for_retry_or_proceed(bench: Any) -> None:
    have_key: list[bool] = []

    @tool
    async def fetch() -> str:
        """Fetch."""
        if not have_key:
            raise ToolError("no API key", type="environment")
        return "fetched"

    @tool
    async def fine() -> str:
        """Work."""
        return "fine"

    model = ScriptedModel([Call("fetch"), Call("fine")], "done", [Call("fetch")], "without")
    agent = await bench.agent(model, tools=[fetch, fine], on_environment_error="pause")
    paused = await agent.run("go")
    assert [(p.name, p.kind) for p in paused.pending] == [("fetch", "environment")]
    assert bench.store.results("c") == {"call_2": "fine"}
    with pytest.raises(InvalidValue):
        await agent.resume(Approve())
    assert (await agent.resume(Retry())).status == "paused"  # still no key
    await bench.crash(agent)
    have_key.append(True)
    assert (await agent.resume(Retry())).text == "done"
    have_key.clear()
    await agent.run("once more")
    assert (await agent.resume(Proceed())).text == "without"
    assert error_type_of(bench.store.results("c")["call_3"]) == "environment"


async def test_hp_6_by_default_the_model_sees_the_error(bench: Any) -> None:
    @tool
    async def fetch() -> str:
        """Fetch."""
        raise PermissionError("no key")

    agent = await bench.agent(ScriptedModel([Call("fetch")], "done"), tools=[fetch])
    assert (await agent.run("go")).text == "done"


async def test_ev_1_a_stream_ends_with_the_pause(bench: Any) -> None:
    desk = Desk()
    agent = await bench.agent(
        ScriptedModel([Call("risky", {"amount": 9})], "x"), tools=desk.tools, gate=desk.gate
    )
    events = [event async for event in agent.stream("go")]
    assert isinstance(events[-1], Paused)
    assert events[-1].pending[0].call_id == "call_1"


async def test_an_answer_is_a_str_too(bench: Any) -> None:
    desk = Desk()
    calls = [Call("ask_user", {"question": "name?"})]
    agent = await bench.agent(ScriptedModel(calls, "hello Ada"), tools=desk.tools)
    await agent.run("go")
    assert (await agent.resume("Ada")).text == "hello Ada"
    assert (await agent.resume(Answer("Ada"))).text == "hello Ada"
