"""The part of an actor's state that most actors never need, and the lock that guards bonds."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .exits import NOPROC, ExitReason, Monitor
from .future import Future

if TYPE_CHECKING:
    from .clock import Timer
    from .ref import ActorRef, AnyRef
    from .request import Request

lock = threading.Lock()
"""Guards links, monitors, names and groups of all actors.

Held for a few statements only; nothing is sent and no user code runs under it.
"""

making = threading.Lock()


class Life:
    """The part of an actor's state that most actors never need."""

    __slots__ = (
        "__weakref__", "batch", "child_id", "deferred", "end_futures", "exit_callbacks", "groups",
        "idle_message", "idle_number", "idle_seconds", "idle_timer", "last_error", "last_message",
        "links", "monitors", "name", "parent", "restarts", "starters", "starting", "stop_futures",
        "stopped", "suspended", "traced", "urn", "watches",
    )  # fmt: skip

    def __init__(self) -> None:
        self.name: str | None = None
        self.groups: set[str] | None = None
        self.links: dict[AnyRef, None] | None = None
        # Monitors of this actor, and those that it has itself set on others.
        self.monitors: dict[Monitor, None] | None = None
        self.watches: dict[Monitor, None] | None = None
        self.parent: ActorRef[Any] | None = None
        # What its supervisor calls it: an item of its path.
        self.child_id: Any = None
        # By its supervisor; this incarnation included.
        self.restarts = 0
        self.exit_callbacks: list[Callable[[ExitReason], object]] | None = None
        self.stop_futures: list[Future[bool]] | None = None
        # Who waits for `on_start`, while it runs elsewhere than in the starter's thread.
        self.starting: Future[Any] | None = None
        # Who was linked with it by its start, and learns of a failure from there.
        self.starters: tuple[ActorRef[Any], ...] = ()
        # Who waits for the end; a tuple once everything of it is over.
        self.end_futures: list[Future[ExitReason]] | tuple[()] | None = None
        # Requests that the actor has taken and will answer later, and those of a running batch.
        self.deferred: dict[Request, None] | None = None
        self.batch: list[Request] | None = None
        self.suspended = False
        self.idle_seconds: float | None = None
        self.idle_message: Any = None
        self.idle_timer: Timer | None = None
        self.idle_number = 0
        self.last_message: str | None = None
        self.last_error: str | None = None
        # What a trace has put its wrappers in the place of, on the instance; None: nothing.
        self.traced: dict[str, Any] | None = None
        self.urn: str | None = None
        self.stopped: threading.Event | None = None

    def get_urn(self) -> str:
        """The actor's urn, made now if nobody has asked before."""
        urn = self.urn
        if urn is None:
            with making:
                urn = self.urn
                if urn is None:
                    urn = self.urn = uuid.uuid4().urn
        return urn

    def get_stopped(self, ref: ActorRef[Any]) -> threading.Event:
        """An event that is set once the actor has ended."""
        with making:
            if self.stopped is None:
                self.stopped = threading.Event()
        if ref._closed:
            self.stopped.set()
        return self.stopped

    def add_exit_callback(
        self, ref: ActorRef[Any], callback: Callable[[ExitReason], object]
    ) -> Callable[[], None]:
        """See ActorRef.on_exit."""
        with lock:
            alive = not ref._closed
            if alive:
                if self.exit_callbacks is None:
                    self.exit_callbacks = []
                self.exit_callbacks.append(callback)
        if not alive:
            callback(NOPROC)

        def forget() -> None:
            with lock:
                if self.exit_callbacks is not None and callback in self.exit_callbacks:
                    self.exit_callbacks.remove(callback)

        return forget

    def add_end_future(self, ref: ActorRef[Any], future: Future[ExitReason]) -> None:
        """See ActorRef.ended."""
        with lock:
            waiting = self.end_futures
            if waiting is None:
                waiting = self.end_futures = []
            if not isinstance(waiting, tuple):
                waiting.append(future)
                return
        future.complete(ref._reason)
