"""Tokens and cost of steps, turns and conversations; budgets that end a turn cleanly (US-1)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell import (
    AgentSpec,
    FunctionModel,
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
from keepwell.actors import failpoint
from keepwell.agent.conversation_usage import conversation_usage
from keepwell.stores.log import LazyLog
from keepwell.stores.record import NewRecord

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
     {"max_turn_cost": -1, "price": price}, {"max_conversation_tokens": 0},
     {"max_conversation_cost": 1.0}, {"max_conversation_cost": 0, "price": price}],
    ids=lambda options: "-".join(options),
)
def test_bad_budgets_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        AgentSpec(ScriptedModel("x"), **bad)


# -- budgets of a conversation -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "options"),
    [
        ("max_conversation_tokens", {"max_conversation_tokens": 330}),
        ("max_conversation_cost", {"max_conversation_cost": 0.6, "price": price}),
    ],
)
async def test_a_conversations_budget_counts_over_turns_agents_and_restarts(
    tmp_path: Path, limit: str, options: dict[str, Any]
) -> None:
    """Two turns use up 330 tokens; the third makes no model call, whoever runs it."""
    model = ScriptedModel(reply(None, call=True), reply("done"), reply("again"))
    spec = AgentSpec(model, tools=[look], **options)
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec, "c")
        await agent.run("q")
        await agent.stop()
        other = await runtime.spawn(AgentSpec(model, name="other", price=price), "c")
        await other.run("q2")
        free = await runtime.spawn(spec, "d")
        await free.run("its own budget")
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec, "c")
        for _ in range(2):
            with pytest.raises(LimitReached) as caught:
                await agent.run("q3")
            assert caught.value.limit == limit
            assert caught.value.result.usage == Usage()
        assert (await agent.usage()).total_tokens == 330
        log = await runtime.store.read("c", marks=True)
        assert log[-1].mark["ended"] == "limit" and log[-1].mark["limit"] == limit
        await agent.clear()
        assert await agent.usage() == Usage()
        more = await runtime.spawn(AgentSpec(ScriptedModel(reply("fine")), **options), "c")
        assert (await more.run("anew")).text == "fine"


async def test_a_conversations_budget_ends_a_turn_in_the_middle(tmp_path: Path) -> None:
    """Between two model calls of a turn, after a crash of its agent too; calls are not run."""
    model = ScriptedModel(reply("one"), reply(None, call=True), reply(None, call=True))
    spec = AgentSpec(model, tools=[look], max_conversation_tokens=330)
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec, "c")
        await agent.run("q")
        crash = failpoint.on_hit(1, failpoint.raise_error)
        with failpoint.active({"turn.result": crash}), pytest.raises(LimitReached) as caught:
            await agent.run("q2")
        assert caught.value.limit == "max_conversation_tokens"
        assert "clear the conversation" in str(caught.value)
        assert caught.value.result.usage.total_tokens == 220
        assert len(ran) == 1 and len(model.requests) == 3
        roles = [m.role for m in await agent.messages()][2:]
        assert roles == ["user", "assistant", "tool", "assistant", "tool"]


async def test_the_sum_is_one_record_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Runtime() as runtime:
        agent = await runtime.spawn(
            AgentSpec(FunctionModel(lambda request: reply("x")), price=price), "c"
        )
        for number in range(40):
            await agent.run(f"q{number}")
        touched = 0
        original = LazyLog._range

        def counted(log: LazyLog, start: int, stop: int) -> Any:
            nonlocal touched
            records = original(log, start, stop)
            touched += len(records)
            return records

        monkeypatch.setattr(LazyLog, "_range", counted)
        assert await agent.usage() == Usage(4000, 400, cost=pytest.approx(8.0))
        assert touched <= 16


async def test_a_log_without_sums_is_added_up_once() -> None:
    """Of an older version, with what a kernel or a session has written among its turns."""
    async with Runtime() as runtime:
        for number in range(5):
            mark = {"usage": SPENT.to_dict(), "ended": "completed"}
            await runtime.store.add("c", [
                NewRecord({"role": "user", "content": "q"}, f"t{number}"),
                NewRecord({"role": "assistant", "content": "a"}, f"t{number}", mark),
            ])  # fmt: skip
        spec = AgentSpec(ScriptedModel(reply("x"), reply("y")), max_conversation_tokens=700)
        agent = await runtime.spawn(spec, "c")
        assert (await agent.usage()).total_tokens == 550
        await agent.run("q")
        await runtime.store.add("c", [
            NewRecord({"role": "assistant", "content": "of a session"}, "s",
                      {"usage": SPENT.to_dict(), "ended": "completed", "session": True}),
        ])  # fmt: skip
        assert (await agent.usage()).total_tokens == 770
        with pytest.raises(LimitReached, match="max_conversation_tokens"):
            await agent.run("q")


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from(["", "total", "mark", "plain"])), max_size=30
    )
)
def test_the_sum_is_that_of_all_usages(turns: list[tuple[int, str]]) -> None:
    records: list[Any] = []
    used = Usage()
    for tokens, kind in turns:
        mark: Any = None
        if kind != "plain":
            used = used + Usage(tokens, 1)
            mark = {"usage": Usage(tokens, 1).to_dict()}
            if kind == "total":
                mark["total"] = used.to_dict()
        records.append(SimpleNamespace(mark=mark))
    assert conversation_usage(records) == used
