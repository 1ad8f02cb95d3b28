"""Circuit breakers as actors: one each, under one supervisor in each runtime's tree."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from ..actors import Actor
from ..actors.errors import InvalidValue
from ..supervision import ChildSpec, DynamicSupervisor
from .breaker_home import Admit, BreakerHome, Report
from .breaker_state import Phase

if TYPE_CHECKING:
    from ..actors.future import Future
    from ..actors.system import ActorSystem
    from ..supervision.children import ChildRecord


class BreakerActor(Actor):
    """One incarnation of a breaker: takes the steps of its state, one message after another."""

    def __init__(self, home: BreakerHome) -> None:
        super().__init__()
        self._home = home

    def on_start(self) -> None:
        """Be found by the calls."""
        self._home.moved_in(self.actor_ref)

    def on_receive(self, message: Any) -> float | None:
        """Admit a call, or take note of how one went."""
        if not isinstance(message, Admit | Report):
            raise InvalidValue(f"{message!r} is no message to a circuit breaker")
        return self._home.step(message)

    def get_state(self) -> dict[str, Any]:
        """Model, phase, failures in a row, and the time of the clock when it opened."""
        state = self._home.state
        return {
            "model": self._home.model,
            "phase": state.phase.value,
            "failures": state.failures,
            "since": state.since,
        }

    def tree_note(self) -> str:
        """The circuit as the tree shows it."""
        state = self._home.state
        return f"{self._home.model}: {state.phase.value}, {state.failures} failures"


class BreakerSupervisor(DynamicSupervisor):
    """Breakers as transient children, each with a restart budget of its own (5 in 10 s).

    `start_child(ref, home)`. A breaker that is given up is started again by the next call; one
    whose object nobody has any more ends when another is started.
    """

    def __init__(self) -> None:
        template = ChildSpec("circuit_breaker", BreakerActor, restart="transient")
        super().__init__(template, per_child=True)

    def on_start(self) -> Any:
        """Be found by the breakers of this system."""
        started = super().on_start()
        circuits, ref = circuits_of(self.system), self.actor_ref
        circuits.moved_in(ref)
        self._own_ref.on_exit(lambda _reason: circuits.moved_out(ref))
        return started

    def _on_start_child(self, request: Any) -> Any:
        for record in list(self._book.records()):
            if _home_of(record).owner() is None:
                self._stop_child(record)
                self._book.remove(record)
        return super()._on_start_child(request)

    def _give_child_up(self, record: ChildRecord) -> None:
        super()._give_child_up(record)
        _home_of(record).close()


def _home_of(record: ChildRecord) -> BreakerHome:
    home = record.args[0]
    assert isinstance(home, BreakerHome)
    return home


class Circuits:
    """The breakers of one actor system, and who supervises them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._supervisor: Any = None
        self._homes: weakref.WeakSet[BreakerHome] = weakref.WeakSet()

    def attend(self, home: BreakerHome) -> None:
        """Have the breaker of a home started, if there is a supervisor; never waits."""
        with self._lock:
            self._homes.add(home)
            supervisor = self._supervisor
        if supervisor is None or not home.expect():
            return

        def started(future: Future[Any]) -> None:
            if future.error() is not None:
                home.close()

        supervisor.start_child(home).add_done_callback(started)

    def moved_in(self, supervisor: Any) -> None:
        """A supervisor has started; the breakers of the one before have ended."""
        self._change(supervisor)

    def moved_out(self, supervisor: Any) -> None:
        """A supervisor has ended, and all breakers with it."""
        if self._supervisor == supervisor:
            self._change(None)

    def _change(self, supervisor: Any) -> None:
        with self._lock:
            self._supervisor = supervisor
            homes = list(self._homes)
        for home in homes:
            home.close()

    def not_closed(self) -> tuple[str, ...]:
        """The names of the models whose circuit is open, or being tried."""
        with self._lock:
            homes = list(self._homes)
        return tuple(sorted(h.model for h in homes if h.state.phase is not Phase.CLOSED))


_circuits: weakref.WeakKeyDictionary[ActorSystem, Circuits] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def circuits_of(system: ActorSystem) -> Circuits:
    """The breakers of an actor system."""
    with _lock:
        found = _circuits.get(system)
        if found is None:
            found = _circuits[system] = Circuits()
        return found
