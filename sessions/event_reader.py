"""Following the events of a session (B6…B8)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Self

from ..actors.future import refuse_on_loop
from ..stores.session_event import SessionEvent

if TYPE_CHECKING:
    from .session_home import SessionHome

PAGE = 200
LIVE_EVENTS = 1_000
"""Most progress that waits for a slow reader; then the oldest is dropped."""


class EventReader:
    """The events of a session behind a position, in order: an async iterator and an iterator.

    It ends after `closed`, or with `follow=False` at the head. A named consumer's position is
    durable: an event is read when the next one is pulled. Raises EventsTrimmed; Unavailable or
    ActorDied when the session can no longer be followed.
    """

    def __init__(
        self, home: SessionHome, after: int, consumer: str | None, *, follow: bool
    ) -> None:
        self._home = home
        self._after = after
        self._consumer = consumer
        self._follow = follow
        self._begun = False
        self._over = False
        self._buffer: deque[SessionEvent] = deque()
        self._live: deque[SessionEvent] = deque(maxlen=LIVE_EVENTS)
        self._read = 0
        if follow:
            home.watch(self)

    def add_live(self, event: SessionEvent) -> None:
        """Progress of the running turn."""
        self._live.append(event)

    def __aiter__(self) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionEvent:
        event = await self._next()
        if event is None:
            raise StopAsyncIteration
        return event

    def __next__(self) -> SessionEvent:
        refuse_on_loop("iterating over events", "use `async for`")
        event = self._home.system.run(self._next()).get()
        if event is None:
            raise StopIteration
        return event

    async def _next(self) -> SessionEvent | None:
        if not self._begun:
            await self._begin()
        elif self._consumer is not None and self._after > self._read:
            await self._acknowledge()
        if self._over:
            return None
        while True:
            event = await self._pull()
            if event is None:
                return None
            if event.position is not None:
                self._after = event.position
            if event.is_closed():
                self._over = True
            return event

    async def _begin(self) -> None:
        self._begun = True
        home = self._home
        if self._consumer is not None:
            self._read = await home.store.consume(home.session_id, self._consumer)
            self._after = max(self._after, self._read)

    async def _acknowledge(self) -> None:
        home = self._home
        started = home.started
        if started is not None and started.position == self._after:
            return  # shown early: it is read when it is stored
        assert self._consumer is not None
        self._read = await home.store.consume(home.session_id, self._consumer, self._after)
        home.poke()  # a session that was held back by this consumer may go on

    async def _pull(self) -> SessionEvent | None:
        home = self._home
        while True:
            if self._buffer:
                return self._in_order(self._buffer[0])
            bell = home.changed()
            # Taken before the look at the store, which then has the last event if it has ended.
            ended = home.ended.done()
            stored: Any = await home.store.read(
                home.session_id, "events", after=self._after, limit=PAGE
            )
            if stored:
                self._buffer.extend(stored)
                continue
            if not self._follow:
                return None
            started = home.started
            if started is not None and started.position == self._after + 1:
                return started
            if self._live:
                return self._live.popleft()
            if ended:
                error = home.ended.error()
                if error is not None:
                    raise error
                return None
            await bell

    def _in_order(self, stored: SessionEvent) -> SessionEvent:
        """Progress of a turn goes before what that turn has committed."""
        while self._live:
            live = self._live[0]
            if stored.turn is not None and live.turn is not None and live.turn > stored.turn:
                break
            if stored.kind == "turn_started" and live.turn == stored.turn:
                break
            return self._live.popleft()
        return self._buffer.popleft()
