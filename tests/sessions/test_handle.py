"""Durable sessions through their handles, in memory and on disk: sending and looking (B9…B14)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepwell import Runtime
from keepwell.actors.errors import CallTimeout, InvalidValue
from keepwell.sessions import (
    Channel,
    ChannelFull,
    ChannelUndeclared,
    IdempotencyConflict,
    NotPlain,
    PayloadInvalid,
    PayloadTooLarge,
    SessionClosed,
    TurnOutcome,
    scan,
)

from .gate import Gate, settled, until

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
        state.turn = 5  # type: ignore[misc]  # is frozen


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
