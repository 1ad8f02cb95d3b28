"""Contexts of agents are cut from the log: whole, incrementally summarized, at the cost of what is
shown (F12, F14, E8; CS-23)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keepwell import Runtime
from keepwell.actors import telemetry
from keepwell.agent.approval import Allow, Approve, Ask
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.scripted_model import Call, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.turn_errors import ConversationCleared
from keepwell.memory import context as memory_context
from keepwell.memory.budget import ContextTooLarge
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.turn import Turn
from keepwell.memory.window import Window
from keepwell.stores.errors import StoreUnavailable
from keepwell.stores.log import LazyLog
from keepwell.stores.message import Message, ToolCall
from keepwell.stores.record import NewRecord
from keepwell.stores.token_counter import NoCounter


def letters(text: str) -> int:
    """One token a character: budgets can be read off the test."""
    return len(text)


class Summarizer:
    """Remembers which turns it was passed, in this process and for as long as the test."""

    name = "of the test"

    def __init__(self) -> None:
        self.passed: list[Any] = []

    def __call__(self, previous: str | None, new: Sequence[Turn]) -> str:
        self.passed += [turn["content"] for turn in new]
        return f"S{len(self.passed)}"


def answered(request: Any) -> str:
    return f"answer {request.messages[-1].content}"


def spec_of(summarizer: Summarizer, model: Any = None, **options: Any) -> AgentSpec:
    policy = ContextPolicy("summary", 200, summarizer, 60)
    return AgentSpec(
        FunctionModel(answered) if model is None else model, context=policy,
        count_tokens=letters, **options,
    )  # fmt: skip


async def test_f12_each_turn_is_summarized_once_over_restarts(tmp_path: Path) -> None:
    """The watermark is kept beside the log: agents, and processes, go on from it."""
    summarizer = Summarizer()
    for life in range(4):
        async with Runtime(tmp_path) as runtime:
            for half in range(2):
                agent = await runtime.spawn(spec_of(summarizer), "c")
                for number in range(5):
                    await agent.run(f"q{life}{half}{number}")
                await agent.stop()
            said = [m.content for m in await runtime.store.get("c")]
    assert len(summarizer.passed) > 60
    assert summarizer.passed == said[: len(summarizer.passed)]  # each once, in order, no gap


async def test_f12_the_summary_goes_with_the_conversation(tmp_path: Path) -> None:
    summarizer = Summarizer()
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec_of(summarizer), "c")
        for number in range(12):
            await agent.run(f"first {number}")
        assert summarizer.passed
        await agent.clear()
        summarizer.passed.clear()
        for number in range(12):
            await agent.run(f"second {number}")
    assert summarizer.passed and not any("first" in content for content in summarizer.passed)


async def test_f12_stores_keep_their_summaries_apart(tmp_path: Path) -> None:
    """The same conversation id in two stores is two conversations, with two summaries."""
    from keepwell.stores import DiskStore, MemoryStore

    both = [Summarizer(), Summarizer()]
    async with Runtime(tmp_path / "a") as runtime:
        stores: list[Any] = [DiskStore(tmp_path / "b"), MemoryStore()]
        for summarizer, store in zip(both, stores, strict=True):
            agent = await runtime.spawn(spec_of(summarizer, memory=store), "c")
            for number in range(12):
                await agent.run(f"question {number}")
    assert both[0].passed == both[1].passed != []


async def test_f12_behind_a_window_no_turn_is_summarized_twice(bench: Any) -> None:
    summarizer = Summarizer()
    policy = ContextPolicy("summary", 200, summarizer, 60)
    agent = await bench.agent(
        FunctionModel(answered), memory=Window(20), context=policy, count_tokens=letters
    )
    for number in range(30):
        await agent.run(f"question {number}")
    assert len(summarizer.passed) > 20
    assert len(set(summarizer.passed)) == len(summarizer.passed)


async def test_f13_a_summarizer_that_hangs_costs_only_the_summary(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_context, "SUMMARY_SECONDS", 0.01)

    async def hangs(previous: Any, new: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel(*["a" * 20] * 8)
    policy = ContextPolicy("summary", 100, hangs)
    agent = await bench.agent(model, context=policy, count_tokens=letters)
    for number in range(5):
        await agent.run(f"{number}" * 20)
    assert "earlier turns elided" in model.requests[-1].messages[0].content


class Touches:
    """Counts the records that are read of lazy logs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = LazyLog._range

        def counted(log: LazyLog, start: int, stop: int) -> Any:
            records = original(log, start, stop)
            self.count += len(records)
            return records

        monkeypatch.setattr(LazyLog, "_range", counted)


@pytest.mark.parametrize("scope", ["whole_session", "summary"])
async def test_f14_a_turn_reads_as_much_of_a_long_log_as_of_a_short_one(
    scope: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a tool loop, after a pause and in a new incarnation too; once the summary stands."""

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    counts: dict[int, list[int]] = {}
    policy = ContextPolicy(scope, 400, lambda previous, new: "S", 60)
    async with Runtime(store=_memory_store()) as runtime:
        for size in (100, 4000):
            cid = f"c{size}"
            said = [
                NewRecord({"role": role, "content": f"{role} says this"})
                for _ in range(size // 2) for role in ("user", "assistant")
            ]  # fmt: skip
            await runtime.store.add(cid, said)
            model = ScriptedModel(
                "settled", [Call("look"), Call("look")], "done", [Call("look")], "resumed", "fresh"
            )
            spec = AgentSpec(
                model, tools=[look], context=policy, count_tokens=letters,
                gate=lambda call: Ask() if call.turn_id == "pauses" else Allow(),
            )  # fmt: skip
            agent = await runtime.spawn(spec, cid)
            await agent.run("the first one")  # a summary reads the whole log, once
            touches = Touches(monkeypatch)
            seen = counts.setdefault(size, [])
            await agent.run("with tools", turn_id="plain")
            seen.append(touches.count)
            await agent.stop()
            agent = await runtime.spawn(spec, cid)
            await agent.run("anew", turn_id="pauses")
            seen.append(touches.count)
            await agent.resume(Approve())
            seen.append(touches.count)
            monkeypatch.undo()
    # A resume finds the place of its turn by bisection.
    for few, many in zip(counts[100], counts[4000], strict=True):
        assert many <= few + 24, counts


def _memory_store() -> Any:
    from keepwell.stores import MemoryStore

    return MemoryStore(counter=NoCounter())


async def test_ag_3_what_is_shown_is_the_message_itself_in_call_order(bench: Any) -> None:
    """Extra fields (reasoning, signatures) are sent back; results stand in call order."""
    first = Message(
        "assistant", None,
        [{"id": "x", "name": "t", "arguments": {}}, {"id": "y", "name": "t", "arguments": {}}],
        reasoning=[{"type": "thinking", "signature": "sig"}],
    )  # fmt: skip
    await bench.memory(AgentSpec(ScriptedModel("x")))
    bench.store.add("c", [
        NewRecord(Message("user", "q"), "t"), NewRecord(first, "t"),
        NewRecord(Message("tool", "of y", tool_call_id="y"), "t"),
        NewRecord(Message("tool", "of x", tool_call_id="x"), "t"),
        NewRecord(Message("assistant", "answer"), "t", {"ended": "completed"}),
    ])  # fmt: skip
    model = ScriptedModel("fine")
    agent = await bench.agent(
        model, context=ContextPolicy("whole_session", 1000), count_tokens=letters
    )
    await agent.run("next")
    shown = model.requests[-1].messages
    assert [m.content for m in shown] == ["q", None, "of x", "of y", "answer", "next"]
    assert shown[1] is first


async def test_e8_what_each_call_saw_is_in_the_log(bench: Any) -> None:
    reports: list[Any] = []
    model = ScriptedModel(*["a" * 10] * 8)
    policy = ContextPolicy("whole_session", 100)
    with telemetry.attach("keepwell.context.shown", lambda _, f: reports.append(f["report"])):
        agent = await bench.agent(model, context=policy, count_tokens=letters, name="clerk")
        for number in range(8):
            await agent.run(f"{number}" * 10)
    marks = [r.mark["context_report"] for r in bench.store.logs["c"] if r.message.role != "user"]
    assert [report.to_dict() for report in reports] == [dict(one[0]) for one in marks]
    last, shown = reports[-1], model.requests[-1].messages
    assert (last.by, last.scope, last.conversation_id, last.step) == (
        "clerk", "whole_session", "c", 1,
    )  # fmt: skip
    assert last.kept == len(shown) - 1 and last.elided == 15 - last.kept
    assert last.tokens == sum(letters(str(m.content)) for m in shown) <= 100


async def test_cs_23_a_store_that_goes_away_while_a_context_is_cut_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A touch of a log never waits, it raises; the turn does not notice."""
    model = ScriptedModel("one", "two")
    async with Runtime(store=_memory_store()) as runtime:
        policy = ContextPolicy("whole_session", 1000)
        agent = await runtime.spawn(AgentSpec(model, context=policy, count_tokens=letters), "c")
        await agent.run("first")
        original, left = LazyLog._range, [2]

        def away(log: LazyLog, start: int, stop: int) -> Any:
            if not log.marks and left[0]:
                left[0] -= 1
                raise StoreUnavailable("test", "it restarts")
            return original(log, start, stop)

        monkeypatch.setattr(LazyLog, "_range", away)
        assert (await agent.run("second")).text == "two"
        assert left == [0]
    assert [m.content for m in model.requests[-1].messages] == ["first", "one", "second"]


async def test_rs_8_a_log_that_was_cleared_while_a_context_is_cut_ends_the_turn() -> None:
    async with Runtime(store=_memory_store()) as runtime:

        @tool
        async def clears() -> str:
            """Clear the log behind the agent's back."""
            await runtime.store.clear("c")
            return "cleared"

        policy = ContextPolicy("whole_session", 1000)
        model = ScriptedModel("one", [Call("clears")], "never shown", "two")
        spec = AgentSpec(model, tools=[clears], context=policy, count_tokens=letters)
        agent = await runtime.spawn(spec, "c")
        await agent.run("first")
        with pytest.raises(ConversationCleared):
            await agent.run("second")
        assert await agent.messages() == ()


async def test_a_result_beyond_the_budget_ends_the_turn_and_not_its_rounds_f9() -> None:
    """A model that is never shown what its call gave would call again, round after round."""

    def calls(request: Any) -> Any:
        return "seen" if request.messages[-1].role == "tool" else ToolCall("c", "big", {})

    @tool
    async def big() -> str:
        """Give a lot."""
        return "much " * 3000

    policy = ContextPolicy(scope="whole_session", max_tokens=1000)
    async with Runtime() as runtime:
        model = FunctionModel(calls)
        agent = await runtime.spawn(AgentSpec(model, tools=[big], context=policy))
        with pytest.raises(ContextTooLarge, match="result of the last tool calls") as refused:
            await agent.run("q")
        assert refused.value.needed > 3000
        spec = AgentSpec(model, tools=[big], context=policy, max_result_characters=1000)
        assert (await (await runtime.spawn(spec)).run("q")).text == "seen"
