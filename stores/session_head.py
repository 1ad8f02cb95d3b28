"""The head row of a session: everything small that its operations need at once.

It is rewritten by every operation, so it holds counters and names only; carriers, payloads and
events have rows of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from .conversation_id import conversation_key
from .errors import DamagedStore
from .session_errors import SessionFenced
from .session_rows import HEAD_ROW, NUMBERS, Rows, pack, unpack
from .session_state import (
    DEDUPE_WINDOW,
    DEFAULT_TENANT,
    RETAIN_EVENTS,
    SessionInfo,
    SessionSettings,
)


@dataclass(slots=True)
class Head:
    """The counters of one session, as its row holds them; the fields are those of SessionInfo.

    `number`: the session in row keys. `oldest_revision`: the first cursor retained. `keyed`: keys
    remembered by channel. `suspect`, `deliveries`: the message that was first when an owner died,
    and how often it has been taken up again (B18). Invariants: `taken` <= `accepted`; events
    `oldest_event`…`position` have rows; revisions `oldest_revision`…`cursor` have rows.
    """

    session_id: str
    number: int
    birth: str
    epoch: int = 0
    cursor: int = 0
    oldest_revision: int = 1
    position: int = 0
    oldest_event: int = 1
    accepted: int = 0
    taken: int = 0
    inbound: dict[str, int] = field(default_factory=dict)
    keyed: dict[str, int] = field(default_factory=dict)
    last_letter: int = 0
    letters: int = 0
    suspect: int = 0
    deliveries: int = 0
    closing: bool = False
    closed: bool = False
    reason: str | None = None
    explicit: bool = False
    unprocessed: int = 0
    consumers: dict[str, int] = field(default_factory=dict)
    retain_events: int = RETAIN_EVENTS
    dedupe_window: int = DEDUPE_WINDOW
    tenant: str = DEFAULT_TENANT

    def info(self) -> SessionInfo:
        """What readers are shown."""
        return SessionInfo(
            self.session_id, True, self.epoch, self.cursor, self.position, self.oldest_event,
            self.accepted, self.taken, dict(self.inbound), self.letters, self.closing, self.closed,
            self.reason, self.unprocessed, dict(self.consumers),
            SessionSettings(self.retain_events, self.dedupe_window, self.tenant), self.birth,
        )  # fmt: skip


_fields_of = attrgetter(*Head.__dataclass_fields__)


def head_key(session_id: str) -> bytes:
    """The key of a head row. Raises `InvalidConversationId`: session ids follow the same rules."""
    return HEAD_ROW + conversation_key(session_id)


def read_head(rows: Rows, session_id: str) -> Head | None:
    """The head of a session, None if there is none. Raises DamagedStore."""
    value = rows.get(head_key(session_id))
    if value is None:
        return None
    head = decode_head(value)
    if head.session_id != session_id:
        raise DamagedStore("sessions", "two session ids share one key", conversation_id=session_id)
    return head


def decode_head(value: bytes) -> Head:
    """The head in a row's value. Raises DamagedStore."""
    try:
        return Head(*unpack(value))
    except (ValueError, TypeError) as problem:
        raise DamagedStore("sessions", f"a session's head cannot be read ({problem})") from problem


def write_head(rows: Rows, head: Head) -> None:
    """Store the head."""
    rows.put(head_key(head.session_id), pack(_fields_of(head)))


def create_head(rows: Rows, session_id: str, birth: str) -> Head:
    """The head of a new session; not stored yet."""
    known = rows.get(NUMBERS)
    number = (unpack(known) if known is not None else 0) + 1
    rows.put(NUMBERS, pack(number))
    return Head(session_id, number, birth)


def owned_head(rows: Rows, session_id: str, epoch: int) -> Head:
    """The head of a session whose owner has this epoch. Raises SessionFenced (C7)."""
    head = read_head(rows, session_id)
    if head is None or head.epoch != epoch:
        raise SessionFenced(session_id, epoch, head.epoch if head is not None else 0)
    return head
