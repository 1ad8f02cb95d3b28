"""Tools that change while they are used: what agents and kernels see of a source, step by step."""

from __future__ import annotations

from typing import Any

import pytest

import keepwell
from keepwell.actors import Actor, telemetry
from keepwell.agent.scripted_model import Call
from keepwell.agent.tool import Tool
from keepwell.agent.tool_source import LiveTools, is_source


def named(name: str, says: str = "") -> Tool:
    async def run() -> str:
        return says or name

    return Tool(name, f"Does {name}.", {"type": "object", "properties": {}}, run)


class Source(Actor):
    """Its actor has nothing to do; what it offers is a list of this class's caller."""


class Changing:
    name = "changing"

    def __init__(self, *tools: Tool) -> None:
        self.tools = tools
        self.looked = self.started = 0

    def current_tools(self) -> tuple[Tool, ...]:
        return self.tools

    async def settled(self) -> None:
        self.looked += 1

    def is_started(self, system: Any) -> bool:
        return False

    def spawn(self, system: Any) -> Any:
        self.started += 1
        return Source.options(system=system).spawn()

    def learner(self) -> Tool:
        async def run() -> str:
            self.tools = (named("sing"),)
            return "learned"

        return Tool("learn", "Learns.", {"type": "object", "properties": {}}, run)


def changing() -> Changing:
    source = Changing()
    source.tools = (source.learner(),)
    return source


SCRIPT = (Call("learn"), [Call("sing"), Call("learn")], "Done.")


def seen(model: Any) -> list[list[str]]:
    return [[tool.name for tool in request.tools] for request in model.requests]


async def test_an_agent_looks_before_each_step_and_starts_a_source_once() -> None:
    source = changing()
    model = keepwell.ScriptedModel(*SCRIPT)
    async with keepwell.Runtime() as runtime:
        spec = keepwell.AgentSpec(model, tools=[named("own"), source])
        agent = await runtime.spawn(spec, "c")
        result = await agent.run("Sing!")
        await runtime.spawn(spec, "d")
    assert seen(model) == [["own", "learn"], ["own", "sing"], ["own", "sing"]]
    texts = [m.text for m in result.messages if m.role == "tool"]
    assert texts[:2] == ["learned", "sing"]
    assert "unknown_tool" in texts[2]
    assert source.started == 1


async def test_so_does_a_kernel() -> None:
    model = keepwell.ScriptedModel(*SCRIPT)
    result = await keepwell.Kernel(model, tools=[changing()]).invoke("Sing!")
    assert seen(model) == [["learn"], ["sing"], ["sing"]]
    assert result.text == "Done."


async def test_a_team_starts_the_sources_of_all_its_members() -> None:
    source = Changing(named("deep"))
    other = keepwell.AgentSpec(keepwell.ScriptedModel("hi"), name="other", tools=[source])
    spec = keepwell.AgentSpec(
        keepwell.ScriptedModel(Call("handoff_to_other")), name="first", handoffs=[other]
    )
    async with keepwell.Runtime() as runtime:
        agent = await runtime.spawn(spec, "c")
        assert (await agent.run("q")).text == "hi"
    assert source.started == 1
    assert "deep" in seen(other.model)[0]


async def test_the_budget_of_a_context_pays_for_the_tools_of_now() -> None:
    source = changing()
    policy = keepwell.ContextPolicy(scope="whole_session", max_tokens=400)
    model = keepwell.ScriptedModel(*SCRIPT)
    async with keepwell.Runtime() as runtime:
        agent = await runtime.spawn(keepwell.AgentSpec(model, tools=[source], context=policy), "c")
        assert (await agent.run("Sing!")).text == "Done."


def test_the_first_of_a_name_counts_and_the_list_is_the_same_until_it_changes() -> None:
    mine, theirs = named("add", "mine"), named("add", "theirs")
    source = Changing(theirs, named("more"))
    live = LiveTools((source, mine))
    shadowed: list[Any] = []

    def note(event: str, fields: Any) -> None:
        shadowed.append((fields["tool"], fields["source"]))

    with telemetry.attach("keepwell.tool.shadowed", note):
        first = live.now()
        assert first == (source.tools[1], mine)
        assert live.now() is first
        source.tools = (theirs,)
        assert live.now() == (mine,)
    assert shadowed == [("add", "changing")]


@pytest.mark.parametrize("value", [named("x"), Changing, print, None])
def test_what_is_no_source(value: Any) -> None:
    assert not is_source(value)
