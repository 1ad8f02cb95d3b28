"""Where actors run: threads and event loops in production, one seeded run queue in tests."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any, Final

from . import lifecycle
from .async_runner import AsyncRef, LoopRunner
from .errors import Unavailable
from .exits import KILLED, ExitReason
from .future import Future, wait_in_thread
from .pool import MAX_WORKERS, Pool

if TYPE_CHECKING:
    from .ref import ActorRef
    from .system import ActorSystem

logger = logging.getLogger("keepwell.actors")

GRACE_SECONDS: Final = 0.1
"""How long a running handler may take after a kill before its actor is fenced."""


class Scheduler(ABC):
    """Runs the actors of one system."""

    system: ActorSystem

    def bind(self, system: ActorSystem) -> None:
        """Called once by the system that will use it."""
        self.system = system

    @property
    @abstractmethod
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of async actors that have none of their own."""

    @abstractmethod
    def adopt_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use a loop that the caller runs."""

    @abstractmethod
    def add_light(self, ref: ActorRef[Any]) -> None:
        """Make `ref` run in shared threads."""

    @abstractmethod
    def add_thread(self, ref: ActorRef[Any], start: Any) -> None:
        """Run `start()` and then `ref` in a thread of its own."""

    @abstractmethod
    def add_async(self, ref: AsyncRef[Any], loop: asyncio.AbstractEventLoop | None) -> None:
        """Make `ref` run on `loop`, or on the system's."""

    @abstractmethod
    def wait(self, future: Future[Any], timeout: float | None) -> None:
        """Wait until the future is done or the time is up, whatever thread this is."""

    @abstractmethod
    def close(self) -> None:
        """End the threads."""

    def ended(self) -> Future[None]:
        """A future that is done when the scheduler's own loop, if it had one, has ended."""
        return Future.of(None)

    def stop_idle(self, ref: ActorRef[Any], reason: ExitReason, future: Future[bool]) -> bool:
        """End an idle actor right here if nothing of its own has to run for that."""
        return False

    def is_running(self, ref: ActorRef[Any]) -> bool:
        """Whether the code of an actor with plain handlers may be running."""
        return not ref._idle

    def fence_later(self, ref: ActorRef[Any]) -> None:
        """Fence a killed actor that has not ended after the grace time."""
        if not ref._finished:
            self.system.clock.call_later(GRACE_SECONDS, self.fence, ref)

    def fence(self, ref: ActorRef[Any]) -> None:
        """End an actor whose handler does not return, leaving its thread or task behind."""
        lifecycle.end(ref, KILLED, fenced=True)


class ThreadScheduler(Scheduler):
    """Production: a pool for light actors, threads of their own, event loops.

    max_workers: threads of the pool at most, that is, how many handlers may be blocked at once.
    """

    def __init__(self, *, max_workers: int = MAX_WORKERS) -> None:
        self._max_workers = max_workers
        self._closed = False

    def bind(self, system: ActorSystem) -> None:
        """See Scheduler."""
        super().bind(system)
        self.pool = Pool(system, self._max_workers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._loop_ended: Future[None] = Future()
        self._homes: dict[asyncio.AbstractEventLoop, LoopRunner] = {}
        self._lock = threading.Lock()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The adopted loop, or one in a thread of the system's own."""
        loop = self._loop
        if loop is None or loop.is_closed():
            with self._lock:
                loop = self._loop
                if loop is None or loop.is_closed():
                    if self._closed:
                        raise Unavailable(f"{self.system} is closed: its event loop has ended")
                    loop = self._loop = self._own_loop = self._start_loop()
        return loop

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()

        def serve() -> None:
            asyncio.set_event_loop(loop)
            try:
                self._run_forever(loop)
            finally:
                tasks = asyncio.all_tasks(loop)
                for task in tasks:
                    task.cancel()
                if tasks:
                    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()
                self._loop_ended.complete(None)

        self._loop_thread = threading.Thread(target=serve, name="keepwell-loop", daemon=True)
        self._loop_thread.start()
        return loop

    def _run_forever(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                return loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # asyncio lets these out of a task and ends the loop; here others live on it (F45).
                logger.exception("a task of the event loop has raised")

    def adopt_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """See Scheduler."""
        self._loop = loop

    def home(self, loop: asyncio.AbstractEventLoop) -> LoopRunner:
        """The runner of the actors on `loop`."""
        home = self._homes.get(loop)
        if home is None:
            with self._lock:
                for old in [known for known in self._homes if known.is_closed()]:
                    del self._homes[old]
                home = self._homes.setdefault(loop, LoopRunner(loop, self.system))
            home.watch_closing()
        return home

    def add_light(self, ref: ActorRef[Any]) -> None:
        """See Scheduler."""
        pool = self.pool
        if not pool.started:
            pool.start()
        ref._put = pool.put

    def add_thread(self, ref: ActorRef[Any], start: Any) -> None:
        """See Scheduler."""
        from .thread_actor import run_thread

        run_thread(ref, start)

    def add_async(self, ref: AsyncRef[Any], loop: asyncio.AbstractEventLoop | None) -> None:
        """See Scheduler."""
        if loop is None:
            loop = self.loop
        home = ref._home = self.home(loop)
        ref._loop = loop
        ref._put = home.put

    def wait(self, future: Future[Any], timeout: float | None) -> None:
        """See Scheduler."""
        if not future.done() and _get_running_loop() is None:
            wait_in_thread(future, timeout)

    def is_running(self, ref: ActorRef[Any]) -> bool:
        """See Scheduler."""
        if ref._put is self.pool.put:
            return self.pool.is_running(ref)
        return super().is_running(ref)

    def stop_idle(self, ref: ActorRef[Any], reason: ExitReason, future: Future[bool]) -> bool:
        """End a light actor that is idle and has no `on_stop`, without waking a worker for it."""
        if ref._put is not self.pool.put or ref.actor_class.has_on_stop:
            return False
        idle, ref._idle = ref._idle, False
        if not idle:
            return False
        if ref._control or ref._queue:
            ref._put(ref)
            return False
        lifecycle.end(ref, reason)
        future.complete(True)
        return True

    def close(self) -> None:
        """See Scheduler."""
        self.pool.close()
        with self._lock:
            self._closed = True
        thread, loop = self._loop_thread, self._loop
        if thread is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(loop.stop)
            if _get_running_loop() is None:
                # A loop that a handler blocks does not end, and has been waited for already.
                thread.join(0.1 if self.system.abandoned_threads else 5.0)

    def ended(self) -> Future[None]:
        """See Scheduler."""
        if self._loop_thread is None or _get_running_loop() is self._own_loop:
            return Future.of(None)
        return self._loop_ended
