"""What outlives actors, shutdowns and processes (C1…C7, C16), and laws of the stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepwell import DiskStore, NoCounter, Runtime
from keepwell.actors import Future
from keepwell.actors.errors import KeepwellError
from keepwell.sessions import (
    Closed,
    SessionClosed,
    SessionHandle,
    current_turn,
    loop,
    scan,
    session,
)
from keepwell.sessions.session_actor import SessionActor
from keepwell.stores.disk_session_store import DiskSessionStore
from keepwell.stores.memory_session_store import MemorySessionStore
from keepwell.stores.session_event import SessionEvent
from keepwell.stores.session_state import Admission, Letter, SessionState, TurnWrites

from .gate import Gate, crash, until

LIMIT = 20.0


def running(path: Path) -> Runtime:
    return Runtime(path, durability="process", counter=NoCounter())


async def test_c1_what_was_acknowledged_is_there_in_the_next_process(tmp_path: Path) -> None:
    gate = Gate()
    defined = scan(gate.step)
    async with running(tmp_path) as runtime:
        handle = await runtime.open_session(defined, "s")
        await handle.request("a", idempotency_key="k")
        await handle.request("bad")
        reader = handle.events(consumer="c")
        for _ in range(3):
            await anext(reader)
        before = await handle.state()
        events = [event async for event in handle.events(follow=False)]
    async with running(tmp_path) as runtime:
        handle = await runtime.open_session(defined, "s")
        assert await handle.state() == before
        assert [event async for event in handle.events(follow=False)] == events
        assert (await handle.send("a", idempotency_key="k")).duplicate
        assert (await handle.request("a", idempotency_key="k")).outputs == ["a"]
        assert [letter.payload for letter in await handle.dead_letters()] == ["bad"]
        assert (await anext(handle.events(consumer="c"))).position == 3
        assert (await handle.request("b")).outputs == ["b"]


async def test_c2_the_turn_id_is_equal_in_every_run_of_a_turn(runtime: Runtime) -> None:
    gate, seen = Gate(), []

    async def step(message: Any, carrier: Any) -> Any:
        seen.append((current_turn().turn, current_turn().turn_id))
        return await gate.step(message, carrier)

    handle = await runtime.open_session(scan(step), "s")
    request = asyncio.ensure_future(handle.request("wait"))
    await gate.running.wait()
    await crash(handle)
    gate.open.set()
    assert (await asyncio.wait_for(request, LIMIT)).outcome == "done"
    await handle.request("next")
    assert len(seen) == 3 and seen[0] == seen[1] != seen[2]
    await runtime.delete_session("s")
    again = await runtime.open_session(scan(step), "s")
    await again.request("x")
    assert seen[3][0] == 1 and seen[3] != seen[0], "another life of the id, other turns"


async def test_a13_a_killed_live_function_begins_anew_with_its_carrier(runtime: Runtime) -> None:
    starts: list[int] = []

    @session(init=0)
    async def counting(s: Any) -> None:
        starts.append(s.carrier)
        while True:
            s.carrier += await s.recv()
            s.emit(s.carrier)

    handle = await runtime.open_session(counting, "s")
    assert (await handle.request(5)).outputs == [5]
    await crash(handle)
    assert (await handle.request(2)).outputs == [7]
    assert starts == [0, 5]


async def test_c5_a_session_that_was_closing_is_closed_when_it_is_opened(tmp_path: Path) -> None:
    gate = Gate()
    async with running(tmp_path) as runtime:
        store = runtime.session_store
        handle = await runtime.open_session(scan(gate.step), "s")
        await handle.request("a")
        handle._home.ref.stop(block=False)
        await store.accept("s", "in", "b")
        await store.seal("s", "last orders")
    async with running(tmp_path) as runtime:
        handle = await runtime.open_session(scan(gate.step), "s")
        assert await asyncio.wait_for(handle._home.ended, LIMIT) == Closed("last orders", 0)
        assert (await handle.state()).carrier == ["a", "b"], "what was accepted is worked off"
        with pytest.raises(SessionClosed):
            await handle.send("c")


def at_stop(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do `action` as a session's actor begins to stop, before anything else runs on its loop."""
    on_stop = SessionActor.on_stop

    async def stopping(self: SessionActor) -> None:
        action()
        await on_stop(self)

    monkeypatch.setattr(SessionActor, "on_stop", stopping)


async def test_c6_at_shutdown_a_turn_gets_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    # Before the stop has come to the session, the next turn may begin.
    at_stop(monkeypatch, gate.open.set)
    async with running(tmp_path) as runtime:
        handle = await runtime.open_session(scan(gate.step), "s")
        await handle.send("wait")
        await gate.running.wait()
        await handle.send("later")
    async with running(tmp_path) as runtime:
        info = await runtime.session_store.info("s")
        assert (info.taken, info.pending, info.position) == (1, 1, 3)


async def test_c6_no_turn_begins_when_the_stop_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop comes while the session looks for its next message."""
    gate, stopping = Gate(), asyncio.Event()
    at_stop(monkeypatch, stopping.set)
    looking: list[SessionHandle] = []
    async with running(tmp_path) as runtime:
        store = runtime.session_store
        look = store.next_message

        async def looks(session_id: str) -> Any:
            found = await look(session_id)
            if looking and found[1] is not None:
                looking.pop()._home.ref.stop(block=False)
                await stopping.wait()
            return found

        handle = await runtime.open_session(scan(gate.step), "s")
        await handle.request("first")
        monkeypatch.setattr(store, "next_message", looks)
        ref: Any = handle._home.ref
        looking.append(handle)
        await handle.send("later")
        await asyncio.wait_for(stopping.wait(), LIMIT)
        await asyncio.wait_for(ref.ended(), LIMIT)
        monkeypatch.undo()
        assert gate.runs == 1
        info = await store.info("s")
        assert (info.taken, info.pending, info.position) == (1, 1, 3)


async def test_c6_what_does_not_end_in_time_is_as_if_it_had_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepwell.sessions.session_actor.SHUTDOWN_SECONDS", 0.05)
    gate = Gate()
    defined = scan(gate.step)
    for _ in range(5):  # more often than max_deliveries: a shutdown is no crash
        async with running(tmp_path) as runtime:
            handle = await runtime.open_session(defined, "s", max_deliveries=1)
            if not gate.runs:
                await handle.send("wait", idempotency_key="k")
            await gate.running.wait()
            gate.running.clear()
    async with running(tmp_path) as runtime:
        assert await runtime.pending_sessions() == ["s"]
        events: Any = await runtime.session_store.read("s", "events")
        assert events == []
        gate.open.set()
        handle = await runtime.open_session(defined, "s")
        assert (await handle.request("wait", idempotency_key="k")).outputs == ["wait"]
        assert await runtime.pending_sessions() == []
        assert await handle.dead_letters() == []


async def test_c16_blobs_that_are_not_there_fail_the_turn(runtime: Runtime) -> None:
    store = runtime.session_store
    ref = await store.put_blob("default", "large")
    missing = f"default/sha256:{'0' * 64}"
    handle = await runtime.open_session(
        loop(lambda message, carrier: {"kept": {"$blob": message}}), "s",
    )  # fmt: skip
    assert (await handle.request(ref)).outcome == "done"
    failed = await handle.request(missing)
    assert failed.outcome == "failed" and (failed.error or "").startswith("BlobNotFound")
    assert (await handle.state()).carrier == {"kept": {"$blob": ref}}
    assert (await store.collect(0)).blobs == 0
    assert (await handle.request(ref)).outcome == "done", "the session lives"


async def test_a_slow_store_does_not_lose_the_order_of_sends(runtime: Runtime) -> None:
    handle = await runtime.open_session(loop(lambda message, carrier: [*carrier, message], []), "s")
    acks = await asyncio.gather(*(handle.send(n) for n in range(200)))
    assert [ack.seq for ack in acks] == list(range(1, 201))
    await until(handle, lambda state: state.turn == 200)
    assert (await handle.state()).carrier == list(range(200))


async def test_the_store_may_crash_under_a_session(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        handle = await runtime.open_session(
            loop(lambda message, carrier: [*carrier, message], []), "s"
        )
        port: Any = runtime.store.port
        results, kills = [], 0
        for n in range(60):
            if n % 12 == 5 and port.ref is not None:
                port.ref.kill()
                kills += 1
            results.append(handle.send(n, idempotency_key=f"k{n}"))
            await asyncio.sleep(0)
        acks = await asyncio.wait_for(asyncio.gather(*results), LIMIT)
        assert sorted(ack.seq for ack in acks) == list(range(1, 61))
        assert kills
        await until(handle, lambda state: state.turn == 60)
        carrier = (await handle.state()).carrier
    assert sorted(carrier) == list(range(60)), "none lost, none twice"


# -- both stores do the same -----------------------------------------------------------------------

ids = st.sampled_from(["s", "t"])
values = st.sampled_from([None, 1, "x", [1, {"a": 2}], {"$blob": "default/sha256:" + "0" * 64}])
operations = st.one_of(
    st.tuples(st.just("claim"), ids),
    st.tuples(st.just("accept"), ids, values, st.sampled_from([None, "k1", "k2", "k3"]),
              st.sampled_from([None, 2])),
    st.tuples(st.just("turn"), ids, values, st.sampled_from(["done", "failed", "closed"])),
    st.tuples(st.just("commit_value"), ids, st.integers(0, 4), values),
    st.tuples(st.just("retry"), ids, st.integers(1, 3)),
    st.tuples(st.just("consume"), ids, st.sampled_from(["c", "d"]), st.integers(0, 12)),
    st.tuples(st.just("forget_consumer"), ids, st.sampled_from(["c", "d"])),
    st.tuples(st.just("seal"), ids, st.sampled_from([None, "why"])),
    st.tuples(st.just("finish"), ids),
    st.tuples(st.just("delete"), ids),
    st.tuples(st.just("blob"), st.sampled_from(["put", "collect"])),
    st.tuples(st.just("read"), ids, st.sampled_from(["inbox", "events", "dead_letters"]),
              st.integers(0, 9)),
)  # fmt: skip


def answer(future: Future[Any]) -> Any:
    try:
        return future.get(timeout=LIMIT)
    except KeepwellError as refusal:
        return type(refusal), str(refusal)


def perform(store: Any, operation: tuple[Any, ...]) -> Any:
    """One operation on a store; what it answers."""
    kind, *args = operation
    if kind == "claim":
        return answer(store.claim(args[0]))[:2]
    if kind == "accept":
        session_id, value, key, capacity = args
        return answer(
            store.accept(session_id, "in", value, key=key, admission=Admission(capacity))
        )
    if kind == "turn":
        return answer(_turn(store, *args))
    if kind == "commit_value":
        return answer(store.commit_value(*args))
    if kind == "retry":
        return answer(store.retry(args[0], args[1], Admission()))
    if kind == "finish":
        info = store.info(args[0]).get()
        return _shown(answer(store.finish(args[0], info.epoch, None)))
    if kind == "seal":
        return _shown(answer(store.seal(*args)))
    if kind == "blob":
        return answer(store.put_blob("default", 1) if args[0] == "put" else store.collect(0))
    if kind == "read":
        found = answer(store.read(args[0], args[1], after=args[2]))
        return [item[:8] if args[1] == "dead_letters" else item for item in found]
    return answer(getattr(store, kind)(*args))


def _turn(store: Any, session_id: str, carrier: Any, outcome: str) -> Future[Any]:
    info = store.info(session_id).get()
    n, p = info.taken + 1, info.position
    events = (
        SessionEvent("turn_started", p + 1, n, "in", n),
        SessionEvent("emit", p + 2, n, "out", n, carrier),
        SessionEvent("turn_done", p + 3, n, "in", n),
    )
    writes = TurnWrites(
        info.epoch, n, outcome, (carrier,), events=events,  # type: ignore[arg-type]  # outcome: a str
        letter=Letter("failed") if outcome == "failed" else None,
        closes="over" if outcome == "closed" else None,
    )  # fmt: skip
    state = SessionState(carrier, n, p + 3, {"out": n})
    result: Future[Any] = store.commit(session_id, info.cursor, state, None, writes=writes)
    return result


def _shown(info: Any) -> Any:
    return info if isinstance(info, tuple) else (info.closing, info.closed, info.reason,
                                                 info.unprocessed, info.position)  # fmt: skip


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = DiskStore(
        tmp_path_factory.mktemp("both"), counter=NoCounter(), durability="process"
    ).start()
    yield store
    store.stop().get()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operations, max_size=25))
def test_memory_and_disk_answer_alike(disk: Any, script: list[tuple[Any, ...]]) -> None:
    kept = DiskSessionStore(disk, retain_revisions=3)
    memory = MemorySessionStore(retain_revisions=3)
    for session_id in ("s", "t"):
        kept.delete(session_id).get()
    kept.collect(0).get()
    for operation in script:
        assert perform(kept, operation) == perform(memory, operation), operation
    for session_id in ("s", "t"):
        ours, theirs = kept.info(session_id).get(), memory.info(session_id).get()
        for name in (
            "exists", "cursor", "position", "oldest_event", "accepted", "taken", "inbound",
            "dead_letters", "closing", "closed", "reason", "consumers",
        ):  # fmt: skip
            assert getattr(ours, name) == getattr(theirs, name), name
        assert kept.load(session_id).get() == memory.load(session_id).get()
