"""Where scenarios are played: in a simulation with virtual time, or on real threads and loops.

Both are driven in the same way: `Future.get` in the driving thread waits, and in a simulation that
means running it. On either stage all roles can be given to actors of each kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from replay_compare import BadTrace

from keepwell.actors import (
    Actor,
    ActorDied,
    ActorSystem,
    AsyncActor,
    CallTimeout,
    Future,
    ThreadActor,
)
from keepwell.actors.simulation import SimulatedScheduler

PATIENCE = {"simulated": 3600.0, "real": 20.0}
"""Seconds, virtual or real, after which a scenario that does not come to rest has failed."""


class Stage:
    """An actor system, and how to wait in it."""

    def __init__(
        self, system: ActorSystem, simulation: SimulatedScheduler | None, kind: str = "light"
    ) -> None:
        self.system = system
        self.kind = kind
        self.simulation = simulation
        self.patience = PATIENCE["real" if simulation is None else "simulated"]
        self._hanging: list[Future[None]] = []

    @property
    def now(self) -> float:
        return self.system.clock.monotonic()

    def wait(self, future: Future[Any]) -> Any:
        """The result of a future, for the driver or a handler."""
        try:
            return future.get(timeout=self.patience)
        except CallTimeout as late:
            raise BadTrace(f"nothing came within {self.patience} s") from late

    def sleep(self, seconds: float) -> None:
        """Let time pass; in the driver and in handlers."""
        with contextlib.suppress(CallTimeout):
            Future[None]().get(timeout=seconds)

    def hang(self) -> None:
        """Never return, until the scenario is over."""
        never: Future[None] = Future()
        self._hanging.append(never)
        never.get()

    async def pause(self, seconds: float) -> None:
        """The same in a coroutine."""
        await asyncio.sleep(seconds)

    async def hang_async(self) -> None:
        """The same in a coroutine."""
        never: Future[None] = Future()
        self._hanging.append(never)
        await never

    def end_of(self, ref: Any) -> Any:
        """Wait until an actor has ended; return its exit reason."""
        return self.wait(ref.ended())

    def rest(self, refs: list[Any]) -> bool:
        """Let every living actor of `refs` look at what it has; True if nothing moved.

        A look through the control lane comes after every signal that was sent before. Nothing moved
        if nobody handled anything or ended since the last look; whoever is asked twice in a row
        with the same answer has nothing in its mailbox and has sent nothing.
        """
        if self.simulation is not None:
            self.simulation.run_until_idle()
        before = self._look(refs)
        return before == self._look(refs) and all(size == 0 for _, _, size in before)

    def _look(self, refs: list[Any]) -> list[tuple[bool, int, int]]:
        seen = []
        for ref in refs:
            if ref.is_alive():
                try:
                    facts = ref.statistics().get(timeout=self.patience)
                except ActorDied:
                    self.end_of(ref)
                except CallTimeout:  # it is busy with a long message, and time has moved on
                    return [(True, -1, 1)]
                else:
                    waiting = 0 if facts["suspended"] else facts["mailbox"]
                    seen.append((True, facts["handled"], waiting))
                    continue
            else:
                self.end_of(ref)
            seen.append((False, 0, 0))
        return seen

    def settle(self, refs: list[Any]) -> None:
        """Wait until nothing moves any more among `refs`."""
        for _ in range(10_000):
            if self.rest(refs):
                return
        raise BadTrace("the actors do not come to rest")

    def close(self) -> None:
        for never in self._hanging:
            never.complete(None)


KINDS = {"light": Actor, "thread": ThreadActor, "async": AsyncActor}
"""The base classes of the actors that play."""


@contextlib.contextmanager
def stage(mode: str, seed: int | None = None, kind: str = "light") -> Iterator[Stage]:
    """Open a stage; `mode` is "simulated" or "real". Crashes are part of the play: not logged."""
    quiet = [logging.getLogger(name) for name in ("keepwell.actors", "keepwell.supervision")]
    levels = [logger.level for logger in quiet]
    for logger in quiet:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        if mode == "simulated":
            with SimulatedScheduler(seed=seed) as simulation:
                played = Stage(simulation.system, simulation, kind)
                try:
                    yield played
                finally:
                    played.close()
                    simulation.run_until_idle()  # so that what hung can end
        else:
            with ActorSystem(name="replay") as system:
                played = Stage(system, None, kind)
                try:
                    yield played
                finally:
                    played.close()
    finally:
        for logger, level in zip(quiet, levels, strict=True):
            logger.setLevel(level)
