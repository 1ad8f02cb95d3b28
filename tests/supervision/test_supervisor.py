"""Supervisors in use: kinds of children, requests, awaiting, names, and what callers see."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest

from keepwell import supervision
from keepwell.actors import (
    Actor,
    ActorDied,
    ActorRef,
    ActorSystem,
    AsyncActor,
    BlockingOnLoop,
    ExitActor,
    Future,
    Ignore,
    InvalidValue,
    RequestError,
    Shutdown,
    StartFailed,
    ThreadActor,
    names,
)
from keepwell.supervision import (
    ChildRequestError,
    ChildSpec,
    DynamicSupervisor,
    FailedToStartChild,
    Supervisor,
    SupervisorRef,
)

SOON = 10


def settled(supervisor: Any) -> list[Any]:
    """The children once the supervisor has dealt with all deaths so far."""
    while True:
        children = supervisor.which_children().get(timeout=SOON)
        if all(
            c.child is None or (c.child != "restarting" and c.child.is_alive()) for c in children
        ):
            return children
        for info in children:
            if isinstance(info.child, ActorRef) and not info.child.is_alive():
                info.child.ended().get(timeout=SOON)


class Threaded(ThreadActor):
    def on_receive(self, message: Any) -> Any:
        if message == "boom":
            raise RuntimeError("boom")
        return threading.get_ident()


class Looped(AsyncActor):
    async def on_start(self) -> None:
        await asyncio.sleep(0)

    async def on_receive(self, message: Any) -> Any:
        await asyncio.sleep(0)
        if message == "boom":
            raise RuntimeError("boom")
        return message


def start_by_hand(nursery: Any, child_id: str) -> Any:
    return nursery.spec(child_id).start.func.start(nursery, child_id)


def test_children_of_every_kind_are_started_restarted_and_stopped(
    system: ActorSystem, nursery: Any
) -> None:
    supervisor = Supervisor.start(
        [
            nursery.spec("light"),
            ChildSpec("thread", Threaded),
            ChildSpec("loop", Looped),
            ChildSpec("by hand", functools.partial(start_by_hand, nursery, "by hand")),
            ChildSpec("future", lambda: Threaded.spawn()),
            ChildSpec(
                "tree", functools.partial(Supervisor, nursery.specs("xy")), type="supervisor"
            ),
        ],
        max_restarts=20,
    )
    before = {info.id: info.child for info in settled(supervisor)}
    assert list(before) == ["tree", "future", "by hand", "loop", "thread", "light"]
    for name in ("light", "by hand"):
        before[name].tell(RuntimeError("boom"))
    for name in ("thread", "loop", "future"):
        before[name].tell("boom")
    before["tree"].kill()
    for ref in before.values():
        ref.ended().get(timeout=SOON)
    after = {info.id: info for info in settled(supervisor)}
    assert all(info.child is not before[name] for name, info in after.items())
    assert {info.restarts for info in after.values()} == {1}
    supervisor.stop()
    assert not any(info.child.is_alive() for info in after.values())
    assert nursery.alive() == []


def test_a_callable_may_say_that_no_actor_is_needed(system: ActorSystem) -> None:
    supervisor = Supervisor.start(
        [ChildSpec("none", lambda: None), ChildSpec("ignore", lambda: Ignore)]
    )
    assert [info.child for info in settled(supervisor)] == [None, None]


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (lambda: 1 / 0, ZeroDivisionError),
        (lambda: 7, InvalidValue),
        (lambda: (_ for _ in ()).throw(SystemExit(3)), SystemExit),
        (lambda: (_ for _ in ()).throw(ExitActor("boom")), "boom"),
        (functools.partial(Threaded, "one", "argument too many", x=1), None),
    ],
)
def test_whatever_a_start_raises_is_a_failed_start(
    system: ActorSystem, nursery: Any, start: Any, reason: Any
) -> None:
    """INIT-1, INIT-2, F45, F68: never a ref that looks alive, and the cause is told."""
    if reason is None:

        class Picky(Actor):
            def __init__(self) -> None:
                super().__init__()

        start, reason = functools.partial(Picky, 1), TypeError
    with pytest.raises(StartFailed) as caught:
        Supervisor.start([nursery.spec("a"), ChildSpec("b", start), nursery.spec("c")])
    failure = caught.value.reason
    assert isinstance(failure, Shutdown)
    assert isinstance(failure.detail, FailedToStartChild)
    assert failure.detail.id == "b"
    found = failure.detail.reason
    assert found == reason if isinstance(reason, str) else isinstance(found, reason)
    assert nursery.take() == [("start", "a"), ("stop", "a"), ("end", "a")]


def test_requests_and_refusals_as_methods_and_as_functions(
    system: ActorSystem, nursery: Any
) -> None:
    supervisor = Supervisor.start(nursery.specs("a"), name="top")
    assert isinstance(supervisor, SupervisorRef)
    b = supervision.start_child("top", nursery.spec("b", restart="transient")).get(timeout=SOON)
    assert supervisor.count_children().get(timeout=SOON) == supervision.ChildCount(2, 2, 0, 2)
    with pytest.raises(ChildRequestError) as caught:
        supervisor.start_child(nursery.spec("b")).get(timeout=SOON)
    assert (caught.value.code, caught.value.ref) == ("already_started", b)
    for code, request in [
        ("running", supervisor.delete_child("b")),
        ("running", supervisor.restart_child("b")),
        ("not_found", supervisor.delete_child("zz")),
        ("not_found", supervisor.restart_child([])),
        ("not_found", supervisor.terminate_child(b)),
        ("not_found", supervisor.get_childspec("zz")),
        ("missing_start", supervisor.start_child({"id": "c"})),
        ("badarg", supervisor.start_child()),
        ("badarg", supervisor.start_child("c", Actor)),
        ("unknown_request", supervisor.call("hello")),
    ]:
        with pytest.raises(RequestError) as refused:
            request.get(timeout=SOON)
        assert refused.value.code == code
    supervision.terminate_child(names.named("top"), "b").get(timeout=SOON)
    assert not b.is_alive()
    with pytest.raises(ChildRequestError) as caught:
        supervisor.start_child(nursery.spec("b")).get(timeout=SOON)
    assert caught.value.code == "already_present"
    nursery.plans["b"] = [RuntimeError("not yet")]
    with pytest.raises(StartFailed, match="not yet"):
        supervisor.restart_child("b").get(timeout=SOON)
    nursery.plans["b"] = ["ok"]
    assert supervisor.restart_child("b").get(timeout=SOON).is_alive()
    supervisor.terminate_child("b").get(timeout=SOON)
    supervisor.delete_child("b").get(timeout=SOON)
    assert [info.id for info in settled(supervisor)] == ["a"]
    supervisor.stop()
    with pytest.raises(ActorDied):
        supervisor.which_children().get(timeout=SOON)
    with pytest.raises(ActorDied) as gone:
        supervision.which_children("top").get(timeout=SOON)
    assert gone.value.reason == "noproc"


async def test_everything_is_awaited_on_a_loop(nursery: Any) -> None:
    with ActorSystem():
        with pytest.raises(BlockingOnLoop):
            Supervisor.start(nursery.specs("a"))
        supervisor = await Supervisor.spawn(nursery.specs("a"))
        refs = await asyncio.gather(*(supervisor.start_child(s) for s in nursery.specs("bcd")))
        assert all(ref.is_alive() for ref in refs)
        await supervisor.terminate_child("c")
        assert [info.id for info in await supervisor.which_children()] == ["d", "c", "b", "a"]
        with pytest.raises(StartFailed):
            await Supervisor.spawn(nursery.specs("ee"))
        looped = await supervisor.start_child(ChildSpec("loop", Looped))
        assert await looped.call("hello") == "hello"
        assert await supervisor.stop(block=False)
        assert nursery.alive() == []


def test_the_crashing_message_is_not_delivered_again(system: ActorSystem, nursery: Any) -> None:
    """F66, F70: a new object, fresh state; the old ref is dead, the name leads to the new one."""

    def start() -> Any:
        return nursery.spec("a").start.func.start(nursery, "a", name="worker")

    supervisor = Supervisor.start([ChildSpec("a", start)])
    old = names.whereis("worker")
    assert old is not None
    old.ask("one")
    old.tell(RuntimeError("boom"))
    old.ended().get(timeout=SOON)
    settled(supervisor)
    new = names.whereis("worker")
    assert new is not None
    assert new is not old
    assert new.ask("two") == ("a", ["two"])
    with pytest.raises(ActorDied):
        old.ask("three")


def test_a_name_is_free_again_before_the_successor_starts(
    system: ActorSystem, nursery: Any
) -> None:
    """The new incarnation starts under the name of the old one, however it ended."""

    class Named(Actor):
        def on_receive(self, message: Any) -> None:
            raise RuntimeError("boom")

    spec = ChildSpec("a", lambda: Named.start(name="only one"), restart="permanent")
    supervisor = Supervisor.start([spec, nursery.spec("b")], "one_for_all", max_restarts=200)
    for _ in range(100):
        ref = settled(supervisor)[-1].child
        ref.tell("boom")
        ref.ended().get(timeout=SOON)
    assert settled(supervisor)[-1].restarts == 100


def test_stop_waits_for_the_hooks_in_reverse_while_older_siblings_still_answer(
    system: ActorSystem, nursery: Any
) -> None:
    """F47, F55: in its hook c still asks b; nothing runs after its stop was acknowledged."""
    answers: list[Any] = []
    nursery.hooks["c"] = lambda _: answers.append(nursery.ref("b").ask("still there?"))
    supervisor = Supervisor.start(nursery.specs("abc"))
    nursery.take()
    assert supervisor.stop()
    assert answers == [("b", ["still there?"])]
    assert nursery.take() == [
        ("stop", "c"), ("end", "c"), ("stop", "b"), ("end", "b"), ("stop", "a"), ("end", "a"),
    ]  # fmt: skip


def test_on_stop_runs_by_default_and_only_when_trapping_if_otp_is_asked_for(
    system: ActorSystem, nursery: Any, toy: Any
) -> None:
    """Design §3, SHUT-5."""

    class Strict(toy):
        otp_shutdown = True

    class Trapping(Strict):
        trap_exit = True

    supervisor = Supervisor.start(
        [nursery.spec("default"), nursery.spec("otp", Strict), nursery.spec("trap", Trapping)]
    )
    nursery.take()
    supervisor.stop()
    assert nursery.take("stop") == ["trap", "default"]
    assert nursery.alive() == []


def test_a_stuck_child_is_fenced_after_its_shutdown_time(system: ActorSystem, nursery: Any) -> None:
    """SHUT-3, F71: the others are stopped all the same, and nobody waits for ever."""
    release = threading.Event()
    entered = threading.Event()

    def stick(_: Any) -> None:
        entered.set()
        release.wait(30)

    supervisor = Supervisor.start(
        [nursery.spec("a"), nursery.spec("b", shutdown=0.05), nursery.spec("c")]
    )
    stuck = nursery.ref("b")
    asked = stuck.ask(stick, block=False)
    assert entered.wait(SOON)
    try:
        assert supervisor.stop(timeout=SOON)
        assert stuck.exit_reason == "killed"
        with pytest.raises(ActorDied):
            asked.get(timeout=SOON)
        assert nursery.take("end") == ["c", "b", "a"]
    finally:
        release.set()


def test_a_supervisor_that_ignores_starts_no_child(system: ActorSystem, nursery: Any) -> None:
    """INIT-4, INIT-3."""

    class Idle(Supervisor):
        def on_start(self) -> Any:
            return Ignore

    assert Idle.start(nursery.specs("a")) is Ignore
    top = Supervisor.start([ChildSpec("idle", functools.partial(Idle, nursery.specs("a")))])
    assert [info.child for info in settled(top)] == [None]
    assert nursery.take() == []


def test_a_supervisor_may_take_messages_of_its_own(system: ActorSystem, nursery: Any) -> None:
    class Talking(Supervisor):
        def on_receive(self, message: Any) -> Any:
            return "hello" if message == "hello" else super().on_receive(message)

    supervisor = Talking.start(nursery.specs("a"))
    assert supervisor.ask("hello") == "hello"
    assert supervisor.count_children().get(timeout=SOON).active == 1


def test_a_crash_of_the_supervisor_itself_stops_its_children(
    system: ActorSystem, nursery: Any
) -> None:
    class Faulty(Supervisor):
        def on_receive(self, message: Any) -> Any:
            if message == "boom":
                raise RuntimeError("boom")
            return super().on_receive(message)

    supervisor = Faulty.start(nursery.specs("abc"))
    nursery.take()
    supervisor.tell("boom")
    assert isinstance(supervisor.ended().get(timeout=SOON), RuntimeError)
    assert nursery.take("end") == ["c", "b", "a"]


def test_other_code_may_wait_for_the_end_of_a_supervisor(system: ActorSystem, nursery: Any) -> None:
    """F67: the root reaches its limit, all who wait get it, no restart follows."""
    supervisor = Supervisor.start(nursery.specs("ab"), max_restarts=0)
    ended, down = supervisor.ended(), Future[Any]()
    waiting = supervisor.call("never handled", timeout=None)

    class Watcher(Actor):
        def on_start(self) -> None:
            self.monitor(supervisor)

        def on_receive(self, message: Any) -> None:
            down.set(message.reason)

    Watcher.start()
    nursery.ref("a").tell(RuntimeError("boom"))
    assert ended.get(timeout=SOON) == "shutdown"
    assert down.get(timeout=SOON) == "shutdown"
    with pytest.raises((ActorDied, RequestError)):
        waiting.get(timeout=SOON)
    assert nursery.alive() == []
    assert len(nursery.refs["a"]) == 1


def test_dynamic_children_are_awaited_too(system: ActorSystem, nursery: Any, toy: Any) -> None:
    supervisor = DynamicSupervisor.start(ChildSpec("toy", functools.partial(toy, nursery)))
    refs = [supervisor.start_child(number).get(timeout=SOON) for number in range(3)]
    assert [ref.path for ref in refs] == [f"DynamicSupervisor/toy:{n}" for n in range(3)]
    supervisor.terminate_child(refs[1]).get(timeout=SOON)
    assert nursery.alive() == [0, 2]


def test_more_supervisors_than_threads_stop_at_once(
    system: ActorSystem, nursery: Any, toy: Any
) -> None:
    """Each waits for its child; the children need threads, too, for their hooks."""
    pool: Any = system.scheduler.pool  # type: ignore[attr-defined]  # of ThreadScheduler
    pool._max = 4

    def one(child_id: int) -> Any:
        return Supervisor.options(parent=fleet[0]).start([nursery.spec(child_id)])

    fleet: list[Any] = []
    fleet.append(DynamicSupervisor.start(ChildSpec("one", one, type="supervisor")))
    for number in range(60):
        fleet[0].start_child(number).get(timeout=SOON)
    nursery.take()
    assert fleet[0].stop(timeout=4)
    assert sorted(nursery.take("stop")) == list(range(60)), "every hook has run"
    assert nursery.alive() == []


class Desk(Actor):
    def __init__(self, drawer: str = "empty") -> None:
        super().__init__()
        self.drawer = drawer

    def on_receive(self, message: Any) -> Any:
        return self.drawer


class Labelled(Actor):
    """Has a `name` of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.label = name

    def on_receive(self, message: Any) -> Any:
        return self.label


def test_name_of_a_partial_names_each_incarnation(system: ActorSystem) -> None:
    """REG-1, as `start(name=...)` does; for the children of a dynamic supervisor, too."""
    supervisor = Supervisor.start(
        [
            ChildSpec("desk", functools.partial(Desk, "pens", name="desk")),
            ChildSpec("labelled", functools.partial(Labelled, name="label")),
        ]
    )
    first = names.named("desk").ref()
    assert first.ask("?", timeout=SOON) == "pens"
    first.kill()
    first.ended().get(timeout=SOON)
    supervisor.which_children().get(timeout=SOON)
    second = names.named("desk").ref()
    assert second is not first
    assert second.ask("?", timeout=SOON) == "pens"
    assert names.whereis("label") is None  # it was an argument, and is none of ours
    children = {info.id: info.child for info in supervisor.which_children().get(timeout=SOON)}
    assert children["labelled"].ask("?", timeout=SOON) == "label"
    dynamic = DynamicSupervisor.start(ChildSpec("desk", Desk))
    third = dynamic.start_child("ink", name="third").get(timeout=SOON)
    assert names.whereis("third") is third
    dynamic.stop()
    supervisor.stop()
