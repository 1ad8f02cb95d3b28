"""What a session does next, and what a turn commits, as tables (A9…A20, B3, B8, B15…B21)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from keepwell.sessions import SessionClosed, SessionTurnError
from keepwell.sessions.session_step import Step, blocking, next_step
from keepwell.sessions.turn_result import (
    Cancelled,
    Crashed,
    Failed,
    Good,
    Rules,
    Stopped,
    result_of,
    settle,
)
from keepwell.stores import StoreUnavailable
from keepwell.stores.session_event import InboxMessage
from keepwell.stores.session_state import SessionInfo, SessionSettings, SessionState

STATE = SessionState({"n": 1}, turn=4, position=20, sequences={"out": 7}, consecutive_errors=2)
MESSAGE = InboxMessage(5, "in", 5, "hello")
RULES = Rules("out", 3)

ENDINGS: list[tuple[Any, str, list[str], str | None, int, str | None]] = [
    # result, outcome, events after the start, letter, errors in a row, closes
    (Good("new"), "done", ["turn_done"], None, 0, None),
    (Good("new", [("out", 1), ("log", 2)]), "done", ["emit", "emit", "turn_done"], None, 0, None),
    (Good("new", [("out", 1)], "over"), "closed", ["emit", "turn_done"], None, 0, "over"),
    (Failed(ValueError("no")), "failed", ["error"], "failed", 3, "ValueError: no"),
    (Failed(StoreUnavailable("x")), "failed", ["error", "turn_done"], "failed", 2, None),
    (Failed(SessionTurnError("x")), "failed", ["error"], "failed", 3, "SessionTurnError: x"),
    (Failed(SessionTurnError("x", fatal=True)), "failed", ["error"], "failed", 3,
     "SessionTurnError: x"),
    (Stopped("enough"), "closed", [], None, 2, "enough"),
    (Cancelled("no"), "cancelled", ["error", "turn_done"], "cancelled", 2, None),
    (Cancelled("no", closes=True), "cancelled", ["error", "turn_done"], "cancelled", 2, "closed"),
    (Crashed(3), "failed", ["error", "turn_done"], "crashed", 2, None),
]  # fmt: skip


@pytest.mark.parametrize(("result", "outcome", "kinds", "letter", "errors", "closes"), ENDINGS)
def test_every_ending_of_a_turn(
    result: Any, outcome: str, kinds: list[str], letter: str | None, errors: int, closes: str | None
) -> None:
    plan = settle(STATE, MESSAGE, result, RULES, epoch=9)
    assert [event.kind for event in plan.events] == ["turn_started", *kinds]
    assert [event.position for event in plan.events] == list(range(21, 21 + len(plan.events)))
    assert {event.turn for event in plan.events} == {5}
    assert (plan.outcome, plan.writes.outcome) == (outcome, outcome)
    assert (plan.writes.epoch, plan.writes.taken, plan.writes.closes) == (9, 5, closes)
    assert (plan.writes.letter.outcome if plan.writes.letter else None) == letter
    after = plan.state
    assert (after.turn, after.position) == (5, 20 + len(plan.events))
    assert after.consecutive_errors == errors
    assert after.carrier == ("new" if isinstance(result, Good) else {"n": 1})
    emitted = sum(event.is_emit() and event.channel == "out" for event in plan.events)
    assert after.sequences["out"] == 7 + emitted
    assert plan.closed == (closes is not None)
    fatal = [event.fatal for event in plan.events if event.is_error()]
    assert fatal == ([] if "error" not in kinds else [closes not in (None, "closed")])
    assert plan.events[0] == settle(STATE, MESSAGE, Cancelled("x"), RULES, 1).events[0]


@pytest.mark.parametrize("limit", [None, 1, 2, 3, 5])
@pytest.mark.parametrize("errors", range(5))
def test_b16_when_an_error_is_fatal(limit: int | None, errors: int) -> None:
    state = SessionState(consecutive_errors=errors)
    plan = settle(state, MESSAGE, Failed(ValueError()), Rules("out", limit), 1)
    assert plan.closed == (limit is not None and errors + 1 >= limit)
    assert not settle(state, MESSAGE, Failed(StoreUnavailable("x")), Rules("out", limit), 1).closed


def test_outputs_are_those_of_the_out_channel() -> None:
    plan = settle(STATE, MESSAGE, Good(None, [("log", 1), ("out", 2), ("out", None)]), RULES, 1)
    assert plan.outputs == plan.writes.outputs == (2, None)


def test_a20_session_closed_is_no_error() -> None:
    assert result_of(SessionClosed("why")) == Stopped("why")
    assert isinstance(result_of(KeyboardInterrupt()), Failed)


@pytest.mark.parametrize(
    ("pending", "closing", "cut", "over", "late"),
    list(itertools.product([False, True], repeat=5)),
)
def test_next_step(pending: bool, closing: bool, cut: bool, over: bool, late: bool) -> None:
    info = SessionInfo(
        "s", True, accepted=3, taken=2 if pending else 3, closing=closing, position=10,
        consumers={"ok": 9, "c": 0 if late else 8}, settings=SessionSettings(retain_events=5),
    )  # fmt: skip
    step = next_step(info, cut=cut, over=over)
    if cut or over:
        assert step is Step.CLOSE
    elif pending:
        assert step is (Step.WAIT if late else Step.TAKE)
    else:
        assert step is (Step.CLOSE if closing else Step.WAIT)
    assert blocking(info) == ("c" if late else None)


def test_b8_the_furthest_behind_is_named() -> None:
    info = SessionInfo("s", position=10, consumers={"a": 5, "b": 2, "c": 6},
                       settings=SessionSettings(retain_events=5))  # fmt: skip
    assert blocking(info) == "b"
