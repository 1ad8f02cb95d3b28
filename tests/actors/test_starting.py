"""How an actor starts, or fails to (START, REG-5, F46, F68)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from keepwell.actors import (
    Actor,
    ActorDied,
    ActorSystem,
    AlreadyStarted,
    AskedItself,
    AsyncActor,
    BlockingOnLoop,
    Exit,
    ExitActor,
    Ignore,
    InvalidValue,
    StartFailed,
    ThreadActor,
    current_system,
    names,
)

SOON = 10.0


def failing(error: BaseException) -> Any:
    def on_start(_self: Any) -> None:
        raise error

    return on_start


@pytest.mark.parametrize(
    "error", [ValueError("v"), SystemExit(2), KeyboardInterrupt(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_failing_on_start_is_the_starts_failure(
    spawn: Any, system: Any, error: BaseException
) -> None:
    """START-1, F68: with the cause; never a ref that looks alive."""
    with pytest.raises(StartFailed) as failed:
        spawn(on_start=failing(error), name="desk")
    assert failed.value.reason is error
    assert failed.value.__cause__ is error
    assert not system.actors
    assert names.whereis("desk") is None


@pytest.mark.parametrize("reason", ["normal", "shutdown", "boom"])
def test_exiting_in_on_start_is_a_failed_start(spawn: Any, reason: str) -> None:
    """INIT-2: even with `normal`."""
    with pytest.raises(StartFailed) as failed:
        spawn(on_start=failing(ExitActor(reason)))
    assert failed.value.reason == reason


def test_a_failing_init_is_the_starts_failure(kind: Any, system: Any) -> None:
    """F68."""
    error = LookupError("no such file")

    class Failing(kind):  # type: ignore[misc]  # a class that the fixture gives
        def __init__(self) -> None:
            super().__init__()
            raise error

    class Careless(kind):  # type: ignore[misc]  # a class that the fixture gives
        def __init__(self) -> None:
            self.value = 1

    for start in (Failing.start, Failing.options().start, lambda: Failing.spawn().get()):
        with pytest.raises(StartFailed) as failed:
            start()
        assert failed.value.__cause__ is error
    for start in (Careless.start, Careless.options().start):
        with pytest.raises(StartFailed, match=r"Careless\.__init__ must call super\(\)"):
            start()
    assert not system.actors


def test_a_failed_start_is_reported_once(
    spawn: Any, events: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """F56: in on_start too; nobody may look at the future of a spawn."""
    with pytest.raises(StartFailed):
        spawn(on_start=failing(ValueError("v")))
    assert [event for event, _ in events if event.endswith(".crashed")] == [
        "keepwell.actor.crashed"
    ]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


def test_ignore_is_no_actor_and_no_failure(kind: Any, system: Any) -> None:
    """START-1, INIT-3, F68."""

    class Unneeded(kind):  # type: ignore[misc]  # a class that the fixture gives
        def on_start(self) -> Any:
            return Ignore

    assert Unneeded.start() is Ignore
    assert Unneeded.options(name="desk").start() is Ignore
    assert Unneeded.spawn().get(timeout=SOON) is Ignore
    assert not system.actors
    assert names.whereis("desk") is None


def test_on_start_is_before_any_message(spawn: Any) -> None:
    def on_start(self: Any) -> None:
        self.seen.append("on_start")
        self.actor_ref.tell("early")

    ref = spawn(on_start=on_start)
    ref.tell("late")
    assert ref.ask(lambda actor: actor.seen, timeout=SOON) == ["on_start", "early", "late"]


def test_a_taken_name_is_already_started_with_the_ref(spawn: Any, system: Any) -> None:
    """REG-5: and `on_start` does not run."""
    ran: list[Any] = []
    first = spawn(name="desk")
    with pytest.raises(AlreadyStarted) as failed:
        spawn(name="desk", on_start=ran.append)
    assert (failed.value.ref, failed.value.code) == (first, "already_started")
    assert failed.value.reason == ("already_started", first)
    assert (ran, list(system.actors)) == ([], [first])


def test_a_start_too_late_is_timeout_and_killed(kind: Any, system: Any, gate: Any) -> None:
    """START-1."""

    class Slow(kind):  # type: ignore[misc]  # a class that the fixture gives
        on_start = gate

    starting = Slow.options(timeout=0.02, name="desk").spawn()
    with pytest.raises(StartFailed) as failed:
        starting.get(timeout=SOON)
    assert failed.value.reason == "timeout"
    assert names.whereis("desk") is None
    assert not system.actors
    gate.open.set()
    class_limit = type("Slow", (kind,), {"on_start": gate, "start_timeout": 5.0})
    assert class_limit.start().ask("started", timeout=SOON) == "started"


def test_an_actor_killed_while_it_starts_fails_its_start(
    kind: Any, system: Any, gate: Any
) -> None:
    """Nobody waits for ever, even if `on_start` never returns."""

    class Slow(kind):  # type: ignore[misc]  # a class that the fixture gives
        on_start = gate

    starting = Slow.options(name="desk").spawn()
    assert gate.entered.wait(SOON)
    ref = names.whereis("desk")
    assert ref is not None
    ref.kill()
    with pytest.raises(StartFailed) as failed:
        starting.get(timeout=SOON)
    assert failed.value.reason == "killed"


async def test_a_coroutine_on_start_is_interrupted(system: Any) -> None:
    class Slow(AsyncActor):
        async def on_start(self) -> None:
            entered.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.set()

    for end, reason in (("kill", "killed"), ("boom", "boom")):
        entered, ended = asyncio.Event(), asyncio.Event()
        starting = Slow.options(system=system, name="desk").spawn()
        await entered.wait()
        ref = names.whereis("desk")
        assert ref is not None
        ref.exit(end)
        with pytest.raises(StartFailed) as failed:
            await starting
        assert failed.value.reason == reason
        assert ended.is_set()
    limited = Slow.options(system=system, timeout=0.01).spawn()
    with pytest.raises(StartFailed) as failed:
        await limited
    assert failed.value.reason == "timeout"
    await ended.wait()
    await system.aclose()


def test_stopping_oneself_in_on_start_lets_the_start_succeed(spawn: Any) -> None:
    notes: list[Any] = []
    ref = spawn(notes.append, on_start=lambda self: self.stop("shutdown"))
    assert ref.ended().get(timeout=SOON) == "shutdown"
    assert notes == [("on_stop", "shutdown")]


def test_asking_oneself_in_on_start_raises_at_once(spawn: Any) -> None:
    """F46."""
    with pytest.raises(StartFailed) as failed:
        spawn(on_start=lambda self: self.actor_ref.call("me"))
    assert isinstance(failed.value.reason, AskedItself)


def test_a_linked_start_is_linked_from_the_first_moment(watcher: Any, kind: Any) -> None:
    ref = watcher.ask(lambda actor: actor.spawn_link(kind), timeout=SOON)
    ref.exit("boom")
    assert ref.ended().get(timeout=SOON) == "boom"
    assert watcher.ask(lambda actor: actor.seen, timeout=SOON) == [Exit(ref, "boom")]


def test_a_failed_start_tells_its_starter_once_and_other_peers_by_link(
    spawn: Any, watcher: Any, light: Any, kind: Any
) -> None:
    """The starter has the StartFailed; whom `on_start` linked has only the link."""
    peer = light.start()
    error = ValueError("v")

    class Failing(kind):  # type: ignore[misc]  # a class that the fixture gives
        def on_start(self) -> None:
            self.link(peer)
            raise error

    def start(actor: Any) -> Any:
        with pytest.raises(StartFailed):
            actor.spawn_link(Failing)

    watcher.ask(start, timeout=SOON)
    assert peer.ended().get(timeout=SOON) is error
    assert watcher.ask(lambda actor: actor.seen, timeout=SOON) == []


def test_a_dead_parent_or_link_fails_the_start(spawn: Any, kind: Any, light: Any) -> None:
    dead = light.start()
    dead.stop()
    for options in ({"parent": dead}, {"link": dead}, {"parent": light.start(), "link": dead}):
        with pytest.raises(StartFailed) as failed:
            kind.options(**options).start()
        assert failed.value.reason == "noproc"


def test_a_parent_and_a_link_are_both_kept(spawn: Any, kind: Any, light: Any) -> None:
    parent, peer = light.start(), light.start()
    ref = kind.options(parent=parent, link=peer).start()
    assert set(ref.statistics().get(timeout=SOON)["links"]) == {parent, peer}


async def test_start_is_refused_on_a_loop_and_spawn_is_not(kind: Any, system: Any) -> None:
    """Design §3: blocking on an event-loop thread raises at once and says what to do."""
    for start in (kind.start, kind.options(name="desk").start):
        with pytest.raises(BlockingOnLoop, match=r"await \w+\.spawn"):
            start()
    ref = await kind.spawn()
    assert await ref.call("started") == "started"
    with pytest.raises(BlockingOnLoop, match=r"await ref\.call"):
        ref.ask("blocking")
    with pytest.raises(BlockingOnLoop, match=r"await ref\.stop"):
        ref.stop()
    await system.aclose()


async def test_a_light_on_start_never_runs_on_the_loops_thread(system: Any) -> None:
    """Design §3: it may block."""

    class Blocking(Actor):
        def on_start(self) -> None:
            self.thread = threading.current_thread()

        def on_receive(self, message: Any) -> Any:
            return self.thread

    ref = await Blocking.options(system=system).spawn()
    assert await ref.call("which") is not threading.current_thread()
    await system.aclose()


def test_threads_of_hooks(system: Any) -> None:
    """A ThreadActor does all in its own thread; a light one may start in the starter's."""

    class Threads:
        def on_start(self) -> None:
            self.threads = [threading.current_thread()]

        def on_receive(self, message: Any) -> Any:
            self.threads.append(threading.current_thread())
            return self.threads

    class Own(Threads, ThreadActor): ...

    class Shared(Threads, Actor): ...

    own = Own.start().ask("threads", timeout=SOON)
    assert own[0] is own[1]
    assert own[0] is not threading.current_thread()
    assert own[0].name.startswith("Own")
    shared = Shared.start().ask("threads", timeout=SOON)
    assert shared[0] is threading.current_thread()
    assert shared[1] is not threading.current_thread()


def test_what_on_start_starts_is_in_the_same_system(light: Any) -> None:
    """Even if another system is entered where it was started."""

    class Parent(Actor):
        def on_start(self) -> None:
            self.child = light.start()
            self.current = current_system()

        def on_receive(self, message: Any) -> Any:
            return self.child.system, self.current

    with ActorSystem(name="a") as here, ActorSystem(name="b"):
        ref = Parent.options(system=here).start()
        assert ref.ask("systems", timeout=SOON) == (here, here)


def test_several_systems_and_none_entered_is_an_error() -> None:
    """DF-4: rather than a guess; the error is that of `current_system`, not a failed start."""
    one, two = ActorSystem(name="one"), ActorSystem(name="two")
    try:
        with pytest.raises(InvalidValue, match="none is entered"):
            Actor.start()
        with pytest.raises(InvalidValue, match="none is entered"):
            Actor.spawn()
        assert Actor.options(system=two).start().system is two
    finally:
        one.close()
        two.close()


def test_nothing_starts_in_a_closed_system(kind: Any) -> None:
    system = ActorSystem(name="closed")
    system.close()
    with pytest.raises(StartFailed, match="closed"):
        kind.options(system=system).start()
    assert not system.actors


def test_starts_that_race_with_closing_leave_no_orphan(kind: Any) -> None:
    """F65: refused, or stopped with the rest."""
    for _ in range(10):
        system = ActorSystem(name="closing")
        refs: list[Any] = []
        go = threading.Barrier(2)

        def start(system: Any = system, refs: Any = refs, go: Any = go) -> None:
            go.wait(SOON)
            try:
                while True:
                    refs.append(kind.options(system=system).start())
            except StartFailed:
                pass

        thread = threading.Thread(target=start)
        thread.start()
        go.wait(SOON)
        system.close()
        thread.join(SOON)
        assert not thread.is_alive()
        assert not system.actors
        for ref in refs:
            with pytest.raises(ActorDied):
                ref.ask("alive?", timeout=SOON)


def test_name_goes_to_init_where_that_takes_one(system: Any) -> None:
    class Named(Actor):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.own_name = name

        def on_receive(self, message: Any) -> Any:
            return self.own_name

    ref = Named.start(name="its own")
    assert ref.ask("name") == "its own"
    assert ref.name is None
    assert Named.options(name="desk").start("its own").name == "desk"
