"""What happens in a session, as its readers see it (B1…B5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from .plain import Plain

EventKind = Literal["turn_started", "emit", "turn_done", "error", "closed", "progress"]


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """One event. Unused fields are None.

    `position` counts 1, 2, 3… over all events of a session, across restarts; a `progress` event has
    none, it is shown to live readers and not stored. `seq` counts per channel and direction:
    `turn_started` and `turn_done` carry that of the message, `emit` that of the output. `payload`
    belongs to the reader. `fatal` is True on the error that ends a session. Rules: B1…B5, A16.
    """

    kind: EventKind
    position: int | None = None
    turn: int | None = None
    channel: str | None = None
    seq: int | None = None
    payload: Plain = None
    reason: str | None = None
    fatal: bool | None = None

    def is_emit(self) -> bool:
        """Whether it is an output of a finished turn."""
        return self.kind == "emit"

    def is_turn(self) -> bool:
        """Whether it is the start or the good end of a turn."""
        return self.kind in ("turn_started", "turn_done")

    def is_error(self) -> bool:
        """Whether a turn failed."""
        return self.kind == "error"

    def is_closed(self) -> bool:
        """Whether it is the last event of the session."""
        return self.kind == "closed"

    def to_row(self) -> tuple[Plain, ...]:
        """Its fields in order, for a stored row."""
        return (
            self.kind, self.position, self.turn, self.channel, self.seq, self.payload, self.reason,
            self.fatal,
        )  # fmt: skip


class DeadLetter(NamedTuple):
    """A message whose turn did not end well (B19).

    `outcome` is failed, cancelled, crashed or closed; `turn` None if none was begun for it;
    `error` reads "ValueError: text"; `time` is seconds since 1970, UTC.
    """

    id: int
    channel: str
    seq: int
    payload: Plain
    turn: int | None
    outcome: str
    error: str | None
    traceback: str | None
    time: float


class InboxMessage(NamedTuple):
    """An accepted message that no turn has finished with.

    `order` counts the accepted messages of the session over all channels, `seq` those of its
    channel; `deliveries` is how often it was taken up again after its owner had died (B18).
    """

    order: int
    channel: str
    seq: int
    payload: Plain
    deliveries: int = 0
