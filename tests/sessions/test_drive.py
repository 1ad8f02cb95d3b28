"""drive_session and run_session (A17…A20), and events (B1…B5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from keepwell.actors.errors import RequestError
from keepwell.sessions import (
    NO_OUTPUT,
    MaxTurnsExceeded,
    SessionClosed,
    SessionEvent,
    SessionFailed,
    SessionFenced,
    SessionTurnError,
    current_turn,
    drive_session,
    loop,
    run_session,
    scan,
    session,
)
from keepwell.stores.memory_session_store import MemorySessionStore
from keepwell.stores.session_state import SessionState

echo = scan(lambda message, carrier: ((carrier or 0) + 1, message))


def fail(message: Any, carrier: Any) -> Any:
    if message == "bad":
        raise ValueError("no good")
    if message == "fatal":
        raise SessionTurnError("enough", fatal=True)
    if message == "close":
        current_turn().emit("kept")
        current_turn().close("asked to")
    if message == "stop":
        current_turn().emit("dropped")
        raise SessionClosed("had enough")
    return [*carrier, message], message


failing = scan(fail, [])


async def driven(*messages: Any, **options: Any) -> list[SessionEvent]:
    return [event async for event in drive_session(failing, list(messages), **options)]


def shape(events: list[SessionEvent]) -> list[tuple[Any, ...]]:
    return [(e.position, e.kind) for e in events]


# -- B1…B5 ---------------------------------------------------------------------------------------


async def test_b3_two_echo_turns_have_the_positions_1_to_6() -> None:
    events = [event async for event in drive_session(echo, ["a", "b"])]
    assert events == [
        SessionEvent("turn_started", 1, 1, "in", 1),
        SessionEvent("emit", 2, 1, "out", 1, "a"),
        SessionEvent("turn_done", 3, 1, "in", 1),
        SessionEvent("turn_started", 4, 2, "in", 2),
        SessionEvent("emit", 5, 2, "out", 2, "b"),
        SessionEvent("turn_done", 6, 2, "in", 2),
        SessionEvent("closed", 7, reason="feed ended"),
    ]


def test_b1_events_are_frozen_and_tell_their_kind() -> None:
    event = SessionEvent("emit", 1)
    assert event.is_emit() and not (event.is_turn() or event.is_error() or event.is_closed())
    assert SessionEvent("turn_started").is_turn() and SessionEvent("turn_done").is_turn()
    assert SessionEvent("error").is_error() and SessionEvent("closed").is_closed()
    assert (event.payload, event.reason, event.fatal, event.turn) == (None, None, None, None)
    with pytest.raises(AttributeError):
        event.kind = "closed"  # type: ignore[misc]  # is frozen


async def test_b3_a_failed_turn_and_b5_its_outputs_use_no_seq() -> None:
    events = await driven("a", "bad", "b")
    assert shape(events)[3:6] == [(4, "turn_started"), (5, "error"), (6, "turn_done")]
    assert (events[4].reason, events[4].fatal) == ("ValueError: no good", False)
    assert [(e.seq, e.payload) for e in events if e.is_emit()] == [(1, "a"), (2, "b")]


async def test_b16_errors_in_a_row_are_fatal() -> None:
    events = await driven("bad", "bad", "a", "bad", "bad", "b")
    assert events[-1].reason == "feed ended", "a good turn resets the count"
    events = await driven("a", "bad", "bad", "bad", "b")
    assert shape(events)[-3:] == [(10, "turn_started"), (11, "error"), (12, "closed")]
    assert events[-2].fatal is True
    events = await driven(*["bad"] * 10, max_consecutive_turn_errors=None)
    assert events[-1].reason == "feed ended"


async def test_b16_a_fatal_turn_error_is_fatal_at_once() -> None:
    events = await driven("a", "fatal", "b")
    assert [e.kind for e in events][-3:] == ["turn_started", "error", "closed"]
    assert events[-2].reason == "SessionTurnError: enough"


# -- A17 -----------------------------------------------------------------------------------------


async def test_a17_items_are_pulled_when_the_turn_before_is_done_and_taken() -> None:
    log: list[Any] = []

    def feed() -> Any:
        for n in range(2):
            log.append(f"pull {n}")
            yield n
        log.append("end")

    log_of = [log.append(event.kind) async for event in drive_session(echo, feed())]
    assert len(log_of) == 7
    turn = ["turn_started", "emit", "turn_done"]
    assert log == ["pull 0", *turn, "pull 1", *turn, "end", "closed"]


async def test_a17_a_feed_that_raises_closes_first() -> None:
    async def feed() -> AsyncIterator[int]:
        yield 1
        raise OSError("the feed broke")

    seen: list[SessionEvent] = []

    async def drive() -> None:
        async for event in drive_session(echo, feed()):
            seen.append(event)  # noqa: PERF401 - what there is before it raises

    with pytest.raises(OSError, match="the feed broke"):
        await drive()
    assert (seen[-1].kind, seen[-1].reason) == ("closed", "feed failed")


async def test_a17_closing_the_iterator_cancels_the_turn_and_closes_the_feed() -> None:
    said: list[str] = []

    async def step(message: Any, carrier: Any) -> Any:
        try:
            current_turn().progress("running")
            await asyncio.Event().wait()
        finally:
            said.append("turn cancelled")

    async def feed() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            said.append("feed closed")

    events: Any = drive_session(scan(step), feed())
    assert (await anext(events)).kind == "turn_started"
    assert (await anext(events)).kind == "progress"
    await events.aclose()
    assert said == ["turn cancelled", "feed closed"]


async def test_a17_cancelling_run_session_cancels_the_turn() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def step(message: Any, carrier: Any) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(run_session(scan(step), [1]))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize("feed", [5, "text", b"bytes", None])
async def test_a17_a_feed_is_an_iterable(feed: Any) -> None:
    with pytest.raises(RequestError):
        drive_session(echo, feed)
    with pytest.raises(RequestError):
        drive_session(5, [])  # type: ignore[arg-type]  # is refused


# -- A18 -----------------------------------------------------------------------------------------


async def test_a18_a_sized_feed_that_is_too_long_is_refused_before_any_turn() -> None:
    runs: list[Any] = []
    counting = scan(lambda m, c: (runs.append(m), m))
    with pytest.raises(MaxTurnsExceeded) as caught:
        await run_session(counting, [1, 2, 3], max_turns=2)
    assert (caught.value.limit, caught.value.length, runs) == (2, 3, [])
    assert len((await run_session(counting, [1, 2], max_turns=2)).outputs) == 2


async def test_a18_an_unsized_feed_runs_n_turns_then_fails() -> None:
    pulled: list[int] = []

    def feed() -> Any:
        for n in range(10):
            pulled.append(n)
            yield n

    events = [event async for event in drive_session(echo, feed(), max_turns=2)]
    assert pulled == [0, 1, 2]
    assert shape(events)[-3:] == [(6, "turn_done"), (7, "error"), (8, "closed")]
    assert events[-2].fatal is True
    with pytest.raises(SessionFailed) as caught:
        await run_session(echo, iter(range(10)), max_turns=2)
    assert (caught.value.carrier, caught.value.outputs) == (2, [0, 1])
    assert isinstance(caught.value.__cause__, MaxTurnsExceeded)


@pytest.mark.parametrize("bad", [-1, True, 1.5, "2"])
async def test_a18_max_turns_is_an_int_or_none(bad: Any) -> None:
    with pytest.raises(RequestError):
        drive_session(echo, [], max_turns=bad)
    assert len((await run_session(echo, [0] * 1_200, max_turns=None)).outputs) == 1_200
    with pytest.raises(MaxTurnsExceeded):
        drive_session(echo, [0] * 1_001)
    with pytest.raises(MaxTurnsExceeded):
        drive_session(echo, [0], max_turns=0)


# -- A19 -----------------------------------------------------------------------------------------


async def test_a19_run_session_gives_carrier_and_outputs() -> None:
    assert await run_session(failing, []) == ([], [])
    result = await run_session(failing, ["a", "b"])
    assert (result.carrier, result.outputs) == (["a", "b"], ["a", "b"])


async def test_a19_the_first_error_is_fatal_and_tells_what_there_was() -> None:
    with pytest.raises(SessionFailed) as caught:
        await run_session(failing, ["a", "bad", "b"])
    assert (caught.value.carrier, caught.value.outputs) == (["a"], ["a"])
    assert isinstance(caught.value.__cause__, ValueError)
    result = await run_session(failing, ["a", "bad", "b"], max_consecutive_turn_errors=2)
    assert result.carrier == ["a", "b"]
    for bad in (0, True, -1):
        with pytest.raises(RequestError):
            await run_session(failing, [], max_consecutive_turn_errors=bad)


# -- A20 -----------------------------------------------------------------------------------------


async def test_a20_raising_session_closed_drops_the_turn_without_an_error() -> None:
    events = await driven("a", "stop", "b")
    assert shape(events)[-2:] == [(4, "turn_started"), (5, "closed")]
    assert events[-1].reason == "had enough"
    assert [e.payload for e in events if e.is_emit()] == ["a"]
    assert (await run_session(failing, ["a", "stop"])).carrier == ["a"]


async def test_a20_close_ends_the_session_after_its_boundary() -> None:
    events = await driven("a", "close", "b")
    assert [e.kind for e in events][-5:] == ["turn_started", "emit", "emit", "turn_done", "closed"]
    assert events[-1].reason == "asked to"
    assert (await run_session(failing, ["close"])).carrier == ["close"]


# -- with a store --------------------------------------------------------------------------------


async def test_c_a_driven_session_goes_on_from_its_store() -> None:
    store = MemorySessionStore()

    @session(init=0)
    async def adding(s: Any) -> None:
        while True:
            s.carrier += await s.recv()
            s.emit(s.carrier)

    events: Any = drive_session(adding, [1, 2, 3], store=store, session_id="s")
    seen = [await anext(events) for _ in range(4)]  # in the second turn
    await events.aclose()
    assert seen[-1] == SessionEvent("turn_started", 4, 2, "in", 2)
    rest = [event async for event in drive_session(adding, [3], store=store, session_id="s")]
    assert rest[0] == seen[-1], "the accepted message first, at its old position (B2)"
    assert [(e.seq, e.payload) for e in rest if e.is_emit()] == [(2, 3), (3, 6)]
    with pytest.raises(SessionClosed):
        await run_session(adding, [1], store=store, session_id="s")
    with pytest.raises(RequestError):
        drive_session(adding, [], store=store)


async def test_c7_of_two_owners_the_second_wins_and_the_first_stops() -> None:
    store = MemorySessionStore()
    first: Any = drive_session(echo, iter("abc"), store=store, session_id="s")
    assert (await anext(first)).kind == "turn_started"
    second = await run_session(echo, iter("xy"), store=store, session_id="s")
    assert second.outputs == ["a", "x", "y"], "what the first had accepted is not lost"
    with pytest.raises(SessionFenced):
        await anext(first)


class Foreign:
    """Only the two methods that a driven session needs, as coroutines."""

    def __init__(self) -> None:
        self.states: list[SessionState] = []

    async def load(self, session_id: str, cursor: Any = None) -> SessionState:
        return self.states[-1] if self.states else SessionState()

    async def commit(self, session_id: str, base: int, state: SessionState, fingerprint: Any, *,
                     writes: Any = None) -> int:  # fmt: skip
        assert (base, writes) == (len(self.states), None)
        self.states.append(state)
        return len(self.states)


async def test_c_a_foreign_store_without_a_journal_keeps_carrier_and_counters() -> None:
    store: Any = Foreign()
    adding = loop(lambda message, total: total + message, 0)
    assert (await run_session(adding, [1, 2], store=store, session_id="s")).carrier == 3
    assert (await run_session(adding, [4], store=store, session_id="s")).carrier == 7
    assert [state.turn for state in store.states] == [1, 2, 3]
    assert store.states[-1].position == 6


async def test_a_scan_may_emit_nothing_at_all() -> None:
    quiet = scan(lambda message, carrier: (message, NO_OUTPUT))
    assert await run_session(quiet, [1, 2]) == (2, [])
