"""The words of a benchmark: a question, its contenders, and the ratios that answer it."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """How much to do: `quick` is small enough for a smoke test (a few seconds a benchmark).

    `soak_seconds` is the length of the soak, None for the default of either size.
    """

    quick: bool = False
    soak_seconds: float | None = None

    def pick(self, full: T, quick: T) -> T:
        """Return `quick` on a quick run, else `full`."""
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        """Measured rounds of each contender, after one for warming up."""
        return self.pick(7, 2)


class Stopwatch:
    """Times the region inside `with watch:`; preparing and tearing down stay outside of it.

    `wall` and `cpu` are seconds, summed over all regions; `cpu` is that of all threads of this
    process. A contender that works in another process calls `record` with what it measured.
    """

    def __init__(self) -> None:
        self.wall = 0.0
        self.cpu = 0.0

    def __enter__(self) -> Stopwatch:
        self._cpu = time.process_time()
        self._wall = time.perf_counter()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.wall += time.perf_counter() - self._wall
        self.cpu += time.process_time() - self._cpu

    def record(self, *, wall: float, cpu: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.wall += wall
        self.cpu += cpu


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    `run(watch, operations)` does the work once, timing it with `with watch:`; it may return
    further figures of the round (name to value). `operations` is how many a round does: it may
    differ between contenders that differ by orders of magnitude, since all figures are taken per
    operation. `missing` is the reason why this contender cannot run here, `note` what a reader
    must know to compare (a weaker durability, say), `opponent` that it is not keepwell. `fresh` is
    one whose rounds are processes of their own: warming it up would warm nothing.
    """

    name: str
    run: Callable[[Stopwatch, int], Mapping[str, float] | None]
    operations: int
    missing: str = ""
    note: str = ""
    rounds: int | None = None
    opponent: bool = False
    fresh: bool = False


@dataclass(frozen=True)
class Sample:
    """One round of one contender: `wall` and `cpu` in seconds for all its operations."""

    operations: int
    wall: float
    cpu: float
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def wall_us(self) -> float:
        """Microseconds of wall time an operation."""
        return self.wall / self.operations * 1e6

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU time an operation, over all threads."""
        return self.cpu / self.operations * 1e6


@dataclass(frozen=True)
class Result:
    """What a contender's rounds gave; without samples it did not run, and `missing` says why."""

    contender: Contender
    samples: tuple[Sample, ...] = ()
    missing: str = ""
    failed: bool = False

    def median(self, of: Callable[[Sample], float]) -> float:
        """Return the median of `of` over the rounds."""
        return statistics.median(of(sample) for sample in self.samples)

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median wall time of the rounds."""
        times = [sample.wall_us for sample in self.samples]
        return (max(times) - min(times)) / (statistics.median(times) or 1e-9)

    def figures(self) -> dict[str, float]:
        """Return the medians of the further figures."""
        names = dict.fromkeys(name for sample in self.samples for name in sample.figures)
        return {
            name: statistics.median(s.figures[name] for s in self.samples if name in s.figures)
            for name in names
        }


Results = Mapping[str, Result]


@dataclass(frozen=True)
class Ratio:
    """A named value drawn from the results of one question, None where a contender did not run.

    `floor` and `ceiling` are what should hold; None where the value is only reported.
    `sentence` says it in words, with `{value}` and `{unit}` to be filled in.
    """

    name: str
    value: Callable[[Results], float | None]
    sentence: str
    floor: float | None = None
    ceiling: float | None = None

    def holds(self, value: float) -> bool:
        """Tell whether `value` is within floor and ceiling."""
        return (self.floor is None or value >= self.floor) and (
            self.ceiling is None or value <= self.ceiling
        )


@dataclass(frozen=True)
class Question:
    """One thing to find out; `unit` is what one operation is ("message", "append", "turn").

    `chart` names the figure that the bars show instead of the rate (a smaller one is better then).
    "curve" draws the contenders as points of a load curve: each has the figures of
    `open_loop.Load.figures()`. "series" draws each further figure over the contenders, which are
    stretches of time. Without `warm_up` there is no round for warming up.
    """

    name: str
    asks: str
    unit: str
    contenders: Sequence[Contender]
    ratios: Sequence[Ratio] = ()
    rounds: int | None = None
    chart: str = ""
    warm_up: bool = True


def faster(name: str, ours: str, theirs: str, *, floor: float | None = None) -> Ratio:
    """How many times as many operations a second `ours` does, by wall time."""
    return Ratio(
        name, lambda results: _quotient(results, theirs, ours, lambda s: s.wall_us),
        f"In the same time {ours} does {{value}} times as many {{unit}}s as {theirs}.", floor)


def cheaper(name: str, ours: str, theirs: str, *, floor: float | None = None) -> Ratio:
    """How many times the CPU time of `ours` an operation of `theirs` takes."""
    return Ratio(
        name, lambda results: _quotient(results, theirs, ours, lambda s: s.cpu_us),
        f"With {theirs} one {{unit}} takes {{value}} times the processor time it takes with "
        f"{ours}.", floor)


def growth(name: str, small: str, large: str, *, ceiling: float | None = None) -> Ratio:
    """How many times the CPU time of `small` an operation of `large` takes."""
    return Ratio(
        name, lambda results: _quotient(results, large, small, lambda s: s.cpu_us),
        f"One {{unit}} with {large} takes {{value}} times the processor time of one with {small}.",
        ceiling=ceiling)


def figure(
    name: str, contender: str, key: str, sentence: str, *, floor: float | None = None,
    ceiling: float | None = None,
) -> Ratio:
    """The median of the further figure `key` of `contender`; `sentence` says it, with `{value}`."""

    def value(results: Results) -> float | None:
        result = results.get(contender)
        return result.figures().get(key) if result is not None and result.samples else None

    return Ratio(name, value, sentence, floor, ceiling)


def missing_module(module: str, remedy: str = "pip install 'keepwell[bench]'") -> str:
    """Return the reason why `module` cannot be measured here, "" if it can be imported."""
    if importlib.util.find_spec(module) is not None:
        return ""
    return f"{module} is not installed ({remedy})"


def _quotient(
    results: Results, over: str, under: str, of: Callable[[Sample], float]
) -> float | None:
    above, below = results.get(over), results.get(under)
    if above is None or below is None or not above.samples or not below.samples:
        return None
    if len(above.samples) == len(below.samples):
        # Rounds are interleaved: dividing within a round cancels what the machine did then.
        pairs = zip(above.samples, below.samples, strict=True)
        return statistics.median(of(a) / max(of(b), 1e-9) for a, b in pairs)
    return above.median(of) / max(below.median(of), 1e-9)
