"""Tokens and cost of steps, turns and conversations; budgets that end a turn cleanly (US-1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepwell import (
    AgentSpec,
    InvalidValue,
    LimitReached,
    Message,
    ModelError,
    ModelReply,
    Runtime,
    ScriptedModel,
    ToolCall,
    Usage,
    tool,
)

SPENT = Usage(100, 10)
ran: list[str] = []


@tool
async def look() -> str:
    """Look."""
    ran.append("look")
    return "seen"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def reply(text: str | None, *, call: bool = False) -> ModelReply:
    calls = [ToolCall("c", "look", {})] if call else []
    return ModelReply(Message("assistant", text, calls), SPENT, model="big-1")


def price(model: str, usage: Usage) -> float:
    assert model == "big-1"
    return usage.input_tokens * 0.001 + usage.output_tokens * 0.01


async def test_cost_is_stored_per_step_and_added_up_per_turn_and_conversation(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(reply(None, call=True), reply("done"), reply("again"))
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(model, tools=[look], price=price), "c")
        first = await agent.run("q", turn_id="t")
        assert first.usage == Usage(200, 20, cost=pytest.approx(0.4))
        await agent.run("q2")
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(model, price=price), "c")
        assert await agent.usage() == Usage(300, 30, cost=pytest.approx(0.6))
        log = await runtime.store.read("c", marks=True)
        costs = [r.mark["usage"]["cost"] for r in log if r.mark and "usage" in r.mark]  # type: ignore[index]  # a mapping
        assert costs == [pytest.approx(0.2)] * 3
        assert (await agent.run("q", turn_id="t")).usage == first.usage


async def test_without_a_price_nothing_costs() -> None:
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel(reply("done"))), "c")
        assert (await agent.run("q")).usage == SPENT
        assert await agent.usage() == SPENT
        stateless = await runtime.spawn(AgentSpec(ScriptedModel(reply("x")), memory=False))
        await stateless.run("q")
        assert await stateless.usage() == Usage()


@pytest.mark.parametrize(
    ("limit", "options"),
    [
        ("max_turn_tokens", {"max_turn_tokens": 220}),
        ("max_turn_cost", {"max_turn_cost": 0.4, "price": price}),
    ],
)
async def test_a_budget_ends_a_turn_between_calls_and_the_next_one_is_accepted(
    limit: str, options: dict[str, Any]
) -> None:
    script = [reply(None, call=True), reply(None, call=True), reply("never"), reply("fine")]
    asked: list[object] = []
    async with Runtime() as runtime:
        model = ScriptedModel(*script[:2], script[3])
        spec = AgentSpec(model, tools=[look], gate=asked.append, **options)
        agent = await runtime.spawn(spec, "c")
        with pytest.raises(LimitReached) as caught:
            await runtime_run(agent)
        assert caught.value.limit == limit
        assert caught.value.result.usage.total_tokens == 220
        # The second batch would have led to a model call that is not paid for any more.
        messages = await agent.messages()
        assert [m.role for m in messages] == ["user", "assistant", "tool", "assistant", "tool"]
        assert limit in messages[-1].text
        assert len(model.requests) == 2
        assert (await agent.run("q2")).text == "fine"


async def runtime_run(agent: Any) -> Any:
    """Run a turn whose gate returns nothing, which means Ask, and approve."""
    from keepwell import Approve

    result = await agent.run("q")
    while result.status == "paused":
        result = await agent.resume(Approve())
    return result


async def test_an_answer_is_an_answer_though_it_uses_the_budget_up() -> None:
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel(reply("done")), max_turn_tokens=1))
        assert (await agent.run("q")).text == "done"


async def test_the_budget_counts_over_a_restart(tmp_path: Path) -> None:
    model = ScriptedModel(reply(None, call=True), ModelError("down"))
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(model, tools=[look]), "c")
        with pytest.raises(ModelError):
            await agent.run("q", turn_id="t")
    async with Runtime(tmp_path) as runtime:
        spec = AgentSpec(ScriptedModel(reply("never")), tools=[look], max_turn_tokens=110)
        agent = await runtime.spawn(spec, "c")
        with pytest.raises(LimitReached, match="max_turn_tokens"):
            await agent.run("q", turn_id="t")


async def test_a_price_that_cannot_be_had_is_a_typed_error() -> None:
    def broken(model: str, usage: Usage) -> float:
        raise KeyError(model)

    async with Runtime() as runtime:
        for bad in (broken, lambda model, usage: float("nan"), lambda model, usage: -1):
            agent = await runtime.spawn(AgentSpec(ScriptedModel(reply("x")), price=bad))
            with pytest.raises(ModelError, match="price="):
                await agent.run("q")
            assert len(await agent.messages()) == 1
            assert await agent.usage() == SPENT


@pytest.mark.parametrize(
    "bad",
    [{"max_turn_tokens": 0}, {"max_turn_cost": 1.0}, {"price": 3},
     {"max_turn_cost": -1, "price": price}],
    ids=lambda options: "-".join(options),
)
def test_bad_budgets_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        AgentSpec(ScriptedModel("x"), **bad)
