"""Following the events of a session (B2, B6…B8, A16)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from keepwell import Runtime
from keepwell.actors.errors import InvalidValue
from keepwell.sessions import (
    EventsTrimmed,
    current_turn,
    scan,
)

from .gate import LIMIT, Gate, all_events, crash

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
            handle.events(bad)  # type: ignore[arg-type]  # is refused


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
