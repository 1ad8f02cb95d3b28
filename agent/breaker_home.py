"""Where a circuit breaker's state is kept, and its actor found; both outlive its incarnations.

The state is to the actor what an ETS table with an heir is in OTP: any thread reads it, and the
next incarnation goes on with it. So a healthy endpoint costs a call one look and no message, and a
crash of the breaker forgets nothing. Where there is no actor (no runtime, or one that is given up
or does not answer) the call takes the step itself: the breaker protects calls, and its own faults
neither fail one nor let all through.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..actors import telemetry
from ..actors.errors import ActorDied, CallTimeout
from ..actors.future import Future
from .breaker_state import BreakerPolicy, BreakerState, abandoned, admit, failed, succeeded

PATIENCE: Final = 1.0
"""Seconds that a call waits for a breaker that is being restarted, or does not answer."""


@dataclass(frozen=True, slots=True)
class Admit:
    """May a call go? The reply is None, or seconds to wait."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a call went. "failed": by the endpoint's fault. "abandoned": nobody knows."""

    outcome: Literal["succeeded", "failed", "abandoned"]


class BreakerHome:
    """The place of one breaker in one actor system.

    `owner()`: the breaker object, None once nobody has it any more. `attended`: its actor is there,
    or its supervisor is about to start one.
    """

    def __init__(
        self,
        model: str,
        policy: BreakerPolicy,
        owner: Callable[[], object],
        clock: Callable[[], float],
    ) -> None:
        self.model = model
        self.owner = owner
        self.state = BreakerState()
        self.ref: Any = None
        self.attended = False
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._changed: Future[None] = Future()

    def moved_in(self, ref: Any) -> None:
        """An incarnation has started."""
        self._change(ref, attended=True)

    def expect(self) -> bool:
        """An incarnation is about to be started; False if one already is."""
        with self._lock:
            before, self.attended = self.attended, True
        return not before

    def close(self) -> None:
        """None will come any more, unless a call has one started."""
        self._change(None, attended=False)

    def _change(self, ref: Any, *, attended: bool) -> None:
        with self._lock:
            self.ref, self.attended = ref, attended
            changed, self._changed = self._changed, Future()
        changed.complete(None)

    def step(self, message: Admit | Report) -> float | None:
        """Take one step of the state machine; the reply to `message`.

        A change of phase is told to telemetry as `keepwell.model.circuit` (model, phase, failures).
        """
        now = self._clock()
        wait = None
        with self._lock:
            before = self.state
            match message:
                case Admit():
                    state, wait = admit(before, self._policy, now)
                case Report("succeeded"):
                    state = succeeded(before)
                case Report("failed"):
                    state = failed(before, self._policy, now)
                case Report():
                    state = abandoned(before, now, self._policy)
            self.state = state
        if before.phase is not state.phase:
            telemetry.emit(
                "keepwell.model.circuit",
                model=self.model,
                phase=state.phase.value,
                failures=state.failures,
            )
        return wait

    async def ask(self, message: Admit | Report) -> float | None:
        """The reply of the breaker's actor, of the next one if this one ends meanwhile."""
        gone: object = None
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    with self._lock:
                        ref, attended, changed = self.ref, self.attended, self._changed
                    if not attended:
                        break
                    if ref is None or ref is gone:
                        await changed
                        continue
                    try:
                        reply: float | None = await ref.call(message)
                        return reply
                    except ActorDied:
                        gone = ref
        except (TimeoutError, CallTimeout):
            pass
        return self.step(message)

    def tell(self, message: Report) -> None:
        """Tell the breaker without waiting for it."""
        ref = self.ref
        if ref is not None and ref.is_alive():
            ref.ask(message, block=False)
        else:
            self.step(message)
