"""What a session store keeps of a session, and what its operations are given and answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from .plain import Plain
from .record import NewRecord
from .session_event import SessionEvent


class HeadCursor:
    """Type of `HEAD`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "HEAD"


HEAD: Final = HeadCursor()
"""The cursor that stands for the newest revision in `load` and `load_value`."""

Outcome = Literal["pending", "done", "failed", "cancelled", "closed"]
"""What became of an accepted message (B11)."""

RETAIN_REVISIONS: Final = 16
RETAIN_EVENTS: Final = 10_000
DEDUPE_WINDOW: Final = 10_000
DEAD_LETTERS: Final = 1_000
DEFAULT_TENANT: Final = "default"


@dataclass(frozen=True, slots=True)
class SessionState:
    """One revision of a session: its carrier, and the counters that go with it.

    `turn`: finished turns. `position`: of the last event. `sequences`: the last output seq of each
    channel. `consecutive_errors`: failed turns since the last good one. Rules: C1, C8, C11.
    """

    carrier: Plain = None
    turn: int = 0
    position: int = 0
    sequences: Mapping[str, int] = field(default_factory=dict)
    consecutive_errors: int = 0


class Claim(NamedTuple):
    """The right to commit, until the next claim. `birth` tells apart lives of one session id."""

    epoch: int
    cursor: int
    birth: str = ""


class Ack(NamedTuple):
    """An accepted message. `duplicate`: it was accepted before under its key (B9, B11)."""

    channel: str
    seq: int
    duplicate: bool = False
    outcome: Outcome = "pending"


class Admission(NamedTuple):
    """What `accept` applies after the look-up of the key, in the order of B9.

    `fault`: what is wrong with the payload (type, size), or None. `capacity`: of the channel, None
    for no bound. `running`: the order of the message whose turn runs, which does not count (B12).
    """

    capacity: int | None = None
    fault: Exception | None = None
    running: int = 0


class StoredOutcome(NamedTuple):
    """What a key remembers of its message's turn (B9a)."""

    outcome: Outcome
    outputs: list[Plain]
    error: str | None


@dataclass(frozen=True, slots=True)
class LogRecords:
    """Records that a finished turn adds to a conversation's log, in its own transaction (E7).

    Nothing is added, and the turn is none the worse, if the conversation's epoch is not `epoch`
    any more (None: not checked). `blobs`: refs that the records mention; the conversation holds
    them until it is cleared (C16).
    """

    conversation_id: str
    records: tuple[NewRecord, ...]
    append_id: str
    epoch: int | None = None
    blobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter to be written; the store gives it its id and its time."""

    outcome: str
    error: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class TurnWrites:
    """All that a finished turn writes beside its state: with the commit, or not at all (C1).

    `epoch`: of the owner's claim. `taken`: the order of the message, None if there was none.
    `outcome`, `outputs`, `error`: for the message's key. `events`: with positions, contiguous.
    `letter`: the message goes to the dead letters. `log`: see LogRecords. `closes`: the reason for
    which the session ends with this turn; what is untaken then goes to the dead letters. A reason
    that is not `explicit` gives way to one that was given before (B21).
    """

    epoch: int
    taken: int | None = None
    outcome: Outcome = "done"
    outputs: tuple[Plain, ...] = ()
    error: str | None = None
    events: tuple[SessionEvent, ...] = ()
    letter: Letter | None = None
    log: LogRecords | None = None
    closes: str | None = None
    explicit: bool = True


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What the owner of a session decides for the store, at its claim.

    `retain_events`, `dedupe_window`: B8, B11. `tenant`: of the blobs it may hold.
    """

    retain_events: int = RETAIN_EVENTS
    dedupe_window: int = DEDUPE_WINDOW
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What a store knows of a session without reading its data.

    `accepted` and `taken` are orders of messages: those between are pending. `position`: of the
    last event, `oldest_event` the first one kept. `closing` and `closed` say that it refuses
    messages, and that it has ended; `reason` why. `consumers`: names and durable positions.
    """

    session_id: str
    exists: bool = False
    epoch: int = 0
    cursor: int = 0
    position: int = 0
    oldest_event: int = 1
    accepted: int = 0
    taken: int = 0
    inbound: Mapping[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    closing: bool = False
    closed: bool = False
    reason: str | None = None
    unprocessed: int = 0
    consumers: Mapping[str, int] = field(default_factory=dict)
    settings: SessionSettings = field(default_factory=SessionSettings)
    birth: str = ""

    @property
    def pending(self) -> int:
        """Accepted messages that no turn has finished with."""
        return self.accepted - self.taken
