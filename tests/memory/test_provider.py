"""The provider actor: lanes, isolation of custom code, read-your-writes (PV-1…9, RW-1)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from keepwell.actors import ActorSystem, Future
from keepwell.actors.errors import CallTimeout
from keepwell.memory import provider_actor
from keepwell.memory.provider import ProviderError
from keepwell.memory.provider_actor import ProviderActor, StoreProviderActor
from keepwell.memory.provider_handle import ProviderHandle
from keepwell.memory.provider_home import ProviderHome
from keepwell.memory.turn_gate import TurnGates
from keepwell.stores import MemoryStore
from keepwell.stores.message import Message


@pytest.fixture
async def system() -> AsyncIterator[ActorSystem]:
    system = ActorSystem(name="providers")
    system.adopt_loop(asyncio.get_running_loop())
    system.__enter__()
    yield system
    await asyncio.to_thread(system.close)


async def over(provider: Any) -> ProviderHandle:
    home = ProviderHome()
    await ProviderActor.spawn(home, provider)
    return ProviderHandle(home, journal=False, gates=TurnGates(), custom=True)


class Notes:
    """A provider that keeps messages in a dict; every call is noted."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Message]] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.hold: dict[str, asyncio.Event] = {}

    async def history(self, conversation_id: str) -> Any:
        return tuple(self.kept.get(conversation_id, ()))

    async def append(
        self, conversation_id: str, messages: Any, *, append_id: Any = None, epoch: Any = None
    ) -> None:
        text = messages[0].content
        self.calls.append(("begin", conversation_id, text))
        if text in self.hold:
            await self.hold[text].wait()
        self.kept.setdefault(conversation_id, []).extend(messages)
        self.calls.append(("end", conversation_id, text))

    async def prepare(self, conversation_id: str, messages: Any) -> Any:
        return messages

    async def clear(self, conversation_id: str) -> None:
        self.kept.pop(conversation_id, None)


def said(text: str) -> list[Message]:
    return [Message("user", text)]


@pytest.mark.usefixtures("system")
async def test_pv_6_one_lane_per_conversation_in_arrival_order() -> None:
    notes = Notes()
    notes.hold["one"] = asyncio.Event()
    handle = await over(notes)
    one, two = handle.append("c", said("one")), handle.append("c", said("two"))
    await handle.append("d", said("other"))  # another lane does not wait
    assert ("end", "d", "other") in notes.calls
    assert ("begin", "c", "two") not in notes.calls
    history = handle.history("c")
    notes.hold["one"].set()
    await one
    await two
    assert [m.content for m in await history] == ["one", "two"]
    assert notes.calls.index(("end", "c", "one")) < notes.calls.index(("begin", "c", "two"))


@pytest.mark.usefixtures("system")
async def test_pv_6_a_hung_call_times_out_and_the_lane_goes_on(monkeypatch: Any) -> None:
    monkeypatch.setattr(provider_actor, "CALL_SECONDS", 0.02)
    notes = Notes()
    notes.hold["hung"] = asyncio.Event()
    handle = await over(notes)
    hung, after = handle.append("c", said("hung")), handle.append("c", said("after"))
    with pytest.raises(CallTimeout):
        await hung
    await after
    assert [m.content for m in await handle.history("c")] == ["after"]


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1), KeyError("x")])
async def test_pv_7_what_custom_code_raises_hits_that_asker_only(error: BaseException) -> None:
    class Broken(Notes):
        async def prepare(self, conversation_id: str, messages: Any) -> Any:
            raise error

    handle = await over(Broken())
    with pytest.raises(ProviderError) as caught:
        await handle.prepare("c", said("x"))  # type: ignore[misc]  # custom: a future
    assert caught.value.__cause__ is error
    await handle.append("c", said("still"))
    assert len(await handle.history("c")) == 1


@pytest.mark.usefixtures("system")
async def test_pv_1_plain_functions_run_off_the_loop() -> None:
    threads: list[threading.Thread] = []

    class Plain:
        def history(self, conversation_id: str) -> Any:
            threads.append(threading.current_thread())
            return ()

        def append(self, conversation_id: str, messages: Any) -> None:
            threads.append(threading.current_thread())

        def prepare(self, conversation_id: str, messages: Any) -> Any:
            return messages

        def clear(self, conversation_id: str) -> None: ...

    handle = await over(Plain())
    assert await handle.history("new") == ()
    await handle.append("c", said("x"))
    assert threading.main_thread() not in threads


@pytest.mark.usefixtures("system")
async def test_pv_8_an_append_without_ids_is_accepted_with_one_warning(caplog: Any) -> None:
    class Simple(Notes):
        async def append(self, conversation_id: str, messages: Any) -> None:  # type: ignore[override]  # what is tested
            self.kept.setdefault(conversation_id, []).extend(messages)

    with caplog.at_level(logging.WARNING):
        handle = await over(Simple())
        await handle.append("c", said("one"), append_id="a", epoch=1)
        await handle.append("c", said("two"), append_id="b", epoch=1)
    assert [m.content for m in await handle.history("c")] == ["one", "two"]
    warnings = [r for r in caplog.records if "append_id" in r.getMessage()]
    assert len(warnings) == 1


@pytest.mark.usefixtures("system")
async def test_rw_1_history_waits_for_the_lanes_outstanding_appends() -> None:
    store = MemoryStore()
    await store.spawn()
    home = ProviderHome()
    await StoreProviderActor.spawn(home, store)
    handle = ProviderHandle(home, journal=True, gates=TurnGates())
    for i in range(50):
        appended = handle.append("c", said(str(i)))
        log = await handle.history("c")
        assert len(log) == i + 1
        assert appended.done()
    await handle.clear("c")
    assert len(await handle.history("c")) == 0


@pytest.mark.usefixtures("system")
async def test_rw_1_a_position_is_given_only_behind_the_lanes_outstanding_appends() -> None:
    store = MemoryStore()
    await store.spawn()
    home = ProviderHome()
    actor = await StoreProviderActor.spawn(home, store)
    handle = ProviderHandle(home, journal=True, gates=TurnGates())
    assert handle.position("c") == (0, 0)
    for i in range(50):
        appended = handle.append("c", said(str(i)))
        assert handle.position("c") in (None, (0, i + 1))
        await appended
        assert handle.position("c") == (0, i + 1)
    await store.add("c", said("by another"))
    assert handle.position("c") == (0, 51)
    await handle.clear("c")
    assert handle.position("c") == (1, 0)
    await actor.stop(block=False)
    assert handle.position("c") is None
    assert (await over(Notes())).position("c") is None  # custom code is asked for its messages


@pytest.mark.usefixtures("system")
async def test_rw_1_lanes_are_forgotten_once_their_appends_are_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider_actor, "MOST_OUTSTANDING", 2)
    store = MemoryStore()
    await store.spawn()
    home = ProviderHome()
    actor: list[StoreProviderActor] = []

    class Seen(StoreProviderActor):
        def on_start(self) -> None:
            actor.append(self)
            super().on_start()

    await Seen.spawn(home, store)
    handle = ProviderHandle(home, journal=True, gates=TurnGates())
    for i in range(20):
        appended = [handle.append(f"c{i}-{n}", said("x")) for n in range(5)]
        assert [len(await handle.history(f"c{i}-{n}")) for n in range(5)] == [1] * 5
        await asyncio.gather(*appended)
    assert len(actor[0]._outstanding) <= 2 * 5 + 2


@pytest.mark.usefixtures("system")
async def test_requests_wait_for_a_provider_that_restarts_and_are_stored_once() -> None:
    store = MemoryStore()
    await store.spawn()
    home = ProviderHome()
    ref = await StoreProviderActor.spawn(home, store)
    handle = ProviderHandle(home, journal=True, gates=TurnGates())
    await handle.append("c", said("before"))
    ended: Future[Any] = Future()
    ref.on_exit(ended.complete)  # type: ignore[attr-defined]  # ours, behind pykka's type
    ref.kill()  # type: ignore[attr-defined]  # as above
    await ended
    waiting = handle.append("c", said("meanwhile"))
    reading = handle.history("c")
    await asyncio.sleep(0)
    assert not waiting.done()
    await StoreProviderActor.spawn(home, store)
    await waiting
    await reading
    assert [r.message.content for r in await handle.history("c")] == ["before", "meanwhile"]
