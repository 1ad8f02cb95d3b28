"""Failed turns, dead letters, cancelled turns (B15…B20)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from keepwell import Runtime
from keepwell.actors.errors import InvalidValue
from keepwell.sessions import (
    Channel,
    ChannelFull,
    NotFound,
    SessionTurnError,
    TurnOutcome,
    current_turn,
    scan,
    session,
)
from keepwell.stores import StoreError, StoreUnavailable

from .gate import LIMIT, Gate, all_events, crash, settled, until

# -- B15…B18: errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["async", "sync", "coroutine"])
@pytest.mark.parametrize(
    "error",
    [ValueError("text"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(),
     GeneratorExit(), StopIteration("x")],
    ids=repr,
)  # fmt: skip
async def test_b15_whatever_turn_code_raises_the_session_lives(
    memory_runtime: Runtime, style: str, error: BaseException
) -> None:
    def sync_step(message: Any, carrier: Any) -> Any:
        current_turn().emit("dropped")
        if message == "bad":
            raise error
        return message, "kept"

    async def async_step(message: Any, carrier: Any) -> Any:
        return sync_step(message, carrier)

    @session
    async def live(s: Any) -> None:
        while True:
            s.carrier, output = sync_step(await s.recv(), s.carrier)
            s.emit(output)

    defined = {"sync": scan(sync_step), "async": scan(async_step), "coroutine": live}[style]
    handle = await memory_runtime.open_session(defined, "s")
    assert (await handle.request("a")).outputs == ["dropped", "kept"]
    failed = await handle.request("bad")
    assert (failed.outcome, failed.outputs) == ("failed", [])
    assert (await handle.request("b")).outputs == ["dropped", "kept"]
    (letter,) = await handle.dead_letters()
    assert (letter.payload, letter.outcome, letter.turn) == ("bad", "failed", 2)
    name = "RuntimeError" if (style, type(error)) == ("async", StopIteration) else None
    if style != "coroutine" and not isinstance(error, StopIteration):
        assert letter.error is not None
        assert letter.error.startswith(name or type(error).__name__)
        assert "sync_step" in (letter.traceback or "")


async def test_b16_outages_do_not_count(runtime: Runtime) -> None:
    def step(message: Any, carrier: Any) -> Any:
        raise StoreUnavailable("elsewhere") if message == "outage" else ValueError("bad")

    handle = await runtime.open_session(scan(step), "s", max_consecutive_turn_errors=3)
    for message in ("bad", "bad", *["outage"] * 5):
        assert (await handle.request(message)).outcome == "failed"
    assert (await handle.state()).consecutive_errors == 2
    last = await handle.request("bad")
    assert last.outcome == "failed"
    events = await all_events(handle)
    assert [event.kind for event in events[-3:]] == ["turn_started", "error", "closed"]
    assert (await handle.state()).status == "closed"
    assert len(await handle.dead_letters()) == 8


@pytest.mark.parametrize("limit", [0, True, -1, "3"])
async def test_b16_the_limit_is_an_int_of_1_or_more(memory_runtime: Runtime, limit: Any) -> None:
    with pytest.raises(InvalidValue):
        await memory_runtime.open_session(
            scan(lambda m, c: (c, m)), "s", max_consecutive_turn_errors=limit
        )


async def test_b16_a_fatal_error_closes_and_the_rest_are_dead_letters(
    runtime: Runtime, gate: Gate
) -> None:
    async def step(message: Any, carrier: Any) -> Any:
        await gate.step(message, carrier)
        raise SessionTurnError("over", fatal=True)

    handle = await runtime.open_session(scan(step), "s")
    fatal = asyncio.ensure_future(handle.request("wait"))
    await gate.running.wait()
    waiting = asyncio.ensure_future(handle.request("never"))
    await until(handle, lambda state: state.pending == 1)
    gate.open.set()
    assert (await fatal).error == "SessionTurnError: over"
    assert (await waiting).outcome == "closed"
    assert [letter.outcome for letter in await handle.dead_letters()] == ["failed", "closed"]


async def test_b17_a_failed_commit_crashes_the_actor_and_the_message_is_taken_again(
    memory_runtime: Runtime, gate: Gate
) -> None:
    handle = await memory_runtime.open_session(scan(gate.step), "s", max_deliveries=1)
    store: Any = memory_runtime.session_store
    real, failures = store._write, 3

    def failing(work: Any, **options: Any) -> Any:
        nonlocal failures
        if "log" in options and failures:
            failures -= 1
            raise StoreError("the disk is on fire")
        return real(work, **options)

    store._write = failing
    assert (await asyncio.wait_for(handle.request("a"), LIMIT)).outputs == ["a"]
    assert (gate.runs, failures) == (4, 0)
    assert await handle.dead_letters() == [], "the message was not at fault"
    assert (await handle.state()).carrier == ["a"]


async def test_b17_a_fenced_owner_is_restarted(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    await handle.request("a")
    await runtime.session_store.claim("s")
    assert (await asyncio.wait_for(handle.request("b"), LIMIT)).outputs == ["b"]
    assert (await handle.state()).carrier == ["a", "b"]


async def test_b18_a_turn_that_kills_its_actor_is_given_up(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s", max_deliveries=2)
    poison = asyncio.ensure_future(handle.request("wait"))
    for _ in range(3):
        await asyncio.wait_for(gate.running.wait(), LIMIT)
        gate.running.clear()
        await crash(handle)
    outcome = await asyncio.wait_for(poison, LIMIT)
    assert outcome.outcome == "failed" and (outcome.error or "").startswith("crashed")
    (letter,) = await handle.dead_letters()
    assert letter.outcome == "crashed"
    assert gate.runs == 3, "max_deliveries + 1"
    assert (await handle.request("next")).outputs == ["next"]


# -- B19: dead letters ---------------------------------------------------------------------------


async def test_b19_a_dead_letter_can_be_retried_once(runtime: Runtime) -> None:
    broken = True

    def step(message: Any, carrier: Any) -> Any:
        if broken:
            raise ValueError("not yet")
        return carrier, message

    handle = await runtime.open_session(scan(step), "s", max_consecutive_turn_errors=None)
    for n in range(3):
        await handle.request({"n": n})
    letters = await handle.dead_letters()
    assert [(letter.id, letter.seq, letter.payload) for letter in letters] == [
        (n + 1, n + 1, {"n": n}) for n in range(3)
    ]
    assert letters[0].time > 0 and letters[0].error == "ValueError: not yet"
    assert [letter.id for letter in await handle.dead_letters(after=1, limit=1)] == [2]
    broken = False
    assert (await handle.retry(2)).seq == 4
    await settled(handle)
    assert [letter.id for letter in await handle.dead_letters()] == [1, 3]
    with pytest.raises(NotFound):
        await handle.retry(2)


async def test_b19_a_retry_into_a_full_channel_leaves_the_letter(
    runtime: Runtime, gate: Gate
) -> None:
    inbox = Channel[str]("in", capacity=1)
    handle = await runtime.open_session(scan(gate.step, in_channel=inbox), "s")
    await handle.request("bad")
    await handle.send("wait")
    await gate.running.wait()
    await handle.send("full")
    with pytest.raises(ChannelFull):
        await handle.retry(1)
    assert len(await handle.dead_letters()) == 1
    gate.open.set()


# -- B20: cancelling -----------------------------------------------------------------------------


async def test_b20_a_cancelled_turn_is_never_committed(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s", max_consecutive_turn_errors=1)
    assert await handle.cancel_turn() is False, "idle"
    request = asyncio.ensure_future(handle.request("wait"))
    await gate.running.wait()
    assert await handle.cancel_turn("changed my mind") is True
    assert await request == TurnOutcome("cancelled", [], "changed my mind")
    events = await all_events(handle)
    assert [event.kind for event in events] == ["turn_started", "error", "turn_done"]
    assert events[1].reason == "changed my mind" and events[1].fatal is False
    (letter,) = await handle.dead_letters()
    assert letter.outcome == "cancelled"
    state = await handle.state()
    assert (state.consecutive_errors, state.status, state.turn) == (0, "open", 1)
    assert (await handle.request("b")).outputs == ["b"]


async def test_b20_code_that_swallows_the_cancellation_is_fenced(
    memory_runtime: Runtime,
) -> None:
    began, stubborn = asyncio.Event(), asyncio.Event()

    async def step(message: Any, carrier: Any) -> Any:
        if message == "stubborn":
            began.set()
            while not stubborn.is_set():
                try:
                    await stubborn.wait()
                except asyncio.CancelledError:
                    pass
        return message, message

    handle = await memory_runtime.open_session(scan(step), "s")
    await handle.send("stubborn")
    await began.wait()
    assert await handle.cancel_turn() is True
    assert (await asyncio.wait_for(handle.request("next"), LIMIT)).outputs == ["next"]
    stubborn.set()
    assert (await handle.state()).carrier == "next"


async def test_b20_a_blocked_thread_is_left_behind(memory_runtime: Runtime) -> None:
    release, began = threading.Event(), threading.Event()

    def step(message: Any, carrier: Any) -> Any:
        if message == "block":
            began.set()
            release.wait(LIMIT)
            current_turn().emit("late")
        return carrier, message

    handle = await memory_runtime.open_session(scan(step), "s")
    await handle.send("block")
    await asyncio.to_thread(began.wait, LIMIT)
    assert await handle.cancel_turn() is True
    assert (await asyncio.wait_for(handle.request("next"), LIMIT)).outputs == ["next"]
    release.set()
    assert [e.payload for e in await all_events(handle) if e.is_emit()] == ["next"]
