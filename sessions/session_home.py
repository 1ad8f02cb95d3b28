"""What stays of a live session while its actor comes and goes.

Handles, readers and waiting requests hold on to the home; each incarnation of the actor moves in.
What is durable lies in the store. Any thread may call; what an event loop must do is handed to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..actors import Future
from ..actors.errors import ActorDied, KeepwellError, Unavailable
from ..stores.plain import Plain
from ..stores.session_event import InboxMessage, SessionEvent
from ..stores.session_state import SessionInfo, SessionSettings
from ..stores.session_store import RowsSessionStore
from .session import Session
from .session_view import Closed, TurnOutcome
from .turn_result import Settled

if TYPE_CHECKING:
    from ..actors.clock import Timer
    from ..actors.system import ActorSystem
    from .event_reader import EventReader

RECENT_EVENTS = 1_000
"""Events looked through for the outcome of a turn whose commit was not acknowledged."""


class SessionHome:
    """One live session: its definition and limits, where its actor is, and who waits for what."""

    def __init__(
        self,
        session: Session,
        session_id: str,
        store: RowsSessionStore,
        system: ActorSystem,
        *,
        settings: SessionSettings,
        conversation_id: str,
        max_errors: int | None,
        max_deliveries: int,
        make_body: Callable[[Session], Any] | None = None,
    ) -> None:
        self.session = session
        self.session_id = session_id
        self.store = store
        self.system = system
        self.settings = settings
        self.conversation_id = conversation_id
        self.max_errors = max_errors
        self.max_deliveries = max_deliveries
        self.make_body = make_body
        self.ref: Any = None
        self.running: InboxMessage | None = None
        self.spared = 0
        """The order of a message whose last run ended because the store failed (B17)."""
        self.ended: Future[Closed] = Future()
        """Done when the session has closed; failed when it was given up or its runtime ends."""
        self.on_end: list[Callable[[], object]] = []
        self.deleted = False
        self.cut = False
        """Whether the time to work off what was accepted is over (B21)."""
        self._wake_actor: Callable[[], object] | None = None
        self._lock = threading.Lock()
        self._changed: Future[None] = Future()
        self._started: SessionEvent | None = None
        self._readers: WeakSet[EventReader] = WeakSet()
        self._waiting: dict[tuple[str, int], list[Future[TurnOutcome]]] = {}
        # Outcomes that came while a request did not know its seq yet.
        self._expecting = 0
        self._early: dict[tuple[str, int], TurnOutcome] = {}
        self._timer: Timer | None = None

    # -- the actor -----------------------------------------------------------------------------

    def moved_in(self, ref: Any, wake: Callable[[], object]) -> None:
        """An incarnation of the actor is there; `wake()` makes it look, from any thread."""
        self.ref = ref
        self._wake_actor = wake

    def poke(self) -> None:
        """Make the actor look at its inbox, its end, or what blocks it."""
        wake = self._wake_actor
        if wake is not None:
            wake()

    def turn_started(self, message: InboxMessage, event: SessionEvent) -> None:
        """A turn begins: show it to live readers."""
        self.running = message
        self._started = event
        self._ring()

    def progress(self, event: SessionEvent) -> None:
        """Show live progress (A16)."""
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.add_live(event)
        self._ring()

    def committed(self, message: InboxMessage, plan: Settled) -> None:
        """A turn is durable. Called by the commit itself, even if the actor is gone meanwhile."""
        outcome = TurnOutcome(plan.outcome, list(plan.outputs), plan.error)
        self.spared = 0
        self._started = None
        self.running = None
        self.settle(message.channel, message.seq, outcome)
        self._ring()

    def turn_ended(self) -> None:
        """The turn is over, committed or not."""
        self.running = None

    def closed(self, info: SessionInfo) -> None:
        """The session has ended for good."""
        self._started = self.running = None
        if self._timer is not None:
            self._timer.cancel()
        reason = info.reason or "closed"
        self._leave(lambda future: future.complete(TurnOutcome("closed", [], reason)))
        self.ended.complete(Closed(reason, info.unprocessed))
        self._end()

    def give_up(self, error: KeepwellError) -> None:
        """No actor will come any more, though the session has not closed."""
        self._started = self.running = None
        self._leave(lambda future: future.fail(error))
        self.ended.fail(error)
        self._end()

    def _leave(self, tell: Callable[[Future[TurnOutcome]], object]) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for futures in waiting.values():
            for future in futures:
                tell(future)

    def _end(self) -> None:
        self._wake_actor = None
        for callback in self.on_end:
            callback()
        self._ring()

    # -- closing -------------------------------------------------------------------------------

    def close_within(self, timeout: float | None) -> None:
        """Give the session this long to work off what it has accepted; the shortest time counts."""
        if timeout is None or self.ended.done():
            self.poke()
        elif timeout <= 0:
            self._cut()
        else:
            self._timer = self.system.clock.call_later(timeout, self._cut)
            self.poke()

    def _cut(self) -> None:
        self.cut = True
        self.poke()

    # -- who waits for a turn ------------------------------------------------------------------

    def expect(self) -> None:
        """A request is on its way: keep the outcomes that come before its seq is known."""
        with self._lock:
            self._expecting += 1

    def await_outcome(self, channel: str | None, seq: int = 0) -> Future[TurnOutcome] | None:
        """The outcome of a message's turn, for who has called `expect`; None: none is wanted."""
        with self._lock:
            future: Future[TurnOutcome] | None = None
            if channel is not None:
                future = Future()
                early = self._early.get((channel, seq))
                if early is not None:
                    future.complete(early)
                else:
                    self._waiting.setdefault((channel, seq), []).append(future)
            self._expecting -= 1
            if not self._expecting:
                self._early.clear()
        if future is not None and not future.done() and self.ended.done():
            error = self.ended.error()
            if error is not None:
                future.fail(error)
        return future

    def settle(self, channel: str, seq: int, outcome: TurnOutcome) -> None:
        """Tell those who wait for a message's turn."""
        with self._lock:
            futures = self._waiting.pop((channel, seq), ())
            if self._expecting:
                self._early[channel, seq] = outcome
        for future in futures:
            future.complete(outcome)

    def overdue(self, info: SessionInfo) -> list[tuple[str, int]]:
        """Messages that are waited for though they were taken: their commit had no answer."""
        untaken = info.pending
        with self._lock:
            return [
                (channel, seq) for channel, seq in self._waiting
                if seq <= info.inbound.get(channel, 0) - untaken
            ]  # fmt: skip

    # -- readers -------------------------------------------------------------------------------

    def watch(self, reader: EventReader) -> None:
        """Give a reader what is not stored: progress."""
        with self._lock:
            self._readers.add(reader)

    @property
    def started(self) -> SessionEvent | None:
        """The start of the turn that runs, which is stored only with its end (B2)."""
        return self._started

    def changed(self) -> Future[None]:
        """Done at the next thing that readers may want to see; take it before looking."""
        return self._changed

    def _ring(self) -> None:
        bell, self._changed = self._changed, Future()
        bell.complete(None)


def outcome_in(events: list[SessionEvent], channel: str, seq: int, out: str) -> TurnOutcome | None:
    """A turn's outcome from its events, None if they are not among these."""
    turn = next(
        (e.turn for e in events
         if e.kind == "turn_started" and (e.channel, e.seq) == (channel, seq)),
        None,
    )  # fmt: skip
    if turn is None:
        return None
    mine = [event for event in events if event.turn == turn]
    outputs: list[Plain] = [e.payload for e in mine if e.is_emit() and e.channel == out]
    error = next((event.reason for event in mine if event.is_error()), None)
    if error is not None:
        return TurnOutcome("failed", outputs, error)
    done = any(event.kind == "turn_done" for event in mine)
    return TurnOutcome("done" if done else "closed", outputs)


def ended_error(session_id: str, reason: object) -> KeepwellError:
    """What those get who wait for a session whose actor will not come back."""
    if isinstance(reason, Unavailable):
        return reason
    return ActorDied(f"session {session_id!r} has no actor any more: {reason!r}", reason=reason)
