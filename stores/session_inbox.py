"""The inbox of a session: messages accepted, taken, and set aside as dead letters (B9…B19).

Pure over `Rows`, as `session_ledger` is. A message is accepted under an order that counts over all
channels, stays in the inbox until the commit that takes it, and leaves its outcome with its
idempotency key.
"""

from __future__ import annotations

from hashlib import sha256

from . import blob_ledger
from .errors import shown
from .plain import Plain, canonical_json
from .session_errors import ChannelFull, IdempotencyConflict, NotFound, SessionClosed
from .session_head import Head, create_head, owned_head, read_head, write_head
from .session_rows import (
    INBOX,
    KEY,
    KEY_ORDER,
    LETTER,
    PENDING_ROW,
    Rows,
    pack,
    place_key,
    prefix,
    short_hash,
    span,
    unpack,
)
from .session_state import DEAD_LETTERS, Ack, Admission, Letter, TurnWrites


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
        head.number = create_head(rows, session_id, birth).number
    seq = _enter(rows, head, channel, payload, encoded, name, token)
    if key is not None:
        rows.put(
            prefix(KEY, head.number) + name,
            pack((channel, key, seq, head.accepted, digest, "pending", None, None)),
        )
        rows.put(_order_key(head.number, channel, seq), name)
        head.keyed[channel] = head.keyed.get(channel, 0) + 1
        trim_keys(rows, head, channel)
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


def trim_keys(rows: Rows, head: Head, channel: str) -> None:
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
    head = owned_head(rows, session_id, epoch)
    head.suspect, head.deliveries = order, deliveries
    write_head(rows, head)


def take(
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
    blob_ledger.drop(rows, place)


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
            blob_ledger.drop(rows, key)
            head.letters -= 1
            break


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
    blob_ledger.drop(rows, place)
    head.letters -= 1
    write_head(rows, head)
    return Ack(channel, seq)
