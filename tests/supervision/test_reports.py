"""What is told of a crash, once, and what never is (F56); and what the dead leave behind (F69)."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

import pytest

from keepwell.actors import ActorDied, ActorSystem, StartFailed
from keepwell.actors.inspection import statistics
from keepwell.supervision import ChildSpec, DynamicSupervisor, Supervisor

SOON = 10


class SecretMessage:
    def __init__(self) -> None:
        self.content = "hunter2"

    def __repr__(self) -> str:
        return "SecretMessage(hunter2)"


@pytest.fixture
def failing(toy: Any) -> Any:
    class Failing(toy):
        def on_receive(self, message: Any) -> Any:
            if isinstance(message, SecretMessage):
                raise RuntimeError("boom")
            return super().on_receive(message)

    return Failing


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]


def test_a_crash_is_reported_once_with_path_and_message_type(
    simulation: Any, nursery: Any, failing: Any, reports: Any, caplog: Any
) -> None:
    sub = functools.partial(Supervisor, [nursery.spec("b", failing)])
    Supervisor.start([ChildSpec("sub", sub, type="supervisor")], name="top")
    nursery.ref("b").tell(SecretMessage())
    simulation.run_until_idle()
    (crash,) = reports.of("actor.crashed")
    assert crash["message_type"] == "SecretMessage"
    assert crash["ref"].path == "top/sub/b"
    (ended,) = reports.of("supervisor.child_ended")
    assert (ended["spec"].id, ended["verdict"]) == ("b", "restart")
    assert ended["message_type"] == "SecretMessage"
    assert ended["reason"] is crash["reason"]
    (line,) = errors(caplog)
    assert "top/sub/b" in line
    assert "(top/sub/b) crashed while it handled a SecretMessage" in caplog.text
    (record,) = (r for r in caplog.records if r.levelno >= logging.ERROR)
    assert record.exc_info is not None
    assert record.exc_info[1] is ended["reason"]
    assert "hunter2" not in caplog.text


def test_a_failed_restart_is_reported_once(
    simulation: Any, nursery: Any, reports: Any, caplog: Any
) -> None:
    nursery.plans["b"] = ["ok", RuntimeError("cannot start"), "ok"]
    Supervisor.start([nursery.spec("b")], max_restarts=5)
    nursery.ref("b").tell(("exit", "boom"))
    simulation.run_until_idle()
    assert [report["reason"].args for report in reports.of("supervisor.start_failed")] == [
        ("cannot start",)
    ]
    assert len([line for line in errors(caplog) if "cannot start" in line]) == 1
    assert len(reports.of("actor.crashed")) == 1, "the end by exit(boom), not the failed start"


def test_a_killed_and_a_signalled_child_are_reported_once(
    simulation: Any, nursery: Any, reports: Any
) -> None:
    Supervisor.start(nursery.specs("ab"), max_restarts=5)
    nursery.ref("a").kill()
    nursery.ref("b").exit("boom")
    simulation.run_until_idle()
    assert [(r["spec"].id, r["reason"]) for r in reports.of("supervisor.child_ended")] == [
        ("a", "killed"),
        ("b", "boom"),
    ]


def test_giving_up_says_which_child_why_and_while_doing_what(
    simulation: Any, nursery: Any, failing: Any, reports: Any, caplog: Any
) -> None:
    supervisor = Supervisor.start([nursery.spec("b", failing)], max_restarts=0, name="top")
    nursery.ref("b").tell(SecretMessage())
    supervisor.ended().get()
    (report,) = reports.of("supervisor.gave_up")
    assert (report["spec"].id, report["message_type"]) == ("b", "SecretMessage")
    (line,) = [line for line in errors(caplog) if "gives up" in line]
    assert "RuntimeError('boom') while handling a SecretMessage" in line
    assert "more than 0 restarts within 5 s" in line


def test_a_child_given_up_is_reported_with_its_ref(
    simulation: Any, nursery: Any, failing: Any, reports: Any, caplog: Any
) -> None:
    spec = ChildSpec("toy", functools.partial(failing, nursery))
    fleet = DynamicSupervisor.start(spec, 0, 5, per_child=True)
    ref = fleet.start_child("x").get()
    ref.tell(SecretMessage())
    simulation.run_until_idle()
    (report,) = reports.of("supervisor.child_given_up")
    assert (report["last_ref"], report["message_type"]) == (ref, "SecretMessage")
    assert len([line for line in errors(caplog) if "the others go on" in line]) == 1


def test_arguments_of_specs_are_never_logged(
    simulation: Any, nursery: Any, toy: Any, caplog: Any
) -> None:
    """A key handed to a child's constructor must not end up in the log when it fails."""
    spec = ChildSpec("x", functools.partial(toy, nursery, "sk-secret"))
    nursery.plans["sk-secret"] = ["ok", RuntimeError("no"), RuntimeError("no")]
    supervisor = Supervisor.start([spec], max_restarts=1)
    nursery.ref("sk-secret").tell(("exit", "boom"))
    supervisor.ended().get()
    assert len(errors(caplog)) >= 3
    assert "sk-secret" not in caplog.text


def test_a_telemetry_handler_that_raises_does_no_harm(simulation: Any, nursery: Any) -> None:
    from keepwell.actors import telemetry

    def harmful(_event: str, _fields: Any) -> None:
        raise RuntimeError("handler")

    with telemetry.attach("keepwell.supervisor.", harmful):
        Supervisor.start(nursery.specs("a"))
        nursery.ref("a").kill()
        simulation.run_until_idle()
    assert nursery.alive() == ["a"]


def test_nothing_lives_twice_when_a_killed_supervisor_is_replaced(
    system: ActorSystem, nursery: Any
) -> None:
    """F69: the subtree is rebuilt when what is left of the old one has ended, however slowly."""
    entered, release = threading.Event(), threading.Event()

    def slow(_: Any) -> None:
        entered.set()
        release.wait(30)

    leaf = functools.partial(Supervisor, [nursery.spec("y", trapping(nursery))])
    sub = functools.partial(
        Supervisor,
        [nursery.spec("x", trapping(nursery)), ChildSpec("leaf", leaf, type="supervisor")],
    )
    top = Supervisor.start([ChildSpec("sub", sub, type="supervisor"), nursery.spec("z")])
    nursery.hooks["y"] = slow
    old = top.which_children().get(timeout=SOON)[1].child
    old.kill()
    assert entered.wait(SOON)
    old.ended().get(timeout=SOON)
    rebuilt = top.which_children()  # answered when the restart is over
    assert not rebuilt.done()
    nursery.hooks.clear()
    release.set()
    info = rebuilt.get(timeout=SOON)[1]
    assert info.child is not old
    assert info.child.is_alive()
    assert nursery.twice == []
    assert [len(nursery.refs[name]) for name in "xyz"] == [2, 2, 1]


def test_an_orphan_that_is_stuck_is_fenced_after_its_shutdown_time(
    system: ActorSystem, nursery: Any
) -> None:
    release = threading.Event()
    nursery.hooks["x"] = lambda _: release.wait(30)
    sub = functools.partial(Supervisor, [nursery.spec("x", trapping(nursery), shutdown=0.05)])
    top = Supervisor.start([ChildSpec("sub", sub, type="supervisor")])
    try:
        top.which_children().get(timeout=SOON)[0].child.kill()
        while len(nursery.refs["x"]) == 1:
            top.which_children().get(timeout=SOON)
        assert nursery.refs["x"][0].exit_reason == "killed"
        assert nursery.twice == []
    finally:
        nursery.hooks.clear()
        release.set()


def test_brutal_kill_of_a_subtree_leaves_nobody(system: ActorSystem, nursery: Any) -> None:
    sub = functools.partial(Supervisor, [nursery.spec("x", trapping(nursery))])
    top = Supervisor.start(
        [nursery.spec("a"), ChildSpec("sub", sub, type="supervisor", shutdown="brutal_kill")]
    )
    nursery.take()
    top.stop()
    assert nursery.take("end") == ["x", "a"], "a is stopped when all of the subtree has ended"


def test_a_child_that_starts_while_its_supervisor_is_killed_is_no_orphan(
    system: ActorSystem, nursery: Any
) -> None:
    """F65: its start ends after its supervisor has been fenced."""
    entered, release = threading.Event(), threading.Event()

    def wait(_: Any) -> str:
        entered.set()
        release.wait(30)
        return "ok"

    supervisor = Supervisor.start(nursery.specs("a"))
    nursery.plans["b"] = [wait]
    answer = supervisor.start_child(nursery.spec("b"))
    assert entered.wait(SOON)
    supervisor.kill()
    assert supervisor.ended().get(timeout=SOON) == "killed"
    with pytest.raises(ActorDied):
        answer.get(timeout=SOON)
    release.set()
    while "b" not in nursery.refs:
        system.scheduler.wait(system_pause(system), 1)
    assert nursery.ref("b").ended().get(timeout=SOON) == "killed"
    assert nursery.ref("a").ended().get(timeout=SOON) == "killed"


def system_pause(system: ActorSystem) -> Any:
    """A future that is done in a moment: the only way to wait for a thread that tells nobody."""
    from keepwell.actors import Future

    future: Future[None] = Future()
    system.clock.call_later(0.001, future.complete, None)
    return future


def trapping(nursery: Any) -> Any:
    cls: Any = nursery.spec("_").start.func
    return type("Trapping", (cls,), {"trap_exit": True})


def test_a_child_that_does_not_start_is_reported_where_it_happened_only(
    simulation: Any, nursery: Any, reports: Any, caplog: Any
) -> None:
    """The supervisors above, which do not start either, log nothing; telemetry shows them too."""
    nursery.plans["b"] = [ValueError("no good")]
    inner = functools.partial(Supervisor, [nursery.spec("b")])
    outer = functools.partial(Supervisor, [ChildSpec("inner", inner, type="supervisor")])
    with pytest.raises(StartFailed) as failed:
        Supervisor.start([ChildSpec("outer", outer, type="supervisor")])
    assert isinstance(failed.value.__cause__, ValueError)
    (line,) = errors(caplog)
    assert "could not start ChildSpec('b'" in line
    assert [each["spec"].id for each in reports.of("supervisor.start_failed")] == [
        "b", "inner", "outer"]


def test_statistics_tell_how_often_a_child_was_restarted(simulation: Any, nursery: Any) -> None:
    def restarts(child_id: str) -> int:
        facts: dict[str, Any] = statistics(nursery.ref(child_id))  # type: ignore[assignment]  # a TypedDict
        return facts["restarts"]

    supervisor = Supervisor.start(
        [nursery.spec("a"), nursery.spec("b")], strategy="rest_for_one", max_restarts=9
    )
    assert (restarts("a"), restarts("b")) == (0, 0)
    nursery.ref("b").tell(RuntimeError)
    simulation.run_until_idle()
    assert (restarts("a"), restarts("b")) == (0, 1)
    nursery.ref("a").tell(RuntimeError)
    simulation.run_until_idle()
    assert (restarts("a"), restarts("b")) == (1, 2)
    supervisor.terminate_child("b").get()
    supervisor.restart_child("b").get()
    assert restarts("b") == 2, "a start by hand is no restart"
    asked = nursery.ref("b").statistics()
    simulation.run_until_idle()
    assert asked.get()["restarts"] == 2
    assert statistics(supervisor)["restarts"] == 0
