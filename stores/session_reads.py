"""Reading sessions out of rows (B6, B19, C6, C8, C11), and the summaries of conversations (F12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .plain import Plain
from .session_errors import CursorNotFound, EventsTrimmed
from .session_event import DeadLetter, InboxMessage, SessionEvent
from .session_head import Head, decode_head, read_head
from .session_rows import (
    EVENTS,
    HEAD_ROW,
    INBOX,
    KEY,
    LETTER,
    PENDING_ROW,
    REVISION,
    SUMMARY,
    Rows,
    pack,
    place_key,
    place_of,
    prefix,
    short_hash,
    span,
    unpack,
)
from .session_state import HEAD, HeadCursor, SessionInfo, SessionState, StoredOutcome


def info(rows: Rows, session_id: str) -> SessionInfo:
    """Counters; `exists=False` for an unknown session."""
    head = read_head(rows, session_id)
    return SessionInfo(session_id) if head is None else head.info()


def next_message(rows: Rows, session_id: str) -> tuple[SessionInfo, InboxMessage | None]:
    """Counters and the next untaken message, of one moment: all that decides what comes next."""
    head = read_head(rows, session_id)
    if head is None:
        return SessionInfo(session_id), None
    order = head.taken + 1  # orders have no gap
    row = rows.get(place_key(INBOX, head.number, order)) if order <= head.accepted else None
    return head.info(), None if row is None else _message(head, order, row)


def pending_sessions(rows: Rows) -> list[str]:
    """Ids of the sessions with untaken messages, the oldest session first (C6)."""
    return [unpack(value) for _, value in rows.scan(PENDING_ROW, PENDING_ROW + b"\xff" * 9)]


# -- reading -----------------------------------------------------------------------------------


def snapshot(rows: Rows, session_id: str) -> tuple[SessionInfo, SessionState]:
    """Counters and newest state, of one moment."""
    return info(rows, session_id), load(rows, session_id, HEAD, None)


def load(rows: Rows, session_id: str, cursor: int | HeadCursor, empty: Plain) -> SessionState:
    """The state at a cursor; HEAD is the newest, 0 the fresh one (C8, C11)."""
    head = read_head(rows, session_id)
    at = head.cursor if head is not None else 0
    wanted = at if isinstance(cursor, HeadCursor) else cursor
    if wanted == 0:
        return SessionState(empty)
    row = rows.get(place_key(REVISION, head.number, wanted)) if head is not None else None
    if row is None:
        raise CursorNotFound(session_id, wanted, head.oldest_revision if at and head else 0)
    return state_of(unpack(row))


def state_of(row: Any) -> SessionState:
    """The state in a revision's row."""
    return SessionState(*row[1:])


def inbox(rows: Rows, session_id: str, after: int, limit: int) -> list[InboxMessage]:
    """Untaken messages behind order `after`, in order of acceptance."""
    head = read_head(rows, session_id)
    if head is None:
        return []
    found: list[InboxMessage] = []
    first = place_key(INBOX, head.number, max(after, head.taken) + 1)
    for key, value in rows.scan(first, span(INBOX, head.number)[1]):
        found.append(_message(head, place_of(key), value))
        if len(found) == limit:
            break
    return found


def _message(head: Head, order: int, row: bytes) -> InboxMessage:
    channel, seq, payload, *_ = unpack(row)
    return InboxMessage(
        order, channel, seq, payload, head.deliveries if order == head.suspect else 0
    )


def events(rows: Rows, session_id: str, after: int, limit: int) -> list[SessionEvent]:
    """Events behind position `after`. Raises EventsTrimmed (B6)."""
    head = read_head(rows, session_id)
    if head is None or after >= head.position:
        return []
    if after < head.oldest_event - 1:
        raise EventsTrimmed(session_id, after, head.oldest_event)
    begin, end = span(EVENTS, head.number)
    start = begin
    for key, _ in rows.scan(begin, place_key(EVENTS, head.number, after + 2), reverse=True):
        start = key  # the row that holds event after + 1
        break
    found: list[SessionEvent] = []
    for _, value in rows.scan(start, end):
        for row in unpack(value):
            if row[1] > after:
                found.append(SessionEvent(*row))
                if len(found) == limit:
                    return found
    return found


def dead_letters(rows: Rows, session_id: str, after: int, limit: int) -> list[DeadLetter]:
    """Dead letters behind id `after`, the oldest first."""
    head = read_head(rows, session_id)
    if head is None:
        return []
    found: list[DeadLetter] = []
    first = place_key(LETTER, head.number, after + 1)
    for key, value in rows.scan(first, span(LETTER, head.number)[1]):
        found.append(DeadLetter(place_of(key), *unpack(value)))
        if len(found) == limit:
            break
    return found


STREAMS: dict[str, Callable[[Rows, str, int, int], list[Any]]] = {
    "inbox": inbox,
    "events": events,
    "dead_letters": dead_letters,
}


def outcome_of(rows: Rows, session_id: str, channel: str, key: str) -> StoredOutcome | None:
    """What a key knows of its message's turn; None if the key is unknown (B9a)."""
    head = read_head(rows, session_id)
    if head is None:
        return None
    row = rows.get(prefix(KEY, head.number) + short_hash(channel.encode(), key.encode()))
    if row is None:
        return None
    _, _, _, _, _, outcome, outputs, error = unpack(row)
    return StoredOutcome(outcome, outputs or [], error)


def all_heads(rows: Rows) -> list[SessionInfo]:
    """Every session, in key order; for listings and checks."""
    return [decode_head(value).info() for _, value in rows.scan(HEAD_ROW, b"T")]


# -- summaries of conversations ------------------------------------------------------------------


def summary(
    rows: Rows, conversation_id: str, summarizer: str, epoch: int
) -> tuple[int, str] | None:
    """Watermark and text of a stored summary, None if there is none for this epoch (F12)."""
    row = rows.get(SUMMARY + short_hash(conversation_id.encode(), summarizer.encode()))
    if row is None:
        return None
    found_epoch, watermark, text = unpack(row)
    return (watermark, text) if found_epoch == epoch else None


def swap_summary(
    rows: Rows,
    conversation_id: str,
    summarizer: str,
    epoch: int,
    before: int,
    after: tuple[int, str],
) -> tuple[int, str]:
    """Store a summary if the watermark still is `before` (0: none); what is stored then (F12)."""
    known = summary(rows, conversation_id, summarizer, epoch)
    if (0 if known is None else known[0]) != before:
        return known or (0, "")
    key = SUMMARY + short_hash(conversation_id.encode(), summarizer.encode())
    rows.put(key, pack((epoch, *after)))
    return after
