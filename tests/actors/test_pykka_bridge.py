"""Plain pykka actors, unchanged, in links and monitors of ours."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pykka
import pytest

from keepwell.actors import Down, Exit, RequestError, pykka_bridge

SOON = 10.0


class Plain(pykka.ThreadingActor):
    use_daemon_thread = True

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault

    def on_start(self) -> None:
        if self.fault == "on_start":
            raise RuntimeError("on_start")

    def on_stop(self) -> None:
        if self.fault == "on_stop":
            raise RuntimeError("on_stop")

    def on_receive(self, message: Any) -> Any:
        return message(self) if callable(message) else message


@pytest.fixture(autouse=True)
def quiet_pykka() -> Iterator[None]:
    logging.getLogger("pykka").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("pykka").setLevel(logging.NOTSET)
    for ref in pykka.ActorRegistry.get_by_class(Plain):
        ref.stop()


def boom(_actor: Any) -> None:
    raise RuntimeError("boom")


def bound(watcher: Any, plain: Any) -> Any:
    def bind(actor: Any) -> Any:
        actor.link(plain)
        return actor.monitor(plain)

    return watcher.ask(bind, timeout=SOON)


def told(watcher: Any, count: int = 2) -> list[Any]:
    """What the watcher has noted, once there are `count` items."""
    while True:
        seen = watcher.ask(lambda actor: list(actor.seen), timeout=SOON)
        if len(seen) >= count:
            return seen


ENDS: dict[str, tuple[Any, str]] = {
    "a crash by tell": (lambda ref: ref.tell(boom), "RuntimeError('boom')"),
    "a stop": (lambda ref: ref.stop(), "'normal'"),
    "its own stop": (lambda ref: ref.tell(lambda actor: actor.stop()), "'normal'"),
    "a failing on_stop": (
        lambda ref: (ref.ask(lambda actor: setattr(actor, "fault", "on_stop")), ref.stop()),
        "RuntimeError('on_stop')",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_its_end_is_seen_by_link_and_monitor(watcher: Any, end: str) -> None:
    """LINK-2, MON-1."""
    how, reason = ENDS[end]
    plain = Plain.start()
    monitor = bound(watcher, plain)
    assert watcher.statistics().get(timeout=SOON)["links"] == [plain]
    how(plain)
    exit_message, down = told(watcher)
    assert isinstance(exit_message, Exit)
    assert isinstance(down, Down)
    assert (exit_message.ref, repr(exit_message.reason)) == (plain, reason)
    assert (down.monitor, down.ref, repr(down.reason)) == (monitor, plain, reason)
    assert watcher.statistics().get(timeout=SOON)["links"] == []


def test_its_crash_ends_a_linked_actor_of_ours(spawn: Any) -> None:
    """LINK-1."""
    plain, ref = Plain.start(), spawn()
    ref.ask(lambda actor: actor.link(plain), timeout=SOON)
    plain.tell(boom)
    assert repr(ref.ended().get(timeout=SOON)) == "RuntimeError('boom')"


@pytest.mark.parametrize("reason", ["boom", "shutdown", "killed"])
def test_our_abnormal_end_ends_it(spawn: Any, reason: str) -> None:
    plain, ref = Plain.start(), spawn()
    ref.ask(lambda actor: actor.link(plain), timeout=SOON)
    if reason == "killed":
        ref.kill()
    else:
        ref.exit(reason)
    assert plain.actor_stopped.wait(SOON)


def test_our_normal_end_does_not(spawn: Any) -> None:
    plain, ref = Plain.start(), spawn()
    ref.ask(lambda actor: actor.link(plain), timeout=SOON)
    ref.stop()
    assert plain.ask("alive") == "alive"


def test_unlink_and_demonitor_end_it(watcher: Any) -> None:
    plain = Plain.start()
    monitor = bound(watcher, plain)
    watcher.ask(lambda actor: (actor.unlink(plain), actor.demonitor(monitor)), timeout=SOON)
    plain.tell(boom)
    watch = pykka_bridge.known_watch(plain)
    if watch is not None:
        watch.ended.get(timeout=SOON)
    assert told(watcher, 0) == []


def test_the_dead_are_noproc(watcher: Any, spawn: Any) -> None:
    """LINK-4, MON-3."""
    plain, ref = Plain.start(), spawn()
    plain.stop()
    monitor = bound(watcher, plain)
    assert told(watcher) == [Exit(plain, "noproc"), Down(monitor, plain, None, "noproc")]

    def refused(actor: Any) -> str:
        with pytest.raises(RequestError) as error:
            actor.link(plain)
        return error.value.code

    assert ref.ask(refused, timeout=SOON) == "noproc"


def test_an_exception_under_ask_cannot_be_seen(watcher: Any) -> None:
    """Documented: pykka answers with it and lets the actor live."""
    plain = Plain.start()
    bound(watcher, plain)
    with pytest.raises(RuntimeError):
        plain.ask(boom)
    assert plain.ask("alive") == "alive"
    assert told(watcher, 0) == []


def test_many_watch_one_and_it_stays_the_users_actor(light: Any, system: Any) -> None:
    plain = Plain.start()
    watchers = []
    for _ in range(3):

        class Watcher(light):  # type: ignore[misc]  # a class that the fixture gives
            trap_exit = True

        watchers.append(Watcher.start())
        bound(watchers[-1], plain)
    assert type(plain._actor_weakref()) is Plain
    plain.tell(boom)
    for watcher in watchers:
        assert len(told(watcher)) == 2


def test_bonds_made_while_it_ends_are_told(watcher: Any) -> None:
    """Whoever is first, an Exit and a Down come."""
    for number in range(1, 31):
        plain, go = Plain.start(), threading.Barrier(2)

        def end(plain: Any = plain, go: Any = go) -> None:
            go.wait(SOON)
            plain.tell(boom)

        thread = threading.Thread(target=end)
        thread.start()
        watcher.ask(lambda _, go=go: go.wait(SOON), timeout=SOON)
        bound(watcher, plain)
        thread.join(SOON)
        assert {type(message) for message in told(watcher, 2 * number)[-2:]} == {Exit, Down}


def test_neither_side_keeps_the_other_alive(spawn: Any, system: Any) -> None:
    """F63."""
    plain = Plain.start()
    refs = [spawn() for _ in range(5)]
    for ref in refs:
        ref.ask(lambda actor: (actor.link(plain), actor.monitor(plain)), timeout=SOON)
        ref.stop()
    watch = pykka_bridge.known_watch(plain)
    assert watch is not None
    assert (watch.links, watch.monitors) == ({}, {})
    actor = weakref.ref(plain._actor_weakref())
    ended = watch.ended
    plain.stop()
    ended.get(timeout=SOON)
    del watch
    for thread in threading.enumerate():
        if thread.name.startswith("Plain"):
            thread.join(SOON)
    gc.collect()
    assert actor() is None
