"""Load that does not wait for answers: operations arrive on a schedule, as users do.

A closed loop (send, wait, send) slows down with the system that it measures and so leaves out the
very operations that would have waited: coordinated omission. Here each operation has its arrival
time from the start, and its latency runs from that time, whether or not it could begin then.
"""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .benchmark import Contender, Question, Ratio, Results, Scale, Stopwatch, figure
from .disk import described, directory

Operation = Callable[[int], Awaitable[object]]
"""Performs the operation of a number; none comes twice to a system that is set up."""

Served = Callable[[Path, int], AbstractAsyncContextManager[Operation]]
"""Sets a system up in a directory for so many operations, and takes it down: `served(path, n)`."""

KEPT_UP = 0.95
"""A system keeps up with a rate if it answers at this share of it instead of queueing."""

BENT = 5.0
"""Past the knee p99 is more than so many times that of the lowest rate."""

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
        return self.completed_per_second >= KEPT_UP * self.rate

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
    """Return `count` arrival times in seconds, ascending, of a Poisson process of `rate` a second.

    They fill `count / rate` seconds exactly: given their number, the arrivals of a Poisson process
    are uniform over the time in which they come.
    """
    source = random.Random(seed)
    return sorted(source.uniform(0, count / rate) for _ in range(count))


async def open_loop(
    operation: Operation, *, rate: float, count: int, seed: int = 1
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


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timers are exact to some microseconds.

    The usual one waits in whole milliseconds, which would be most of the latency of an append.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` on a `precise_loop`."""
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(work)


def latency_question(
    unit: str, asked: str, answers: str, served: Served, scale: Scale, *,
    rates: Sequence[int], most: int, warm_up: int,
) -> Question:
    """Return the question how late `answers` (plural) are at each of `rates`, the lowest first.

    At most `most` operations a round are measured, after `warm_up` others.
    """
    seconds = scale.pick(2.0, 0.8)
    return Question(
        f"{unit}_latency", asked, unit,
        [Contender(f"{rate:,}/s", _offered(served, rate, warm_up), min(round(rate * seconds), most),
                   note=described() if rate == rates[0] else "")
         for rate in rates],
        [figure(f"{unit}_p99_ms_at_ease", f"{rates[0]:,}/s", "p99_ms",
                f"With little to do, 99 of 100 {answers} take at most {{value}} ms."),
         knee(f"{unit}_knee_per_s"),
         at_knee(f"{unit}_p50_ms_at_knee", "p50_ms", f"half of the {answers} take at most"),
         at_knee(f"{unit}_p999_ms_at_knee", "p999_ms", f"999 of 1,000 {answers} take at most")],
        rounds=scale.pick(3, 1), chart="curve",
    )  # fmt: skip


def _offered(served: Served, rate: int, warm_up: int) -> Any:
    """What measures one round at `rate`."""

    async def loaded(watch: Stopwatch, operations: int, path: Path, found: list[Load]) -> None:
        async with served(path, operations) as operation:
            before = min(operations, warm_up)
            await open_loop(operation, rate=rate, count=before, seed=2)
            with watch:
                found.append(await open_loop(lambda number: operation(before + number), rate=rate,
                                             count=operations))

    def contend(watch: Stopwatch, operations: int) -> Mapping[str, float]:
        found: list[Load] = []
        with directory() as path:
            run(loaded(watch, operations, path, found))
        return found[0].figures()

    return contend


def knee(name: str) -> Ratio:
    """The highest of the measured rates before the curve bends up.

    The one that the system still keeps up with, with a p99 of at most `BENT` times that of the
    lowest rate; so are all lower ones. None if not even the lowest one is.
    """
    return Ratio(name, _knee, "Up to {value} {unit}s a second nobody waits much longer than when "
                 f"there is little to do: answers keep up with arrivals, and p99 is at most "
                 f"{BENT:g} times that of the lowest rate.")


def at_knee(name: str, key: str, label: str) -> Ratio:
    """The figure `key` at the knee; `label` says what it is."""

    def value(results: Results) -> float | None:
        rate = _knee(results)
        return next((each[key] for each in _loads(results) if each["arrivals_per_s"] == rate), None)

    return Ratio(name, value, f"At that rate {label} {{value}} ms.")


def _knee(results: Results) -> float | None:
    loads = _loads(results)
    last: float | None = None
    for each in loads:
        if each["completed_per_s"] < KEPT_UP * each["arrivals_per_s"]:
            break
        if each["p99_ms"] > BENT * loads[0]["p99_ms"]:
            break
        last = each["arrivals_per_s"]
    return last


def _loads(results: Results) -> list[dict[str, float]]:
    """The figures of all rates that ran, slowest first."""
    found = [result.figures() for result in results.values() if result.samples]
    return sorted(found, key=lambda each: each["arrivals_per_s"])
