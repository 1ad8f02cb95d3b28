"""A turn from question to answer: what is stored, shown and returned (AG-1…10, TL, LM)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.actors.ref import AskedItself
from keepwell.agent.errors import ModelError
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.model import ModelReply, Usage
from keepwell.agent.scripted_model import Call, Held, ScriptedModel
from keepwell.agent.tool import tool
from keepwell.agent.tool_result import error_type_of
from keepwell.agent.turn_errors import (
    ConversationCleared,
    LimitReached,
    TurnConflict,
)
from keepwell.memory.window import Window
from keepwell.stores.errors import DiskFull
from keepwell.stores.message import Message


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def slow_add(a: int, b: int) -> int:
    """Add two numbers."""
    await asyncio.sleep(0)
    return a + b


async def test_ag_2_question_calls_results_answer(bench: Any) -> None:
    model = ScriptedModel(
        [Call("add", {"a": 1, "b": 2}), Call("slow_add", {"a": 3, "b": 4})], "done"
    )
    agent = await bench.agent(model, tools=[add, slow_add])
    result = await agent.run("add things")
    assert (result.text, result.status) == ("done", "completed")
    assert sorted(bench.store.shape("c").split()) == sorted(
        ["u", "a(call_1,call_2)", "t(call_1)", "t(call_2)", "a"]
    )
    assert bench.store.results("c") == {"call_1": "3", "call_2": "7"}
    assert [step.kind for step in result.steps] == ["model", "tool", "tool", "model"]
    assert [m.tool_call_id for m in result.messages if m.role == "tool"] == ["call_1", "call_2"]
    assert await agent.messages() == tuple(r.message for r in bench.store.logs["c"])


async def test_ag_2_turn_k_sees_2_k_minus_1_messages_and_ag_8_one_system_prompt(bench: Any) -> None:
    model = ScriptedModel("a1", "a2", "a3")
    agent = await bench.agent(model, instructions="be brief")
    for question in ("q1", "q2", "q3"):
        await agent.run(question)
    seen = [[m.role for m in request.messages] for request in model.requests]
    assert [len(roles) - 1 for roles in seen] == [1, 3, 5]
    assert all(roles.count("system") == 1 and roles[0] == "system" for roles in seen)
    assert "s" not in bench.store.shape("c")


async def test_ag_3_append_ids_are_turn_and_step_chained(bench: Any) -> None:
    """D-7: each step, each result."""
    model = ScriptedModel([Call("add", {"a": 1, "b": 2})], "done")
    agent = await bench.agent(model, tools=[add])
    await agent.run("x", turn_id="T")
    assert [append_id for _cid, append_id in bench.store.ids] == ["T/0", "T/1", "T/2", "T/3"]


async def test_ag_3_a_tool_runs_only_when_all_before_it_is_stored(bench: Any) -> None:
    at_tool: list[str] = []

    @tool
    def look() -> str:
        """Look."""
        at_tool.append(bench.store.shape("c"))
        return "seen"

    model = ScriptedModel([Call("look")], "done")
    agent = await bench.agent(model, tools=[look])
    bench.store.held = True
    running = agent.run("x")
    await bench.until(
        lambda: len(bench.store.queue) == 2
    )  # question and call; the model did not wait for them
    await asyncio.sleep(0.01)
    assert at_tool == []
    bench.store.held = False
    bench.store.commit()
    await running
    assert at_tool == ["u a(call_1)"]


async def test_ag_3_no_answer_before_its_commit(bench: Any) -> None:
    agent = await bench.agent(ScriptedModel("done"))
    bench.store.held = True
    running = agent.run("x")
    await bench.until(lambda: len(bench.store.queue) == 2)
    await asyncio.sleep(0.01)
    assert not running.done()
    bench.store.held = False
    bench.store.commit()
    assert (await running).text == "done"


@pytest.mark.parametrize(
    "question",
    ["", "   ", [], None, 5, Message("assistant", "x"), [{"role": "user", "content": "x"}]],
)
async def test_ag_1_what_is_no_question_starts_no_turn(bench: Any, question: Any) -> None:
    agent = await bench.agent(ScriptedModel("never"))
    with pytest.raises(InvalidValue):
        agent.run(question)
    with pytest.raises(InvalidValue):
        agent.run("x", turn_id="")
    assert bench.store.logs == {}


async def test_ag_6_the_same_turn_id_is_one_turn_and_one_result(bench: Any) -> None:
    model = ScriptedModel("one", "two", "three")
    agent = await bench.agent(model)
    first = await agent.run("q", turn_id="T")
    assert await agent.run("q", turn_id="T") == first
    await agent.run("other")
    assert await agent.run("q", turn_id="T") == first  # however long ago
    assert len(model.requests) == 2
    with pytest.raises(TurnConflict):
        await agent.run("another input", turn_id="T")
    assert bench.store.shape("c") == "u a u a"


async def test_ag_6_a_running_turn_is_joined(bench: Any) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(Held(gate, "done"))
    agent = await bench.agent(model)
    one, two = agent.run("q", turn_id="T"), agent.run("q", turn_id="T")
    with pytest.raises(TurnConflict):
        await agent.run("else", turn_id="T")
    gate.set()
    assert (await one) == (await two)
    assert len(model.requests) == 1


async def test_ag_6_a_failed_turn_goes_on_from_the_log(bench: Any) -> None:
    model = ScriptedModel(
        [Call("add", {"a": 1, "b": 2})], ModelError("bad", retryable=False), "done"
    )
    agent = await bench.agent(model, tools=[add])
    with pytest.raises(ModelError):
        await agent.run("q", turn_id="T")
    assert bench.store.last_mark("c")["ended"] == "failed"
    result = await agent.run("q", turn_id="T")
    assert (result.text, bench.store.shape("c")) == ("done", "u a(call_1) t(call_1) a")


async def test_ag_6_an_unfinished_turn_that_is_not_last_is_a_conflict(bench: Any) -> None:
    model = ScriptedModel(ModelError("bad"), "fine")
    agent = await bench.agent(model)
    with pytest.raises(ModelError):
        await agent.run("q", turn_id="T")
    await agent.run("next")
    with pytest.raises(TurnConflict):
        await agent.run("q", turn_id="T")


async def test_ag_7_two_retries_then_a_model_error_and_the_question_stays(bench: Any) -> None:
    flaky = ModelError("overloaded", retryable=True, retry_after=0.001)
    model = ScriptedModel(flaky, flaky, "third time", flaky, flaky, flaky, "after")
    agent = await bench.agent(model)
    assert (await agent.run("q1")).text == "third time"
    with pytest.raises(ModelError):
        await agent.run("q2")
    assert (await agent.run("q3")).text == "after"
    assert bench.store.shape("c") == "u a u u a"


@pytest.mark.parametrize("code", ["rate_limited", "circuit_open"])
async def test_ag_7_nobody_is_asked_before_the_time_that_they_asked_for(
    bench: Any, code: Any
) -> None:
    """A long wait is the caller's to decide upon: the turn fails at once and says how long."""
    model = ScriptedModel(ModelError("later", code=code, retryable=True, retry_after=3600), "no")
    agent = await bench.agent(model)
    with pytest.raises(ModelError) as caught:
        await agent.run("q1")
    assert (caught.value.code, caught.value.retry_after) == (code, 3600)
    assert len(model.requests) == 1


async def test_ag_4_empty_replies_are_retried_and_never_stored(bench: Any) -> None:
    empty = Message("assistant", "")
    agent = await bench.agent(ScriptedModel(empty, "said", empty, empty, empty))
    assert (await agent.run("q")).text == "said"
    with pytest.raises(ModelError, match="empty"):
        await agent.run("q")
    assert bench.store.shape("c") == "u a u"


async def test_ag_5_a_store_error_reaches_run_and_leaves_the_turn_open(bench: Any) -> None:
    answer = asyncio.Event()
    agent = await bench.agent(ScriptedModel(Held(answer, "one"), "two"))
    running = agent.run("q", turn_id="T")
    await bench.until(lambda: bench.store.shape("c") == "u")
    bench.store.fail_next = [DiskFull("/data")]
    answer.set()
    with pytest.raises(DiskFull):
        await running
    assert bench.store.last_mark("c") is None
    assert (await agent.run("q", turn_id="T")).text == "two"
    assert bench.store.shape("c") == "u a"


async def test_ag_10_clear_acts_at_once_and_nothing_is_stored_after(bench: Any) -> None:
    gate = asyncio.Event()
    agent = await bench.agent(ScriptedModel(Held(gate, "late"), "fresh"))
    running = agent.run("q")
    await bench.until(lambda: bench.store.logs.get("c"))
    await agent.clear()
    with pytest.raises(ConversationCleared):
        await running
    gate.set()
    await asyncio.sleep(0)
    assert await agent.messages() == ()
    assert (await agent.run("q")).text == "fresh"


async def test_ag_10_add_messages_waits_for_the_turn(bench: Any) -> None:
    gate = asyncio.Event()
    agent = await bench.agent(ScriptedModel(Held(gate, "answer"), "next"))
    running = agent.run("q")
    added = agent.add_messages([{"role": "user", "content": "aside"}])
    await asyncio.sleep(0.01)
    assert not added.done()
    gate.set()
    await running
    await added
    assert [m.content for m in await agent.messages()] == ["q", "answer", "aside"]
    with pytest.raises(InvalidValue):
        agent.add_messages("text")


async def test_ag_9_stateless(bench: Any) -> None:
    model = ScriptedModel([Call("add", {"a": 1, "b": 1})], "two", "next")
    agent = await bench.agent(model, tools=[add], memory="none")
    assert (await agent.run("q")).text == "two"
    assert await agent.messages() == ()
    await agent.run("q2")
    assert [m.content for m in model.requests[-1].messages] == ["q2"]
    assert bench.store.logs == {}


async def test_us_1_usage_sums_all_calls_of_the_turn_and_survives_the_log(bench: Any) -> None:
    calls = Message("assistant", None, [{"id": "c1", "name": "add", "arguments": {"a": 1, "b": 2}}])
    model = ScriptedModel(
        ModelReply(calls, Usage(10, 1)), ModelReply(Message("assistant", "done"), Usage(20, 2))
    )
    agent = await bench.agent(model, tools=[add])
    result = await agent.run("q", turn_id="T")
    assert (result.usage.input_tokens, result.usage.output_tokens) == (30, 3)
    assert (await agent.run("q", turn_id="T")).usage == result.usage


async def test_us_1_usage_counts_replies_that_were_not_used(bench: Any) -> None:
    empty = ModelReply(Message("assistant", ""), Usage(10, 0))
    agent = await bench.agent(
        ScriptedModel(empty, ModelReply(Message("assistant", "x"), Usage(10, 1)))
    )
    assert (await agent.run("q")).usage.input_tokens == 20


# -- limits -----------------------------------------------------------------------------------


async def test_lm_1_f36_max_rounds(bench: Any) -> None:
    ran: list[int] = []

    @tool
    def step() -> str:
        """Step."""
        ran.append(1)
        return "ok"

    model = ScriptedModel([Call("step")], [Call("step")], [Call("step")], "after")
    agent = await bench.agent(model, tools=[step], max_rounds=2)
    with pytest.raises(LimitReached) as caught:
        await agent.run("go")
    assert (caught.value.limit, len(ran), len(model.requests)) == ("max_rounds", 1, 2)
    assert caught.value.result.status == "limit"
    assert bench.store.shape("c") == "u a(call_1) t(call_1) a(call_2) t(call_2)"
    assert error_type_of(bench.store.results("c")["call_2"]) == "skipped"
    assert bench.store.last_mark("c")["ended"] == "limit"


async def test_lm_1_max_tool_calls_without_overshoot(bench: Any) -> None:
    model = ScriptedModel([Call("add", {"a": i, "b": i}) for i in range(5)], "next")
    agent = await bench.agent(model, tools=[add], max_tool_calls=2)
    with pytest.raises(LimitReached) as caught:
        await agent.run("go")
    assert caught.value.limit == "max_tool_calls"
    kinds = [error_type_of(text) for text in bench.store.results("c").values()]
    assert sorted(kinds, key=str) == [None, None, "skipped", "skipped", "skipped"]
    assert (await agent.run("more")).text == "next"


async def test_lm_1_turn_timeout(bench: Any) -> None:
    never = asyncio.Event()
    agent = await bench.agent(ScriptedModel(Held(never, "x"), "next"), turn_timeout=0.3)
    with pytest.raises(LimitReached) as caught:
        await agent.run("go")
    assert caught.value.limit == "turn_timeout"
    assert (await agent.run("more")).text == "next"


async def test_lm_1_model_timeout_is_a_model_error(bench: Any) -> None:
    never = asyncio.Event()
    held = Held(never, "x")
    agent = await bench.agent(ScriptedModel(held, held, held), model_timeout=0.01)
    with pytest.raises(ModelError) as caught:
        await agent.run("go")
    assert (caught.value.code, caught.value.attempts) == ("timeout", 3)


# -- windows and identity ---------------------------------------------------------------------


async def test_pv_3_the_log_is_the_same_with_and_without_a_window(bench: Any) -> None:
    script = [[Call("add", {"a": 1, "b": 2})], "one", "two"]
    plain, windowed = ScriptedModel(*script), ScriptedModel(*script)
    one = await bench.agent(plain, "plain", tools=[add])
    two = await bench.agent(windowed, "windowed", tools=[add], memory=Window(2))
    for agent in (one, two):
        await agent.run("q1")
        await agent.run("q2")
    assert bench.store.shape("plain") == bench.store.shape("windowed")
    assert [len(r.messages) for r in plain.requests] == [1, 3, 5]
    assert [len(r.messages) for r in windowed.requests] == [1, 3, 2]


async def test_kf_9_agents_of_one_conversation_take_turns(bench: Any) -> None:
    async def reply(_request: Any) -> str:
        await asyncio.sleep(0)
        return "x"

    agents = [await bench.agent(FunctionModel(reply)) for _ in range(3)]
    await asyncio.gather(*(agent.run("q") for agent in agents for _ in range(3)))
    assert bench.store.shape("c") == " ".join(["u a"] * 9)


async def test_f46_a_tool_that_asks_its_own_agent_is_told_so(bench: Any) -> None:
    agents: list[Any] = []

    @tool
    async def ask_myself() -> str:
        """Ask."""
        with pytest.raises(AskedItself):
            agents[0].run("inside")
        return "refused"

    agent = await bench.agent(ScriptedModel([Call("ask_myself")], "done"), tools=[ask_myself])
    agents.append(agent)
    assert (await agent.run("go")).text == "done"
    assert bench.store.results("c") == {"call_1": "refused"}


async def test_us_1_f37_usage_counts_each_call_once_when_the_turn_fails(bench: Any) -> None:
    calls = Message("assistant", None, [{"id": "c1", "name": "add", "arguments": {"a": 1, "b": 2}}])
    empty = ModelReply(Message("assistant", ""), Usage(7, 0))
    model = ScriptedModel(
        ModelReply(calls, Usage(10, 1)), empty, empty, empty,
        ModelReply(Message("assistant", "done"), Usage(20, 2)),
    )  # fmt: skip
    agent = await bench.agent(model, tools=[add])
    with pytest.raises(ModelError):
        await agent.run("q", turn_id="T")
    assert bench.store.last_mark("c")["usage"]["input_tokens"] == 21
    result = await agent.run("q", turn_id="T")
    assert (result.usage.input_tokens, result.usage.output_tokens) == (10 + 21 + 20, 3)


async def test_pv_2_an_unknown_conversation_is_empty(bench: Any) -> None:
    agent = await bench.agent(ScriptedModel("one"))
    assert await agent.messages() == ()
    assert bench.store.logs == {}
