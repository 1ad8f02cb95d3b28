"""An actor system: the actors, names, groups, clock and schedulers that belong together.

A `Runtime` has one; programs that only use actors get the process's default one. Closing a system
ends its actors and nobody else's (F58).
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import os
import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Token
from typing import Any, TypeVar

from . import context as contexts
from . import future as futures
from . import life, lifecycle, telemetry
from . import ref as refs
from .clock import Clock, SystemClock
from .context import entered_system, open_systems, running_actor, running_systems
from .deadlines import Deadlines
from .errors import KeepwellError, Unavailable
from .exits import KILLED, NOPROC, SHUTDOWN
from .future import Future, refuse_on_loop
from .ref import ActorRef
from .request import AskedItself
from .scheduler import Scheduler, ThreadScheduler

T = TypeVar("T")
logger = logging.getLogger("keepwell.actors")

STOP_SECONDS = 5.0
"""How long `close` waits for actors to end before it fences them."""


class ForkedProcess(KeepwellError, RuntimeError):
    """A forked child used an actor of its parent, whose threads it does not have."""

    def __init__(self, parent: int) -> None:
        super().__init__(
            f"this actor belongs to process {parent}, and a fork does not take its threads along: "
            "start a runtime of its own in the child, or use the spawn start method"
        )


class ActorSystem:
    """Owns everything that actors share; `with system:` makes it the current one."""

    def __init__(
        self,
        *,
        name: str = "system",
        scheduler: Scheduler | None = None,
        clock: Clock | None = None,
        is_default: bool = False,
    ) -> None:
        self.name = name
        self.pid = os.getpid()
        self.closed = False
        self.actors: dict[ActorRef[Any], None] = {}
        self.names_table: dict[str, ActorRef[Any]] = {}
        self.groups_table: dict[str, dict[ActorRef[Any], int]] = {}
        self.tables: dict[str, Any] = {}
        """Named in-memory tables of this system (floor 3)."""
        self.at_close: list[Callable[[], object]] = []
        """Called once, when the actors have ended: for what waits for one that never comes."""
        self.dead_letters = 0
        self.abandoned_threads = 0
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.deadlines = Deadlines(self.clock)
        self.scheduler: Scheduler = scheduler if scheduler is not None else ThreadScheduler()
        self.scheduler.bind(self)
        self._is_default = is_default
        self._tokens: list[Token[Any]] = []
        if not is_default:
            running_systems[self] = None
        open_systems[self] = None
        self._closing = threading.Lock()

    def __repr__(self) -> str:
        return f"<ActorSystem {self.name!r}, {len(self.actors)} actors>"

    @property
    def telemetry(self) -> Any:
        """The event bus, for code that has the system at hand."""
        return telemetry

    # -- event loop ------------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of actors that are not started from a loop of their own; made on first use."""
        return self.scheduler.loop

    def adopt_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use `loop`, which the caller runs, as the system's loop."""
        self.scheduler.adopt_loop(loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the system's loop, from any thread; the future gets its result."""
        return _Run(self, coroutine).future

    # -- entering and closing --------------------------------------------------------------------

    def __enter__(self) -> ActorSystem:
        self._tokens.append(entered_system.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        entered_system.reset(self._tokens.pop())
        self.close()

    async def __aenter__(self) -> ActorSystem:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        entered_system.reset(self._tokens.pop())
        await self.aclose()

    def check_process(self) -> None:
        """Raise ForkedProcess in a forked child."""
        if self.pid != os.getpid():
            raise ForkedProcess(self.pid)

    def close(self, timeout: float = STOP_SECONDS) -> None:
        """Stop all actors, the youngest first, and then the schedulers. Returns when all is ended.

        Actors that have not ended after `timeout` seconds are fenced and reported. Does nothing the
        second time, and in a forked child. Raises BlockingOnLoop on a loop's thread (`aclose`),
        AskedItself in a handler of one of its own actors, which it would have to wait for.
        """
        if self.closed or self.pid != os.getpid():
            return
        if self.actors:
            refuse_on_loop("ActorSystem.close()", "await system.aclose() instead")
            running = running_actor.get()
            if isinstance(running, ActorRef) and running._system is self and running.is_alive():
                raise AskedItself(running)
        with self._closing:
            deadline = self.clock.monotonic() + timeout
            for future in self._stopping():
                self.scheduler.wait(future, max(deadline - self.clock.monotonic(), 0.0))
                if not future.done():
                    break
            self._finish()

    async def aclose(self, timeout: float = STOP_SECONDS) -> None:
        """As `close`, on an event loop."""
        if self.closed or self.pid != os.getpid():
            return
        try:
            async with asyncio.timeout(timeout):
                for future in self._stopping():
                    await future
        except TimeoutError:
            pass
        finally:
            self._finish()
            try:
                async with asyncio.timeout(timeout):
                    await self.scheduler.ended()
            except TimeoutError:
                pass  # its own loop is stuck, and has been reported

    def _stopping(self) -> Iterator[Future[bool]]:
        """Stop roots first, the youngest first (they stop their children), then what is left."""
        while self.actors:
            refs = list(self.actors)
            roots = [ref for ref in refs if ref._life is None or ref._life.parent is None]
            # All are told before any is waited for.
            yield from [ref.stop(block=False, reason=SHUTDOWN) for ref in reversed(roots or refs)]

    def _finish(self) -> None:
        if self.closed:
            return
        self.closed = True
        left = list(self.actors)
        for ref in left:
            lifecycle.end(ref, KILLED, fenced=True)
        if left:
            logger.error("%d actors did not stop in time: %s", len(left), left[:5])
            telemetry.emit("keepwell.system.abandoned", actors=left)
        for callback in self.at_close:
            try:
                callback()
            except Exception:
                logger.exception("a callback at the end of %s failed", self)
        self.at_close.clear()
        running_systems.pop(self, None)
        open_systems.pop(self, None)
        self.scheduler.close()
        if isinstance(self.clock, SystemClock):
            self.clock.close()


class _Run:
    """A coroutine on its way through a system's loop, and the future of its result."""

    def __init__(self, system: ActorSystem, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.future: Future[Any] = Future()
        self._loop = system.loop
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        if _get_running_loop() is self._loop:
            self._start()
        else:
            try:
                self._loop.call_soon_threadsafe(self._start)
            except RuntimeError:
                coroutine.close()
                self.future.fail(Unavailable(f"{system} has no event loop any more"))
        self.future.on_abandoned(self._cancel)

    def _start(self) -> None:
        if self._cancelled:
            self._coroutine.close()
            self.future.fail(asyncio.CancelledError())
            return
        # It is no handler, even if one has started it: it may ask that actor.
        context = contextvars.copy_context()
        context.run(running_actor.set, None)
        self._task = self._loop.create_task(self._coroutine, context=context)
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.future.fail(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.future.fail(error)
        else:
            self.future.complete(task.result())

    def _cancel(self) -> None:
        self._cancelled = True
        task = self._task
        if task is not None:
            self._loop.call_soon_threadsafe(task.cancel)


def _close_all() -> None:
    for system in list(open_systems):
        try:
            system.close()
        except Exception:
            logger.exception("%s could not be closed", system)


def _disown() -> None:
    # The child has none of the threads: whoever uses these refs, or waits for their answers, must
    # be told, not left waiting. Those who waited in other threads are not there any more.
    for system in list(open_systems):
        error = ForkedProcess(system.pid)
        for ref in list(system.actors):
            ref._reason = NOPROC
            ref._closed = True
            ref._idle = False  # or a sender would wake the parent's threads and loops
            for request in ref.unanswered():
                request._waiters = None
                request.fail(error)
        system.closed = True
    open_systems.clear()
    running_systems.clear()


# Held over a fork, or the child would inherit one that a thread of the parent has, for ever.
_LOCKS = (
    contexts.making, life.lock, life.making, refs.making, refs.counting, futures.making,
    telemetry.lock,
)  # fmt: skip


def _before_fork() -> None:
    for lock in _LOCKS:
        lock.acquire()


def _after_fork() -> None:
    for lock in _LOCKS:
        lock.release()


def _after_fork_in_child() -> None:
    _after_fork()
    _disown()


atexit.register(_close_all)
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
