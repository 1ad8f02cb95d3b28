"""What is dead is gone: no registry, cycle or link keeps it (F63), and its ref answers (F64)."""

from __future__ import annotations

import functools
import gc
import logging
import time
import weakref
from typing import Any

import pykka
import pytest

from keepwell.actors import ActorDied, ActorSystem, StartFailed
from keepwell.supervision import ChildSpec, DynamicSupervisor, Supervisor, tree

SOON = 10


@pytest.fixture(autouse=True)
def no_records() -> Any:
    """A log record that is kept for the test's report keeps the exception that it shows."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def traced(toy: Any) -> Any:
    """A class of children whose objects can be counted."""
    living: Any = weakref.WeakSet()

    class Traced(toy):
        objects = living

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.cycle = self
            living.add(self)

    return Traced


def gone(objects: Any, most: int = 0) -> bool:
    gc.collect()
    return len(objects) <= most


def test_a_thousand_starts_crashes_and_stops_leave_nothing(
    system: ActorSystem, nursery: Any, traced: Any
) -> None:
    fleet = DynamicSupervisor.start(
        ChildSpec("t", functools.partial(traced, nursery)), 10**6, per_child=True
    )
    for number in range(300):
        ref = fleet.start_child(number).get(timeout=SOON)
        ref.tell(RuntimeError)
        ref.ended().get(timeout=SOON)
    nursery.plans["bad"] = [RuntimeError]
    for _ in range(100):
        with pytest.raises(StartFailed):
            fleet.start_child("bad").get(timeout=SOON)
    for info in fleet.which_children().get(timeout=SOON):
        fleet.terminate_child(info.child).get(timeout=SOON)
    assert fleet.count_children().get(timeout=SOON).workers == 0
    assert list(system.actors) == [fleet]
    assert fleet.statistics().get(timeout=SOON)["links"] == []
    book = fleet._actor._book
    assert (len(book), len(book._by_ref), book.restarting) == (0, 0, 0)
    nursery.refs.clear()
    # The thread that ran the last one may still hold it.
    assert gone(traced.objects, most=1)


def test_a_supervisor_and_its_tree_are_gone_after_the_stop(
    system: ActorSystem, nursery: Any, traced: Any
) -> None:
    sub = functools.partial(Supervisor, [nursery.spec("x", traced)])
    top = Supervisor.start(
        [nursery.spec("a", traced), ChildSpec("sub", sub, type="supervisor")], "one_for_all"
    )
    nursery.ref("a").tell(RuntimeError)
    nursery.ref("a").ended().get(timeout=SOON)
    top.count_children().get(timeout=SOON)
    supervisor = weakref.ref(top._actor)
    assert supervisor() is not None
    top.stop()
    nursery.refs.clear()
    del top
    assert gone(traced.objects, most=1)
    gc.collect()
    assert not system.actors


def test_the_ref_of_the_dead_answers(system: ActorSystem, nursery: Any) -> None:
    """F64: is_alive, repr, equality, hash, statistics of refs that died a moment ago."""
    supervisor = Supervisor.start([nursery.spec("a", restart="transient"), nursery.spec("b")])
    a = nursery.ref("a")
    a.tell(("exit", "normal"))
    a.ended().get(timeout=SOON)
    assert not a.is_alive()
    assert "Toy" in repr(a)
    assert a == a
    assert a != nursery.ref("b")
    assert len({a, nursery.ref("b")}) == 2
    assert a.exit_reason == "normal"
    with pytest.raises(ActorDied):
        a.statistics().get(timeout=SOON)
    assert [info.child for info in supervisor.which_children().get(timeout=SOON)][1] is None
    assert "stopped" in str(tree(supervisor))
    supervisor.stop()
    assert "ended" in str(tree(supervisor))
    assert repr(supervisor)


def test_a_plain_actor_is_freed_without_the_garbage_collector(system: ActorSystem) -> None:
    """The watch leaves no cycle behind."""

    class Plain(pykka.ThreadingActor):
        use_daemon_thread = True

        def on_receive(self, message: Any) -> Any:
            return message

    supervisor = Supervisor.start([ChildSpec("p", Plain)])
    actor = supervisor.which_children().get(timeout=SOON)[0].child._actor_weakref
    thread_ended = actor().actor_stopped
    supervisor.stop()
    assert thread_ended.is_set()
    for _ in range(1_000):  # its thread is on its way out
        if actor() is None:
            break
        supervisor.ended().get(timeout=SOON)
        time.sleep(0)
    assert actor() is None
