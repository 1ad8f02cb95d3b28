"""What the operations of a session store do to rows (C1…C12). One transaction each.

Pure over `Rows`: no clock, no I/O, no waiting. Whatever is refused is refused before the first row
is changed, so that an operation that fails inside a shared transaction leaves its neighbours alone.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

from ..actors.errors import InvalidValue
from . import blob_ledger
from .errors import shown
from .plain import Plain, canonical_json
from .session_errors import (
    ChannelFull,
    FingerprintMismatch,
    IdempotencyConflict,
    NotFound,
    SessionClosed,
    SessionCursorConflict,
    SessionFenced,
)
from .session_event import SessionEvent
from .session_head import Head, head_key, read_head, write_head
from .session_reads import state_of
from .session_rows import (
    EVENTS,
    INBOX,
    KEY,
    KEY_ORDER,
    LETTER,
    NUMBERS,
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
    DEAD_LETTERS,
    DEFAULT_TENANT,
    Ack,
    Admission,
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
    head = read_head(rows, session_id) or _create(rows, session_id, birth)
    head.epoch += 1
    if settings is not None:
        head.retain_events, head.dedupe_window = settings.retain_events, settings.dedupe_window
        head.tenant = settings.tenant
    first = head.taken + 1 if head.accepted > head.taken else 0
    if head.suspect != first:
        head.suspect, head.deliveries = first, 0
    write_head(rows, head)
    return Claim(head.epoch, head.cursor, head.birth)


def _create(rows: Rows, session_id: str, birth: str) -> Head:
    known = rows.get(NUMBERS)
    number = (unpack(known) if known is not None else 0) + 1
    rows.put(NUMBERS, pack(number))
    return Head(session_id, number, birth)


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


def _owned(rows: Rows, session_id: str, epoch: int) -> Head:
    head = read_head(rows, session_id)
    if head is None or head.epoch != epoch:
        raise SessionFenced(session_id, epoch, head.epoch if head is not None else 0)
    return head


# -- the inbox ---------------------------------------------------------------------------------


def accept(
    rows: Rows,
    session_id: str,
    channel: str,
    payload: Plain,
    encoded: bytes,
    key: str | None,
    admission: Admission,
    birth: str,
    token: bytes,
) -> Ack:
    """Accept a message, or answer what its key knows; checks in the order of B9. Rules: B9…B12.

    `token`: names this request; `find_accepted` finds by it what an earlier run has accepted.
    """
    head = read_head(rows, session_id)
    digest = sha256(encoded).digest()
    name = b"" if key is None else short_hash(channel.encode(), key.encode())
    if key is not None and head is not None:
        known = rows.get(prefix(KEY, head.number) + name)
        if known is not None:
            row = unpack(known)
            if row[0] != channel or row[1] != key or row[4] != digest:
                raise IdempotencyConflict(channel, key)
            return Ack(channel, row[2], True, row[5])
    if head is not None and (head.closing or head.closed):
        raise SessionClosed(head.reason or "closed", session_id=session_id)
    if admission.fault is not None:
        raise admission.fault
    if head is None:
        head = Head(session_id, 0, birth)
    _check_room(head, channel, admission)
    if b'"$blob"' in encoded:
        blob_ledger.check_all(rows, head.tenant, payload)
    if not head.number:
        head.number = _create(rows, session_id, birth).number
    seq = _enter(rows, head, channel, payload, encoded, name, token)
    if key is not None:
        rows.put(
            prefix(KEY, head.number) + name,
            pack((channel, key, seq, head.accepted, digest, "pending", None, None)),
        )
        rows.put(_order_key(head.number, channel, seq), name)
        head.keyed[channel] = head.keyed.get(channel, 0) + 1
        _trim_keys(rows, head, channel)
    write_head(rows, head)
    return Ack(channel, seq)


def _check_room(head: Head, channel: str, admission: Admission) -> None:
    pending = head.accepted - max(head.taken, admission.running)
    if admission.capacity is not None and pending >= admission.capacity:
        raise ChannelFull(channel, admission.capacity, pending)


def find_accepted(rows: Rows, session_id: str, token: bytes) -> Ack | None:
    """What the request `token` has accepted, if it was committed; None if it was not.

    Asked when a request is sent again after a crash of the store, before anyone could take the
    message: it is still in the inbox then.
    """
    head = read_head(rows, session_id)
    if head is not None:
        for _, value in rows.scan(*span(INBOX, head.number), reverse=True):
            row = unpack(value)
            if row[4] == token:
                return Ack(row[0], row[1])
    return None


def _enter(
    rows: Rows, head: Head, channel: str, payload: Plain, encoded: bytes, name: bytes, token: bytes
) -> int:
    seq = head.inbound.get(channel, 0) + 1
    head.inbound[channel] = seq
    head.accepted += 1
    if head.accepted == head.taken + 1:
        rows.put(prefix(PENDING_ROW, head.number), pack(head.session_id))
    place = place_key(INBOX, head.number, head.accepted)
    rows.put(place, pack((channel, seq, payload, name, token)))
    if b'"$blob"' in encoded:
        blob_ledger.hold_all(rows, head.tenant, payload, short_hash(place))
    return seq


def _order_key(number: int, channel: str, seq: int) -> bytes:
    return prefix(KEY_ORDER, number) + short_hash(channel.encode()) + seq.to_bytes(8, "big")


def _trim_keys(rows: Rows, head: Head, channel: str) -> None:
    """Forget the oldest keys beyond the window, but never one whose message is untaken (B11)."""
    count = head.keyed.get(channel, 0)
    if count <= head.dedupe_window:
        return
    first = prefix(KEY_ORDER, head.number) + short_hash(channel.encode())
    stale: list[bytes] = []
    for place, name in rows.scan(first, first + b"\xff" * 9):
        if count <= head.dedupe_window:
            break
        key = prefix(KEY, head.number) + name
        row = rows.get(key)
        if row is not None and unpack(row)[3] > head.taken:
            break
        stale += (place, key)
        count -= 1
    for key in stale:
        blob_ledger.release(rows, short_hash(key))
        rows.delete(key)
    head.keyed[channel] = count


def deliver(rows: Rows, session_id: str, epoch: int, order: int, deliveries: int) -> None:
    """Note how often a message has been taken up again after its owner's death (B18)."""
    head = _owned(rows, session_id, epoch)
    head.suspect, head.deliveries = order, deliveries
    write_head(rows, head)


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
        head = _create(rows, session_id, birth)
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
        _drop(rows, place_key(REVISION, head.number, head.oldest_revision))
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
        _take(rows, head, writes.taken, writes, state.turn, now)
        head.taken = writes.taken
        if head.taken == head.accepted:
            rows.delete(prefix(PENDING_ROW, head.number))
        for channel in head.keyed:
            _trim_keys(rows, head, channel)
    _add_events(rows, head, writes.events)
    if writes.log is not None and writes.log.blobs:
        blob_ledger.hold_for_records(
            rows, head.tenant, writes.log.blobs, writes.log.conversation_id, writes.log.epoch or 0
        )
    if writes.closes is not None:
        if writes.outcome == "cancelled":
            head.unprocessed += 1
        _finish(rows, head, writes.closes if writes.explicit else None, now, writes.closes)


def _take(
    rows: Rows, head: Head, order: int, writes: TurnWrites, turn: int | None, now: float
) -> None:
    """Remove a message from the inbox: its outcome goes to its key, the message to the letters."""
    place = place_key(INBOX, head.number, order)
    row = rows.get(place)
    if row is None:
        raise NotFound(f"message {order} of session {shown(head.session_id)}")
    channel, seq, payload, name, _ = unpack(row)
    if name:
        key = prefix(KEY, head.number) + name
        known = rows.get(key)
        if known is not None:
            outputs = list(writes.outputs)
            rows.put(key, pack((*unpack(known)[:5], writes.outcome, outputs, writes.error)))
            blob_ledger.hold_all(rows, head.tenant, outputs, short_hash(key))
    if writes.letter is not None:
        _add_letter(rows, head, channel, seq, payload, turn, writes.letter, now)
    _drop(rows, place)


def _add_letter(
    rows: Rows, head: Head, channel: str, seq: int, payload: Plain, turn: int | None,
    letter: Letter, now: float,
) -> None:  # fmt: skip
    head.last_letter += 1
    head.letters += 1
    place = place_key(LETTER, head.number, head.last_letter)
    rows.put(place, pack((
        channel, seq, payload, turn, letter.outcome, letter.error, letter.traceback, now,
    )))  # fmt: skip
    blob_ledger.hold_all(rows, head.tenant, payload, short_hash(place))
    if head.letters > DEAD_LETTERS:
        for key, _ in rows.scan(*span(LETTER, head.number)):
            _drop(rows, key)
            head.letters -= 1
            break


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
        _drop(rows, key)


def _drop(rows: Rows, place: bytes) -> None:
    """Remove a row and let go of the blobs that it mentions; nearly always there are none."""
    value = rows.get(place)
    if value is not None and b"$blob" in value:
        blob_ledger.release(rows, short_hash(place))
    rows.delete(place)


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
    head = _owned(rows, session_id, epoch)
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
        _take(rows, head, order, left, None, now)
        head.unprocessed += 1
    head.taken = head.accepted
    rows.delete(prefix(PENDING_ROW, head.number))
    head.closing = head.closed = True
    _add_events(
        rows, head, (SessionEvent("closed", head.position + 1, reason=head.reason),)
    )


# -- letters and consumers -----------------------------------------------------------------------


def retry(
    rows: Rows, session_id: str, letter_id: int, admission: Admission, token: bytes
) -> Ack:
    """Accept a dead letter again, under a new seq; the letter is gone then (B19)."""
    head = read_head(rows, session_id)
    place = place_key(LETTER, head.number, letter_id) if head is not None else b""
    row = rows.get(place) if head is not None else None
    if head is None or row is None:
        raise NotFound(f"dead letter {letter_id} of session {shown(session_id)}")
    if head.closing or head.closed:
        raise SessionClosed(head.reason or "closed", session_id=session_id)
    channel, _, payload, *_ = unpack(row)
    _check_room(head, channel, admission)
    seq = _enter(rows, head, channel, payload, canonical_json(payload), b"", token)
    _drop(rows, place)
    head.letters -= 1
    write_head(rows, head)
    return Ack(channel, seq)


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
