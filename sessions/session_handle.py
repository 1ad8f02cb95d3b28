"""The client's side of a live session (B6…B23)."""

from __future__ import annotations

from typing import Any

from ..actors import Future
from ..actors.derived import then
from ..actors.errors import ActorDied, CallTimeout, InvalidValue
from ..actors.failpoint import failpoint
from ..stores.errors import shown
from ..stores.plain import canonical_json, copy_plain
from ..stores.session_errors import NotFound
from ..stores.session_event import DeadLetter
from ..stores.session_state import Ack, Admission, SessionInfo, SessionState
from ..stores.session_store import check_key
from .channel import Channel
from .errors import ChannelUndeclared
from .event_reader import EventReader
from .session import Session
from .session_actor import CancelTurn
from .session_home import SessionHome
from .session_step import blocking
from .session_view import Closed, SessionView, TurnOutcome

CLOSE_SECONDS = 5.0


class SessionHandle:
    """A durable session. Any number of handles lead to one actor, and outlive its restarts.

    Every call starts at once and returns a Future: await it, or `.get()` it in a thread. Refusals
    come through the future; what was refused has left nothing behind.
    """

    def __init__(self, home: SessionHome) -> None:
        self._home = home

    def __repr__(self) -> str:
        return f"<SessionHandle of {self.session_id!r}>"

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._home.session_id

    @property
    def session(self) -> Session:
        """The definition it runs."""
        return self._home.session

    @property
    def conversation_id(self) -> str:
        """The conversation that a flow session adds its turns to (E7)."""
        return self._home.conversation_id

    # -- sending -------------------------------------------------------------------------------

    def send(
        self, value: object, *, channel: str | None = None, idempotency_key: str | None = None
    ) -> Future[Ack]:
        """Accept a message durably; the Ack comes after the commit.

        Under an `idempotency_key` a message is accepted once: again, the Ack of the first time
        with `duplicate=True` and its outcome. Checks in this order: ChannelUndeclared, NotPlain,
        the key, IdempotencyConflict, SessionClosed, PayloadInvalid, PayloadTooLarge, ChannelFull.
        If the process is killed meanwhile the message is absent or whole: send it again under its
        key. Rules: B9…B12, C3.
        """
        try:
            declared = self._channel(channel)
            plain = copy_plain(value)
            check_key(idempotency_key)
        except Exception as refusal:  # noqa: BLE001 - it comes through the future
            return Future.failed(refusal)
        home = self._home
        if home.deleted:
            return Future.failed(NotFound(f"session {home.session_id!r}"))
        over = home.ended.error()
        if over is not None:
            return Future.failed(over)
        fault = declared.fault(plain, len(canonical_json(plain)))
        running = home.running
        admission = Admission(declared.capacity, fault, running.order if running else 0)
        failpoint("session.accept.before")
        accepted = home.store.accept(
            home.session_id, declared.name, plain, key=idempotency_key, admission=admission
        )
        accepted.add_done_callback(self._accepted)
        return accepted

    def request(
        self,
        value: object,
        *,
        channel: str | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
    ) -> Future[TurnOutcome]:
        """Send a message and wait for its turn's outcome: `outputs` are those of the out channel.

        For a key whose turn is over, the stored outcome. A turn that fails is an outcome, not an
        exception. Raises CallTimeout after `timeout` seconds; the turn runs all the same, and the
        key leads to it. Rule: B9a.
        """
        return self._home.system.run(self._request(value, channel, idempotency_key, timeout))

    async def _request(
        self, value: object, channel: str | None, key: str | None, timeout: float | None
    ) -> TurnOutcome:
        home = self._home
        home.expect()
        waiting: str | None = None
        seq = 0
        try:
            ack = await self.send(value, channel=channel, idempotency_key=key)
            if not ack.duplicate or ack.outcome == "pending":
                waiting, seq = ack.channel, ack.seq
        finally:
            future = home.await_outcome(waiting, seq)
        if future is None:
            assert key is not None  # only a known key has an outcome at once
            stored = await home.store.outcome_of(home.session_id, ack.channel, key)
            if stored is None:
                raise NotFound(f"the outcome of key {shown(key)}")
            return TurnOutcome(*stored)
        if timeout is None:
            return await future
        clock = home.system.clock
        timer = clock.call_later(
            timeout,
            lambda: future.fail(
                CallTimeout(f"the turn of message {seq} has not ended within {timeout} seconds")
            ),
        )
        try:
            return await future
        finally:
            timer.cancel()

    def _accepted(self, done: Future[Ack]) -> None:
        if done.error() is None:
            failpoint("session.accept.after")
            self._home.poke()

    def _channel(self, name: str | None) -> Channel[Any]:
        declared = self._home.session.in_channel
        if name is not None and name != declared.name:
            raise ChannelUndeclared(name, (declared.name,), "receiving")
        return declared

    # -- reading -------------------------------------------------------------------------------

    def events(
        self, after: int = 0, *, consumer: str | None = None, follow: bool = True
    ) -> EventReader:
        """The events behind position `after`, in order: for `async for` or `for` (B6).

        Any number of readers get all of them. consumer: a name under which the position is durable
        (an event is read when the next one is pulled); it starts where it was, or at `after` if
        that is further. follow: go on until `closed`, else end at the head. Progress of running
        turns is shown to those who follow. Raises EventsTrimmed if they are no longer all there.
        """
        if type(after) is not int or after < 0:
            raise InvalidValue(f"after must be an int of 0 or more, not {shown(after)}")
        return EventReader(self._home, after, consumer, follow=follow)

    def forget_consumer(self, name: str) -> Future[bool]:
        """Drop a named consumer's position, so that it holds back nothing (B7, B8)."""
        home = self._home
        forgotten = home.store.forget_consumer(home.session_id, name)
        forgotten.add_done_callback(lambda _: home.poke())
        return forgotten

    def state(self) -> Future[SessionView]:
        """The session as it is now (B13)."""
        home = self._home
        return then(home.store.snapshot(home.session_id), self._view)

    def _view(self, found: tuple[SessionInfo, SessionState]) -> SessionView:
        info, state = found
        home = self._home
        running = home.running is not None and home.running.order > info.taken
        return SessionView(
            session_id=home.session_id,
            status="closed" if info.closed else "closing" if info.closing else "open",
            carrier=state.carrier if info.cursor else copy_plain(home.session.init),
            cursor=info.cursor,
            turn=state.turn,
            running=running,
            pending=info.pending - (1 if running else 0),
            capacity=home.session.in_channel.capacity,
            position=info.position,
            consecutive_errors=state.consecutive_errors,
            dead_letters=info.dead_letters,
            blocked=blocking(info),
            close_reason=info.reason,
        )

    def open_receives(self) -> Future[list[tuple[str, int]]]:
        """Where the session waits for a message: `[(channel, seq)]`, the next message's seq (B14).

        [] while a turn runs and when the session is closed.
        """

        def receives(info: SessionInfo) -> list[tuple[str, int]]:
            running = self._home.running
            if info.closed or (running is not None and running.order > info.taken):
                return []
            name = self._home.session.in_channel.name
            return [(name, info.inbound.get(name, 0) - info.pending + 1)]

        return then(self._home.store.info(self.session_id), receives)

    def dead_letters(self, after: int = 0, limit: int = 100) -> Future[list[DeadLetter]]:
        """Messages whose turns did not end well, behind id `after`, the oldest first (B19)."""
        found: Future[Any] = self._home.store.read(
            self.session_id, "dead_letters", after=after, limit=limit
        )
        return found

    def retry(self, letter: int) -> Future[Ack]:
        """Accept a dead letter again, under a new seq, once (B19).

        Raises NotFound, ChannelFull (the letter stays), SessionClosed.
        """
        home = self._home
        running = home.running
        admission = Admission(
            home.session.in_channel.capacity, None, running.order if running else 0
        )
        accepted = home.store.retry(self.session_id, letter, admission)
        accepted.add_done_callback(self._accepted)
        return accepted

    # -- stopping ------------------------------------------------------------------------------

    def cancel_turn(self, reason: str = "cancelled") -> Future[bool]:
        """Cancel the running turn: True means that it will not be committed whatever it does (B20).

        Its message goes to the dead letters. False if no turn runs, or it is being committed.
        """
        return self._home.system.run(self._cancel(str(reason)))

    async def _cancel(self, reason: str) -> bool:
        ref = self._home.ref
        if ref is None:
            return False
        try:
            cancelled: bool = await ref.call(CancelTurn(str(copy_plain(reason))))
        except ActorDied:
            return False  # its turn died with it, and will be run again
        return cancelled

    def close(
        self, reason: str | None = None, *, timeout: float | None = CLOSE_SECONDS
    ) -> Future[Closed]:
        """Refuse sends, work off what was accepted, end the session (B21).

        timeout: seconds for that; then the running turn is cancelled and the rest goes to the dead
        letters. 0: at once. None: as long as it takes. Closing again gives the same result.
        """
        return self._home.system.run(self._close(reason, timeout))

    async def _close(self, reason: str | None, timeout: float | None) -> Closed:
        home = self._home
        if timeout is not None and (isinstance(timeout, bool) or not timeout >= 0):
            raise InvalidValue(f"timeout must be seconds, 0 or more, or None, not {timeout!r}")
        given = None if reason is None else str(copy_plain(str(reason)))
        info = await home.store.seal(home.session_id, given)
        if not info.closed:
            home.close_within(timeout)
        return await home.ended
