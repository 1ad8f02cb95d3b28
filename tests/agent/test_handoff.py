"""Agents that hand one conversation to each other: each message is once in each context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepwell import (
    AgentSpec,
    Approve,
    Ask,
    FunctionModel,
    InvalidValue,
    Message,
    ModelError,
    Runtime,
    ScriptedModel,
    ToolCall,
    Window,
    tool,
)
from keepwell.agent.scripted_model import Call


@tool
async def refund(amount: int) -> str:
    """Refund."""
    return f"refunded {amount}"


def shown(request: Any) -> list[str]:
    return [
        f"{m.role[0]}:{m.text or ','.join(call.name for call in m.tool_calls)}"
        for m in request.messages
    ]


def spec(front: Any, billing: Any, **options: Any) -> AgentSpec:
    clerk = AgentSpec(
        billing, name="billing", instructions="You bill.", tools=[refund], description="Refunds."
    )
    return AgentSpec(front, instructions="You greet.", handoffs=[clerk], **options)


async def test_a_handoff_goes_on_in_the_same_turn_and_holds_for_the_next(tmp_path: Path) -> None:
    front = ScriptedModel(Call("handoff_to_billing", {"reason": "money"}), "front again")
    billing = ScriptedModel(
        Call("refund", {"amount": 5}), "Refunded.", "Anything else?", Call("handoff_to_agent")
    )
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec(front, billing), "c")
        first = await agent.run("money back", turn_id="t1")
        assert (first.text, first.agent) == ("Refunded.", "billing")
        assert shown(front.requests[0]) == ["s:You greet.", "u:money back"]
        assert [t.name for t in front.requests[0].tools] == ["handoff_to_billing"]
        assert "Refunds." in front.requests[0].tools[0].description
        handed = "t:billing goes on with the conversation"
        assert shown(billing.requests[0]) == [
            "s:You bill.", "u:money back", "a:handoff_to_billing", handed,
        ]  # fmt: skip
        assert [t.name for t in billing.requests[0].tools] == ["refund", "handoff_to_agent"]
        second = await agent.run("thanks")
        assert (second.text, second.agent) == ("Anything else?", "billing")
        assert shown(billing.requests[2])[-3:] == ["t:refunded 5", "a:Refunded.", "u:thanks"]
    async with Runtime(tmp_path) as runtime:  # and over a restart
        agent = await runtime.spawn(spec(front, billing), "c")
        assert (await agent.run("money back", turn_id="t1")) == first
        third = await agent.run("hello?")
        assert (third.text, third.agent) == ("front again", "agent")
        seen = shown(front.requests[1])
        assert seen[0] == "s:You greet."
        assert len(seen) == len(set(seen)) == 1 + len(third.messages) - 1 + 8
        assert [t for t in seen if t.startswith("s:")] == ["s:You greet."]


async def test_an_open_turn_is_resumed_by_whose_it_is(tmp_path: Path) -> None:
    front = ScriptedModel(Call("handoff_to_billing"))
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec(front, ScriptedModel("hi", ModelError("down"))), "c")
        await agent.run("one")
        with pytest.raises(ModelError):
            await agent.run("two", turn_id="t2")  # begun by billing, handed over by none
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec(ScriptedModel(), ScriptedModel("back")), "c")
        assert (await agent.run("two", turn_id="t2")).agent == "billing"


async def test_calls_beside_a_handoff_are_finished_by_who_made_them(tmp_path: Path) -> None:
    """Also when they wait for a human meanwhile, over a restart."""
    @tool
    async def note() -> str:
        """Note."""
        return "noted"

    calls = [ToolCall("c1", "handoff_to_billing", {}), ToolCall("c2", "note", {})]

    def gate(call: Any) -> Any:
        from keepwell import Allow

        return Ask("sure?") if call.name == "note" else Allow()

    def make(front: Any, billing: Any) -> AgentSpec:
        return spec(front, billing, tools=[note], gate=gate)

    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(make(ScriptedModel(calls), ScriptedModel()), "c")
        assert (await agent.run("q", turn_id="t")).status == "paused"
    async with Runtime(tmp_path) as runtime:
        billing = ScriptedModel("mine now")
        agent = await runtime.spawn(make(ScriptedModel(), billing), "c")
        result = await agent.resume(Approve())
        assert (result.text, result.agent) == ("mine now", "billing")
        assert shown(billing.requests[0])[-1] == "t:noted"


async def test_a_cleared_conversation_begins_with_the_first_again() -> None:
    front = FunctionModel(
        lambda request: ToolCall("c", "handoff_to_billing", {})
        if request.messages[-1].text == "over"
        else "front"
    )
    for options in ({}, {"memory": Window(3)}):
        async with Runtime() as runtime:
            team = spec(front, FunctionModel(lambda request: "billing"), **options)
            agent = await runtime.spawn(team, "c")
            assert (await agent.run("hi")).text == "front"
            assert (await agent.run("over")).text == "billing"
            assert (await agent.run("hi")).text == "billing"
            await agent.clear()
            assert (await agent.run("hi")).text == "front"


async def test_a_member_that_is_gone_is_replaced_by_the_first(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        front = ScriptedModel(Call("handoff_to_billing"))
        agent = await runtime.spawn(spec(front, ScriptedModel("ok")), "c")
        await agent.run("q")
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel("alone")), "c")
        assert (await agent.run("q")).text == "alone"


async def test_a_turn_may_be_handed_on_and_back_and_ends_at_its_limit() -> None:
    def to(name: str) -> FunctionModel:
        return FunctionModel(lambda request: ToolCall("c", f"handoff_to_{name}", {}))

    from keepwell import LimitReached

    async with Runtime() as runtime:
        agent = await runtime.spawn(spec(to("billing"), to("agent"), max_rounds=6), "c")
        with pytest.raises(LimitReached):
            await agent.run("q")
        log = await runtime.store.get("c")
        roles = [message.role for message in log]
        assert roles == ["user", *["assistant", "tool"] * (len(log) // 2)]


def test_teams_that_cannot_be_are_refused() -> None:
    model = ScriptedModel()
    same = AgentSpec(model)
    other = AgentSpec(model, name="b")
    taken = tool(name="handoff_to_b")(refund.fn)
    for bad, says in (
        ({"handoffs": [same]}, "two agents"),
        ({"handoffs": ["b"]}, "no AgentSpec"),
        ({"handoffs": "b"}, "list of AgentSpecs"),
        ({"handoffs": [other], "tools": [taken]}, "handoff_to_b"),
    ):
        with pytest.raises(InvalidValue, match=says):
            AgentSpec(model, **bad)  # type: ignore[arg-type]  # bad on purpose
    deep = AgentSpec(model, name="a", handoffs=[AgentSpec(model, name="m", handoffs=[other])])
    from keepwell.agent.handoff import team_of

    assert list(team_of(deep)) == ["", "m", "b"]
    assert isinstance(Message("user", "x"), Message)
