"""The circuit breaker's decisions: a pure state machine over (state, event, time)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from ..actors.errors import InvalidValue

_GRACE: Final = 0.001


class Phase(enum.Enum):
    """Where a breaker stands."""

    CLOSED = "closed"
    """Calls pass; failures in a row are counted."""
    OPEN = "open"
    """Calls are refused until the cool-down has passed."""
    HALF_OPEN = "half_open"
    """One call is on its way to try the endpoint; others are refused."""


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """`failures` in a row open the breaker for `cooldown` seconds; then one call tries again."""

    failures: int = 5
    cooldown: float = 30.0

    def __post_init__(self) -> None:
        failures: object = self.failures
        if not isinstance(failures, int) or isinstance(failures, bool) or failures < 1:
            raise InvalidValue(f"failures must be an int of at least 1, got {failures!r}")
        cooldown: object = self.cooldown
        if not isinstance(cooldown, int | float) or isinstance(cooldown, bool) or not cooldown > 0:
            raise InvalidValue(f"cooldown must be a positive number of seconds, got {cooldown!r}")


@dataclass(frozen=True, slots=True)
class BreakerState:
    """`failures`: in a row. `since`: when it opened, or let its trial call go (seconds)."""

    phase: Phase = Phase.CLOSED
    failures: int = 0
    since: float = 0.0


def admit(
    state: BreakerState, policy: BreakerPolicy, now: float
) -> tuple[BreakerState, float | None]:
    """Ask for a call: the new state, and None if it may go, else seconds to wait. Pure."""
    if state.phase is Phase.CLOSED:
        return state, None
    waited = now - state.since
    # A millisecond's grace: who waits exactly as long as told must not be turned away by rounding.
    if waited >= policy.cooldown - _GRACE:
        # Also from HALF_OPEN: a trial call that never came back must not close the door for good.
        return replace(state, phase=Phase.HALF_OPEN, since=now), None
    return state, policy.cooldown - waited


def succeeded(state: BreakerState) -> BreakerState:
    """A call came back well: the endpoint is up. Pure."""
    return BreakerState()


def failed(state: BreakerState, policy: BreakerPolicy, now: float) -> BreakerState:
    """A call failed through the endpoint's fault. Pure."""
    failures = state.failures + 1
    if state.phase is Phase.CLOSED and failures < policy.failures:
        return replace(state, failures=failures)
    if state.phase is Phase.OPEN:  # a call from before it opened: the cool-down is not prolonged
        return replace(state, failures=failures)
    return BreakerState(Phase.OPEN, failures, now)


def abandoned(state: BreakerState, now: float, policy: BreakerPolicy) -> BreakerState:
    """A call was cancelled before it told anything: the next one may try at once. Pure."""
    if state.phase is Phase.HALF_OPEN:
        return replace(state, phase=Phase.OPEN, since=now - policy.cooldown)
    return state
