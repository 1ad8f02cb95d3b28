"""A reader that comes back with the id of the last event gets what follows, each piece once."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from keepwell import (
    AgentSpec,
    InvalidValue,
    ModelEnded,
    ModelError,
    ModelStarted,
    Runtime,
    ScriptedModel,
    StepRestarted,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnStarted,
    tool,
)
from keepwell.agent.events import Event
from keepwell.agent.model import TextDelta as TextPiece
from keepwell.agent.scripted_model import Call, Held
from keepwell.server_sent_events import Position, Reader, event_frames
from keepwell.stores import Message

SAID = Message("assistant", "x")


def said(step: int, *pieces: str) -> list[Event]:
    return [ModelStarted(step), *(TextDelta(step, p) for p in pieces), ModelEnded(step, SAID)]


LIVE: list[Event] = [
    TurnStarted("c", "t"), *said(1, "let ", "me ", "see"),
    ToolStarted(2, "a", "x", {}), ToolStarted(3, "b", "y", {}),
    ToolEnded(3, "b", "y", "B", None), ToolEnded(2, "a", "x", "A", None),
    *said(4, "it ", "is ", "so"),
]  # fmt: skip
AGAIN: list[Event] = [
    TurnStarted("c", "t"), *said(1, "let me see"),
    ToolStarted(2, "a", "x", {}), ToolEnded(2, "a", "x", "A", None),
    ToolStarted(3, "b", "y", {}), ToolEnded(3, "b", "y", "B", None),
    *said(4, "it is", " so"),
]  # fmt: skip


def told(events: list[Event]) -> tuple[dict[int, str], list[str]]:
    """What a reader has of events: the text of each step, and what else happened, sorted."""
    texts: dict[int, str] = {}
    rest: list[str] = []
    for event in events:
        match event:
            case TextDelta(step, text):
                texts[step] = texts.get(step, "") + text
            case StepRestarted(step):
                texts[step] = ""
            case _:
                rest.append(repr(event))
    return texts, sorted(rest)


@pytest.mark.parametrize("cut", range(len(LIVE) + 1))
def test_wherever_a_reader_leaves_it_misses_nothing_and_reads_nothing_twice(cut: int) -> None:
    """The order of parallel calls, and how deltas are merged, differ when a turn is shown again."""
    first = Reader()
    got = [seen for event in LIVE[:cut] for seen in first.unseen(event)]
    assert got == LIVE[:cut]
    again = Reader(Position.of(str(first.position)) if cut else None)
    got += [seen for event in AGAIN for seen in again.unseen(event)]
    assert told(got) == told(LIVE)
    assert not any(isinstance(event, StepRestarted) for event in got)


def test_a_second_disconnection_while_the_text_is_shown_again() -> None:
    reader = Reader()
    got = [seen for event in LIVE[:3] for seen in reader.unseen(event)]
    reader = Reader(Position.of(str(reader.position)))
    got += [s for e in [TurnStarted("c", "t"), ModelStarted(1), TextDelta(1, "l")]
            for s in reader.unseen(e)]  # fmt: skip
    reader = Reader(Position.of(str(reader.position)))
    got += [seen for event in AGAIN for seen in reader.unseen(event)]
    assert told(got) == told(LIVE)


@pytest.mark.parametrize(
    "repeated", [["some", "thing else"], ["let"], [], ["LET ", "me"]], ids=str
)
def test_a_repeated_model_call_that_says_something_else_restarts_the_step(
    repeated: list[str],
) -> None:
    reader = Reader()
    got = [seen for event in LIVE[:4] for seen in reader.unseen(event)]  # "let me "
    reader = Reader(Position.of(str(reader.position)))
    got += [s for e in [TurnStarted("c", "t"), *said(1, *repeated)] for s in reader.unseen(e)]
    assert told(got)[0] == {1: "".join(repeated)}
    assert sum(isinstance(event, StepRestarted) for event in got) == 1
    assert reader.position.ended


def test_a_restart_while_the_text_is_shown_again() -> None:
    reader = Reader(Position.of(str(_after(LIVE[:5]))))
    events: list[Event] = [ModelStarted(1), TextDelta(1, "let"), StepRestarted(1),
                           TextDelta(1, "no"), ModelEnded(1, SAID)]  # fmt: skip
    got = [seen for event in events for seen in reader.unseen(event)]
    assert got == [StepRestarted(1), TextDelta(1, "no"), ModelEnded(1, SAID)]


def test_a_restart_of_which_nothing_was_read_is_not_told() -> None:
    reader = Reader()
    got = [s for e in [ModelStarted(1), StepRestarted(1), *said(1, "no")] for s in reader.unseen(e)]
    assert got == said(1, "no")


def _after(events: list[Event]) -> Position:
    reader = Reader()
    for event in events:
        list(reader.unseen(event))
    return reader.position


def test_a_position_survives_being_written() -> None:
    for cut in range(len(LIVE) + 1):
        position = _after(LIVE[:cut])
        assert Position.of(str(position)) == position
    assert str(_after(LIVE[:8])).endswith("e+2+3")
    assert str(_after(LIVE[:9])).endswith("e+2=3")


@pytest.mark.parametrize("bad", ["t", "t/", "t/x", "t/1.5", "t/-1", "t/1e9 ", "t/" + "9" * 400])
async def test_an_id_that_is_none_of_ours_is_refused_before_the_response(bad: str) -> None:
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel("hello")))
        with pytest.raises(InvalidValue, match="last event"):
            event_frames(agent.stream("hi", turn_id="t"), bad)


def parsed(frames: list[str]) -> list[tuple[str, Any, str]]:
    """(event, data, id) of each frame; comments are left out."""
    out = []
    for frame in frames:
        assert frame.endswith("\n\n")
        fields = dict(line.split(": ", 1) for line in frame.splitlines() if line[:1] not in ":")
        if "event" in fields:
            out.append((fields["event"], json.loads(fields["data"]), fields.get("id", "")))
    return out


@tool
async def look(what: str) -> str:
    """Look."""
    return f"{what}\nin two lines"


async def collected(frames: AsyncIterator[str]) -> list[tuple[str, Any, str]]:
    return parsed([frame async for frame in frames])


async def test_frames_of_a_turn_and_what_is_left_of_them_after_each_id() -> None:
    model = ScriptedModel(Call("look", {"what": "é\r\n"}), "an answer\nof two lines \ud800")
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(model, tools=[look]), "c")
        turn_id = "turn 7/é\n"
        frames = await collected(event_frames(agent.stream("go", turn_id=turn_id)))
        names = [name for name, _, _ in frames]
        assert [name for name, _ in itertools.groupby(names)] == [
            "turn_started", "model_started", "model_ended", "tool_started", "tool_ended",
            "model_started", "text_delta", "model_ended", "turn_ended",
        ]  # fmt: skip
        assert frames[0][1] == {"conversation_id": "c", "turn_id": turn_id}
        assert frames[-1][1]["text"].startswith("an answer\nof two lines ")
        for at, (_, _, event_id) in enumerate(frames):
            rest = await collected(event_frames(agent.stream("go", turn_id=turn_id), event_id))
            text = [d["text"] for n, d, _ in frames[: at + 1] if n == "text_delta"]
            text += [d["text"] for n, d, _ in rest if n == "text_delta"]
            assert "".join(text) == frames[-1][1]["text"]
            assert [n for n, _, _ in rest if n != "text_delta"] == [
                n for n in names[at + 1 :] if n != "text_delta"
            ]
        other = await collected(event_frames(agent.stream("go", turn_id=turn_id), "another/4"))
        assert [n for n, _, _ in other if n != "text_delta"] == [
            n for n in names if n != "text_delta"
        ]


async def test_what_is_not_for_the_reader_is_left_out() -> None:
    model = ScriptedModel(Call("look", {"what": "secrets"}), "done")
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(model, tools=[look]))
        frames = [f async for f in event_frames(agent.stream("go"),
                                                without=(ToolStarted, ToolEnded))]  # fmt: skip
        assert "secrets" not in "".join(frames)
        assert parsed(frames)[-1][0] == "turn_ended"


async def test_silence_is_broken_and_leaving_does_not_end_the_turn() -> None:
    gate = asyncio.Event()
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel(Held(gate, "done"))))
        frames = event_frames(agent.stream("go", turn_id="t"), ping=0.01)
        async for frame in frames:
            if frame == ":\n\n":
                break
        await frames.aclose()  # type: ignore[attr-defined]  # a generator
        gate.set()
        assert (await agent.run("go", turn_id="t")).text == "done"


async def test_a_failed_turn_says_so_and_an_interrupted_one_does_not() -> None:
    """Who sees no last frame asks again, here or at the successor."""
    class Deaf(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            yield TextPiece("half")
            await asyncio.Event().wait()

    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel(ModelError("down, you see"))))
        frames = await collected(event_frames(agent.stream("go")))
        assert frames[-1][0] == "turn_failed"
        assert frames[-1][1] == {"error": "ModelError", "message": "down, you see"}
        deaf = await runtime.spawn(AgentSpec(Deaf()))
        running = event_frames(deaf.stream("go"))
        names = []
        async for frame in running:
            names += [name for name, _, _ in parsed([frame])]
            if names[-1:] == ["text_delta"]:
                _ = deaf.stop()
        assert names == ["turn_started", "model_started", "text_delta"]
