"""What a session does next, as a table: no clock, no I/O, no actor (B8, B12, B21, C5, C6)."""

from __future__ import annotations

from enum import Enum

from ..stores.session_state import SessionInfo


class Step(Enum):
    """What comes next between two turns."""

    TAKE = "take"  # run the turn of the next message
    WAIT = "wait"  # for a message, a reader, a close
    CLOSE = "close"  # end the session


def next_step(info: SessionInfo, *, cut: bool, over: bool) -> Step:
    """The next step of a session between turns.

    `cut`: the time to work off what was accepted is over. `over`: the body has ended by itself.
    """
    if over or cut:
        return Step.CLOSE
    if info.pending:
        return Step.WAIT if blocking(info) is not None else Step.TAKE
    return Step.CLOSE if info.closing else Step.WAIT


def blocking(info: SessionInfo) -> str | None:
    """The named consumer that is so far behind that no turn may begin, the furthest first (B8)."""
    late = [
        (position, name)
        for name, position in info.consumers.items()
        if info.position - position >= info.settings.retain_events
    ]
    return min(late)[1] if late else None
