"""The threads that run light actors.

One worker is active at a time, since the GIL lets no more than one run Python; it takes actors from
one queue and runs each for up to its budget. A worker that waits for a future hands its role to
another first. One that is stuck otherwise (in a system call, a long computation) is noticed by the
monitor within 50 ms, and a spare takes over, so that a blocked handler never starves the others.
Workers that come back park as spares for a while. Their number is bounded; reaching the bound is
reported, once an episode.
"""

from __future__ import annotations

import logging
import threading
from _thread import allocate_lock
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from . import lifecycle, runner, telemetry
from .context import entered_system, running_actor
from .future import set_waiter, wait_in_thread

if TYPE_CHECKING:
    from .future import Future
    from .ref import ActorRef
    from .system import ActorSystem

MAX_WORKERS: Final = 256
"""Threads of one pool at most: that many handlers may be blocked at once."""

_TICK: Final = 0.02
"""Seconds between two looks of the monitor; two without progress mean stuck."""

_PARKED_SECONDS: Final = 10.0

logger = logging.getLogger("keepwell.actors")


class _Worker:
    """A thread of the pool. `beats` is odd while it runs an actor, `ref`."""

    __slots__ = ("beats", "parked", "pool", "ref", "wake")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.beats = 0
        self.ref: ActorRef[Any] | None = None
        self.wake = allocate_lock()
        self.wake.acquire()
        self.parked = False

    def wait(self, future: Future[Any], timeout: float | None) -> None:
        """Wait for a future inside a handler; the role of the active worker is handed on first."""
        ref = running_actor.get()
        if ref is None or not ref.actor_class.vital:
            self.pool.hand_over(self)
            wait_in_thread(future, timeout)
            return
        self.pool.begin_vital(self)
        try:
            wait_in_thread(future, timeout)
        finally:
            self.pool.end_vital()


class Pool:
    """Runs light actors; `put(ref)` is all a sender needs."""

    def __init__(self, system: ActorSystem, max_workers: int = MAX_WORKERS) -> None:
        self._system = system
        self._queue: SimpleQueue[ActorRef[Any] | None] = SimpleQueue()
        self.put: Callable[[Any], object] = self._queue.put
        self._max = max_workers
        self._lock = threading.Lock()
        self._active: _Worker | None = None
        self._spares: list[_Worker] = []
        self._workers: dict[_Worker, None] = {}
        self._vital = 0  # workers that wait for vital actors; they do not use up the bound
        self._exhausted = False
        self._closed = False
        self.started = False
        self._monitor_wake = allocate_lock()
        self._monitor_wake.acquire()
        self._monitor_sleeps = False

    def start(self) -> None:
        """Start the first worker and the monitor; called with the first light actor."""
        with self._lock:
            if not self.started and not self._closed:
                self.started = True
                self._promote()
                threading.Thread(target=self._monitor, name="keepwell-monitor", daemon=True).start()

    @property
    def workers(self) -> int:
        """How many threads there are, blocked and parked ones included."""
        return len(self._workers)

    def is_running(self, ref: ActorRef[Any]) -> bool:
        """Whether a worker is in a handler of `ref`, or about to look at what waits for it."""
        return any(worker.ref is ref for worker in list(self._workers))

    # -- workers ---------------------------------------------------------------------------------

    def _work(self, me: _Worker) -> None:
        set_waiter(me)
        entered_system.set(self._system)
        queue = self._queue
        get, put = queue.get, queue.put
        empty, run = queue.empty, runner.run
        while True:
            if self._active is not me and not self._park(me):
                return
            if empty():
                running_actor.set(None)  # an idle worker keeps no actor alive
            ref = get()
            if ref is None:
                self._leave(me)
                return
            me.beats += 1
            me.ref = ref
            if self._monitor_sleeps:
                self._wake_monitor()
            try:
                if run(ref):
                    put(ref)
            except BaseException as error:
                logger.exception("a worker met an error of its own while it ran %s", ref)
                lifecycle.end(ref, error)  # nobody would run it again
            me.beats += 1
            me.ref = None
            del ref

    def _park(self, me: _Worker) -> bool:
        """Wait to be needed again; False if the thread should end."""
        running_actor.set(None)
        with self._lock:
            if self._closed:
                del self._workers[me]
                return False
            if self._active is me:
                return True
            me.parked = True
            self._spares.append(me)
        if me.wake.acquire(True, _PARKED_SECONDS):
            return True
        with self._lock:
            if me.parked:
                self._spares.remove(me)
                del self._workers[me]
                return False
        me.wake.acquire()  # promoted in the last moment
        return True

    def _leave(self, me: _Worker) -> None:
        with self._lock:
            del self._workers[me]
            if self._active is me:
                self._active = None

    def _promote(self) -> bool:
        """Make another worker the active one, under the lock; False if there may be no more."""
        if self._spares:
            worker = self._spares.pop()
            worker.parked = False
            self._active = worker
            worker.wake.release()
            return True
        if len(self._workers) - self._vital >= self._max:
            return False
        worker, before = _Worker(self), self._active
        name = f"keepwell-worker-{len(self._workers) + 1}"
        thread = threading.Thread(target=self._work, args=(worker,), name=name, daemon=True)
        self._active = worker  # before it runs, or it would park itself
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left, or the interpreter ends
            self._active = before
            return False
        self._workers[worker] = None
        return True

    def hand_over(self, me: _Worker) -> None:
        """Let another worker run actors while `me` waits. Does nothing if `me` is not active."""
        with self._lock:
            if self._active is not me or self._closed:
                return
            promoted = self._promote()
        if promoted:
            self._exhausted = False
        else:
            self._report_exhausted()

    def begin_vital(self, me: _Worker) -> None:
        """As `hand_over`, for an actor that others depend on: it may wait beyond the bound."""
        with self._lock:
            self._vital += 1
        self.hand_over(me)

    def end_vital(self) -> None:
        """The wait of a vital actor is over."""
        with self._lock:
            self._vital -= 1

    # -- the monitor -----------------------------------------------------------------------------

    def _wake_monitor(self) -> None:
        sleeps, self._monitor_sleeps = self._monitor_sleeps, False
        if sleeps:
            self._monitor_wake.release()

    def _monitor(self) -> None:
        """Tick while the active worker is busy; sleep while it is not."""
        seen: tuple[_Worker | None, int] = (None, 0)
        wait = self._monitor_wake.acquire
        while not self._closed:
            worker = self._active
            if worker is None or worker.beats % 2 == 0:
                # Idle. Whoever becomes busy from here on sees the flag; look once more after it.
                self._monitor_sleeps = True
                worker = self._active
                if worker is None or worker.beats % 2 == 0:
                    wait()
                else:
                    self._wake_monitor()
                    wait()
                seen = (None, 0)
                continue
            now = (worker, worker.beats)
            if now == seen:
                self._replace(*now)
                seen = (None, 0)
            else:
                seen = now
            wait(True, _TICK)

    def _replace(self, worker: _Worker, beats: int) -> None:
        """Let another worker take over from one that has been in one handler for too long."""
        with self._lock:
            if self._active is not worker or worker.beats != beats or self._closed:
                return
            promoted = self._promote()
        if promoted:
            self._exhausted = False
            telemetry.emit("keepwell.pool.spare_started", workers=self.workers)
        else:
            self._report_exhausted()

    def _report_exhausted(self) -> None:
        if not self._exhausted:
            self._exhausted = True
            logger.error(
                "all %d workers are blocked in handlers: other actors wait. Handlers that block "
                "for long belong into a ThreadActor or AsyncActor",
                self.workers,
            )
            telemetry.emit("keepwell.pool.exhausted", workers=self.workers)

    def close(self) -> None:
        """Let the workers end when they come back; what is queued is not run."""
        with self._lock:
            self._closed = True
            spares, self._spares = self._spares, []
            for worker in spares:
                worker.parked = False
                worker.wake.release()
        self._queue.put(None)
        self._wake_monitor()
