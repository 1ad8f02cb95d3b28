"""A store as one makes it: its settings, started here or as a supervisor's child."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Self

from ..actors.errors import InvalidValue
from ..actors.future import Future
from .engine import Engine
from .errors import shown
from .port import TIMEOUT, Port, port_of
from .request import MAX_MESSAGE_BYTES
from .store_actor import StoreActor
from .store_handle import StoreHandle, pass_on
from .token_counter import TokenCounter

if TYPE_CHECKING:
    from ..actors.ref import ActorRef
    from ..actors.system import ActorSystem


class TableOwner:
    """What a supervisor keeps for a store between incarnations: made once for each child spec."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self._watched: list[Any] = []

    def watch(self, ref: ActorRef[Any]) -> None:
        """Give the table up when the supervisor of `ref` ends, or `ref` itself if it has none."""
        life = ref._life
        parent = None if life is None else life.parent
        keeper = ref if parent is None else parent
        if keeper not in self._watched:
            self._watched.append(keeper)
            keeper.on_exit(lambda _reason: self.drop())

    def drop(self) -> None:
        """End the table (MS-2)."""
        engine, self.engine = self.engine, None
        self._watched.clear()
        if engine is not None:
            engine.close()


class Store(StoreHandle):
    """Base of `MemoryStore` and `DiskStore`: settings, and the handle of what is started from them.

    Start it unsupervised with `start()` (blocking) or `await spawn()`, or give `child_start()` to a
    child spec. Requests before that are refused at once (`StoreNotStarted`). A name, if one is
    given, makes it reachable by `StoreHandle(name)` in the actor system.
    """

    def __init__(self, name: str, *, counter: TokenCounter | None, max_message_bytes: int,
                 timeout: float) -> None:
        if type(max_message_bytes) is not int or max_message_bytes < 1:
            raise InvalidValue(
                f"max_message_bytes must be an int of 1 or more, not {shown(max_message_bytes)}")
        if counter is not None and not isinstance(counter, TokenCounter):
            raise InvalidValue(f"counter must be a TokenCounter, not {shown(counter)}")
        super().__init__(Port(name), timeout=timeout)
        self._counter, self._max_message_bytes = counter, max_message_bytes
        self.port.configure(counter, max_message_bytes)
        self.port.expect(start=False)
        self.ref: ActorRef[StoreActor] | None = None

    def child_start(self, name: str | None = None,
                    system: ActorSystem | None = None) -> partial[Any]:
        """What a `ChildSpec` takes as `start`: the store's actor, registered under `name`.

        The table (of a `MemoryStore`) lives as long as the supervisor keeps what this returns, and
        no longer than the supervisor.
        """
        owner = TableOwner()
        return partial(StoreActor, self._bind(name, system), partial(self._open, owner),
                       partial(self._close, owner), name)

    def start(self, name: str | None = None) -> Self:
        """Start the store without a supervisor; returns it. Raises `StartFailed` with the cause."""
        self.ref = self._starter().start(*self.child_start(name).args)
        return self

    def spawn(self, name: str | None = None) -> Future[Self]:
        """As `start`, awaitable."""
        answer: Future[Self] = Future()

        def started(done: Future[Any]) -> None:
            if done.error() is None:
                self.ref = done.get()
                answer.complete(self)
            else:
                pass_on(answer, done)

        self._starter().spawn(*self.child_start(name).args).add_done_callback(started)
        return answer

    def stop(self, timeout: float | None = None) -> Future[Any]:
        """Stop an unsupervised store in order; await it, or `.get()`."""
        if self.ref is None:
            return Future.of(False)
        return self.ref.stop(block=False, timeout=timeout)

    @staticmethod
    def _starter() -> Any:
        return StoreActor.options()

    def _bind(self, name: str | None, system: ActorSystem | None) -> Port:
        if name is not None and self.port.name != name:
            port = port_of(name, system)
            port.configure(self._counter, self._max_message_bytes)
            self.port = port
        self.port.expect()
        return self.port

    def _open(self, owner: TableOwner, ref: ActorRef[Any]) -> Engine:
        raise NotImplementedError

    def _close(self, owner: TableOwner, engine: Engine) -> None:
        raise NotImplementedError


def check_startable(value: object) -> None:
    """Raise `InvalidValue`, saying what to do instead, for what is no store that one starts."""
    if isinstance(value, Store):
        return
    if isinstance(value, type):
        remedy = "it is a class: pass an instance, as MemoryStore() or DiskStore(path)"
    elif isinstance(value, StoreHandle):
        remedy = "it leads to a store by name: start the MemoryStore or DiskStore itself"
    elif all(callable(getattr(value, name, None)) for name in ("get", "add", "clear")):
        remedy = "it has no actor and needs no start: use it as it is, as `memory=` for an agent"
    else:
        remedy = "pass MemoryStore() or DiskStore(path)"
    raise InvalidValue(f"{shown(value)} is no store to start: {remedy}")


__all__ = ["MAX_MESSAGE_BYTES", "TIMEOUT", "Store", "TableOwner", "check_startable"]
