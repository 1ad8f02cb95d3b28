"""`ActorRef.ended` (F47) and `bonds.adopt`: what supervisors wait for and hold on to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from keepwell.actors import Actor, ActorSystem, Exit, ExitActor, names
from keepwell.actors.bonds import adopt


@pytest.fixture
def system() -> Iterator[ActorSystem]:
    with ActorSystem() as system:
        yield system


class Plain(Actor):
    def on_receive(self, message: Any) -> Any:
        if message == "leave":
            raise ExitActor("boom")
        return message


class Parent(Actor):
    trap_exit = True

    def __init__(self) -> None:
        super().__init__()
        self.exits: list[Exit] = []

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, Exit):
            self.exits.append(message)
            return None
        return [(exit_.ref, exit_.reason) for exit_ in self.exits]


def test_ended_gives_the_reason_when_all_is_over(system: ActorSystem) -> None:
    released, hook_ran = threading.Event(), threading.Event()

    class Slow(Actor):
        def on_stop(self) -> None:
            released.wait(10)
            hook_ran.set()

    ref = Slow.start(name="slow")
    ended = ref.ended()
    seen = []
    ended.add_done_callback(lambda _: seen.append((hook_ran.is_set(), names.whereis("slow"))))
    stopped = ref.stop(block=False, reason="shutdown")
    assert not ended.done()
    released.set()
    assert ended.get(timeout=10) == "shutdown"
    assert stopped.get(timeout=10)
    assert seen == [(True, None)]


def test_ended_of_the_dead_is_done_at_once(system: ActorSystem) -> None:
    ref = Plain.start()
    ref.tell("leave")
    assert ref.ended().get(timeout=10) == "boom"
    assert ref.ended().done()
    idle = Plain.start()
    idle.stop()
    assert idle.ended().get(timeout=0) == "normal"


def test_every_waiter_is_told_in_a_race_with_the_end(system: ActorSystem) -> None:
    for _ in range(200):
        ref = Plain.start()
        threads = [threading.Thread(target=ref.tell, args=("leave",)) for _ in range(2)]
        for thread in threads:
            thread.start()
        futures = [ref.ended() for _ in range(5)]
        assert {future.get(timeout=10) for future in futures} == {"boom"}
        for thread in threads:
            thread.join()


def test_adopted_child_reports_its_end_and_ends_with_its_parent(system: ActorSystem) -> None:
    parent, child, other = Parent.start(), Plain.start(), Plain.start()
    adopt(child, parent)
    adopt(other, parent)
    child.tell("leave")
    child.ended().get(timeout=10)
    assert parent.ask("exits") == [(child, "boom")]
    parent.kill()
    assert other.ended().get(timeout=10) == "killed"


def test_adopting_the_dead_gives_their_reason_and_the_dead_adopt_nobody(
    system: ActorSystem,
) -> None:
    parent, child = Parent.start(), Plain.start()
    child.tell("leave")
    child.ended().get(timeout=10)
    adopt(child, parent)
    assert parent.ask("exits") == [(child, "boom")]
    parent.stop(reason="shutdown")
    orphan = Plain.start()
    adopt(orphan, parent)
    assert orphan.ended().get(timeout=10) == "shutdown"
