"""`pykka.ActorRegistry` sees our actors and pykka's, and costs a start or stop nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pykka
import pytest

from keepwell.actors import Actor, ActorRef, ActorSystem, AsyncActor, ThreadActor

Registry = pykka.ActorRegistry


class Journal:
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_receive(self, message: Any) -> Any:
        if message == "seen":
            return self.seen
        self.seen.append(message)
        return None


class Light(Journal, Actor): ...


class Threaded(Journal, ThreadActor): ...


class Async(Journal, AsyncActor): ...


class Plain(Journal, pykka.ThreadingActor): ...


KINDS = [Plain, Light, Threaded, Async]


@pytest.fixture
def refs() -> Iterator[list[pykka.ActorRef[Any]]]:
    started: list[pykka.ActorRef[Any]] = [kind.start() for kind in KINDS]
    yield started
    for ref in started:
        if ref.is_alive():
            ref.stop()


def test_all_kinds_are_listed_in_the_order_of_their_starts(refs: list[Any]) -> None:
    assert [ref for ref in Registry.get_all() if ref in refs] == refs
    for ref in refs:
        assert Registry.get_by_class(ref.actor_class) == [ref]
        assert Registry.get_by_class_name(ref.actor_class.__name__) == [ref]
        assert Registry.get_by_urn(ref.actor_urn) is ref


def test_a_broadcast_reaches_all_kinds(refs: list[Any]) -> None:
    Registry.broadcast("news", Journal)
    Registry.broadcast("for one", "Light")
    assert [ref.ask("seen") for ref in refs] == [["news"], ["news", "for one"], ["news"], ["news"]]


def test_stop_all_stops_all_kinds_the_youngest_first(refs: list[Any]) -> None:
    order: list[Any] = []
    for ref in refs[1:]:
        ref.on_exit(lambda _, ref=ref: order.append(ref))
    assert all(Registry.stop_all())
    assert order == refs[:0:-1]
    assert not any(ref.is_alive() for ref in refs)
    assert not set(refs) & set(Registry.get_all())


def test_who_is_unregistered_by_hand_lives_on_unlisted(refs: list[Any]) -> None:
    for ref in refs:
        Registry.unregister(ref)
        Registry.unregister(ref)  # pykka allows it
        assert ref not in Registry.get_all()
        assert ref.is_alive()
        Registry.register(ref)
        assert Registry.get_all().count(ref) == 1


def test_a_closed_system_leaves_the_registry() -> None:
    with ActorSystem(name="short") as system:
        ref = Light.start()
        assert ref in Registry.get_all()
    assert system.closed
    assert ref not in Registry.get_all()


def test_our_starts_and_stops_do_not_touch_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a list was walked")

    for name in ("register", "unregister", "get_all"):
        monkeypatch.setattr(Registry, name, refuse)
    started: list[ActorRef[Any]] = [kind.start() for kind in KINDS[1:] for _ in range(3)]
    assert all(ref.stop() for ref in started)
