"""Every kind of actor behind one fixture: what is told of actors must hold for each."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from keepwell.actors import Actor, ActorRef, ActorSystem, AsyncActor, ThreadActor, telemetry


class Scripted:
    """An actor that runs what it is sent: a message that can be called is called with the actor.

    What it is sent otherwise, and its hooks, it notes in `seen`.
    """

    on_loop = False
    """Whether its handlers run on an event loop, where nothing may block."""
    awaits = False
    """Whether a message that gives a coroutine is awaited."""

    def __init__(self, note: Callable[[Any], None] | None = None) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self._note = note or self.seen.append

    def on_receive(self, message: Any) -> Any:
        if callable(message):
            return message(self)
        self._note(message)
        return message

    def on_stop(self) -> None:
        self._note(("on_stop", self.exit_reason))

    def on_failure(self, *_: Any) -> None:
        self._note(("on_failure", self.exit_reason))


class Light(Scripted, Actor): ...


class Threaded(Scripted, ThreadActor): ...


class LoopSync(Scripted, AsyncActor):
    on_loop = True


class LoopAsync(Scripted, AsyncActor):
    """Its coroutines end without having suspended, unless the script awaits."""

    on_loop = awaits = True

    async def on_receive(self, message: Any) -> Any:
        value = super().on_receive(message)
        return await value if inspect.iscoroutine(value) else value

    async def on_stop(self) -> None:
        super().on_stop()

    async def on_failure(self, *error: Any) -> None:
        super().on_failure(*error)


class LoopSuspending(LoopAsync):
    """Suspends before everything it does."""

    async def on_receive(self, message: Any) -> Any:
        await asyncio.sleep(0)
        return await super().on_receive(message)

    async def on_stop(self) -> None:
        await asyncio.sleep(0)
        await super().on_stop()

    async def on_failure(self, *error: Any) -> None:
        await asyncio.sleep(0)
        await super().on_failure(*error)


KINDS = [Light, Threaded, LoopSync, LoopAsync, LoopSuspending]
BOUNDED = [
    type(f"Bounded{kind.__name__}", (kind,), {"max_mailbox": 1_000})
    for kind in (Light, Threaded, LoopAsync)
]


@pytest.fixture(params=[*KINDS, *BOUNDED], ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[Any]:
    """Each class of actor in turn, bounded and not."""
    return request.param


@pytest.fixture
def light() -> type[Any]:
    return Light


@pytest.fixture
def system() -> Iterator[ActorSystem]:
    """A system of the test's own, entered, whose actors all end with it."""
    with ActorSystem(name="test") as system:
        yield system
    assert not system.actors
    assert not system.names_table
    assert not system.groups_table


@pytest.fixture
def spawn(system: ActorSystem, kind: type[Any]) -> Callable[..., ActorRef[Any]]:
    """Start an actor of the kind; keyword arguments change attributes of its class."""

    def start(*args: Any, **attributes: Any) -> ActorRef[Any]:
        name = attributes.pop("name", None)
        cls = type(kind.__name__, (kind,), attributes) if attributes else kind
        return cls.options(name=name, system=system).start(*args)

    return start


class Gate:
    """A place where a handler waits until the test lets it go on."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, _actor: Any = None) -> str:
        self.entered.set()
        assert self.open.wait(20)
        return "through"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def watcher(system: ActorSystem) -> ActorRef[Any]:
    """An actor that traps exits and notes all it gets."""

    class Watcher(Light):
        trap_exit = True

    return Watcher.options(system=system).start()


@pytest.fixture
def events() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Everything that telemetry tells of actors during the test."""
    told: list[tuple[str, dict[str, Any]]] = []
    with telemetry.attach("keepwell.", lambda event, fields: told.append((event, dict(fields)))):
        yield told
