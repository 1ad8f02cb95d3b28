"""What becomes of a message that arrives while a turn runs: a pure decision (BZ-1…4)."""

from __future__ import annotations

from typing import Final, Literal

OnBusy = Literal["queue", "reject", "interrupt", "latest"]
ON_BUSY: Final[tuple[OnBusy, ...]] = ("queue", "reject", "interrupt", "latest")

Admission = Literal["start", "wait", "refuse", "interrupt", "replace"]
"""start: nothing is in the way. wait: behind those that wait. refuse: Busy. interrupt: cancel the
running turn, supersede those that wait, be next. replace: supersede those that wait, be next."""


def admit(on_busy: OnBusy, *, running: bool, waiting: int, max_queue: int) -> Admission:
    """Decide for one message, in the order of the calls.

    `waiting` counts accepted messages whose turn has not begun; "queue" takes up to `max_queue`.
    """
    if not running and not waiting:
        return "start"
    match on_busy:
        case "queue":
            return "wait" if waiting < max_queue else "refuse"
        case "reject":
            return "refuse"
        case "interrupt":
            return "interrupt"
        case "latest":
            return "replace"
