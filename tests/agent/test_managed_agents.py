"""Background sub-agents: spawn, list, result, kill, restart (SA-3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.managed_agents import managed_agents
from keepwell.agent.model import ModelRequest
from keepwell.agent.scripted_model import ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.runtime import Runtime
from keepwell.stores.message import Message, ToolCall


class Desk:
    """An agent whose user messages are tool calls: `tool {json}`; answers are the results."""

    def __init__(self, child: AgentSpec) -> None:
        self.spec = AgentSpec(FunctionModel(self.reply), tools=managed_agents(child), name="desk")

    @staticmethod
    def reply(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return last.content
        name, _, arguments = last.text.partition(" ")
        return Message("assistant", None, [ToolCall(f"x{request.step}", name, arguments or "{}")])


async def ask(desk: Any, name: str, **arguments: Any) -> Any:
    return json.loads((await desk.run(f"{name} {json.dumps(arguments)}")).text)


def message(answer: Any) -> str:
    text = answer["error"]["message"]
    assert isinstance(text, str)
    return text


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with Runtime() as runtime:
        yield runtime


async def ended(agent: Any, agent_id: str) -> Any:
    async with asyncio.timeout(10):
        while True:
            answer = await ask(agent, "agent_result", id=agent_id)
            if "error" not in answer or isinstance(answer["error"], str):
                return answer


async def test_sa_3_from_running_to_done(runtime: Runtime) -> None:
    gate = asyncio.Event()

    async def work(request: ModelRequest) -> str:
        await gate.wait()
        return f"done: {request.messages[-1].text}"

    desk = Desk(AgentSpec(FunctionModel(work), name="worker"))
    agent = await runtime.spawn(desk.spec, "c")
    one = await ask(agent, "spawn_agent", agent="worker", task="dig", background="deep")
    assert one["status"] == "running"
    assert message(await ask(agent, "agent_result", id=one["id"])).startswith("not_ready")
    listed = await ask(agent, "list_agents")
    assert listed == [{"id": one["id"], "agent": "worker", "status": "running"}]
    gate.set()
    assert await ended(agent, one["id"]) == {"status": "done", "result": "done: dig\n\ndeep"}
    async with asyncio.timeout(10):
        while await runtime.has_conversations("c/managed/"):  # until its log is cleared  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
    other = await runtime.spawn(desk.spec, "d")
    assert await ask(other, "list_agents") == []
    assert message(await ask(other, "agent_result", id=one["id"])).startswith("not_found")
    assert message(await ask(agent, "agent_result", id="nope")).startswith("not_found")
    assert "available: worker" in message(await ask(agent, "spawn_agent", agent="x", task="t"))


async def test_sa_3_kill_and_restart(runtime: Runtime) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    asked: list[int] = []

    async def work(_request: ModelRequest) -> str:
        number = len(asked)
        asked.append(number)
        await gates[number].wait()
        return f"run {number}"

    desk = Desk(AgentSpec(FunctionModel(work), name="worker"))
    agent = await runtime.spawn(desk.spec, "c")
    one = (await ask(agent, "spawn_agent", agent="worker", task="dig"))["id"]
    async with asyncio.timeout(10):
        while not asked:  # noqa: ASYNC110 - what is waited for is state
            await asyncio.sleep(0)
    assert (await ask(agent, "restart_agent", id=one))["status"] == "running"
    gates[0].set()  # the late old result is ignored
    gates[1].set()
    assert await ended(agent, one) == {"status": "done", "result": "run 1"}
    assert (await ask(agent, "kill_agent", id=one))["status"] == "done"  # ended: nothing happens

    gates[1].clear()
    asked[:] = [0]
    two = (await ask(agent, "spawn_agent", agent="worker", task="dig"))["id"]
    assert (await ask(agent, "kill_agent", id=two))["status"] == "killed"
    assert (await ended(agent, two))["status"] == "killed"


async def test_sa_3_what_fails_says_why(runtime: Runtime) -> None:
    desk = Desk(AgentSpec(FunctionModel(lambda _request: 1 / 0), name="worker"))
    agent = await runtime.spawn(desk.spec, "c")
    one = (await ask(agent, "spawn_agent", agent="worker", task="dig"))["id"]
    answer = await ended(agent, one)
    assert answer["status"] == "failed"
    assert "ZeroDivisionError" in answer["error"]


async def test_sa_3_after_a_restart_of_the_program_it_is_failed(tmp_path: Path) -> None:
    async def hang(_request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return ""

    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(Desk(AgentSpec(FunctionModel(hang), name="worker")).spec, "c")
        one = (await ask(agent, "spawn_agent", agent="worker", task="dig"))["id"]
        async with asyncio.timeout(10):
            while not await runtime.has_conversations("c/managed/"):
                pass
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(Desk(AgentSpec(FunctionModel(hang), name="worker")).spec, "c")
        assert message(await ask(agent, "agent_result", id=one)).startswith("failed")


@pytest.mark.parametrize("specs", [(), ("gpt",), (5,)])
def test_sub_agents_are_specs(specs: Any) -> None:
    with pytest.raises(InvalidValue):
        managed_agents(*specs)


def test_their_names_are_distinct() -> None:
    spec = AgentSpec(ScriptedModel("x"), name="same")
    with pytest.raises(InvalidValue, match="two"):
        managed_agents(spec, spec)
