"""A deadline for one call after another, at the price of one timer for many.

`asyncio.timeout` sets and cancels a timer for each call; a model call answered at once costs less
than that. Here a timer that has been set is left alone: when it fires it looks at the deadline
of the call that runs then, if any, and is set again for the rest.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Watchdog:
    """Cancels the task that it was started in if `stop` does not come in time.

    Use: `start(seconds)`, then await in the same task; on `CancelledError` ask `bit()`, which says
    whether it was the watchdog alone; `stop()` in any case.
    """

    __slots__ = ("_before", "_deadline", "_expired", "_loop", "_task", "_timer", "_when")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0
        self._deadline = 0.0
        self._before = 0
        self._expired = False

    def start(self, seconds: float) -> None:
        """Watch the running task for so many seconds."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        task = self._task = asyncio.current_task(loop)
        self._before = task.cancelling() if task is not None else 0
        self._expired = False
        deadline = self._deadline = loop.time() + seconds
        if self._timer is None or self._when > deadline:
            self._arm(loop, deadline)

    def stop(self) -> None:
        """The call has ended."""
        self._task = None

    def bit(self) -> bool:
        """Whether a CancelledError that was just caught is this watchdog's, and no one else's."""
        task = self._task
        if not self._expired or task is None:
            return False
        return task.uncancel() <= self._before

    def _arm(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._when = when
        self._timer = loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        task, loop = self._task, self._loop
        if task is None or loop is None:
            return
        if loop.time() < self._deadline:
            self._arm(loop, self._deadline)
            return
        self._expired = True
        task.cancel()
