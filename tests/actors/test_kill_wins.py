"""A kill that comes while an actor is busy ending is what its peers see (SHUT-3, SIG-3)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from keepwell.actors import Actor, ActorSystem, AsyncActor
from keepwell.testing.simulation import SimulatedScheduler


class Blocking(Actor):
    """Its hooks and handlers wait for `release`."""

    def __init__(self, entered: threading.Event, release: threading.Event) -> None:
        super().__init__()
        self.entered, self.release = entered, release
        self.hooks: list[str] = []

    def wait(self) -> None:
        self.entered.set()
        self.release.wait(30)

    def on_receive(self, message: Any) -> Any:
        self.wait()
        if message == "boom":
            raise RuntimeError("boom")

    def on_stop(self) -> None:
        self.hooks.append("stop")
        self.wait()

    def on_failure(self, *_: Any) -> None:
        self.hooks.append("failure")


@pytest.mark.parametrize("begin", ["stop", "signal"])
def test_a_hook_that_returns_within_the_grace_time(begin: str) -> None:
    entered, release = threading.Event(), threading.Event()
    with ActorSystem():
        ref = Blocking.start(entered, release)
        if begin == "stop":
            _ = ref.stop(block=False)
        else:
            ref.exit("shutdown")
        assert entered.wait(10)
        ref.kill()
        release.set()
        assert ref.ended().get(timeout=10) == "killed"


@pytest.mark.parametrize("message", ["boom", "fine"])
def test_a_handler_that_returns_within_the_grace_time_runs_no_hook(message: str) -> None:
    entered, release = threading.Event(), threading.Event()
    with ActorSystem():
        ref = Blocking.start(entered, release)
        actor = ref._actor
        ref.tell(message)
        assert entered.wait(10)
        ref.kill()
        release.set()
        assert ref.ended().get(timeout=10) == "killed"
        assert actor.hooks == []


async def test_on_a_loop() -> None:
    class Looped(AsyncActor):
        async def on_receive(self, message: Any) -> Any:
            return message

        async def on_stop(self) -> None:
            entered.set()
            await release.wait()

    entered, release = asyncio.Event(), asyncio.Event()
    system = ActorSystem()
    with_system = Looped.options(system=system)
    ref = await with_system.spawn()
    _ = ref.stop(block=False)
    await entered.wait()
    ref.kill()
    release.set()
    assert await ref.ended() == "killed"
    await system.aclose()


def test_in_virtual_time() -> None:
    """Killed at 0.05 s, its hook would have returned at 0.06 s, before it is fenced."""
    with SimulatedScheduler(seed=None) as simulation:

        class Sleeping(Actor):
            def on_stop(self) -> None:
                simulation.system.run(asyncio.sleep(0.06)).get()

        ref = Sleeping.start()
        ref.exit("shutdown")
        simulation.advance(0.05)
        ref.kill()
        simulation.advance(1)
        assert ref.exit_reason == "killed"


def test_a_suspended_actor_is_ended_by_its_parent_even_if_it_traps_exits() -> None:
    """SYS-1: other exits wait, that of the parent does not, as in OTP's sys."""

    class Trapping(Actor):
        trap_exit = True

        def on_receive(self, message: Any) -> Any:
            return message

    class Parent(Actor):
        def on_receive(self, message: Any) -> Any:
            if message == "start":
                return Trapping.options(parent=self.actor_ref).start()
            return message.exit("shutdown")

    with SimulatedScheduler(seed=None) as simulation:
        parent, stranger = Parent.start(), Parent.start()
        child = parent.ask("start")
        child.suspend().get()
        stranger.ask(child)
        simulation.run_until_idle()
        assert child.is_alive()
        parent.ask(child)
        simulation.run_until_idle()
        assert child.exit_reason == "shutdown"
