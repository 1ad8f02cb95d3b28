"""What the operations of a session store do to rows (C1…C12). One transaction each.

Pure over `Rows`: no clock, no I/O, no waiting. Whatever is refused is refused before the first row
is changed, so that an operation that fails inside a shared transaction leaves its neighbours alone.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

from ..actors.errors import InvalidValue
from . import blob_ledger, session_inbox
from .errors import shown
from .plain import canonical_json
from .session_errors import (
    FingerprintMismatch,
    NotFound,
    SessionCursorConflict,
    SessionFenced,
)
from .session_event import SessionEvent
from .session_head import Head, create_head, head_key, owned_head, read_head, write_head
from .session_reads import state_of
from .session_rows import (
    EVENTS,
    OWN_KINDS,
    PENDING_ROW,
    REVISION,
    Rows,
    pack,
    place_key,
    place_of,
    prefix,
    short_hash,
    span,
    unpack,
)
from .session_state import (
    DEFAULT_TENANT,
    Claim,
    Letter,
    SessionInfo,
    SessionSettings,
    SessionState,
    TurnWrites,
)

MAX_CONSUMERS = 1_000
"""Most named consumers of a session: their positions are part of its head row."""


class EncodedState(NamedTuple):
    """A revision on its way into the table; `carrier` is its canonical JSON."""

    state: SessionState
    carrier: bytes
    fingerprint: str
    mentions_blobs: bool


def encode_state(state: SessionState, fingerprint: str | None) -> EncodedState:
    """Check and encode a state whose carrier is plain; raises FingerprintMismatch (C10)."""
    carrier = canonical_json(state.carrier)
    actual = sha256(carrier).hexdigest()
    if fingerprint is not None and fingerprint != actual:
        raise FingerprintMismatch(str(fingerprint), actual)
    return EncodedState(state, carrier, actual, b'"$blob"' in carrier)


# -- sessions ----------------------------------------------------------------------------------


def claim(rows: Rows, session_id: str, settings: SessionSettings | None, birth: str) -> Claim:
    """Raise the epoch, creating the session if need be (C7)."""
    head = read_head(rows, session_id) or create_head(rows, session_id, birth)
    head.epoch += 1
    if settings is not None:
        head.retain_events, head.dedupe_window = settings.retain_events, settings.dedupe_window
        head.tenant = settings.tenant
    first = head.taken + 1 if head.accepted > head.taken else 0
    if head.suspect != first:
        head.suspect, head.deliveries = first, 0
    write_head(rows, head)
    return Claim(head.epoch, head.cursor, head.birth)


def delete(rows: Rows, session_id: str) -> bool:
    """Remove all of a session and free its id; False if there was none (B22)."""
    head = read_head(rows, session_id)
    if head is None:
        return False
    for kind in OWN_KINDS:
        for key, _ in list(rows.scan(*span(kind, head.number))):
            blob_ledger.release(rows, short_hash(key))
            rows.delete(key)
    rows.delete(prefix(PENDING_ROW, head.number))
    rows.delete(head_key(session_id))
    return True


# -- commits -----------------------------------------------------------------------------------


def commit(
    rows: Rows,
    session_id: str,
    base: int,
    encoded: EncodedState,
    writes: TurnWrites | None,
    *,
    retain_revisions: int,
    now: float,
    birth: str,
    keep_counters: bool = False,
) -> int:
    """Commit a revision on `base`, with all that its turn writes; the new cursor (C1, C7…C9, C12).

    `keep_counters`: the state brings a carrier only, its counters are those of the head.
    """
    head = read_head(rows, session_id)
    if writes is not None and (head is None or head.epoch != writes.epoch):
        raise SessionFenced(session_id, writes.epoch, head.epoch if head is not None else 0)
    at = head.cursor if head is not None else 0
    if head is not None and base < at:
        row = rows.get(place_key(REVISION, head.number, base + 1))
        if row is not None and unpack(row)[0] == encoded.fingerprint:
            return base + 1
    if base != at:
        raise SessionCursorConflict(session_id, base, at)
    tenant = head.tenant if head is not None else DEFAULT_TENANT
    if encoded.mentions_blobs:
        blob_ledger.check_all(rows, tenant, encoded.state.carrier)
    if writes is not None:
        _check_writes(rows, head, writes)
    if head is None:
        head = create_head(rows, session_id, birth)
    state = encoded.state
    if keep_counters and at:
        before = rows.get(place_key(REVISION, head.number, at))
        assert before is not None  # the head's revision always stays
        state = replace(state_of(unpack(before)), carrier=state.carrier)
    head.cursor = at + 1
    place = place_key(REVISION, head.number, head.cursor)
    rows.put(place, pack((
        encoded.fingerprint, state.carrier, state.turn, state.position, dict(state.sequences),
        state.consecutive_errors,
    )))  # fmt: skip
    if encoded.mentions_blobs:
        blob_ledger.hold_all(rows, head.tenant, state.carrier, short_hash(place))
    while head.cursor - head.oldest_revision >= retain_revisions:
        blob_ledger.drop(rows, place_key(REVISION, head.number, head.oldest_revision))
        head.oldest_revision += 1
    if writes is not None:
        _write_turn(rows, head, state, writes, now)
    write_head(rows, head)
    return head.cursor


def _check_writes(rows: Rows, head: Head | None, writes: TurnWrites) -> None:
    assert head is not None  # its epoch was compared
    if writes.taken is not None and writes.taken != head.taken + 1:
        raise InvalidValue(
            f"message {writes.taken} cannot be taken: the next one of "
            f"{shown(head.session_id)} is {head.taken + 1}"
        )
    for ref in writes.log.blobs if writes.log is not None else ():
        blob_ledger.check_all(rows, head.tenant, {"$blob": ref})
    expected = head.position + 1
    for event in writes.events:
        if event.position != expected:
            raise InvalidValue(f"event position {event.position} given, {expected} is the next one")
        expected += 1
        if event.payload is not None:
            blob_ledger.check_all(rows, head.tenant, event.payload)


def _write_turn(
    rows: Rows, head: Head, state: SessionState, writes: TurnWrites, now: float
) -> None:
    if writes.taken is not None:
        session_inbox.take(rows, head, writes.taken, writes, state.turn, now)
        head.taken = writes.taken
        if head.taken == head.accepted:
            rows.delete(prefix(PENDING_ROW, head.number))
        for channel in head.keyed:
            session_inbox.trim_keys(rows, head, channel)
    _add_events(rows, head, writes.events)
    if writes.log is not None and writes.log.blobs:
        blob_ledger.hold_for_records(
            rows, head.tenant, writes.log.blobs, writes.log.conversation_id, writes.log.epoch or 0
        )
    if writes.closes is not None:
        if writes.outcome == "cancelled":
            head.unprocessed += 1
        _finish(rows, head, writes.closes if writes.explicit else None, now, writes.closes)


def _add_events(rows: Rows, head: Head, events: tuple[SessionEvent, ...]) -> None:
    if not events:
        return
    place = place_key(EVENTS, head.number, head.position + 1)
    rows.put(place, pack([event.to_row() for event in events]))
    head.position += len(events)
    for event in events:
        if event.payload is not None:
            blob_ledger.hold_all(rows, head.tenant, event.payload, short_hash(place))
    _trim_events(rows, head)


def _trim_events(rows: Rows, head: Head) -> None:
    """Drop what is neither among the newest nor unread by a named consumer (B8)."""
    keep_after = min([head.position - head.retain_events, *head.consumers.values()])
    if keep_after < head.oldest_event:
        return
    stale: list[bytes] = []
    for key, _ in rows.scan(*span(EVENTS, head.number)):
        first = place_of(key)
        if first > keep_after + 1:
            break
        head.oldest_event = first
        stale.append(key)
    # The row that holds the first event to keep stays, with what came in the same commit.
    for key in stale[:-1]:
        blob_ledger.drop(rows, key)


# -- the end of a session ------------------------------------------------------------------------


def seal(rows: Rows, session_id: str, reason: str | None) -> SessionInfo:
    """Refuse messages from now on; an explicit reason wins over the default (B21)."""
    head = read_head(rows, session_id)
    if head is None:
        raise NotFound(f"session {shown(session_id)}")
    if not head.closed:
        _give_reason(head, reason)
        head.closing = True
        write_head(rows, head)
    return head.info()


def finish(
    rows: Rows, session_id: str, epoch: int, reason: str | None, now: float, error: str | None
) -> SessionInfo:
    """End the session: untaken messages become dead letters, `closed` is its last event (B4).

    `error`: a fatal error that belongs to no turn; its event comes before.
    """
    head = owned_head(rows, session_id, epoch)
    if not head.closed:
        if error is not None:
            failure = SessionEvent("error", head.position + 1, reason=error, fatal=True)
            _add_events(rows, head, (failure,))
        _finish(rows, head, reason, now)
        write_head(rows, head)
    return head.info()


def _give_reason(head: Head, reason: str | None, default: str = "closed") -> None:
    if reason is not None and not head.explicit:
        head.reason, head.explicit = reason, True
    elif head.reason is None:
        head.reason = default


def _finish(
    rows: Rows, head: Head, reason: str | None, now: float, default: str = "closed"
) -> None:
    _give_reason(head, reason, default)
    left = TurnWrites(head.epoch, outcome="closed", error=head.reason, letter=Letter("closed"))
    for order in range(head.taken + 1, head.accepted + 1):
        session_inbox.take(rows, head, order, left, None, now)
        head.unprocessed += 1
    head.taken = head.accepted
    rows.delete(prefix(PENDING_ROW, head.number))
    head.closing = head.closed = True
    _add_events(
        rows, head, (SessionEvent("closed", head.position + 1, reason=head.reason),)
    )


# -- consumers --------------------------------------------------------------------------------


def consume(rows: Rows, session_id: str, consumer: str, position: int | None) -> int:
    """Move a named consumer to `position`, or begin one; its durable position (B7).

    A new one starts behind what has been trimmed. It never moves back.
    """
    head = read_head(rows, session_id)
    if head is None:
        raise NotFound(f"session {shown(session_id)}")
    known = head.consumers.get(consumer)
    if known is None and len(head.consumers) >= MAX_CONSUMERS:
        raise InvalidValue(f"{shown(session_id)} has 1,000 named consumers: forget some first")
    moved = max(known if known is not None else head.oldest_event - 1, position or 0)
    if moved > head.position:
        raise InvalidValue(f"consumer {shown(consumer)}: position {moved} is beyond the last event")
    if moved != known:
        head.consumers[consumer] = moved
        _trim_events(rows, head)
        write_head(rows, head)
    return moved


def forget_consumer(rows: Rows, session_id: str, consumer: str) -> bool:
    """Drop a named consumer's position; False if there was none (B7)."""
    head = read_head(rows, session_id)
    if head is None or head.consumers.pop(consumer, None) is None:
        return False
    _trim_events(rows, head)
    write_head(rows, head)
    return True
