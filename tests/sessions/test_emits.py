"""What a turn emits, and what it shows before its end (A16)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepwell.actors.errors import RequestError
from keepwell.sessions import (
    NO_OUTPUT,
    Channel,
    ChannelFull,
    ChannelUndeclared,
    NotPlain,
    PayloadInvalid,
    PayloadTooLarge,
    SessionEvent,
    TurnOver,
    current_turn,
    drive_session,
    run_session,
    scan,
)

from .driven import events_of, outputs_of


@pytest.mark.parametrize(
    ("emit", "error"),
    [
        (lambda turn: turn.emit({1}), NotPlain),
        (lambda turn: turn.emit("text"), PayloadInvalid),
        (lambda turn: turn.emit(10**15), PayloadTooLarge),
        (lambda turn: turn.emit(1, "nowhere"), ChannelUndeclared),
        (lambda turn: turn.emit(1, "in"), ChannelUndeclared),
        (lambda turn: [turn.emit(n) for n in range(4)], ChannelFull),
    ],
)
async def test_a16_a_bad_emit_fails_the_turn_and_drops_all(emit: Any, error: type) -> None:
    def step(message: Any, carrier: Any) -> Any:
        current_turn().emit(0)
        if message == "bad":
            emit(current_turn())
        return carrier, NO_OUTPUT

    bounded = scan(step, out_channel=Channel("out", int, capacity=3, max_bytes=12))
    events = await events_of(bounded, "bad", "good")
    assert [e.payload for e in events if e.is_emit()] == [0]
    (failure,) = [e.reason for e in events if e.is_error()]
    assert (failure or "").startswith(error.__name__)


async def test_a16_extra_channels_have_their_own_seqs() -> None:
    def step(message: Any, carrier: Any) -> Any:
        current_turn().emit("note", "log")
        return carrier, message

    events = await events_of(scan(step, extra_channels=[Channel[str]("log")]), 1, 2)
    emits = [(e.channel, e.seq, e.payload) for e in events if e.is_emit()]
    assert emits == [("log", 1, "note"), ("out", 1, 1), ("log", 2, "note"), ("out", 2, 2)]


async def test_a16_progress_is_shown_at_once_and_has_no_position() -> None:
    gate = asyncio.Event()

    async def step(message: Any, carrier: Any) -> Any:
        current_turn().progress({"token": 1})
        await gate.wait()
        return carrier, message

    shown: list[SessionEvent] = []
    async for event in drive_session(scan(step), [1]):
        shown.append(event)
        if event.kind == "progress":
            gate.set()
    assert [e.kind for e in shown] == ["turn_started", "progress", "emit", "turn_done", "closed"]
    assert (shown[1].position, shown[1].payload) == (None, {"token": 1})
    assert [e.position for e in shown if e.position] == [1, 2, 3, 4]


async def test_code_that_outlives_its_turn_cannot_emit() -> None:
    kept: list[Any] = []

    def step(message: Any, carrier: Any) -> Any:
        kept.append(current_turn())
        return carrier, message

    await run_session(scan(step), [1])
    for what in (kept[0].emit, kept[0].progress, kept[0].close):
        with pytest.raises(TurnOver):
            what("late")
    with pytest.raises(RequestError):
        current_turn()


async def test_current_turn_says_what_runs() -> None:
    def step(message: Any, carrier: Any) -> Any:
        turn = current_turn()
        return carrier, [turn.turn, turn.channel, turn.seq, turn.turn_id, turn.session_id]

    outputs = await outputs_of(scan(step, in_channel="questions"), 0, 0)
    assert [output[:3] for output in outputs] == [[1, "questions", 1], [2, "questions", 2]]
    assert len({output[3] for output in outputs}) == 2
