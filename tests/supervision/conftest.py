"""A nursery: children that note what they do, with faults on order, for any kind of scheduler."""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from keepwell.actors import Actor, ActorSystem, ExitActor, Ignore, telemetry
from keepwell.supervision import ChildSpec
from keepwell.testing.simulation import SimulatedScheduler


class Toy(Actor):
    """Notes start and stop; does what it is told."""

    def __init__(self, nursery: Nursery, child_id: Any) -> None:
        super().__init__()
        self.nursery, self.child_id = nursery, child_id
        self.handled: list[Any] = []

    def on_start(self) -> Any:
        nursery, child_id = self.nursery, self.child_id
        attempt = nursery.count_start(child_id)
        plan = nursery.plans.get(child_id, [])
        outcome = plan[min(attempt, len(plan)) - 1] if plan else "ok"
        nursery.note("start" if outcome == "ok" else "start failed", child_id)
        if callable(outcome) and not _is_error(outcome):
            outcome = outcome(self)
        if outcome == "ignore":
            return Ignore
        if _is_error(outcome):
            raise outcome
        nursery.born(child_id, self.actor_ref)
        return None

    def on_receive(self, message: Any) -> Any:
        self.handled.append(message)
        if _is_error(message):
            raise message
        if isinstance(message, tuple) and message[0] == "exit":
            raise ExitActor(message[1])
        if callable(message):
            return message(self)
        return (self.child_id, list(self.handled))

    def on_stop(self) -> None:
        self.nursery.note("stop", self.child_id)
        hook = self.nursery.hooks.get(self.child_id)
        if hook is not None:
            hook(self)


def _is_error(value: Any) -> bool:
    """An exception, or a class of them: raised again and again, one object would grow."""
    return isinstance(value, BaseException) or (
        isinstance(value, type) and issubclass(value, BaseException)
    )


class Nursery:
    """Makes specs and remembers what their children did."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: list[tuple[str, Any]] = []
        self.plans: dict[Any, list[Any]] = {}
        """Outcomes by start attempt, the last repeats: "ok", "ignore", an exception, a function."""
        self.hooks: dict[Any, Any] = {}
        self.living: dict[Any, set[Any]] = {}
        self.refs: dict[Any, list[Any]] = {}
        self.twice: list[Any] = []
        """Ids that had two living incarnations at once: nothing may live twice."""
        self._starts: Counter[Any] = Counter()

    def spec(self, child_id: Any, cls: type[Toy] = Toy, **options: Any) -> ChildSpec:
        return ChildSpec(child_id, functools.partial(cls, self, child_id), **options)

    def specs(self, ids: str, **options: Any) -> list[ChildSpec]:
        return [self.spec(child_id, **options) for child_id in ids]

    def note(self, what: str, child_id: Any) -> None:
        with self._lock:
            self.events.append((what, child_id))

    def count_start(self, child_id: Any) -> int:
        with self._lock:
            self._starts[child_id] += 1
            return self._starts[child_id]

    def born(self, child_id: Any, ref: Any) -> None:
        with self._lock:
            living = self.living.setdefault(child_id, set())
            if living:
                self.twice.append(child_id)
            living.add(ref)
            self.refs.setdefault(child_id, []).append(ref)

        def died(_: object) -> None:
            with self._lock:
                living.discard(ref)
                self.events.append(("end", child_id))

        ref.on_exit(died)

    def ref(self, child_id: Any) -> Any:
        """The last incarnation."""
        return self.refs[child_id][-1]

    def take(self, *kinds: str) -> list[Any]:
        """What has happened since the last call; of some kinds only the ids."""
        with self._lock:
            events, self.events = self.events, []
        if len(kinds) == 1:
            return [child_id for what, child_id in events if what == kinds[0]]
        return [event for event in events if not kinds or event[0] in kinds]

    def alive(self) -> list[Any]:
        return sorted(child_id for child_id, living in self.living.items() if living)


@pytest.fixture
def nursery() -> Nursery:
    return Nursery()


@pytest.fixture
def toy() -> type[Toy]:
    return Toy


@pytest.fixture
def new_nursery() -> type[Nursery]:
    """For tests that need one for each of many seeds."""
    return Nursery


@pytest.fixture
def system() -> Iterator[ActorSystem]:
    """Real threads."""
    with ActorSystem() as system:
        yield system


@pytest.fixture
def simulation() -> Iterator[SimulatedScheduler]:
    """One deterministic order, virtual time."""
    with SimulatedScheduler(seed=None) as simulation:
        yield simulation


class Reports:
    """Telemetry events of supervisors and crashes, and what was logged as an error."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, fields: Any) -> None:
        self.events.append((event.removeprefix("keepwell."), dict(fields)))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


@pytest.fixture
def reports() -> Iterator[Reports]:
    collected = Reports()
    with (
        telemetry.attach("keepwell.supervisor.", collected),
        telemetry.attach("keepwell.actor.crashed", collected),
    ):
        yield collected


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Crashes on order are logged by the hundred; the tests of the log read caplog."""
    caplog.set_level(logging.INFO, "keepwell")
