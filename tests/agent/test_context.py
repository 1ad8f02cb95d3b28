"""The token budget of an agent: hard, announced, with the question always shown (F6…F13, E8)."""

from __future__ import annotations

from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.scripted_model import Call, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.memory.budget import ContextTooLarge
from keepwell.memory.context_policy import ContextPolicy


def letters(text: str) -> int:
    """One token a character: budgets can be read off the test."""
    return len(text)


def shown(model: ScriptedModel, call: int = -1) -> list[Any]:
    return [m.content for m in model.requests[call].messages]


async def test_whole_session_is_cut_to_the_budget_and_announced(bench: Any) -> None:
    model = ScriptedModel(*["a" * 10] * 8)
    agent = await bench.agent(
        model, context=ContextPolicy("whole_session", max_tokens=100), count_tokens=letters
    )
    for i in range(8):
        await agent.run(str(i) * 10)
        total = sum(letters(str(content)) for content in shown(model))
        assert total <= 100 - 100 // 8
    last = shown(model)
    assert last[-1] == "7" * 10
    assert "earlier turns elided" in last[0]
    assert len(await agent.messages()) == 16


@pytest.mark.parametrize("scope", ["none", "local"])
async def test_a_policy_that_does_not_read_shows_the_turn_only(bench: Any, scope: Any) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel("one", [Call("look")], "two")
    agent = await bench.agent(
        model, tools=[look], context=ContextPolicy(scope), instructions="be brief"
    )
    await agent.run("q1")
    await agent.run("q2")
    assert shown(model, 1) == ["be brief", "q2"]
    assert shown(model, 2) == ["be brief", "q2", None, "seen"]


async def test_the_system_prompt_stands_inside_the_budget(bench: Any) -> None:
    model = ScriptedModel(*["a" * 10] * 4)
    agent = await bench.agent(
        model, instructions="p" * 30,
        context=ContextPolicy("whole_session", max_tokens=110), count_tokens=letters,
    )  # fmt: skip
    for i in range(4):
        await agent.run(str(i) * 10)
    assert shown(model)[0] == "p" * 30
    assert sum(letters(str(content)) for content in shown(model)) <= 110 - 110 // 8


async def test_f9_what_cannot_fit_ends_the_turn_with_a_typed_error(bench: Any) -> None:
    model = ScriptedModel("fine")
    agent = await bench.agent(
        model, context=ContextPolicy("whole_session", max_tokens=40), count_tokens=letters
    )
    with pytest.raises(ContextTooLarge):
        await agent.run("q" * 50)
    assert bench.store.last_mark("c")["ended"] == "failed"
    # The long question is elided from now on: the conversation goes on.
    assert (await agent.run("short")).text == "fine"


async def test_f11_f12_f13_a_summary_stands_for_what_was_cut(bench: Any) -> None:
    calls: list[tuple[Any, list[Any]]] = []

    async def summarize(previous: Any, new: Any) -> str:
        if len(calls) == 1:
            calls.append((previous, []))
            raise RuntimeError("down")
        calls.append((previous, [turn["content"] for turn in new]))
        return f"S{len(calls)}"

    model = ScriptedModel(*["a" * 10] * 10)
    policy = ContextPolicy("summary", max_tokens=120, summarizer=summarize)
    agent = await bench.agent(model, context=policy, count_tokens=letters)
    for i in range(10):
        await agent.run(str(i) * 10)
        assert sum(letters(str(content)) for content in shown(model)) <= 120 - 120 // 8
    passed = [content for _previous, new in calls for content in new]
    assert len(passed) == len(set(passed)) or passed.count("a" * 10) > 1
    questions = [content for content in passed if content[0].isdigit()]
    assert questions == sorted(questions)
    assert len(questions) == len(set(questions))  # none is passed twice
    assert shown(model)[0].startswith("Summary of ")


def test_a_policy_is_one() -> None:
    with pytest.raises(InvalidValue, match="context="):
        AgentSpec(ScriptedModel("x"), context="summary")  # type: ignore[arg-type]  # what is tested
