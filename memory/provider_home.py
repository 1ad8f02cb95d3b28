"""Where a provider's actor is found, and where requests wait while there is none."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from ..actors.async_runner import LATER
from ..actors.errors import ActorDied
from ..actors.future import Future
from .provider import REQUEST_SECONDS, Position


class ProviderHome:
    """A provider's place; outlives its incarnations.

    A request that finds no living actor, or loses it, waits here and is sent to the next one. All
    that wait go in their original order, ahead of newer ones: an append never overtakes the one
    that it follows.
    """

    def __init__(self, owner: object = None) -> None:
        self.owner = owner  # the store's port or the provider: alive as long as its place is
        self.ref: Any = None
        self.closed: BaseException | None = None
        self._answer_now: Callable[[Any], Any] | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[Any, Future[Any]]] = {}

    # -- the actor's side ------------------------------------------------------------------------

    def moved_in(self, ref: Any, *, in_place: bool = False) -> None:
        """An incarnation has started: it gets what waits first.

        `in_place`: its handler is a plain function that answers with a future, always; it is then
        called without a request where that can be (see `AsyncRef.answer_now`).
        """
        with self._lock:
            self.ref = ref
            self._answer_now = ref.answer_now if in_place else None
            waiting, self._waiting = sorted(self._waiting.items()), {}
        for number, (message, result) in waiting:
            self._ask(ref, number, message, result)

    def close(self, reason: Any = "shutdown") -> None:
        """No further incarnation will come: fail what waits and what comes."""
        with self._lock:
            self.closed = ActorDied(f"the memory provider ended: {reason!r}", reason=reason)
            waiting, self._waiting = self._waiting, {}
        for _message, result in waiting.values():
            result.fail(self.closed)

    # -- the callers' side -----------------------------------------------------------------------

    def send(self, message: Any) -> Future[Any]:
        """Ask the provider; the future gets the answer of whichever incarnation gives it.

        Fails with ActorDied if there is none within 35 s, or none will come any more.
        """
        ref = self.ref
        if ref is not None and not self._waiting:
            answer: Any = self._answer_now(message) if self._answer_now else LATER
            if answer.__class__ is Future:
                return answer
            number = next(self._numbers)
            outer: Future[Any] = ref.ask(message, block=False) if answer is LATER else answer
            if outer.done() and outer.error() is None:
                # Answered in place, as nearly always.
                inner = outer.get()
                return inner if isinstance(inner, Future) else outer
            result: Future[Any] = Future()
            self._follow(number, message, outer, result)
            return result
        result = Future()
        self._wait(next(self._numbers), message, result)
        return result

    def position(self, message: Position) -> tuple[int, int] | None:
        """What the provider answers here and now; None if it cannot. Nothing waits, nor fails."""
        if self._answer_now is None or self._waiting:
            return None
        answer = self._answer_now(message)
        return answer if answer.__class__ is tuple else None

    def _ask(self, ref: Any, number: int, message: Any, result: Future[Any]) -> None:
        if not result.done():
            self._follow(number, message, ref.ask(message, block=False), result)

    def _follow(self, number: int, message: Any, outer: Future[Any], result: Future[Any]) -> None:
        def answered(future: Future[Any]) -> None:
            error = future.error()
            if error is None:
                value = future.get()
                if isinstance(value, Future):
                    chain(value, result)
                else:
                    result.complete(value)
            elif isinstance(error, ActorDied):
                self._wait(number, message, result)
            else:
                result.fail(error)

        outer.add_done_callback(answered)

    def _wait(self, number: int, message: Any, result: Future[Any]) -> None:
        with self._lock:
            ref, closed = self.ref, self.closed
            alive = ref is not None and ref.is_alive() and not self._waiting
            if closed is None and not alive:
                self._waiting[number] = (message, result)
        if closed is not None:
            result.fail(closed)
        elif alive:
            self._ask(ref, number, message, result)
        elif ref is not None:
            timer = ref.system.clock.call_later(REQUEST_SECONDS, self._late, number, result)
            result.add_done_callback(lambda _: timer.cancel())

    def _late(self, number: int, result: Future[Any]) -> None:
        with self._lock:
            self._waiting.pop(number, None)
        reason = f"no memory provider came within {REQUEST_SECONDS:g} s"
        result.fail(ActorDied(reason, reason="noproc"))


def chain(source: Future[Any], target: Future[Any]) -> None:
    """Complete `target` as `source` is completed."""

    def done(future: Future[Any]) -> None:
        error = future.error()
        if error is None:
            target.complete(future.get())
        else:
            target.fail(error)

    source.add_done_callback(done)
