"""Load that does not wait for answers: operations arrive on a schedule, as users do.

A closed loop (send, wait, send) slows down with the system that it measures and so leaves out the
very operations that would have waited: coordinated omission. Here each operation has its arrival
time from the start, and its latency runs from that time, whether or not it could begin then.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

PERCENTILES = (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p999_ms", 0.999))


@dataclass(frozen=True)
class Load:
    """What an open loop saw: `latencies` in seconds, ascending; `kept_up` tells whether the system
    answered at the arrival rate (at least 95 % of it) instead of building up a backlog."""

    rate: float
    latencies: Sequence[float]
    elapsed: float

    @property
    def completed_per_second(self) -> float:
        """Operations answered per second, over the whole run until the last answer."""
        return len(self.latencies) / self.elapsed

    @property
    def kept_up(self) -> bool:
        """Whether at least 95 % of the arrival rate was answered."""
        return self.completed_per_second >= 0.95 * self.rate

    def figures(self) -> dict[str, float]:
        """Return p50 to p99.9 in milliseconds and the rate that was reached."""
        return {
            "arrivals_per_s": self.rate,
            "completed_per_s": self.completed_per_second,
            **{name: percentile(self.latencies, part) * 1e3 for name, part in PERCENTILES},
        }


def percentile(ascending: Sequence[float], part: float) -> float:
    """Return the smallest value that at least `part` of the values do not exceed."""
    return ascending[max(0, math.ceil(len(ascending) * part) - 1)]


def arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Return `count` arrival times in seconds from 0, a Poisson process of `rate` a second."""
    source = random.Random(seed)
    times: list[float] = []
    now = 0.0
    for _ in range(count):
        times.append(now)
        now += source.expovariate(rate)
    return times


async def open_loop(
    operation: Callable[[int], Awaitable[object]], *, rate: float, count: int, seed: int = 1
) -> Load:
    """Start `operation(number)` at each of `count` arrival times of `rate` a second.

    Returns when all have been answered. An operation that raises ends the run with its exception.
    """
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    begin = loop.time()

    async def one(number: int, due: float) -> None:
        await operation(number)
        latencies.append(loop.time() - due)

    async with asyncio.TaskGroup() as group:
        for number, after in enumerate(arrivals(rate, count, seed)):
            due = begin + after
            # Behind schedule, the next one starts at once; its latency counts from when it was due.
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            elif not number % 16:
                await asyncio.sleep(0)
            group.create_task(one(number, due))
    elapsed = loop.time() - begin
    return Load(rate, sorted(latencies), elapsed)
