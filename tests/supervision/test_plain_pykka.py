"""Plain `pykka.ThreadingActor`s as children: each end that pykka lets one see is acted on."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pykka
import pytest

from keepwell.actors import ActorDied, ActorSystem, StartFailed
from keepwell.supervision import ChildSpec, DynamicSupervisor, Supervisor, tree

SOON = 10


class Plain(pykka.ThreadingActor):
    use_daemon_thread = True

    def __init__(self, log: list[Any], name: str = "p", fault: Any = None) -> None:
        super().__init__()
        self.log, self.name, self.fault = log, name, fault

    def on_start(self) -> None:
        if self.fault == "on_start":
            raise RuntimeError("on_start")
        self.log.append(("start", self.name))

    def on_stop(self) -> None:
        self.log.append(("stop", self.name))
        if self.fault == "on_stop":
            raise RuntimeError("on_stop")

    def on_failure(self, *_: Any) -> None:
        self.log.append(("failure", self.name))

    def on_receive(self, message: Any) -> Any:
        if callable(message):
            return message(self)
        return message

    def method(self) -> str:
        return "from a proxy"


def fail(error: type[BaseException]) -> Any:
    def handler(_: Any) -> None:
        raise error("told to")

    return handler


def wait_for(ref: Any, supervisor: Any) -> Any:
    """The next incarnation, once the supervisor has replaced `ref`."""
    assert ref.actor_stopped.wait(SOON)
    while True:
        (info,) = supervisor.which_children().get(timeout=SOON)
        if info.child is not ref and info.child != "restarting":
            return info.child


@pytest.fixture(autouse=True)
def quiet_pykka() -> Iterator[None]:
    logging.getLogger("pykka").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("pykka").setLevel(logging.NOTSET)
    assert pykka.ActorRegistry.get_all() == []


@pytest.fixture
def log() -> list[Any]:
    return []


HOWS = {
    "class": lambda log, **fault: functools.partial(Plain, log, **fault),
    "callable": lambda log, **fault: lambda: Plain.start(log, **fault),
}


@pytest.fixture(params=HOWS)
def start(request: pytest.FixtureRequest) -> Any:
    """A child by its class, and by a callable that returns a ref."""
    return HOWS[request.param]


def test_it_is_the_users_class_and_works_as_ever(
    system: ActorSystem, log: list[Any], start: Any
) -> None:
    supervisor = Supervisor.start([ChildSpec("p", start(log))])
    (info,) = supervisor.which_children().get(timeout=SOON)
    assert info.child.ask("hello") == "hello"
    assert info.child.proxy().method().get(timeout=SOON) == "from a proxy"
    assert pykka.ActorRegistry.get_by_class(Plain) == [info.child]
    assert pykka.ActorRegistry.get_by_class_name("Plain") == [info.child]
    assert supervisor.count_children().get(timeout=SOON).active == 1
    assert tree(supervisor).children[0].status == "running"
    supervisor.stop()
    assert log == [("start", "p"), ("stop", "p")]


def test_a_death_by_tell_is_a_crash(
    system: ActorSystem, log: list[Any], start: Any, reports: Any
) -> None:
    supervisor = Supervisor.start([ChildSpec("p", start(log), "transient")])
    (old,) = supervisor.which_children().get(timeout=SOON)
    old.child.tell(fail(RuntimeError))
    assert wait_for(old.child, supervisor).ask("hello") == "hello"
    assert log == [("start", "p"), ("failure", "p"), ("start", "p")]
    (report,) = reports.of("supervisor.child_ended")
    assert isinstance(report["reason"], RuntimeError)
    supervisor.stop()


@pytest.mark.parametrize("how", ["tell", "ask"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_base_exception_ends_this_actor_only(
    system: ActorSystem, log: list[Any], start: Any, error: Any, how: str
) -> None:
    """F45: pykka would stop every actor of the process through its registry."""
    other = Plain.start(log, "other")
    supervisor = Supervisor.start([ChildSpec("p", start(log))])
    (old,) = supervisor.which_children().get(timeout=SOON)
    if how == "tell":
        old.child.tell(fail(error))
    else:
        with pytest.raises(ActorDied) as caught:
            old.child.ask(fail(error), timeout=SOON)
        assert isinstance(caught.value.reason, error)
    assert wait_for(old.child, supervisor).is_alive()
    assert other.is_alive()
    other.stop()
    supervisor.stop()


def test_an_exception_under_ask_cannot_be_seen(
    system: ActorSystem, log: list[Any], start: Any
) -> None:
    """pykka answers with it and lets the actor live; so do we."""
    supervisor = Supervisor.start([ChildSpec("p", start(log))])
    (info,) = supervisor.which_children().get(timeout=SOON)
    with pytest.raises(RuntimeError, match="told to"):
        info.child.ask(fail(RuntimeError))
    assert supervisor.which_children().get(timeout=SOON)[0].child is info.child
    assert info.child.ask("hello") == "hello"
    supervisor.stop()


@pytest.mark.parametrize(("restart", "restarted"), [("permanent", True), ("transient", False)])
def test_its_own_stop_is_a_normal_end(
    system: ActorSystem, log: list[Any], start: Any, restart: Any, restarted: bool
) -> None:
    supervisor = Supervisor.start([ChildSpec("p", start(log), restart)])
    (info,) = supervisor.which_children().get(timeout=SOON)
    info.child.stop()
    successor = wait_for(info.child, supervisor)
    assert (successor is not None) == restarted
    supervisor.stop()


@pytest.mark.parametrize("fault", ["on_start", "init"])
def test_a_failing_start_is_a_failed_start(
    system: ActorSystem, log: list[Any], start: Any, fault: str
) -> None:
    """F68; pykka's start() returns a ref that looks alive."""
    faults = {"fault": "on_start"} if fault == "on_start" else {"no such": "argument"}
    with pytest.raises(StartFailed) as caught:
        Supervisor.start([ChildSpec("p", start(log, **faults))])
    reason = caught.value.reason.detail.reason
    expected = RuntimeError if fault == "on_start" else TypeError
    # What a callable returns may have failed before anybody could watch it.
    assert isinstance(reason, expected) or reason == "noproc"


def test_a_failing_restart_is_retried_and_counted(
    system: ActorSystem, log: list[Any], reports: Any
) -> None:
    faults: list[Any] = [None, "on_start"]

    class Moody(Plain):
        def on_start(self) -> None:
            self.fault = faults.pop(0) if len(faults) > 1 else faults[0]
            super().on_start()

    supervisor = Supervisor.start([ChildSpec("p", functools.partial(Moody, log))], max_restarts=3)
    (info,) = supervisor.which_children().get(timeout=SOON)
    info.child.tell(fail(RuntimeError))
    assert supervisor.ended().get(timeout=SOON) == "shutdown"
    assert len(reports.of("supervisor.start_failed")) == 3


def test_what_its_on_stop_raises_is_its_reason(
    system: ActorSystem, log: list[Any], start: Any, reports: Any
) -> None:
    """SHUT-6: stopping goes on."""
    supervisor = Supervisor.start(
        [ChildSpec("q", start(log, name="q")), ChildSpec("p", start(log, fault="on_stop"))]
    )
    supervisor.stop()
    assert log[2:] == [("stop", "p"), ("stop", "q")]
    (report,) = reports.of("supervisor.shutdown_error")
    assert isinstance(report["reason"], RuntimeError)


@pytest.mark.parametrize("shutdown", [0.05, "brutal_kill"])
def test_a_stuck_one_is_fenced(
    system: ActorSystem, log: list[Any], start: Any, shutdown: Any
) -> None:
    """F71: its askers are failed, it gets no further message, no hook runs."""
    entered, release = threading.Event(), threading.Event()

    def stick(_: Any) -> None:
        entered.set()
        release.wait(30)

    supervisor = Supervisor.start([ChildSpec("p", start(log), shutdown=shutdown)])
    (info,) = supervisor.which_children().get(timeout=SOON)
    info.child.tell(stick)
    assert entered.wait(SOON)
    waiting = info.child.ask("never", block=False)
    try:
        assert supervisor.stop(timeout=SOON)
        assert not info.child.is_alive()
        with pytest.raises(ActorDied):
            waiting.get(timeout=SOON)
    finally:
        release.set()
    assert log == [("start", "p")]


def test_brutal_kill_of_an_idle_one_runs_no_hook(
    system: ActorSystem, log: list[Any], start: Any
) -> None:
    supervisor = Supervisor.start([ChildSpec("p", start(log), shutdown="brutal_kill")])
    supervisor.stop()
    assert log == [("start", "p")]


def test_it_ends_with_a_supervisor_that_is_killed(
    system: ActorSystem, log: list[Any], start: Any
) -> None:
    """SHUT-7."""
    supervisor = Supervisor.start([ChildSpec("p", start(log))])
    (info,) = supervisor.which_children().get(timeout=SOON)
    supervisor.kill()
    assert info.child.actor_stopped.wait(SOON)


def test_as_dynamic_children_and_in_group_restarts(system: ActorSystem, log: list[Any]) -> None:
    fleet = DynamicSupervisor.start(ChildSpec("p", functools.partial(Plain, log)), per_child=True)
    refs = [fleet.start_child(f"d{n}").get(timeout=SOON) for n in range(3)]
    fleet.terminate_child(refs[1]).get(timeout=SOON)
    assert [ref.is_alive() for ref in refs] == [True, False, True]
    group = Supervisor.start(
        [ChildSpec(name, functools.partial(Plain, log, name)) for name in "abc"], "one_for_all"
    )
    b = group.which_children().get(timeout=SOON)[1].child
    del log[:]
    b.tell(fail(RuntimeError))
    b.actor_stopped.wait(SOON)
    while len([x for x in log if x[0] == "start"]) < 3:
        group.count_children().get(timeout=SOON)
    assert log == [
        ("failure", "b"), ("stop", "c"), ("stop", "a"),
        ("start", "a"), ("start", "b"), ("start", "c"),
    ]  # fmt: skip
    group.stop()
    fleet.stop()


def test_an_actor_that_starts_others_in_its_constructor(
    system: ActorSystem, log: list[Any]
) -> None:
    """The watch belongs to the child, not to what it has started on the way."""

    class Outer(Plain):
        def __init__(self) -> None:
            super().__init__(log, "outer")
            self.inner = Plain.start(log, "inner")

        def on_stop(self) -> None:
            self.inner.stop()
            super().on_stop()

    supervisor = Supervisor.start([ChildSpec("outer", Outer)])
    (info,) = supervisor.which_children().get(timeout=SOON)
    assert info.child.actor_class.__name__ == "Outer"
    supervisor.stop()
    assert log[-2:] == [("stop", "inner"), ("stop", "outer")]


def test_pykkas_private_names_are_what_the_watch_relies_on() -> None:
    for name in (
        "_actor_loop_setup",
        "_actor_loop_teardown",
        "_handle_failure",
        "_handle_receive",
        "_start_actor_loop",
    ):
        assert callable(getattr(pykka.ThreadingActor, name)), name
    ref = Plain.start([])
    assert ref._actor_weakref() is not None
    assert hasattr(ref.actor_inbox, "get_nowait")
    ref.stop()
