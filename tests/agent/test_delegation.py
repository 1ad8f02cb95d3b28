"""Sub-agents: what they see, what is left of them, and how they end (SA-1, SA-2, RS-9)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.approval import Ask
from keepwell.agent.delegation import delegate, fan_out
from keepwell.agent.errors import ModelError
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.scripted_model import Call, Held, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.tool_result import error_type_of
from keepwell.agent.turn_errors import TurnCancelled
from keepwell.runtime import Runtime
from keepwell.stores.message import Message, ToolCall


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with Runtime() as runtime:
        yield runtime


async def children(runtime: Runtime) -> list[str]:
    return [
        i.conversation_id
        for i in await runtime.store.conversations()
        if "/child/" in i.conversation_id
    ]


async def results(runtime: Runtime) -> list[Any]:
    return [m.content for m in await runtime.store.get("c") if m.role == "tool"]


def parent(tools: list[Any], *calls: Call, name: str = "boss") -> AgentSpec:
    return AgentSpec(ScriptedModel(list(calls), "done"), tools=tools, name=name)


async def test_sa_1_the_child_sees_task_and_context_and_only_its_answer_comes_back(
    runtime: Runtime,
) -> None:
    model = ScriptedModel("the child's secret working", "42")

    @tool
    async def think() -> str:
        """Think."""
        return "canary"

    child_model = ScriptedModel([Call("think")], "42")
    child = AgentSpec(child_model, name="oracle", tools=[think], instructions="be an oracle")
    call = Call("ask_oracle", {"task": "the answer?", "background": "to everything"})
    agent = await runtime.spawn(parent([delegate(child)], call), "c")
    result = await agent.run("go")
    assert (result.text, await results(runtime)) == ("done", ["42"])
    seen = [m.content for m in child_model.requests[0].messages]
    assert seen == ["be an oracle", "the answer?\n\nto everything"]
    assert "canary" not in str(await runtime.store.get("c"))
    assert await children(runtime) == []  # cleared once the result is stored
    assert result.usage.output_tokens > 0
    del model


async def test_sa_1_a_late_child_is_left_and_stopped(runtime: Runtime) -> None:
    child = AgentSpec(ScriptedModel(Held(asyncio.Event(), "x")), name="slow")
    agent = await runtime.spawn(
        parent([delegate(child, timeout=0.05)], Call("ask_slow", {"task": "t"})), "c"
    )
    await agent.run("go")
    (text,) = await results(runtime)
    assert error_type_of(text) == "transient"
    assert await children(runtime) == []


async def test_sa_1_a_childs_pause_is_an_error(runtime: Runtime) -> None:
    child = AgentSpec(ScriptedModel([Call("x")], "y"), name="shy", gate=lambda _call: Ask())
    agent = await runtime.spawn(parent([delegate(child)], Call("ask_shy", {"task": "t"})), "c")
    assert (await agent.run("go")).text == "done"
    (text,) = await results(runtime)
    assert error_type_of(text) == "semantic"
    assert "human" in text


async def test_sa_1_a_childs_model_error_is_the_calls_error(runtime: Runtime) -> None:
    child = AgentSpec(ScriptedModel(ModelError("down")), name="sick")
    agent = await runtime.spawn(parent([delegate(child)], Call("ask_sick", {"task": "t"})), "c")
    assert (await agent.run("go")).text == "done"
    (text,) = await results(runtime)
    assert error_type_of(text) is not None


async def test_sa_1_the_child_ends_with_the_parents_turn(runtime: Runtime) -> None:
    asked = asyncio.Event()
    ended = asyncio.Event()

    async def reply(_request: Any) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    child = AgentSpec(FunctionModel(reply), name="slow")
    agent = await runtime.spawn(parent([delegate(child)], Call("ask_slow", {"task": "t"})), "c")
    running = agent.run("go")
    await asked.wait()
    await agent.cancel()
    with pytest.raises(TurnCancelled):
        await running
    await asyncio.wait_for(ended.wait(), 5)
    async with asyncio.timeout(5):
        while await children(runtime):  # noqa: ASYNC110 - what is waited for is state
            await asyncio.sleep(0)


async def test_sa_1_depth_is_at_most_3(runtime: Runtime) -> None:
    def nested(levels: int) -> AgentSpec:
        if not levels:
            return AgentSpec(ScriptedModel("bottom"), name="deep")
        tools = [delegate(nested(levels - 1), name="down")]

        def reply(request: Any) -> Any:
            last = request.messages[-1]
            if last.role == "tool":
                return f"<{last.content}>"
            return Message("assistant", None, [ToolCall("x", "down", {"task": "t"})])

        return AgentSpec(FunctionModel(reply), name="deep", tools=tools)

    agent = await runtime.spawn(nested(3), "three")
    assert (await agent.run("go")).text == "<<<bottom>>>"
    agent = await runtime.spawn(nested(4), "four")
    text = (await agent.run("go")).text
    assert "nested at most 3 deep" in text
    assert "bottom" not in text


async def test_sa_2_fan_out_keeps_task_order(runtime: Runtime) -> None:
    async def reply(request: Any) -> str:
        task = str(request.messages[-1].content)
        await asyncio.sleep(0.02 if task == "one" else 0)
        if task == "bad":
            raise ModelError("no")
        return task.upper()

    child = AgentSpec(FunctionModel(reply), name="worker")
    call = Call("ask_worker_all", {"tasks": ["one", "bad", "three"]})
    agent = await runtime.spawn(parent([fan_out(child)], call), "c")
    await agent.run("go")
    (text,) = await results(runtime)
    assert [next(iter(one)) for one in json.loads(text)] == ["result", "error", "result"]
    assert [one.get("result") for one in json.loads(text)] == ["ONE", None, "THREE"]
    assert await children(runtime) == []


@pytest.mark.parametrize(
    ("tasks", "kind"), [([], "invalid_arguments"), (["bad", "bad"], "semantic")]
)
async def test_sa_2_all_failed_or_none_given(runtime: Runtime, tasks: list[str], kind: str) -> None:
    child = AgentSpec(FunctionModel(lambda _request: 1 / 0), name="worker")
    agent = await runtime.spawn(
        parent([fan_out(child)], Call("ask_worker_all", {"tasks": tasks})), "c"
    )
    await agent.run("go")
    (text,) = await results(runtime)
    assert error_type_of(text) == kind


async def test_rs_9_after_a_crash_the_call_finds_its_childs_turn(tmp_path: Path) -> None:
    ran: list[str] = []
    in_child = asyncio.Event()

    @tool
    async def work() -> str:
        """Work."""
        ran.append("work")
        return "worked"

    async def child_reply(request: Any) -> Any:
        if request.messages[-1].role == "user":
            return Message("assistant", None, [ToolCall("w", "work", {})])
        if not in_child.is_set():
            in_child.set()
            await asyncio.Event().wait()
        return "child done"

    def parent_reply(request: Any) -> Any:
        if request.messages[-1].role == "user":
            return Message("assistant", None, [ToolCall("d", "ask_child", {"task": "t"})])
        return f"parent got {request.messages[-1].content}"

    child = AgentSpec(FunctionModel(child_reply), name="child", tools=[work])
    async with Runtime(tmp_path) as runtime:
        spec = AgentSpec(FunctionModel(parent_reply), tools=[delegate(child)])
        agent = await runtime.spawn(spec, "c")
        running = agent.run("go")
        await in_child.wait()
        agent.ref.kill()
        assert (await asyncio.wait_for(running, 20)).text == "parent got child done"
        assert ran == ["work"]
        assert await children(runtime) == []


@pytest.mark.parametrize("make", [delegate, fan_out])
def test_a_sub_agent_is_a_spec(make: Any) -> None:
    with pytest.raises(InvalidValue):
        make("gpt")
