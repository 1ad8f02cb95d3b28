"""What all of keepwell's own session stores have in common (C1…C17), see `session_contract`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ..actors.derived import then
from ..actors.errors import InvalidValue
from ..actors.future import Future
from . import session_inbox, session_ledger, session_reads
from .conversation_id import conversation_key
from .errors import shown
from .plain import Plain, canonical_json, copy_plain
from .rows_blob_store import RowsBlobStore, guarded
from .session_contract import Cursor, Stream
from .session_event import DeadLetter, InboxMessage, SessionEvent
from .session_rows import Rows
from .session_state import (
    HEAD,
    RETAIN_REVISIONS,
    Ack,
    Admission,
    Claim,
    HeadCursor,
    SessionInfo,
    SessionSettings,
    SessionState,
    StoredOutcome,
    TurnWrites,
)

T = TypeVar("T")

MAX_KEY = 256
"""Most characters of an idempotency key (B11)."""


class RowsSessionStore(RowsBlobStore):
    """A session store, journal and blob store over rows; subclasses say where the rows are.

    `empty_value`: the carrier of cursor 0. `retain_revisions`: how many revisions stay (>= 1).
    `wall`: seconds since 1970. Everything is checked, copied and encoded in the caller.
    """

    def __init__(
        self,
        *,
        empty_value: Plain = None,
        retain_revisions: int = RETAIN_REVISIONS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        if type(retain_revisions) is not int or retain_revisions < 1:
            raise InvalidValue(
                f"retain_revisions must be an int of 1 or more, not {shown(retain_revisions)}"
            )
        self._empty = copy_plain(empty_value)
        self._retain = retain_revisions
        super().__init__(wall)

    # -- revisions -----------------------------------------------------------------------------

    def load(self, session_id: str, cursor: Cursor = HEAD) -> Future[SessionState]:
        """See SessionStore."""

        def prepare() -> Future[SessionState]:
            _check_session_id(session_id)
            if not isinstance(cursor, HeadCursor):
                _check_count(cursor, "cursor")
            empty = copy_plain(self._empty)
            return self._read(lambda rows: session_reads.load(rows, session_id, cursor, empty))

        return guarded(prepare)

    def commit(
        self,
        session_id: str,
        base: int,
        state: SessionState,
        fingerprint: str | None,
        *,
        writes: TurnWrites | None = None,
    ) -> Future[int]:
        """See SessionStore."""

        def prepare() -> Future[int]:
            if not isinstance(state, SessionState):
                raise InvalidValue(f"state must be a SessionState, not {shown(state)}")
            return self._commit(session_id, base, state, fingerprint, writes, keep_counters=False)

        return guarded(prepare)

    def load_value(self, session_id: str, cursor: Cursor = HEAD) -> Future[Plain]:
        """See SessionStore."""
        return then(self.load(session_id, cursor), lambda state: state.carrier)

    def commit_value(
        self, session_id: str, base: int, value: Plain, fingerprint: str | None = None
    ) -> Future[int]:
        """See SessionStore."""

        def prepare() -> Future[int]:
            state = SessionState(copy_plain(value))
            return self._commit(session_id, base, state, fingerprint, None, keep_counters=True)

        return guarded(prepare)

    def _commit(
        self, session_id: str, base: int, state: SessionState, fingerprint: str | None,
        writes: TurnWrites | None, *, keep_counters: bool,
    ) -> Future[int]:  # fmt: skip
        _check_session_id(session_id)
        _check_count(base, "base")
        copied = SessionState(
            copy_plain(state.carrier), state.turn, state.position, dict(state.sequences),
            state.consecutive_errors,
        )  # fmt: skip
        encoded = session_ledger.encode_state(copied, fingerprint)
        work = partial(
            session_ledger.commit, session_id=session_id, base=base, encoded=encoded,
            writes=writes, retain_revisions=self._retain, now=self._wall(), birth=_birth(),
            keep_counters=keep_counters,
        )  # fmt: skip
        return self._write(work, log=None if writes is None else writes.log)

    # -- the journal ---------------------------------------------------------------------------

    def claim(
        self, session_id: str, settings: SessionSettings | None = None
    ) -> Future[Claim]:
        """See SessionJournal; `settings` are the new owner's."""

        def prepare() -> Future[Claim]:
            _check_session_id(session_id)
            birth = _birth()
            return self._write(
                lambda rows: session_ledger.claim(rows, session_id, settings, birth)
            )

        return guarded(prepare)

    def accept(
        self,
        session_id: str,
        channel: str,
        payload: Plain,
        *,
        key: str | None = None,
        admission: Admission | None = None,
    ) -> Future[Ack]:
        """See SessionJournal; `admission` says what else to check, in the order of B9."""

        def prepare() -> Future[Ack]:
            _check_session_id(session_id)
            if not isinstance(channel, str) or not channel:  # type: ignore[redundant-expr]  # callers without types
                raise InvalidValue(f"channel must be a non-empty str, not {shown(channel)}")
            check_key(key)
            plain = copy_plain(payload)
            encoded = canonical_json(plain)
            rule, birth, token = admission or Admission(), _birth(), secrets.token_bytes(8)
            return self._write(
                lambda rows: session_inbox.accept(
                    rows, session_id, channel, plain, encoded, key, rule, birth, token
                ),
                recover=lambda rows: session_inbox.find_accepted(rows, session_id, token),
            )

        return guarded(prepare)

    def read(
        self, session_id: str, stream: Stream, *, after: int = 0, limit: int = 100
    ) -> Future[list[InboxMessage] | list[SessionEvent] | list[DeadLetter]]:
        """See SessionJournal. Raises EventsTrimmed for events that are no longer there."""

        def prepare() -> Future[Any]:
            _check_session_id(session_id)
            work = session_reads.STREAMS.get(stream)
            if work is None:
                known = ", ".join(session_reads.STREAMS)
                raise InvalidValue(f"stream must be one of {known}, not {shown(stream)}")
            _check_count(after, "after")
            if type(limit) is not int or limit < 1:
                raise InvalidValue(f"limit must be an int of 1 or more, not {shown(limit)}")
            return self._read(lambda rows: work(rows, session_id, after, limit))

        return guarded(prepare)

    # -- what a live session needs beside the protocols ------------------------------------------

    def info(self, session_id: str) -> Future[SessionInfo]:
        """Counters of a session, without reading its data."""
        return self._ask(session_id, session_reads.info)

    def next_message(self, session_id: str) -> Future[tuple[SessionInfo, InboxMessage | None]]:
        """Counters and the next untaken message, of one moment."""
        return self._ask(session_id, session_reads.next_message)

    def deliver(self, session_id: str, epoch: int, order: int, deliveries: int) -> Future[None]:
        """Note that a message is taken up again (B18). Raises SessionFenced."""
        return self._write(
            lambda rows: session_inbox.deliver(rows, session_id, epoch, order, deliveries)
        )

    def seal(self, session_id: str, reason: str | None) -> Future[SessionInfo]:
        """Refuse messages from now on, whoever owns the session (B21). Raises NotFound."""
        return self._write(lambda rows: session_ledger.seal(rows, session_id, reason))

    def snapshot(self, session_id: str) -> Future[tuple[SessionInfo, SessionState]]:
        """Counters and newest state, of one moment."""
        return self._ask(session_id, session_reads.snapshot)

    def finish(
        self, session_id: str, epoch: int, reason: str | None, error: str | None = None
    ) -> Future[SessionInfo]:
        """End the session; what is untaken becomes dead letters (B4, B21). Raises SessionFenced.

        `error`: a fatal error outside of any turn, shown before.
        """
        now = self._wall()
        return self._write(
            lambda rows: session_ledger.finish(rows, session_id, epoch, reason, now, error)
        )

    def outcome_of(self, session_id: str, channel: str, key: str) -> Future[StoredOutcome | None]:
        """What a key knows of its message's turn; None if it is unknown (B9a)."""
        return self._read(lambda rows: session_reads.outcome_of(rows, session_id, channel, key))

    def retry(self, session_id: str, letter: int, admission: Admission) -> Future[Ack]:
        """Accept a dead letter again (B19). Raises NotFound, ChannelFull, SessionClosed."""

        def prepare() -> Future[Ack]:
            _check_count(letter, "a dead letter's id")
            token = secrets.token_bytes(8)
            return self._write(
                lambda rows: session_inbox.retry(rows, session_id, letter, admission, token),
                recover=lambda rows: session_inbox.find_accepted(rows, session_id, token),
            )

        return guarded(prepare)

    def consume(self, session_id: str, consumer: str, position: int | None = None) -> Future[int]:
        """Begin or move a named consumer; its durable position (B7)."""
        if not isinstance(consumer, str) or not 1 <= len(consumer) <= MAX_KEY:  # type: ignore[redundant-expr]  # callers without types
            return Future.failed(
                InvalidValue(f"a consumer's name is a str of 1 to 256, not {shown(consumer)}")
            )
        return self._write(
            lambda rows: session_ledger.consume(rows, session_id, consumer, position)
        )

    def forget_consumer(self, session_id: str, consumer: str) -> Future[bool]:
        """Drop a named consumer; False if there was none."""
        return self._write(
            lambda rows: session_ledger.forget_consumer(rows, session_id, consumer)
        )

    def pending_sessions(self) -> Future[list[str]]:
        """Ids of the sessions with untaken messages (C6)."""
        return self._read(session_reads.pending_sessions)

    def sessions(self) -> Future[list[SessionInfo]]:
        """All sessions, in key order."""
        return self._read(session_reads.all_heads)

    def delete(self, session_id: str) -> Future[bool]:
        """Remove all of a session and free its id (B22); False if there was none."""

        def prepare() -> Future[bool]:
            _check_session_id(session_id)
            return self._write(lambda rows: session_ledger.delete(rows, session_id))

        return guarded(prepare)

    # -- summaries of conversations --------------------------------------------------------------

    def summary(
        self, conversation_id: str, summarizer: str, epoch: int
    ) -> Future[tuple[int, str] | None]:
        """Watermark and text that a summarizer has stored for a conversation's epoch (F12)."""
        return self._read(
            lambda rows: session_reads.summary(rows, conversation_id, summarizer, epoch)
        )

    def swap_summary(
        self,
        conversation_id: str,
        summarizer: str,
        epoch: int,
        before: int,
        after: tuple[int, str],
    ) -> Future[tuple[int, str]]:
        """Store a summary if the watermark still is `before`; what is stored then (F12)."""
        kept = (after[0], str(copy_plain(after[1])))
        return self._write(
            lambda rows: session_reads.swap_summary(
                rows, conversation_id, summarizer, epoch, before, kept
            )
        )

    def _ask(self, session_id: str, work: Callable[[Rows, str], T]) -> Future[T]:
        def prepare() -> Future[T]:
            _check_session_id(session_id)
            return self._read(lambda rows: work(rows, session_id))

        return guarded(prepare)


def check_key(key: object) -> None:
    """Raise InvalidValue unless `key` is None or a str of 1 to 256 characters (B11)."""
    if key is None:
        return
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY:
        raise InvalidValue(f"an idempotency key is a str of 1 to 256 characters, not {shown(key)}")
    copy_plain(key)


def _check_session_id(session_id: object) -> None:
    conversation_key(session_id)  # the rules for ids are those of conversations


def _check_count(value: object, name: str) -> None:
    if type(value) is not int or value < 0:
        raise InvalidValue(f"{name} must be an int of 0 or more, not {shown(value)}")


def _birth() -> str:
    return secrets.token_hex(6)
