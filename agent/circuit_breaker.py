"""A circuit breaker: an endpoint that is down is left alone for a while.

Without it every conversation of a service spends its whole deadline, retries included, on an
endpoint that cannot answer, and holds it down. The decision is a pure state machine; an actor under
the runtime's tree carries it out, one for all agents that share the breaker object. An agent's
crash and restart does not forget that the endpoint is down, nor does the breaker's own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from ..actors.context import current_system, default_system
from ..actors.errors import InvalidValue
from ..actors.system import ActorSystem
from .breaker_home import Admit, BreakerHome, Report
from .breaker_state import BreakerPolicy, BreakerState, Phase
from .breaker_supervisor import circuits_of
from .errors import ModelError
from .fallback_model import closable
from .model import ChatModel, ModelReply, ModelRequest, TextDelta

__all__ = ["BreakerPolicy", "BreakerState", "CircuitBreaker", "Phase"]


class CircuitBreaker:
    """A chat model that refuses calls while the model behind it is down.

    Failures are ModelErrors that are retryable (overload, lost connections, timeouts); others,
    such as a bad request, show that the endpoint is up. Refused calls raise ModelError
    "circuit_open" at once, with the seconds to wait in `.retry_after`. Thread-safe.

    Its state is that of an actor below `circuit_breakers` in the runtime's tree, started by the
    first call: seen in `tree(…)` and `runtime.health()`, each change of phase told to telemetry as
    `keepwell.model.circuit` (model, phase, failures). It survives the actor's crash; a call waits
    up to a second for the next incarnation, and takes the step itself if none comes, as in a
    program without a runtime. Two runtimes judge for themselves. `clock`: seconds, None takes the
    actor system's.
    """

    def __init__(
        self,
        model: ChatModel,
        policy: BreakerPolicy | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not isinstance(model, ChatModel):
            raise InvalidValue(f"{model!r} is no chat model: it needs name, complete and stream")
        self._model = model
        self._policy = policy or BreakerPolicy()
        self._clock = clock
        self._lock = threading.Lock()
        self._homes: weakref.WeakKeyDictionary[ActorSystem, BreakerHome] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def name(self) -> str:
        """The name of the model behind."""
        return self._model.name

    @property
    def state(self) -> BreakerState:
        """The present state in the current runtime."""
        home = self._homes.get(_system())
        return BreakerState() if home is None else home.state

    async def complete(self, request: ModelRequest) -> ModelReply:
        """The model's reply. Raises ModelError, "circuit_open" among others."""
        await self._admit()
        told = False
        try:
            reply = await self._model.complete(request)
            told = True
            await self._tell(None)
            return reply
        except ModelError as error:
            told = True
            await self._tell(error)
            raise
        finally:
            if not told:
                self._home().tell(Report("abandoned"))

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelReply]:
        """The model's stream. Raises likewise."""
        await self._admit()
        told = False
        try:
            async with aclosing(closable(self._model.stream(request))) as items:
                async for item in items:
                    if not told:  # it answers: that is what the breaker wants to know
                        told = True
                        await self._tell(None)
                    yield item
        except ModelError as error:
            told = True
            await self._tell(error)
            raise
        finally:
            if not told:
                self._home().tell(Report("abandoned"))

    async def _admit(self) -> None:
        home = self._home()
        if home.state.phase is Phase.CLOSED:
            return
        wait = await home.ask(Admit())
        if wait is not None:
            raise ModelError(
                f"{self.name}: not asked, the circuit is open after {home.state.failures} failures "
                f"in a row; next try in {wait:.1f} s",
                code="circuit_open",
                retryable=True,
                retry_after=wait,
            )

    async def _tell(self, error: ModelError | None) -> None:
        """Record an outcome."""
        home = self._home()
        if error is not None and error.retryable:
            await home.ask(Report("failed"))
        elif home.state != BreakerState():
            await home.ask(Report("succeeded"))

    def _home(self) -> BreakerHome:
        """The state in the current system, its actor started or about to be."""
        system = _system()
        with self._lock:
            home = self._homes.get(system)
            if home is None:
                clock = self._clock or system.clock.monotonic
                home = BreakerHome(self.name, self._policy, weakref.ref(self), clock)
                self._homes[system] = home
        if not home.attended:
            circuits_of(system).attend(home)
        return home


def _system() -> ActorSystem:
    try:
        return current_system()
    except InvalidValue:  # several are running, and this code is in none of them
        return default_system()
