"""Threads for the plain functions of others: tools, callbacks, custom providers.

A pool that grows on demand and shrinks when idle. A call that outlives its deadline keeps its
thread, which is abandoned and counted, and never blocks another call: that is why this is not a
`ThreadPoolExecutor`, whose workers are few and joined at interpreter exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

IDLE_SECONDS: Final = 10.0
MAX_THREADS: Final = 256
"""Beyond this many busy threads calls wait for one; their deadlines go on running."""


class _Job:
    __slots__ = ("abandoned", "context", "done", "function", "future", "loop")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.context = contextvars.copy_context()
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.abandoned = False
        self.done = False

    def settle(self, value: Any, error: BaseException | None) -> None:
        if self.future.done():
            return  # nobody waits any more: late output is discarded
        if error is None:
            self.future.set_result((value, None))
        else:
            self.future.set_result((None, error))


class CallThreads:
    """Runs plain functions in threads and hands their results to an event loop.

    `abandoned`: how many threads now run a call that nobody waits for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._jobs: deque[_Job] = deque()
        self._idle = 0
        self._threads = 0
        self.abandoned = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call `function()` in a thread and return its value or raise its error.

        A `BaseException` such as SystemExit is raised here too, never in the thread. When the
        awaiting task is cancelled the thread is left to itself.
        """
        job = _Job(function, asyncio.get_running_loop())
        self._submit(job)
        try:
            value, error = await job.future
        except asyncio.CancelledError:
            with self._lock:
                if not job.done:
                    job.abandoned = True
                    self.abandoned += 1
            raise
        if error is not None:
            raise error
        return value

    def _submit(self, job: _Job) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._idle >= len(self._jobs) or self._threads - self.abandoned >= MAX_THREADS:
                self._work.notify()
                return
            self._threads += 1
        threading.Thread(target=self._loop, name="keepwell-call", daemon=True).start()

    def _loop(self) -> None:
        while True:
            with self._lock:
                while not self._jobs:
                    self._idle += 1
                    woken = self._work.wait(IDLE_SECONDS)
                    self._idle -= 1
                    if not woken and not self._jobs:
                        self._threads -= 1
                        return
                job = self._jobs.popleft()
            self._run(job)
            del job

    def _run(self, job: _Job) -> None:
        value, error = None, None
        if job.future.cancelled():
            with self._lock:
                job.done = True
                if job.abandoned:
                    self.abandoned -= 1
            return
        try:
            value = job.context.run(job.function)
        except BaseException as raised:
            error = raised
        with self._lock:
            job.done = True
            if job.abandoned:
                self.abandoned -= 1
                return
        try:
            job.loop.call_soon_threadsafe(job.settle, value, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits there any more


_threads: CallThreads | None = None
_threads_lock = threading.Lock()


def call_threads() -> CallThreads:
    """The process's pool; a forked child makes its own."""
    global _threads
    with _threads_lock:
        if _threads is None:
            _threads = CallThreads()
        return _threads


def _after_fork() -> None:
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_after_fork)
