"""Budget: ceilings are hard, markers are true, every input makes progress.

What is counted is what the model is really sent, with the counter that the budget is meant for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from keepwell.agent.function_model import FunctionModel
from keepwell.agent.tool import tool
from keepwell.memory.budget import ContextTooLarge
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.token_counter import MEDIA_TOKENS, TiktokenCounter
from keepwell.memory.turn import Turn, TurnCost, message_turn
from keepwell.memory.window import Window
from keepwell.stores.message import Message, ToolCall
from keepwell.testing.provider_rules import check_history, check_requests


@tool
async def look(what: str) -> str:
    """Look."""
    return f"saw {what}: " + what * 3


class Recorder:
    """Calls two tools, then answers, and so on; keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[Sequence[Message]] = []
        self.model = FunctionModel(self.reply)

    def reply(self, request: Any) -> Any:
        self.sent.append(request.messages)
        if len(self.sent) % 2 == 0:
            return "an answer to all of it"
        asked = request.messages[-1].text
        return Message("assistant", "looking", [
            ToolCall(f"{asked}{n}", "look", {"what": f"{asked}{n}"}) for n in (1, 2)
        ])  # fmt: skip


def count(messages: Sequence[Message], counter: Any) -> int:
    cost = TurnCost(counter)
    return sum(cost(message_turn(message)) for message in messages)


async def three_turns(bench: Any) -> None:
    agent = await bench.agent(Recorder().model, tools=[look])
    for question in ("one", "two", "three"):
        await agent.run(question)


async def test_fault_f21_every_window_through_a_history_with_groups(bench: Any) -> None:
    await three_turns(bench)
    for size in range(1, 18):
        recorder = Recorder()
        agent = await bench.agent(recorder.model, tools=[look], memory=Window(size))
        await agent.run(f"w{size} ")
        assert len(recorder.sent) == 2
        for messages in recorder.sent:
            check_history(messages)
            check_requests(messages)
            assert any(m.role == "user" and m.text == f"w{size} " for m in messages)


@pytest.mark.parametrize("scope", ["whole_session", "summary"])
async def test_faults_f21_f25_every_budget_through_a_history_with_groups(
    bench: Any, scope: Any
) -> None:
    """Sent is never more than the budget by a real count, and what is left out is announced."""
    await three_turns(bench)
    counter = TiktokenCounter()
    fitted = refused = 0
    for budget in range(8, 330, 9):
        recorder = Recorder()
        policy = ContextPolicy(
            scope, max_tokens=budget, summarizer=lambda _previous, new: "so far " * len(new)
        )
        before = len(bench.store.logs["c"])
        agent = await bench.agent(recorder.model, tools=[look], context=policy)
        try:
            await agent.run("and now?")
        except ContextTooLarge as error:
            refused += 1
            assert error.needed > error.max_tokens
        else:
            fitted += 1
        for messages in recorder.sent:
            assert count(messages, counter) <= budget
            check_history(messages)
            check_requests(messages)
            told = [m.text for m in messages if m.role == "system"]
            assert len(told) <= 1
            if len(messages) < before and budget < 100:
                assert re.match(r"\d+ earlier turns? elided|Summary of \d+ earlier", told[0])
    assert fitted > 5 and refused > 3


async def test_fault_f23_an_image_has_a_flat_price(bench: Any) -> None:
    """A megabyte of base64 is no megabyte of text, and not nothing."""
    image = {"type": "image", "data": "A" * 1_000_000, "media_type": "image/png"}
    question = [{"type": "text", "text": "what is it?"}, image]
    for budget, fits in ((MEDIA_TOKENS // 2, False), (3 * MEDIA_TOKENS, True)):
        sent: list[Any] = []
        model = FunctionModel(lambda request, sent=sent: sent.append(request.messages) or "a cat")
        agent = await bench.agent(
            model, f"c{budget}", context=ContextPolicy("whole_session", max_tokens=budget)
        )
        if fits:
            assert (await agent.run(question)).text == "a cat"
            assert sent[0][-1].content[1]["data"] == image["data"]
        else:
            with pytest.raises(ContextTooLarge):
                await agent.run(question)
            assert sent == []


async def test_fault_f25_summaries_of_summaries_stay_small(bench: Any) -> None:
    """Many compactions in a row: the old summary is folded in, never wrapped in the new one."""
    given: list[tuple[str | None, list[Turn]]] = []

    def summarize(previous: str | None, new: Sequence[Turn]) -> str:
        given.append((previous, list(new)))
        return f"{previous or 'start'} and {len(new)} more"

    sent: list[Any] = []
    model = FunctionModel(lambda request: sent.append(request.messages) or "a" * 20)
    policy = ContextPolicy("summary", max_tokens=200, summarizer=summarize, summary_tokens=60)
    agent = await bench.agent(model, context=policy, count_tokens=lambda text: len(text))
    for n in range(30):
        await agent.run(f"question {n:03}")
        first = sent[-1][0]
        if first.role == "system":
            assert first.text.count("Summary of") <= 1
        assert sum(len(m.text) for m in sent[-1]) <= 200
    assert len(given) >= 5
    for previous, new in given[1:]:
        assert previous is not None
        assert all("Summary of" not in str(turn["content"]) for turn in new)
    assert len(await agent.messages()) == 60
