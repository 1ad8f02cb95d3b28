"""A turn's events for one reader; a slow or gone reader never holds the turn (EV-1, EV-2)."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Literal, Self

from ..actors.future import Future
from .events import Event, Paused, TextDelta, TurnEnded

if TYPE_CHECKING:
    from .turn_queue import TurnQueue, TurnRequest

OnAbandon = Literal["continue", "cancel"]
_NOW: Future[None] = Future.of(None)


class Listener:
    """The buffer between a turn and one reader.

    Deltas that wait are merged, so what it holds is bounded by the turn's text and steps; step
    events are never lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._waiter: Future[None] | None = None
        self._error: BaseException | None = None
        self._finished = False
        self.closed = False
        self.request: TurnRequest | None = None
        self.model_step = 0
        """The step of the model call that it was last shown to begin."""
        self.fresh = True
        """Whether the turn has still to show it what happened before it came."""

    def attached(self, request: TurnRequest) -> None:
        """It listens to this request."""
        self.request = request

    def push(self, event: Event) -> None:
        """Add an event. Never waits."""
        with self._lock:
            if self.closed or self._finished:
                return
            events = self._events
            last = events[-1] if events else None
            if (
                isinstance(event, TextDelta)
                and isinstance(last, TextDelta)
                and last.step == event.step
            ):
                events[-1] = TextDelta(event.step, last.text + event.text)
            else:
                events.append(event)
            if isinstance(event, Paused | TurnEnded):
                self._finished = True
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.complete(None)

    def finish(self, error: BaseException | None) -> None:
        """No event comes any more; the reader gets `error` after what waits."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            self._error = error
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.complete(None)

    def take(self) -> tuple[Event | None, Future[None]]:
        """The next event, or None and a future to wait for. Raises StopIteration or the error."""
        with self._lock:
            if self._events:
                return self._events.popleft(), _NOW
            if self._finished:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                raise StopIteration
            if self._waiter is None:
                self._waiter = Future()
            return None, self._waiter

    def close(self) -> None:
        """Nobody reads any more."""
        with self._lock:
            self.closed = True
            self._events.clear()


class EventStream:
    """What `agent.stream` returns: an iterator and an async iterator of events.

    It ends after `TurnEnded` or `Paused`, or raises what `run` would raise. Dropping it leaves the
    turn alone, unless it was opened with `on_abandon="cancel"`. `turn_id` names the turn, for
    `stream(turn_id=…)`.
    """

    def __init__(
        self, listener: Listener, turn_id: str, queue: TurnQueue, on_abandon: OnAbandon
    ) -> None:
        self.turn_id = turn_id
        self._listener = listener
        self._queue = queue
        self._on_abandon = on_abandon
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            try:
                event, more = self._listener.take()
            except StopIteration:
                self._ended = True
                raise StopAsyncIteration from None
            except BaseException:
                self._ended = True
                raise
            if event is not None:
                return event
            await more

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while True:
            try:
                event, more = self._listener.take()
            except BaseException:
                self._ended = True
                raise
            if event is not None:
                return event
            more.get()

    def close(self) -> None:
        """Stop reading."""
        if self._ended or self._listener.closed:
            return
        self._listener.close()
        if self._on_abandon == "cancel":
            _ = self._queue.cancel(self.turn_id)

    async def aclose(self) -> None:
        """Stop reading."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:
            pass
