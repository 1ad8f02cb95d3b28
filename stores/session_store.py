"""The protocols of session stores, and what all of keepwell's own have in common (C1…C17).

A session store keeps revisions of a carrier under cursors, with compare-and-swap. A journal keeps
what a live session needs beside them: accepted messages, events, dead letters, the epoch of the
owner. A store written elsewhere may have async methods instead of ones that return Futures, and
may lack the journal: then a session is as durable as its carrier.
"""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from ..actors.derived import then
from ..actors.errors import InvalidValue
from ..actors.future import Future
from . import blob_ledger, session_ledger, session_reads
from .blob_store import MIN_AGE, Collected, check_tenant, parse_ref
from .conversation_id import conversation_key
from .errors import shown
from .plain import Plain, canonical_json, copy_plain
from .session_event import DeadLetter, InboxMessage, SessionEvent
from .session_rows import Rows, short_hash
from .session_state import (
    HEAD,
    RETAIN_REVISIONS,
    Ack,
    Admission,
    Claim,
    HeadCursor,
    LogRecords,
    SessionInfo,
    SessionSettings,
    SessionState,
    StoredOutcome,
    TurnWrites,
)

T = TypeVar("T")
Cursor = int | HeadCursor
Stream = Literal["inbox", "events", "dead_letters"]

MAX_KEY = 256
"""Most characters of an idempotency key (B11)."""


@runtime_checkable
class SessionStore(Protocol):
    """Revisions of sessions. All methods return Futures; a foreign store's may be coroutines.

    A cursor is an int: 0 is the empty session, commits of a session return 1, 2, 3… Rules: C8…C13.
    """

    def load(self, session_id: str, cursor: Cursor = HEAD) -> Any:
        """The SessionState at a cursor: carrier and counters. Raises CursorNotFound."""
        ...

    def commit(
        self,
        session_id: str,
        base: int,
        state: SessionState,
        fingerprint: str | None,
        *,
        writes: TurnWrites | None = None,
    ) -> Any:
        """Commit a state on the head `base`, with all of `writes` or not at all; the new cursor.

        Equal base and fingerprint (`value_fingerprint` of the carrier) as a retained revision's:
        that one's cursor, and nothing is written. Raises SessionCursorConflict, SessionFenced,
        FingerprintMismatch, BlobNotFound, NotPlain.
        """
        ...

    def load_value(self, session_id: str, cursor: Cursor = HEAD) -> Any:
        """The carrier at a cursor."""
        ...

    def commit_value(
        self, session_id: str, base: int, value: Plain, fingerprint: str | None = None
    ) -> Any:
        """Commit a carrier alone; the counters stay. The new cursor."""
        ...

    def put_blob(self, tenant: str, value: Plain) -> Any:
        """Store plain data as a blob of its canonical JSON; the ref."""
        ...

    def get_blob(self, tenant: str, ref: str) -> Any:
        """The plain data of a blob put by `put_blob`."""
        ...


@runtime_checkable
class SessionJournal(Protocol):
    """What lies beside the revisions of a session, in the same transactions."""

    def claim(self, session_id: str) -> Any:
        """Become the owner: Claim(epoch, cursor). Commits under older epochs are fenced (C7)."""
        ...

    def accept(
        self, session_id: str, channel: str, payload: Plain, *, key: str | None = None
    ) -> Any:
        """Accept a message durably: Ack."""
        ...

    def read(self, session_id: str, stream: Stream, *, after: int = 0, limit: int = 100) -> Any:
        """Items of a stream behind `after` (order, position or id), the oldest first."""
        ...


class RowsSessionStore(ABC):
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
        self._wall = wall

    @abstractmethod
    def _write(
        self,
        work: Callable[[Rows], T],
        *,
        log: LogRecords | None = None,
        recover: Callable[[Rows], T | None] | None = None,
    ) -> Future[T]:
        """Run `work` in a write transaction and commit; durable when the future is done.

        `log` is appended to its conversation with it, if `work` succeeds. `recover`: what an
        earlier run of the same work has answered, asked if it is run again after a crash.
        """

    @abstractmethod
    def _read(self, work: Callable[[Rows], T]) -> Future[T]:
        """Run `work` in a read transaction."""

    # -- revisions -----------------------------------------------------------------------------

    def load(self, session_id: str, cursor: Cursor = HEAD) -> Future[SessionState]:
        """See SessionStore."""

        def prepare() -> Future[SessionState]:
            _check_session_id(session_id)
            if not isinstance(cursor, HeadCursor):
                _check_count(cursor, "cursor")
            empty = copy_plain(self._empty)
            return self._read(lambda rows: session_reads.load(rows, session_id, cursor, empty))

        return _guarded(prepare)

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

        return _guarded(prepare)

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

        return _guarded(prepare)

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

        return _guarded(prepare)

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
                lambda rows: session_ledger.accept(
                    rows, session_id, channel, plain, encoded, key, rule, birth, token
                ),
                recover=lambda rows: session_ledger.find_accepted(rows, session_id, token),
            )

        return _guarded(prepare)

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

        return _guarded(prepare)

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
            lambda rows: session_ledger.deliver(rows, session_id, epoch, order, deliveries)
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
                lambda rows: session_ledger.retry(rows, session_id, letter, admission, token),
                recover=lambda rows: session_ledger.find_accepted(rows, session_id, token),
            )

        return _guarded(prepare)

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

        return _guarded(prepare)

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

        return _guarded(prepare)

    # -- blobs ---------------------------------------------------------------------------------

    def put_blob(self, tenant: str, value: Plain) -> Future[str]:
        """See SessionStore. The ref's hash is `value_fingerprint(value)` (C13)."""
        return _guarded(lambda: self.put(tenant, canonical_json(copy_plain(value))))

    def get_blob(self, tenant: str, ref: str) -> Future[Plain]:
        """See SessionStore."""
        return then(self.get(tenant, ref), json.loads)

    def put(self, tenant: str, data: bytes) -> Future[str]:
        """See BlobStore."""

        def prepare() -> Future[str]:
            check_tenant(tenant)
            if not isinstance(data, bytes | bytearray | memoryview):
                raise InvalidValue(f"a blob is bytes, not {shown(data)}: use put_blob for values")
            kept = bytes(data)
            digest, now = sha256(kept).digest(), self._wall()
            return self._write(lambda rows: blob_ledger.put(rows, tenant, kept, digest, now))

        return _guarded(prepare)

    def get(self, tenant: str, ref: str) -> Future[bytes]:
        """See BlobStore."""

        def prepare() -> Future[bytes]:
            parse_ref(check_tenant(tenant), ref)
            return self._read(lambda rows: blob_ledger.get(rows, tenant, ref))

        return _guarded(prepare)

    def hold(self, tenant: str, ref: str, holder: str) -> Future[None]:
        """See BlobStore."""

        def prepare() -> Future[None]:
            parse_ref(check_tenant(tenant), ref)
            name = _holder(holder)
            return self._write(lambda rows: blob_ledger.hold(rows, tenant, ref, name))

        return _guarded(prepare)

    def release(self, holder: str) -> Future[None]:
        """See BlobStore."""

        def prepare() -> Future[None]:
            name = _holder(holder)
            return self._write(lambda rows: blob_ledger.release(rows, name))

        return _guarded(prepare)

    def collect(self, min_age: float = MIN_AGE) -> Future[Collected]:
        """See BlobStore. Goes in steps, so that other writers need not wait for all of it."""
        if type(min_age) not in (int, float) or min_age < 0:
            return Future.failed(
                InvalidValue(f"min_age must be seconds, 0 or more, not {shown(min_age)}")
            )
        before = self._wall() - min_age
        result: Future[Collected] = Future()

        def begin(held: Future[list[tuple[str, int]]]) -> None:
            error = held.error()
            if error is not None:
                result.fail(error)
                return
            cleared = [one for one in held.get() if not self._holds(*one)]
            if cleared:
                done = self._write(partial(blob_ledger.release_records, cleared=cleared))
                done.add_done_callback(begin_collecting)
            else:
                self._collect(b"", before, Collected(0, 0), result)

        def begin_collecting(done: Future[None]) -> None:
            error = done.error()
            if error is not None:
                result.fail(error)
            else:
                self._collect(b"", before, Collected(0, 0), result)

        self._read(blob_ledger.record_holds).add_done_callback(begin)
        return result

    def _holds(self, conversation_id: str, epoch: int) -> bool:
        """Whether records of this epoch of a conversation may still be there; if unknown, True."""
        return True

    def _collect(
        self, after: bytes | None, before: float, total: Collected, result: Future[Collected]
    ) -> None:
        """Go on step by step; a loop where steps are done at once, else from one to the next."""
        while after is not None:
            step = self._write(partial(blob_ledger.collect, after=after, born_before=before))
            if not step.done():
                step.add_done_callback(
                    partial(self._collected, before=before, total=total, result=result)
                )
                return
            error = step.error()
            if error is not None:
                result.fail(error)
                return
            removed, after = step.get()
            total = Collected(total.blobs + removed.blobs, total.bytes + removed.bytes)
        result.complete(total)

    def _collected(
        self, done: Future[Any], before: float, total: Collected, result: Future[Collected]
    ) -> None:
        error = done.error()
        if error is not None:
            result.fail(error)
            return
        removed, after = done.get()
        total = Collected(total.blobs + removed.blobs, total.bytes + removed.bytes)
        self._collect(after, before, total, result)


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


def _holder(holder: object) -> bytes:
    if not isinstance(holder, str) or not holder:
        raise InvalidValue(f"a holder is a non-empty str, not {shown(holder)}")
    return short_hash(b"user", holder.encode("utf-8", "surrogatepass"))


def _birth() -> str:
    return secrets.token_hex(6)


def _guarded(prepare: Callable[[], Future[T]]) -> Future[T]:
    try:
        return prepare()
    except Exception as error:  # noqa: BLE001 - refusals come through the future
        return Future.failed(error)
