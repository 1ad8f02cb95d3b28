"""Search the interleavings of your own actors: seeded, in virtual time, each failure replayable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ..actors.simulation import SimulatedScheduler, SimulationStuck

__all__ = ["SimulatedScheduler", "SimulationStuck", "search_interleavings"]


def search_interleavings(
    scenario: Callable[[SimulatedScheduler], object],
    seeds: int | Iterable[int] = 1000,
    *,
    seconds: float | None = None,
) -> int:
    """Run `scenario(simulation)` once for each seed; returns how many were run.

    What the scenario raises, passes out with a note that names the seed:
    `search_interleavings(scenario, [seed])` then takes exactly the same steps. `seconds` of real
    time bound the search; at least one seed is run.

    >>> from keepwell.actors import Actor
    >>> class Echo(Actor):
    ...     def on_receive(self, message):
    ...         return message
    >>> def scenario(simulation):
    ...     assert Echo.start().ask("hello") == "hello"
    >>> search_interleavings(scenario, seeds=3)
    3
    """
    end = None if seconds is None else time.monotonic() + seconds
    count = 0
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        with SimulatedScheduler(seed) as simulation:
            scenario(simulation)
        count += 1
        if end is not None and time.monotonic() > end:
            break
    return count
