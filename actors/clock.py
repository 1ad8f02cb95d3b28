"""Time, injected: the real clock, and one that moves only when it is told to.

Callbacks of timers run in the clock's own thread (`SystemClock`) or in whoever advances the clock
(`VirtualClock`). They must be quick: they send a message or complete a future.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from .errors import InvalidValue

logger = logging.getLogger("keepwell.clock")


_SWEEP: Final = 1024
_LONGEST_WAIT: Final = 86_400.0
"""Seconds that a thread sleeps at most: far more than a day is beyond what the system can count."""


def checked_seconds(seconds: object, what: str) -> float:
    """A number of seconds; infinity means never. Raises InvalidValue for anything else, NaN too."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds == seconds:
        try:
            return float(seconds)
        except OverflowError:  # an int beyond all floats
            return math.inf if seconds > 0 else -math.inf
    raise InvalidValue(f"{what}={seconds!r}: pass a number of seconds")


def limit_of(timeout: float | None) -> float | None:
    """A time limit in seconds, None for none (infinity too). Raises InvalidValue for no number."""
    if timeout is None:
        return None
    seconds = checked_seconds(timeout, "timeout")
    return None if seconds == math.inf else seconds


class Timer:
    """A callback at a time; `cancel()` it before, or it runs once."""

    __slots__ = ("args", "callback", "number", "when")

    def __init__(
        self, when: float, number: int, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        self.when = when
        self.number = number
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        """Do not run it. Does nothing when it has run."""
        self.callback = None
        self.args = ()

    @property
    def active(self) -> bool:
        """Whether it is still to run."""
        return self.callback is not None

    def __lt__(self, other: Timer) -> bool:
        return (self.when, self.number) < (other.when, other.number)

    def fire(self) -> None:
        """Run the callback now, unless cancelled. What it raises is logged."""
        callback, args = self.callback, self.args
        self.cancel()
        if callback is not None:
            try:
                callback(*args)
            except Exception:
                logger.exception("a timer's callback failed")


class Clock(Protocol):
    """Seconds that never go back, wall-clock time, and timers."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        ...

    def time(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Run `callback(*args)` in `delay` seconds (0 or less: as soon as possible).

        Infinity: never. Raises InvalidValue for what is no number, NaN too.
        """
        ...


class SystemClock:
    """The machine's clock. One daemon thread, started with the first timer, serves all timers."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._closed = False
        self._sweep_at = _SWEEP

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Run `callback(*args)` in the timer thread in `delay` seconds."""
        delay = checked_seconds(delay, "delay")
        timer = Timer(time.monotonic() + delay, next(self._numbers), callback, args)
        with self._changed:
            if self._closed:
                return timer
            if len(self._heap) >= self._sweep_at:
                self._sweep()
            heapq.heappush(self._heap, timer)
            if self._thread is None:
                self._start()
            elif self._heap[0] is timer:
                self._changed.notify()
        return timer

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="keepwell-clock", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread left, or the interpreter ends: the next timer tries again
            logger.exception("timers cannot run now")
        else:
            self._thread = thread

    def _sweep(self) -> None:
        """Drop cancelled timers, which would else stay until they are due: idle limits are long."""
        self._heap[:] = [timer for timer in self._heap if timer.active]
        heapq.heapify(self._heap)
        self._sweep_at = max(_SWEEP, 2 * len(self._heap))

    def _run(self) -> None:
        heap = self._heap
        while True:
            with self._changed:
                if self._closed:
                    return
                while heap and not heap[0].active:
                    heapq.heappop(heap)
                delay = heap[0].when - time.monotonic() if heap else None
                if delay is None or delay > 0:
                    self._changed.wait(None if delay is None else min(delay, _LONGEST_WAIT))
                    continue
                timer = heapq.heappop(heap)
            try:
                timer.fire()
            except BaseException:
                logger.exception("a timer's callback failed")
            del timer  # an idle thread must not keep the last callback's arguments alive

    def close(self) -> None:
        """End the timer thread; timers that are left never run."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()


class VirtualClock:
    """Starts at 0 and moves only by `advance`, which runs the timers that come due, in order."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._now = 0.0
        self._wall = wall
        self._heap: list[Timer] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        """Virtual seconds since the clock was made."""
        return self._now

    def time(self) -> float:
        """A fixed date plus the virtual seconds."""
        return self._wall + self._now

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Run `callback(*args)` when the clock has been advanced by `delay` seconds."""
        delay = checked_seconds(delay, "delay")
        timer = Timer(self._now + max(delay, 0.0), next(self._numbers), callback, args)
        heapq.heappush(self._heap, timer)
        return timer

    def next_due(self) -> float | None:
        """When the next timer is due, in virtual seconds; None if there is none."""
        while self._heap and not self._heap[0].active:
            heapq.heappop(self._heap)
        return self._heap[0].when if self._heap else None

    def step_to(self, when: float) -> Timer | None:
        """Move to the next timer due at or before `when` and return it, else move to `when`.

        The caller fires what is returned: a scheduler may want to run it as a step of its own.
        """
        due = self.next_due()
        if due is None or due > when:
            self._now = max(self._now, when)
            return None
        timer = heapq.heappop(self._heap)
        self._now = max(self._now, timer.when)
        return timer

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`, running the timers on the way in order."""
        end = self._now + seconds
        while (timer := self.step_to(end)) is not None:
            timer.fire()
