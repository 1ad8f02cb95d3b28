"""Streams: order, completeness, late and gone readers (EV-1, EV-2)."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.errors import ModelError
from keepwell.agent.events import (
    ModelEnded,
    ModelStarted,
    StepRestarted,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from keepwell.agent.model import TextDelta as TextPiece
from keepwell.agent.scripted_model import Broken, Call, Held, ScriptedModel
from keepwell.agent.stream import Listener
from keepwell.agent.tool import tool
from keepwell.agent.turn_errors import Busy, TurnCancelled, TurnNotRunning


@tool
async def work() -> str:
    """Work."""
    return "worked"


def names(events: list[Any]) -> list[str]:
    out: list[str] = []
    for event in events:
        name = type(event).__name__
        if name != "TextDelta" or not out or out[-1] != "TextDelta":
            out.append(name)
    return out


ORDER = [
    "TurnStarted", "ModelStarted", "ModelEnded", "ToolStarted", "ToolEnded", "ModelStarted",
    "TextDelta", "ModelEnded", "TurnEnded",
]  # fmt: skip


async def test_ev_1_events_in_order_and_deltas_join_to_the_text(bench: Any) -> None:
    agent = await bench.agent(
        ScriptedModel([Call("work")], "a longer answer than a chunk"), tools=[work]
    )
    events = [event async for event in agent.stream("go", turn_id="T")]
    assert names(events) == ORDER
    assert events[0] == TurnStarted("c", "T")
    assert (
        "".join(e.text for e in events if isinstance(e, TextDelta))
        == "a longer answer than a chunk"
    )
    assert [e.step for e in events if isinstance(e, ModelStarted | ModelEnded)] == [1, 1, 3, 3]
    ended = events[-1]
    assert isinstance(ended, TurnEnded)
    assert ended.result == await agent.run("go", turn_id="T")


async def test_ev_1_ended_comes_after_the_commit(bench: Any) -> None:
    agent = await bench.agent(ScriptedModel([Call("work")], "done"), tools=[work])
    async for event in agent.stream("go"):
        if isinstance(event, ModelEnded | ToolEnded):
            stored = [r.message for r in bench.store.logs["c"]]
            want = event.message if isinstance(event, ModelEnded) else event.content
            assert want in stored or want in [m.content for m in stored]


async def test_ev_1_nothing_is_shown_before_what_came_before_is_stored(bench: Any) -> None:
    agent = await bench.agent(ScriptedModel("done"))
    bench.store.held = True
    stream = agent.stream("go")
    assert isinstance(await anext(stream), TurnStarted)
    reader = asyncio.ensure_future(anext(stream))
    await bench.until(lambda: bench.store.queue)
    await asyncio.sleep(0)
    assert not reader.done()
    bench.store.held = False
    bench.store.commit()
    assert isinstance(await reader, ModelStarted)


async def test_ev_1_a_repeated_model_call_says_so(bench: Any) -> None:
    error = ModelError("cut", retryable=True, retry_after=0.001)
    agent = await bench.agent(ScriptedModel(Broken("half an answer", error), "whole"))
    events = [event async for event in agent.stream("go")]
    restarted = next(i for i, e in enumerate(events) if isinstance(e, StepRestarted))
    text = "".join(e.text for e in events[restarted:] if isinstance(e, TextDelta))
    assert text == "whole"


async def test_ev_1_the_error_is_the_last_thing(bench: Any) -> None:
    agent = await bench.agent(ScriptedModel(ModelError("down")))
    stream = agent.stream("go")
    with pytest.raises(ModelError):
        [event async for event in stream]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_ev_2_a_gone_reader_does_not_hold_the_turn(bench: Any) -> None:
    agent = await bench.agent(ScriptedModel([Call("work")], "done"), tools=[work])
    stream = agent.stream("go", turn_id="T")
    await anext(stream)
    await stream.aclose()
    assert (await agent.run("go", turn_id="T")).text == "done"


async def test_ev_2_a_stream_joins_a_running_turn_and_is_shown_what_was(bench: Any) -> None:
    gate = asyncio.Event()
    agent = await bench.agent(ScriptedModel([Call("work")], Held(gate, "done")), tools=[work])
    running = agent.run("go", turn_id="T")
    await bench.until(lambda: "t(call_1)" in bench.store.shape("c"))
    stream = agent.stream(turn_id="T")
    gate.set()
    events = [event async for event in stream]
    await running
    assert names(events) in (ORDER, [n for i, n in enumerate(ORDER) if i != 5])
    with pytest.raises(TurnNotRunning):
        agent.stream(turn_id="T")
    with pytest.raises(InvalidValue):
        agent.stream()


async def test_ev_2_a_stream_that_joins_in_mid_sentence_has_the_whole_sentence(bench: Any) -> None:
    """EV-1: the deltas join to the stored text for each reader, whenever it came."""
    half, rest = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            yield TextPiece("first half, ")
            half.set()
            await rest.wait()
            yield TextPiece("second half")
            yield await self.complete(request)

    agent = await bench.agent(Slow("first half, second half"))
    early = agent.stream("go", turn_id="T")
    first = await anext(early)
    await half.wait()
    late = agent.stream(turn_id="T")
    rest.set()
    for events in ([first, *[e async for e in early]], [e async for e in late]):
        text = "".join(e.text for e in events if isinstance(e, TextDelta))
        assert text == "first half, second half"
        assert names(events) == [
            "TurnStarted", "ModelStarted", "TextDelta", "ModelEnded", "TurnEnded"
        ]  # fmt: skip


@pytest.mark.parametrize("watched", [True, False])
async def test_ev_2_a_late_stream_is_shown_what_was_before_anything_else_happens(
    bench: Any, watched: bool
) -> None:
    never = asyncio.Event()

    class Stuck(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            if len(request.messages) > 1:
                yield TextPiece("half a ")
                yield TextPiece("sentence")
                await never.wait()
            yield await self.complete(request)

        async def complete(self, request: Any) -> Any:
            if len(request.messages) > 1:
                asked.set()
                await never.wait()
            return await super().complete(request)

    asked = asyncio.Event()
    agent = await bench.agent(Stuck([Call("work")]), tools=[work])
    running = agent.run("go", turn_id="T")
    if watched:
        async for event in agent.stream("go", turn_id="T"):
            if isinstance(event, TextDelta) and "sentence" in event.text:
                break
    else:
        await asked.wait()
    late = agent.stream(turn_id="T")
    shown: list[Any] = []
    while names(shown)[-1:] != ["TextDelta" if watched else "ModelStarted"] or len(shown) < 5:
        shown.append(await anext(late))
    assert names(shown) == ORDER[: 7 if watched else 6]
    if watched:
        assert shown[-1].text == "half a sentence"
    await agent.cancel("T")
    with pytest.raises(TurnCancelled):
        await running


async def test_ag_6_a_stream_of_a_completed_turn_shows_it_again(bench: Any) -> None:
    model = ScriptedModel([Call("work")], "done", "other")
    agent = await bench.agent(model, tools=[work])
    result = await agent.run("go", turn_id="T")
    for _ in range(2):  # as the newest turn of the log, and after another one
        events = [event async for event in agent.stream("go", turn_id="T")]
        assert names(events) == ORDER
        assert events[-1] == TurnEnded(result)
        await agent.run("else", turn_id="U")
    assert len(model.requests) == 3


async def test_ev_2_on_abandon_cancel(bench: Any) -> None:
    never = asyncio.Event()
    agent = await bench.agent(ScriptedModel(Held(never, "x")))
    stream = agent.stream("go", on_abandon="cancel")
    await anext(stream)
    del stream
    gc.collect()
    await bench.until(lambda: (bench.store.last_mark("c") or {}).get("ended") == "cancelled")


async def test_a_refused_stream_raises_from_its_iterator(bench: Any) -> None:
    never = asyncio.Event()
    agent = await bench.agent(ScriptedModel(Held(never, "x")), on_busy="reject")
    running = agent.run("one")
    with pytest.raises(Busy):
        await anext(agent.stream("two"))
    await agent.cancel()
    assert running.done()


def test_ev_2_deltas_merge_and_step_events_stay() -> None:
    listener = Listener()
    for step in range(3):
        listener.push(ModelStarted(step))
        for _ in range(1000):
            listener.push(TextDelta(step, "x"))
    taken = []
    for _ in range(6):
        event, _more = listener.take()
        taken.append(event)
    assert [type(e) for e in taken] == [ModelStarted, TextDelta] * 3
    assert taken[1] == TextDelta(0, "x" * 1000)


async def test_tool_events_carry_what_was_called_and_what_came(bench: Any) -> None:
    agent = await bench.agent(ScriptedModel([Call("nope", {"a": 1})], "done"), tools=[work])
    events = [event async for event in agent.stream("go")]
    started = next(e for e in events if isinstance(e, ToolStarted))
    ended = next(e for e in events if isinstance(e, ToolEnded))
    assert (started.call_id, started.name, started.arguments) == ("call_1", "nope", {"a": 1})
    assert (ended.call_id, ended.step, ended.error) == ("call_1", 2, "unknown_tool")


async def test_ev_1_a_model_call_repeated_after_a_crash_says_so(bench: Any) -> None:
    never = asyncio.Event()
    agent = await bench.agent(ScriptedModel(Held(never, "x"), "after the crash"))
    stream = agent.stream("go")
    assert isinstance(await anext(stream), TurnStarted)
    assert isinstance(await anext(stream), ModelStarted)
    await bench.crash(agent)
    events = [event async for event in stream]
    assert names(events) == ["StepRestarted", "TextDelta", "ModelEnded", "TurnEnded"]
