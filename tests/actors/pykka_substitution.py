"""A pytest plugin: pykka's own tests get keepwell's kinds of actors in the place of pykka's.

Loaded with `-p` before pykka's conftest. Tests that take their classes from pykka's `runtime`
fixture run once for each kind; those that name `pykka.ThreadingActor` itself get the kind that has
a thread.
"""

from __future__ import annotations

import dataclasses
import sys
import threading

import pykka
import pytest

from keepwell.actors import (
    Actor,
    ActorDied,
    AsyncActor,
    CallTimeout,
    Future,
    ThreadActor,
    current_actor,
    current_system,
)

pykka.ThreadingActor = ThreadActor  # type: ignore[misc]  # what this plugin is for
pykka.ThreadingFuture = Future  # type: ignore[misc]  # what this plugin is for


class QuietEvent(threading.Event):
    """An event that a test waits for, and that one of the last hooks of an actor may set.

    pykka's actors are dead before these hooks run, ours when they have returned (F47): a test that
    looks at the actor next must first let the hook return.
    """

    def wait(self, timeout: float | None = None) -> bool:
        happened = super().wait(timeout)
        if current_actor() is None:
            for ref in list(current_system().actors):
                try:
                    ref.statistics().get(timeout=5)
                except (ActorDied, CallTimeout):
                    pass
        return happened


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "runtime" in metafunc.fixturenames:
        (before,) = sys.modules["tests.conftest"].RUNTIMES["threading"].values
        runtimes = [
            pytest.param(
                dataclasses.replace(before, actor_class=kind, event_class=QuietEvent),
                id=kind.__name__,
            )
            for kind in (Actor, ThreadActor, AsyncActor)
        ]
        mark = pytest.mark.parametrize("runtime", runtimes, indirect=True, scope="session")
        metafunc.definition.add_marker(mark)
