"""Time limits of calls, cheap enough to have one on every call.

A timer per call would cost more than the call. Futures with about the same deadline share a bucket,
and a bucket one timer; a future that is done leaves its bucket. Deadlines are kept to 5 ms for
timeouts below two seconds and to 100 ms above; exactly on a virtual clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from .clock import Clock, VirtualClock
from .errors import CallTimeout

if TYPE_CHECKING:
    from .future import Future

_FINE: Final = 0.005
_COARSE: Final = 0.1
_LONG: Final = 2.0


class Deadlines:
    """Fails futures that are not done in time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._exact = isinstance(clock, VirtualClock)
        self._buckets: dict[float, dict[Future[Any], tuple[float, object]]] = {}

    def add(self, future: Future[Any], timeout: float, target: object) -> None:
        """Fail `future` with CallTimeout in `timeout` seconds (0: at once) unless it is done."""
        if timeout <= 0:
            future.fail(_late(timeout, target))
            return
        now = self._clock.monotonic()
        when = now + timeout
        if not self._exact:
            grain = _FINE if timeout < _LONG else _COARSE
            when = math.ceil(when / grain) * grain
        bucket = self._buckets.get(when)
        if bucket is None:
            fresh: dict[Future[Any], tuple[float, object]] = {}
            bucket = self._buckets.setdefault(when, fresh)
            if bucket is fresh:
                self._clock.call_later(when - now, self._expire, when)
        bucket[future] = (timeout, target)
        future._bucket = bucket
        if future.done():
            bucket.pop(future, None)
        elif self._buckets.get(when) is not bucket:
            future.fail(_late(timeout, target))  # the bucket expired while we filled it

    def _expire(self, when: float) -> None:
        bucket = self._buckets.pop(when, None)
        while bucket:
            try:
                future, (timeout, target) = bucket.popitem()
            except KeyError:
                return
            future.fail(_late(timeout, target))


def _late(timeout: float, target: object) -> CallTimeout:
    return CallTimeout(
        f"no reply from {target} within {timeout:g} s; it may still serve the request, "
        "whose reply is then dropped"
    )
