"""A circuit breaker: an endpoint that is down is left alone for a while.

Without it every conversation of a service spends its whole deadline, retries included, on an
endpoint that cannot answer, and holds it down. The decision is a pure state machine; the model
around it only carries it out. One object serves all agents of a process, so an agent's crash and
restart does not forget that the endpoint is down.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from ..actors import telemetry
from ..actors.errors import InvalidValue
from .errors import ModelError
from .fallback_model import closable
from .model import ChatModel, ModelReply, ModelRequest, TextDelta

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


class CircuitBreaker:
    """A chat model that refuses calls while the model behind it is down.

    Failures are ModelErrors that are retryable (overload, lost connections, timeouts); others,
    such as a bad request, show that the endpoint is up. Refused calls raise ModelError
    "circuit_open" at once, with the seconds to wait in `.retry_after`. A change of phase is told
    to telemetry as `keepwell.model.circuit` (model, phase, failures). Thread-safe.
    """

    def __init__(
        self,
        model: ChatModel,
        policy: BreakerPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._policy = policy or BreakerPolicy()
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState()

    @property
    def name(self) -> str:
        """The name of the model behind."""
        return self._model.name

    @property
    def state(self) -> BreakerState:
        """The present state."""
        return self._state

    async def complete(self, request: ModelRequest) -> ModelReply:
        """The model's reply. Raises ModelError, "circuit_open" among others."""
        self._admit()
        told = False
        try:
            reply = await self._model.complete(request)
            told = self._tell(None)
            return reply
        except ModelError as error:
            told = self._tell(error)
            raise
        finally:
            if not told:
                self._move(lambda state, now: abandoned(state, now, self._policy))

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelReply]:
        """The model's stream. Raises likewise."""
        self._admit()
        told = False
        try:
            async with aclosing(closable(self._model.stream(request))) as items:
                async for item in items:
                    if not told:  # it answers: that is what the breaker wants to know
                        told = self._tell(None)
                    yield item
        except ModelError as error:
            told = self._tell(error)
            raise
        finally:
            if not told:
                self._move(lambda state, now: abandoned(state, now, self._policy))

    def _admit(self) -> None:
        with self._lock:
            before = self._state
            self._state, wait = admit(before, self._policy, self._clock())
            state = self._state
        self._report(before, state)
        if wait is not None:
            raise ModelError(
                f"{self.name}: not asked, the circuit is open after {state.failures} failures in "
                f"a row; next try in {wait:.1f} s",
                code="circuit_open",
                retryable=True,
                retry_after=wait,
            )

    def _tell(self, error: ModelError | None) -> bool:
        """Record an outcome; always True."""
        if error is not None and error.retryable:
            self._move(lambda state, now: failed(state, self._policy, now))
        else:
            self._move(lambda state, now: succeeded(state))
        return True

    def _move(self, step: Callable[[BreakerState, float], BreakerState]) -> None:
        with self._lock:
            before = self._state
            self._state = step(before, self._clock())
            after = self._state
        self._report(before, after)

    def _report(self, before: BreakerState, after: BreakerState) -> None:
        if before.phase is not after.phase:
            telemetry.emit(
                "keepwell.model.circuit",
                model=self.name,
                phase=after.phase.value,
                failures=after.failures,
            )
