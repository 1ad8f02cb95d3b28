"""Whether a runtime is alive, and whether it should get new work: for probes and for draining."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .actors.errors import Unavailable

if TYPE_CHECKING:
    from .actors import Future


class Draining(Unavailable):
    """The runtime is about to end and takes no new turns; send it to its successor."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"runtime {name!r} is draining: turns that run are finished, new ones are refused. "
            "Send the message again to the process that takes over"
        )


@dataclass(frozen=True, slots=True)
class Health:
    """What `Runtime.health()` saw, without waiting for anyone.

    live: the supervision tree stands; if not, restart the process. ready: new turns are served now:
    live, the default store is open, not draining. reasons: why it is not ready, as sentences.
    open_circuits: the models whose CircuitBreaker is not closed, by name; that makes nobody
    unready, since other conversations may use other models.
    """

    live: bool
    ready: bool
    reasons: tuple[str, ...] = ()
    open_circuits: tuple[str, ...] = ()


def health(
    *, tree_stands: bool, store_open: bool, draining: bool, open_circuits: tuple[str, ...] = ()
) -> Health:
    """Judge what was seen. Pure."""
    reasons = []
    if not tree_stands:
        reasons.append("the supervision tree has ended")
    elif not store_open:
        reasons.append("the default store is not open: it is being restarted")
    if draining:
        reasons.append("the runtime is draining")
    return Health(tree_stands, not reasons, tuple(reasons), open_circuits)


async def all_done(futures: Iterable[Future[None]], seconds: float | None) -> bool:
    """Wait for all `futures`; False if `seconds` pass before."""
    try:
        async with asyncio.timeout(seconds):
            for future in futures:
                await future
    except TimeoutError:
        return False
    return True


__all__ = ["Draining", "Health", "all_done", "health"]
