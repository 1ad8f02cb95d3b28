"""What a session's handle answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..stores.plain import Plain
from ..stores.session_state import Outcome


class TurnOutcome(NamedTuple):
    """What became of a message: the out channel's outputs, the error "ValueError: text" (B9a)."""

    outcome: Outcome
    outputs: list[Plain]
    error: str | None = None


class Closed(NamedTuple):
    """How a session ended: why, and how many accepted messages had no turn to its end (B21)."""

    reason: str
    unprocessed: int


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session at one moment (B13).

    `turn`: finished turns. `running`: whether a turn runs. `pending`: accepted messages that wait,
    without the running turn's. `position`: of the last event. `blocked`: the named consumer that
    holds back the next turn, or None. `carrier` is a copy.
    """

    session_id: str
    status: Literal["open", "closing", "closed"]
    carrier: Plain
    cursor: int
    turn: int
    running: bool
    pending: int
    capacity: int
    position: int
    consecutive_errors: int
    dead_letters: int
    blocked: str | None
    close_reason: str | None
