"""Durable sessions through their handles (B6…B23), in memory and on disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from keepwell import Runtime, telemetry
from keepwell.actors import failpoint
from keepwell.actors.errors import ActorDied, CallTimeout, InvalidValue, RequestError
from keepwell.sessions import (
    Channel,
    ChannelFull,
    ChannelUndeclared,
    Closed,
    EventsTrimmed,
    IdempotencyConflict,
    NotFound,
    NotPlain,
    PayloadInvalid,
    PayloadTooLarge,
    SessionClosed,
    SessionConflict,
    SessionEvent,
    SessionHandle,
    SessionTurnError,
    SessionView,
    TurnOutcome,
    current_turn,
    loop,
    scan,
    session,
)
from keepwell.stores import StoreError, StoreUnavailable

LIMIT = 20.0


class Gate:
    """Async turn code that says when it runs, and goes on when it may."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.open = asyncio.Event()
        self.runs = 0

    async def step(self, message: Any, carrier: Any) -> Any:
        self.runs += 1
        if message == "wait":
            self.running.set()
            await self.open.wait()
        if message == "bad":
            raise ValueError("no good")
        return [*(carrier or []), message], message


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def told(event: str, action: Callable[[], Any]) -> Any:
    """Run `action` and wait until telemetry has told `event`."""
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[Any] = loop.create_future()

    def note(_name: str, fields: Any) -> None:
        loop.call_soon_threadsafe(lambda: None if seen.done() else seen.set_result(fields))

    with telemetry.attach(event, note):
        action()
        return await asyncio.wait_for(seen, LIMIT)


async def crash(handle: SessionHandle) -> None:
    """Kill the session's actor, and wait for the next one."""
    home = handle._home
    before = home.ref
    moved: asyncio.Event = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = home.moved_in

    def moved_in(ref: Any, wake: Any) -> None:
        real(ref, wake)
        loop.call_soon_threadsafe(moved.set)

    home.moved_in = moved_in  # type: ignore[method-assign]
    before.kill()
    await asyncio.wait_for(moved.wait(), LIMIT)


async def all_events(handle: SessionHandle, after: int = 0) -> list[SessionEvent]:
    return [event async for event in handle.events(after, follow=False)]


async def until(handle: SessionHandle, condition: Callable[[SessionView], bool]) -> None:
    """Let others run until the session's state is as it should be."""
    async with asyncio.timeout(LIMIT):
        while not condition(await handle.state()):  # noqa: ASYNC110 - nothing tells of this
            await asyncio.sleep(0)


async def settled(handle: SessionHandle) -> None:
    """Wait until nothing is pending and nothing runs."""
    async for event in handle.events():
        if event.kind in ("turn_done", "closed"):
            state = await handle.state()
            if not state.pending and not state.running:
                return


# -- B6…B8: events -------------------------------------------------------------------------------


async def test_b6_any_number_of_readers_get_all_events_in_order(
    runtime: Runtime, gate: Gate
) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")

    async def read(after: int) -> list[int | None]:
        return [event.position async for event in handle.events(after)]

    readers = [asyncio.create_task(read(after)) for after in (0, 0, 2)]
    for message in "abc":
        await handle.send(message)
    await handle.close()
    late = await read(5)
    assert [await reader for reader in readers] == [
        list(range(1, 11)), list(range(1, 11)), list(range(3, 11)),
    ]  # fmt: skip
    assert late == list(range(6, 11))


async def test_b6_follow_false_ends_at_the_head(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    assert await all_events(handle) == []
    await handle.request("a")
    assert [e.kind for e in await all_events(handle)] == ["turn_started", "emit", "turn_done"]
    assert await all_events(handle, after=3) == []
    for bad in (-1, True, 1.5):
        with pytest.raises(InvalidValue):
            handle.events(bad)  # type: ignore[arg-type]


async def test_b6_a_position_that_is_too_old_is_told(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s", retain_events=3)
    for n in range(3):
        await handle.request(n)
    with pytest.raises(EventsTrimmed) as caught:
        await all_events(handle)
    assert caught.value.oldest == 7
    assert [e.position for e in await all_events(handle, after=6)] == [7, 8, 9]


async def test_b7_a_named_consumer_goes_on_where_it_was(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    await handle.request("a")
    reader = handle.events(consumer="c")
    assert [(await anext(reader)).position for _ in range(2)] == [1, 2]
    again = handle.events(consumer="c")
    assert (await anext(again)).position == 2, "an event is read when the next one is pulled"
    await crash(handle)
    assert (await anext(handle.events(consumer="c"))).position == 2
    assert (await anext(handle.events(after=2, consumer="c"))).position == 3
    assert await handle.forget_consumer("c") is True
    assert (await anext(handle.events(consumer="c"))).position == 1


async def test_b8_a_consumer_that_is_far_behind_holds_back_the_next_turn(
    runtime: Runtime, gate: Gate
) -> None:
    handle = await runtime.open_session(scan(gate.step), "s", retain_events=3)
    slow = handle.events(consumer="slow")
    await handle.request("a")
    assert (await anext(slow)).position == 1
    await handle.send("b")
    state = await handle.state()
    assert (state.blocked, state.pending, state.running) == ("slow", 1, False)
    done = asyncio.ensure_future(handle.request("c"))
    assert [(await anext(slow)).position for _ in range(2)] == [2, 3]
    assert (await anext(slow)).position == 4, "with room for it, the turn has run"
    assert (await handle.state()).pending == 1
    await handle.forget_consumer("slow")
    assert (await asyncio.wait_for(done, LIMIT)).outcome == "done"
    assert (await handle.state()).blocked is None


async def test_b2_a_turn_run_again_shows_its_start_at_the_old_position(
    runtime: Runtime, gate: Gate
) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    reader = handle.events()
    await handle.send("wait")
    first = await anext(reader)
    assert (first.kind, first.position) == ("turn_started", 1)
    await gate.running.wait()
    await crash(handle)
    gate.open.set()
    assert await anext(handle.events()) == first
    rest = [await anext(reader) for _ in range(2)]
    assert [(event.kind, event.position) for event in rest] == [("emit", 2), ("turn_done", 3)]
    assert gate.runs == 2


async def test_a16_live_readers_see_progress_before_the_boundary(
    runtime: Runtime, gate: Gate
) -> None:
    async def step(message: Any, carrier: Any) -> Any:
        for n in range(3):
            current_turn().progress(n)
        await gate.step(message, carrier)
        return carrier, "end"

    handle = await runtime.open_session(scan(step), "s")
    reader = handle.events()
    await handle.send("wait")
    live = [await anext(reader) for _ in range(4)]
    assert [(e.kind, e.payload) for e in live] == [
        ("turn_started", None), ("progress", 0), ("progress", 1), ("progress", 2),
    ]  # fmt: skip
    gate.open.set()
    assert (await anext(reader)).payload == "end"
    assert [e.kind for e in await all_events(handle)][:2] == ["turn_started", "emit"]


def test_events_can_be_followed_in_a_thread() -> None:
    with Runtime() as runtime:
        handle = runtime.open_session(scan(lambda m, c: (c, m)), "s").get()
        kinds: list[str] = []
        thread = threading.Thread(target=lambda: kinds.extend(e.kind for e in handle.events()))
        thread.start()
        assert handle.request("a").get().outputs == ["a"]
        handle.close().get()
        thread.join(LIMIT)
        assert kinds == ["turn_started", "emit", "turn_done", "closed"]


# -- B9…B12: sending -----------------------------------------------------------------------------


async def test_b9_checks_come_in_order_and_leave_nothing_behind(
    runtime: Runtime, gate: Gate
) -> None:
    inbox = Channel("in", str, capacity=1, max_bytes=10)
    handle = await runtime.open_session(scan(gate.step, in_channel=inbox), "s")
    await handle.request("known", idempotency_key="k")
    await handle.send("wait")
    await gate.running.wait()
    await handle.send("full")
    worst: dict[str, Any] = {"channel": "nowhere", "idempotency_key": ""}
    for send, error in (
        (lambda: handle.send({1}, **worst), ChannelUndeclared),
        (lambda: handle.send({1}, idempotency_key=""), NotPlain),
        (lambda: handle.send(5, idempotency_key=""), InvalidValue),
        (lambda: handle.send(5, idempotency_key="k"), IdempotencyConflict),
        (lambda: handle.send(5, idempotency_key="new"), PayloadInvalid),
        (lambda: handle.send("x" * 20, idempotency_key="new"), PayloadTooLarge),
        (lambda: handle.send("more", idempotency_key="new"), ChannelFull),
    ):
        with pytest.raises(error):
            await send()
    assert (await handle.send("known", idempotency_key="k")).duplicate, "even when full"
    gate.open.set()
    await settled(handle)
    await handle.request("last", idempotency_key="new")
    state = await handle.state()
    assert state.carrier == ["known", "wait", "full", "last"]


async def test_b10_only_the_in_channel_receives(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step, extra_channels=["log"]), "s")
    for channel in ("out", "log", "other", ""):
        with pytest.raises(ChannelUndeclared):
            await handle.send(1, channel=channel)
    assert (await handle.send(1, channel="in")).seq == 1


async def test_b11_a_known_key_gives_the_first_seq_and_the_outcome(
    runtime: Runtime, gate: Gate
) -> None:
    handle = await runtime.open_session(scan(gate.step), "s", max_consecutive_turn_errors=None)
    ack = await handle.send("wait", idempotency_key="w")
    await gate.running.wait()
    assert (ack.seq, ack.duplicate, ack.outcome) == (1, False, "pending")
    again = await handle.send("wait", idempotency_key="w")
    assert (again.seq, again.duplicate, again.outcome) == (1, True, "pending")
    assert await handle.cancel_turn()
    gate.running.clear()
    await handle.request("bad", idempotency_key="b")
    await handle.request((1,), idempotency_key="d")
    await handle.close()
    for key, value, outcome in (
        ("w", "wait", "cancelled"), ("b", "bad", "failed"), ("d", [1], "done"),
    ):  # fmt: skip
        ack = await handle.send(value, idempotency_key=key)
        assert (ack.duplicate, ack.outcome) == (True, outcome), "also when closed"
    with pytest.raises(SessionClosed):
        await handle.send("new")


async def test_b9a_request_waits_for_its_turn(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    assert await handle.request("a") == TurnOutcome("done", ["a"], None)
    assert await handle.request("bad") == TurnOutcome("failed", [], "ValueError: no good")
    results = await asyncio.gather(*(handle.request(n) for n in range(20)))
    assert [result.outputs for result in results] == [[n] for n in range(20)]


async def test_b9a_a_known_key_gives_the_stored_outcome(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    first = await handle.request("a", idempotency_key="k")
    assert await handle.request("a", idempotency_key="k") == first == TurnOutcome("done", ["a"])
    both = asyncio.gather(*(handle.request("wait", idempotency_key="w") for _ in range(3)))
    await gate.running.wait()
    gate.open.set()
    assert await both == [TurnOutcome("done", ["wait"])] * 3
    assert gate.runs == 2


async def test_b9a_a_timeout_leaves_the_turn_alone(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    with pytest.raises(CallTimeout):
        await handle.request("wait", idempotency_key="k", timeout=0.05)
    gate.open.set()
    assert (await handle.request("wait", idempotency_key="k")).outputs == ["wait"]
    assert gate.runs == 1


async def test_b12_capacity_counts_what_waits_not_what_runs(runtime: Runtime, gate: Gate) -> None:
    inbox = Channel[str]("in", capacity=2)
    handle = await runtime.open_session(scan(gate.step, in_channel=inbox), "s")
    await handle.send("wait")
    await gate.running.wait()
    await handle.send("1")
    await handle.send("2")
    with pytest.raises(ChannelFull) as caught:
        await handle.send("3")
    assert (caught.value.channel, caught.value.capacity, caught.value.pending) == ("in", 2, 2)
    gate.open.set()


# -- B13, B14: looking ---------------------------------------------------------------------------


async def test_b13_state_says_it_all_and_is_a_copy(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step, init=[]), "s")
    state = await handle.state()
    assert (state.status, state.carrier, state.cursor, state.turn, state.position) == (
        "open", [], 0, 0, 0,
    )  # fmt: skip
    state.carrier.append("mine")
    await handle.request("a")
    await handle.request("bad")
    await handle.send("wait")
    await gate.running.wait()
    await handle.send("b")
    state = await handle.state()
    assert (state.carrier, state.cursor, state.turn, state.running, state.pending) == (
        ["a"], 2, 2, True, 1,
    )  # fmt: skip
    assert (state.consecutive_errors, state.dead_letters, state.capacity) == (1, 1, 1000)
    assert (state.blocked, state.close_reason) == (None, None)
    closing = asyncio.ensure_future(handle.close("over", timeout=None))
    await until(handle, lambda state: state.status != "open")
    assert (await handle.state()).status == "closing"
    gate.open.set()
    await closing
    state = await handle.state()
    assert (state.status, state.close_reason, state.carrier) == (
        "closed", "over", ["a", "wait", "b"],
    )  # fmt: skip
    with pytest.raises(AttributeError):
        state.turn = 5  # type: ignore[misc]


async def test_b14_open_receives_names_the_next_seq(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    assert await handle.open_receives() == [("in", 1)]
    await handle.request("a")
    assert await handle.open_receives() == [("in", 2)]
    await handle.send("wait")
    await gate.running.wait()
    assert await handle.open_receives() == []
    gate.open.set()
    await handle.close(timeout=None)
    assert await handle.open_receives() == []


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


# -- B21, B22: closing ---------------------------------------------------------------------------


async def test_b21_close_works_off_what_was_accepted(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    for n in range(5):
        await handle.send(n)
    assert await handle.close() == Closed("closed", 0)
    assert (await handle.state()).carrier == [0, 1, 2, 3, 4]
    assert await handle.close("too late") == Closed("closed", 0)
    with pytest.raises(SessionClosed):
        await handle.send(6)
    events = await all_events(handle)
    assert events[-1] == SessionEvent("closed", 16, reason="closed")
    assert sum(event.is_closed() for event in events) == 1


async def test_b21_when_the_time_is_over_the_rest_are_dead_letters(
    runtime: Runtime, gate: Gate
) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    running = asyncio.ensure_future(handle.request("wait"))
    await gate.running.wait()
    waiting = asyncio.gather(*(handle.request(n) for n in range(2)))
    await until(handle, lambda state: state.pending == 2)
    assert await handle.close("enough", timeout=0.05) == Closed("enough", 3)
    assert (await running).outcome == "cancelled"
    assert [outcome.outcome for outcome in await waiting] == ["closed"] * 2
    letters = await handle.dead_letters()
    assert [letter.outcome for letter in letters] == ["cancelled", "closed", "closed"]
    assert await handle.close() == Closed("enough", 3)
    assert [e.kind for e in await all_events(handle)] == [
        "turn_started", "error", "turn_done", "closed",
    ]  # fmt: skip


async def test_b21_zero_closes_at_once_and_an_explicit_reason_wins(
    runtime: Runtime, gate: Gate
) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    await handle.send("wait")
    await gate.running.wait()
    first = asyncio.ensure_future(handle.close(timeout=None))
    await until(handle, lambda state: state.status != "open")
    assert await handle.close("explicit", timeout=0) == Closed("explicit", 1)
    assert await first == Closed("explicit", 1)
    for bad in (-1, True, float("nan")):
        with pytest.raises(InvalidValue):
            await handle.close(timeout=bad)


async def test_a12_a_live_function_that_returns_closes_its_session(runtime: Runtime) -> None:
    @session
    async def twice(s: Any) -> None:
        for _ in range(2):
            s.emit(await s.recv())

    handle = await runtime.open_session(twice, "s")
    assert (await handle.request(1)).outcome == "done"
    assert (await handle.request(2)).outcome == "closed"
    assert await handle.close("later") == Closed("returned", 0)


async def test_b22_a_closed_session_can_be_read_and_deleted(runtime: Runtime, gate: Gate) -> None:
    defined = scan(gate.step)
    handle = await runtime.open_session(defined, "s")
    await handle.request("a")
    await handle.close("done")
    again = await runtime.open_session(scan(gate.step), "s")
    assert [event.kind async for event in again.events()][-1] == "closed"
    with pytest.raises(SessionClosed):
        await again.send("b")
    with pytest.raises(SessionClosed):
        await again.request("b")
    assert await again.close() == Closed("done", 0)
    assert await again.cancel_turn() is False
    await runtime.delete_session("s")
    with pytest.raises(NotFound):
        await runtime.delete_session("s")
    fresh = await runtime.open_session(defined, "s")
    assert (await fresh.state()).carrier is None
    assert (await fresh.request("b")).outputs == ["b"]


async def test_b22_deleting_a_live_session_stops_it(runtime: Runtime, gate: Gate) -> None:
    handle = await runtime.open_session(scan(gate.step), "s")
    request = asyncio.ensure_future(handle.request("wait"))
    await gate.running.wait()
    gate.open.set()
    await runtime.delete_session("s")
    outcome = (await asyncio.gather(request, return_exceptions=True))[0]
    assert isinstance(outcome, NotFound) or outcome.outcome == "done"
    with pytest.raises(NotFound):
        await handle.send("b")
    assert not (await runtime.session_store.info("s")).exists


# -- B23 -----------------------------------------------------------------------------------------


async def test_b23_one_actor_a_session_however_many_handles(runtime: Runtime, gate: Gate) -> None:
    defined = scan(gate.step)
    handles = await asyncio.gather(*(runtime.open_session(defined, "s") for _ in range(5)))
    assert len({id(handle._home) for handle in handles}) == 1
    with pytest.raises(SessionConflict):
        await runtime.open_session(scan(gate.step), "s")
    await crash(handles[0])
    assert [(await handle.request(1)).outcome for handle in handles] == ["done"] * 5
    assert (await runtime.open_session(defined, "other")).session_id == "other"


@pytest.mark.parametrize(
    "options",
    [{"session_id": ""}, {"session_id": 5}, {"tenant": "a/b"}, {"conversation_id": ""},
     {"max_deliveries": 0}, {"retain_events": 0}, {"dedupe_window": True}, {"session": 5}],
    ids=str,
)  # fmt: skip
async def test_opening_checks_what_it_is_given(
    memory_runtime: Runtime, options: dict[str, Any]
) -> None:
    given = {"session": loop(lambda m, c: c), "session_id": "s", **options}
    with pytest.raises(RequestError):
        await memory_runtime.open_session(**given)


async def test_a_session_that_cannot_live_is_given_up_and_those_who_wait_are_told(
    memory_runtime: Runtime, gate: Gate
) -> None:
    handle = await memory_runtime.open_session(scan(gate.step), "s")
    request = asyncio.ensure_future(handle.request("wait"))
    await gate.running.wait()
    reader = asyncio.ensure_future(_drain(handle.events()))
    with failpoint.active({"session.claim.before": failpoint.raise_error}):
        await told("keepwell.supervisor.child_given_up", handle._home.ref.kill)
    for waiting in (request, reader):
        with pytest.raises(ActorDied):
            await asyncio.wait_for(waiting, LIMIT)
    with pytest.raises(ActorDied):
        await handle.send("no more")
    gate.open.set()
    again = await memory_runtime.open_session(handle.session, "s")
    await settled(again)
    assert (await again.state()).carrier == ["wait"], "opened anew it goes on"


async def test_the_supervisor_of_sessions_may_crash(memory_runtime: Runtime, gate: Gate) -> None:
    handle = await memory_runtime.open_session(scan(gate.step), "s")
    await handle.request("a")
    request = asyncio.ensure_future(handle.request("wait"))
    await gate.running.wait()
    sessions: Any = memory_runtime._sessions
    first = sessions.supervisor
    first.kill()
    with pytest.raises(ActorDied):
        await asyncio.wait_for(request, LIMIT)
    gate.open.set()
    while sessions.supervisor is first:  # noqa: ASYNC110 - nothing tells of this
        await asyncio.sleep(0)
    again = await memory_runtime.open_session(handle.session, "s")
    await settled(again)
    assert (await again.state()).carrier == ["a", "wait"]


async def _drain(reader: Any) -> list[Any]:
    return [event async for event in reader]


async def test_closing_the_runtime_leaves_nobody_waiting(gate: Gate) -> None:
    async with Runtime() as runtime:
        handle = await runtime.open_session(scan(gate.step), "s")
        request = asyncio.ensure_future(handle.request("wait"))
        reader = asyncio.ensure_future(_drain(handle.events()))
        await gate.running.wait()
        asyncio.get_running_loop().call_later(0.05, gate.open.set)
    results = await asyncio.gather(request, reader, return_exceptions=True)
    assert isinstance(results[0], TurnOutcome), "a turn gets its time at shutdown"
    assert isinstance(results[1], ActorDied)
    with pytest.raises(ActorDied):
        await handle.request("later")
