"""Sessions that close, are opened again, or cannot live (B21…B23)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepwell import Runtime
from keepwell.actors import failpoint
from keepwell.actors.errors import ActorDied, InvalidValue, RequestError
from keepwell.sessions import (
    Closed,
    NotFound,
    SessionClosed,
    SessionConflict,
    SessionEvent,
    TurnOutcome,
    loop,
    scan,
    session,
)

from .gate import LIMIT, Gate, all_events, crash, settled, told, until

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
