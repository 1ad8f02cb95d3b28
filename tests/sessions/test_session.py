"""Definitions and turn code (A7…A16)."""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from keepwell.actors.errors import RequestError
from keepwell.sessions import (
    NO_OUTPUT,
    Channel,
    NotPlain,
    PayloadInvalid,
    RecvTimeout,
    Session,
    SessionClosed,
    SessionDefinitionError,
    TurnOver,
    current_turn,
    drive_session,
    loop,
    run_session,
    scan,
    session,
)
from keepwell.stores.memory_session_store import MemorySessionStore

from .driven import errors_of, events_of, outputs_of

# -- A7, A8: definitions -------------------------------------------------------------------------


def test_a7_a_session_is_frozen_and_tells_what_it_is_made_of() -> None:
    def step(message: Any, carrier: Any) -> Any:
        return carrier, message

    inbox = Channel[int]("numbers")
    made = scan(step, [1], in_channel=inbox, extra_channels=["log"])
    assert (made.body, made.init, made.in_channel) == (step, [1], inbox)
    assert (made.out_channel.name, list(made.outputs)) == ("out", ["out", "log"])
    with pytest.raises(AttributeError):
        made.init = 2  # type: ignore[misc]  # is frozen


async def test_a7_each_run_has_its_own_queues_and_copy_of_init() -> None:
    inbox = Channel[int]("in")
    inbox.append(99)  # a queue of its own: no session takes from it
    summed = scan(lambda m, c: ([*c, m], sum(c) + m), [], in_channel=inbox)
    first, second = await asyncio.gather(run_session(summed, [1, 2]), run_session(summed, [10]))
    assert (first.carrier, second.carrier) == ([1, 2], [10])
    assert summed.init == []
    assert await inbox.recv() == 99


@pytest.mark.parametrize(
    "channels",
    [
        {"out_channel": "in"}, {"extra_channels": ["out"]}, {"extra_channels": ["a", "a"]},
        {"in_channel": Channel("x"), "extra_channels": ["x"]}, {"extra_channels": "log"},
        {"in_channel": 5},
    ],
)  # fmt: skip
def test_a7_equal_names_and_what_is_no_channel_are_refused(channels: Any) -> None:
    with pytest.raises(SessionDefinitionError):
        scan(lambda m, c: (c, m), **channels)


@pytest.mark.parametrize("body", [5, "step", None, lambda: 1, lambda a, b, c: 1, int.__add__])
def test_a8_a_body_is_a_node_or_takes_message_and_carrier(body: Any) -> None:
    if body is int.__add__:
        assert scan(body).body is body
        return
    for make in (scan, loop):
        with pytest.raises(SessionDefinitionError):
            make(body)


async def test_a8_sync_steps_run_in_a_pool_thread_async_ones_on_the_loop() -> None:
    names: list[str] = []

    def step(message: Any, carrier: Any) -> Any:
        names.append(threading.current_thread().name)
        return carrier, current_turn().turn

    async def async_step(message: Any, carrier: Any) -> Any:
        names.append(threading.current_thread().name)
        await asyncio.sleep(0)
        return carrier, current_turn().turn

    assert await outputs_of(scan(step), 0) == await outputs_of(scan(async_step), 0) == [1]
    assert names[0] != names[1] == threading.current_thread().name
    assert await outputs_of(scan(functools.partial(async_step)), 0) == [1]


# -- A9, A10: results ----------------------------------------------------------------------------


async def test_a9_the_output_is_the_turns_last_emit() -> None:
    def step(message: Any, carrier: Any) -> Any:
        current_turn().emit("first")
        return carrier, message

    assert await outputs_of(scan(step), "last") == ["first", "last"]


async def test_a9_none_is_emitted_no_output_is_not() -> None:
    assert await outputs_of(scan(lambda m, c: (c, None)), 1) == [None]
    assert await outputs_of(scan(lambda m, c: (c, NO_OUTPUT)), 1) == []


@pytest.mark.parametrize("result", [[1, 2], (1, 2, 3), (1,), 5, None, "ab", {"a": 1}])
async def test_a9_anything_but_a_2_tuple_fails_the_turn(result: Any) -> None:
    events = await events_of(scan(lambda m, c: result), 1)
    assert [event.kind for event in events] == ["turn_started", "error", "turn_done", "closed"]
    assert "tuple" in (events[1].reason or "")


@pytest.mark.parametrize("result", [(1, 2), 5, None, {"a": [1]}])
async def test_a10_a_loops_result_is_the_carrier(result: Any) -> None:
    carried = await run_session(loop(lambda m, c: result), [0])
    assert carried.outputs == []
    assert carried.carrier == (list(result) if isinstance(result, tuple) else result)


# -- A11: the decorator --------------------------------------------------------------------------


async def test_a11_a_function_of_two_is_a_scan() -> None:
    @session
    def echo(message: Any, carrier: Any) -> Any:
        return carrier, message

    @session(init=5, out_channel="answers")
    async def add(message: int, total: int) -> Any:
        return total + message, total + message

    assert isinstance(echo, Session)
    assert (await run_session(echo, ["a"])).outputs == ["a"]
    assert await run_session(add, [1, 2]) == (8, [6, 8])


@pytest.mark.parametrize("kind", range(8))
def test_a11_other_signatures_and_generators_are_refused(kind: int) -> None:
    async def generator(s: Any) -> Any:
        yield 1

    def sync_of_one(s: Any) -> None: ...
    async def three(a: Any, b: Any, c: Any) -> None: ...
    async def variable(*args: Any) -> None: ...
    async def keyword(s: Any, *, k: Any) -> None: ...
    async def none() -> None: ...
    def two_generator(m: Any, c: Any) -> Any:
        yield m

    bad = [generator, sync_of_one, three, variable, keyword, none, two_generator, 5][kind]
    with pytest.raises(SessionDefinitionError):
        session(bad)  # type: ignore[call-overload]  # is refused


# -- A12, A13: coroutine style -------------------------------------------------------------------


async def test_a12_a_turn_lasts_from_recv_to_recv() -> None:
    @session(init=0)
    async def s_of(s: Any) -> None:
        total = 0
        try:
            while True:
                message = await s.recv()
                total += message
                s.carrier = total
                s.emit(total)
                s.emit(current_turn().turn)
        finally:
            pass

    events = await events_of(s_of, 5, 6)
    assert [(e.kind, e.payload) for e in events] == [
        ("turn_started", None), ("emit", 5), ("emit", 1), ("turn_done", None),
        ("turn_started", None), ("emit", 11), ("emit", 2), ("turn_done", None), ("closed", None),
    ]  # fmt: skip


async def test_a12_the_return_closes_the_session() -> None:
    @session(init=[])
    async def two(s: Any) -> None:
        s.carrier.append(await s.recv())
        s.carrier.append(await s.recv())
        s.emit("bye")

    events = await events_of(two, 1, 2, 3)
    assert [e.payload for e in events if e.is_emit()] == ["bye"]
    assert events[-1].kind == "closed" and events[-1].reason == "returned"
    assert sum(e.kind == "turn_done" for e in events) == 2


async def test_a12_a_function_that_never_receives_closes_at_once() -> None:
    @session
    async def nothing(s: Any) -> None:
        pass

    events = await events_of(nothing, 1)
    assert [(event.kind, event.reason) for event in events] == [("closed", "returned")]


async def test_a12_emitting_outside_a_turn_is_refused() -> None:
    seen: list[BaseException] = []

    @session
    async def early(s: Any) -> None:
        for what in (lambda: s.emit(1), lambda: s.progress(1), lambda: s.close(), lambda: s.turn):
            try:
                what()
            except RequestError as error:
                seen.append(error)
        await s.recv()
        s.emit(2)

    assert await outputs_of(early, 0) == [2]
    assert [type(error) for error in seen] == [TurnOver] * 4


async def test_a12_recv_raises_session_closed_when_the_session_ends() -> None:
    seen: list[str] = []

    @session
    async def last_words(s: Any) -> None:
        try:
            while True:
                await s.recv()
        except SessionClosed as closed:
            seen.append(closed.reason)

    await events_of(last_words, 1)
    assert seen == ["feed ended"]


async def test_a12_recv_times_out_between_turns_and_goes_on() -> None:
    @session(init=0)
    async def patient(s: Any) -> None:
        while True:
            try:
                message = await s.recv(timeout=0.01)
            except RecvTimeout:
                s.carrier += 100
                continue
            s.emit(message)

    async def slow_feed() -> Any:
        yield 1
        await asyncio.sleep(0.05)
        yield 2

    events = [event async for event in drive_session(patient, slow_feed())]
    assert [e.payload for e in events if e.is_emit()] == [1, 2]


async def test_a12_a_recv_timeout_that_nobody_catches_fails_no_message() -> None:
    runs = 0

    @session(init=0)
    async def impatient(s: Any) -> None:
        nonlocal runs
        runs += 1
        while True:
            s.carrier += await s.recv(timeout=0.01)
            s.emit(s.carrier)

    async def slow_feed() -> Any:
        yield 1
        await asyncio.sleep(0.05)
        yield 2

    events = [event async for event in drive_session(impatient, slow_feed())]
    assert [e.payload for e in events if e.is_emit()] == [1, 3]
    assert not any(e.is_error() for e in events)
    assert runs == 2


async def test_a13_after_a_failed_turn_the_function_begins_anew_with_its_carrier() -> None:
    starts: list[Any] = []

    @session(init={"n": 0})
    async def fragile(s: Any) -> None:
        starts.append(dict(s.carrier))
        local = 0
        while True:
            message = await s.recv()
            local += 1
            s.carrier["n"] += 1
            s.emit([local, s.carrier["n"]])
            if message == "boom":
                raise ValueError("boom")

    assert await outputs_of(fragile, 1, "boom", 2, 3) == [[1, 1], [1, 2], [2, 3]]
    assert starts == [{"n": 0}, {"n": 1}]


async def test_a13_assigning_copies_and_changes_in_place_count() -> None:
    outside = {"n": [1]}

    @session
    async def keeper(s: Any) -> None:
        while True:
            if await s.recv() == "assign":
                s.carrier = outside
                outside["n"].append(2)
            else:
                s.carrier["n"].append("place")

    result = await run_session(keeper, ["assign", "change"])
    assert result.carrier == {"n": [1, "place"]}


async def test_a13_code_before_the_first_recv_that_raises_fails_the_message_it_was_called_for() -> (
    None
):
    calls = 0

    @session
    async def broken(s: Any) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("no start")

    assert await errors_of(broken, 1, 2) == ["ValueError: no start"] * 2
    assert calls == 3, "once at the start, and once for each message"


# -- A14, A15: the carrier -----------------------------------------------------------------------


def test_a14_init_must_match_the_state_schema() -> None:
    for schema, init in ((int, "x"), ({"type": "object"}, []), (list[int], [1.5])):
        with pytest.raises(PayloadInvalid):
            scan(lambda m, c: (c, m), init, state_schema=schema)
    with pytest.raises(NotPlain):
        scan(lambda m, c: (c, m), {1, 2})
    with pytest.raises(SessionDefinitionError):
        scan(lambda m, c: (c, m), state_schema=set)


async def test_a14_each_new_carrier_must_match_or_the_turn_fails() -> None:
    typed = scan(lambda m, c: (m, m), 0, state_schema=int)
    problem = "PayloadInvalid: carrier: $ must be an int, got string 'x'"
    assert await errors_of(typed, 1, "x", 2) == [problem]

    @session(init=0, state_schema=int)
    async def live(s: Any) -> None:
        while True:
            s.carrier = await s.recv()

    assert len(await errors_of(live, 1, "x", 2)) == 1


async def test_a14_a_carrier_that_is_not_plain_or_too_large_fails_the_turn() -> None:
    big = "x" * (8 << 20)
    (first, second) = await errors_of(loop(lambda m, c: {1, 2} if m else big), 1, 0)
    assert (first or "").startswith("NotPlain") and (second or "").startswith("PayloadTooLarge")
    exactly = "x" * ((8 << 20) - 2)
    assert (await run_session(loop(lambda m, c: exactly), [0])).carrier == exactly


@dataclass
class Basket:
    items: list[str]


async def test_fault_f41_a_carrier_of_a_class_of_the_users_is_refused_at_its_commit() -> None:
    """What a later version might not know by that name never gets into the store."""
    store = MemorySessionStore()

    def step(message: Any, carrier: Any) -> Any:
        return Basket([message]) if message == "class" else {"items": [message]}

    session = loop(step)
    run = drive_session(
        session, ["plain", "class", "plain again"], store=store, session_id="s",
        max_consecutive_turn_errors=3,
    )  # fmt: skip
    errors = [event.reason async for event in run if event.is_error()]
    assert len(errors) == 1 and errors[0].startswith("NotPlain") and "Basket" in errors[0]
    assert (await store.load("s")).carrier == {"items": ["plain again"]}
    with pytest.raises(NotPlain):
        await store.commit_value("s", 2, Basket([]))


async def test_a15_the_next_turn_gets_the_carrier_in_stored_form() -> None:
    seen: list[Any] = []

    def step(message: Any, carrier: Any) -> Any:
        seen.append(carrier)
        return (1, (2, 3)), NO_OUTPUT

    await run_session(scan(step), [0, 0])
    assert seen == [None, [1, [2, 3]]]


async def test_a15_a_turn_cannot_change_the_carrier_behind_our_back() -> None:
    def step(message: Any, carrier: Any) -> Any:
        carrier.append(message)
        if message == "bad":
            raise ValueError
        return carrier, list(carrier)

    assert await outputs_of(scan(step, []), 1, "bad", 2) == [[1], [1, 2]]
