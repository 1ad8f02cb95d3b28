"""The threads of light actors: blocked ones starve nobody, and there is a bound to spares."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from keepwell.actors import Actor, ActorRef, ActorSystem
from keepwell.actors import runner as runner_module
from keepwell.actors.scheduler import ThreadScheduler

SOON = 10.0


class Blocking(Actor):
    """Blocks in a way that the pool cannot see until its monitor looks."""

    def on_receive(self, message: Any) -> Any:
        entered, release = message
        entered.release()
        release.wait(SOON)
        return "unblocked"


class Asking(Actor):
    def on_receive(self, message: Any) -> Any:
        return message[0].ask(message[1], timeout=SOON) if message[1:] else message[0].ask("end")


class Echo(Actor):
    def on_receive(self, message: Any) -> Any:
        return message


@pytest.fixture
def small() -> Iterator[ActorSystem]:
    """A system whose pool may have four threads."""
    with ActorSystem(name="small", scheduler=ThreadScheduler(max_workers=4)) as system:
        yield system


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def block(count: int, release: threading.Event) -> list[Any]:
    """Block `count` handlers; returns the futures of their answers once all are blocked."""
    entered = threading.Semaphore(0)
    futures = [Blocking.start().ask((entered, release), block=False) for _ in range(count)]
    for _ in range(count):
        assert entered.acquire(timeout=SOON)
    return futures


def test_a_blocked_handler_is_noticed_within_50_ms(small: Any) -> None:
    """Issue: it never starves the others. The best of some tries, for machines are busy."""
    echo = Echo.start()
    delays: list[float] = []
    while len(delays) < 20 and min(delays, default=1.0) >= 0.05:
        release = threading.Event()
        (blocked,) = block(1, release)
        before = time.perf_counter()
        assert echo.ask("served", timeout=SOON) == "served"
        delays.append(time.perf_counter() - before)
        release.set()
        assert blocked.get(timeout=SOON) == "unblocked"
    assert min(delays) < 0.05


def test_many_blocked_handlers_have_a_spare_each_up_to_the_bound(
    small: Any, release: Any, events: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Bounded, then reported, once; and all is served when they come back."""
    pool = small.scheduler.pool
    futures = block(4, release)
    echo = Echo.start()
    waiting = echo.ask("waits", block=False)
    told = threading.Event()
    while "keepwell.pool.exhausted" not in [event for event, _ in events]:
        told.wait(0.005)
    assert pool.workers == 4
    assert not waiting.done()
    assert "all 4 workers are blocked" in caplog.text
    assert [fields for event, fields in events if event == "keepwell.pool.exhausted"] == [
        {"workers": 4}
    ]
    release.set()
    assert waiting.get(timeout=SOON) == "waits"
    assert [future.get(timeout=SOON) for future in futures] == ["unblocked"] * 4
    assert pool.workers <= 4


def test_handlers_that_wait_for_each_other_do_not_starve(small: Any) -> None:
    """Pitfall: 8 actors on 2 threads deadlocked; here 3 wait, and the chain's end is served."""
    refs: list[ActorRef[Any]] = [Echo.start(), *(Asking.start() for _ in range(3))]
    assert refs[1].ask((refs[0], "deep"), timeout=SOON) == "deep"
    assert refs[2].ask((refs[1], (refs[0], "deeper")), timeout=SOON) == "deeper"
    deepest = (refs[2], (refs[1], (refs[0], "deepest")))
    assert refs[3].ask(deepest, timeout=SOON) == "deepest"


def test_spares_come_back_and_are_used_again(small: Any, release: Any) -> None:
    pool = small.scheduler.pool
    for _ in range(5):
        again = threading.Event()
        futures = block(3, again)
        again.set()
        assert [future.get(timeout=SOON) for future in futures] == ["unblocked"] * 3
    assert pool.workers <= 4


def test_a_fault_of_the_runner_itself_ends_the_actor_and_nothing_else(
    small: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    victim, other = Echo.start(), Echo.start()
    take = runner_module.take

    def broken(ref: Any) -> Any:
        if ref is victim:
            raise RuntimeError("a fault of ours")
        return take(ref)

    monkeypatch.setattr(runner_module, "take", broken)
    asked = victim.ask("anything", block=False)
    assert str(victim.ended().get(timeout=SOON)) == "a fault of ours"
    assert asked.error() is not None
    assert other.ask("alive", timeout=SOON) == "alive"
    assert "a worker met an error of its own" in caplog.text


def test_no_thread_to_be_had_is_survived(
    small: Any, release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread cannot be started: the others wait, and go on when one comes back."""
    futures = block(1, release)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("keepwell-worker"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    small.scheduler.pool._spares.clear()
    echo = Echo.start().ask("served", block=False)
    release.set()
    assert echo.get(timeout=SOON) == "served"
    assert futures[0].get(timeout=SOON) == "unblocked"


def test_idle_actors_have_no_thread(system: ActorSystem) -> None:
    Echo.start().ask("the pool's first worker", timeout=SOON)
    before = threading.active_count()
    refs = [Echo.start() for _ in range(5_000)]
    assert threading.active_count() <= before  # those of earlier tests may end meanwhile
    assert refs[-1].ask("alive", timeout=SOON) == "alive"
