"""Decisions of a human, matched to the calls that wait (HP-4)."""

from __future__ import annotations

from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.approval import (
    Allow,
    Answer,
    Approve,
    Ask,
    Deny,
    PendingCall,
    Proceed,
    Reject,
    Retry,
    decision_from_plain,
    decision_to_plain,
    match_decisions,
    verdict_from_plain,
    verdict_to_plain,
)
from keepwell.agent.turn_errors import DecisionConflict, NotPaused


def waits(call_id: str, kind: Any = "gate") -> PendingCall:
    return PendingCall(call_id, "tool", {}, kind, "")


@pytest.mark.parametrize(
    "verdict", [Allow(), Deny("no"), Ask("why"), Ask("name?", "human"), Ask("", "environment")]
)
def test_hp_3_verdicts_survive_the_log(verdict: Any) -> None:
    assert verdict_from_plain(verdict_to_plain(verdict)) == verdict


@pytest.mark.parametrize(
    "decision", [Approve(), Approve({"a": 1}), Reject("no"), Answer("x"), Retry(), Proceed()]
)
def test_hp_4_decisions_survive_the_log(decision: Any) -> None:
    assert decision_from_plain(decision_to_plain(decision)) == decision


@pytest.mark.parametrize("junk", [None, 3, {}, {"verdict": "sure"}, "allowed"])
def test_hp_1_junk_is_never_an_allowance(junk: Any) -> None:
    assert not isinstance(verdict_from_plain(junk), Allow)


def test_hp_4_one_decision_for_one_call() -> None:
    assert match_decisions(Approve(), [waits("c1")], {}) == {"c1": Approve()}
    assert match_decisions("blue", [waits("c1", "human")], {}) == {"c1": Answer("blue")}
    assert match_decisions({"c2": Reject("no")}, [waits("c1"), waits("c2")], {}) == {
        "c2": Reject("no")
    }


@pytest.mark.parametrize(
    ("value", "pending"),
    [
        ("", [waits("c1", "human")]),
        ("  ", [waits("c1", "human")]),
        ({}, [waits("c1")]),
        (None, [waits("c1")]),
        (42, [waits("c1")]),
        (Approve(), [waits("c1"), waits("c2")]),  # ambiguous
        ({"c9": Approve()}, [waits("c1")]),
        (Approve(), [waits("c1", "human")]),
        (Retry(), [waits("c1")]),
        (Approve(), [waits("c1", "environment")]),
    ],
)
def test_hp_4_what_decides_nothing_is_refused(value: Any, pending: list[PendingCall]) -> None:
    with pytest.raises(InvalidValue):
        match_decisions(value, pending, {})


def test_hp_4_repeated_is_nothing_new_and_changed_is_a_conflict() -> None:
    decided = {"c1": Approve()}
    assert match_decisions(Approve(), [], decided) == {}
    assert match_decisions({"c1": Approve()}, [waits("c2")], decided) == {}
    with pytest.raises(DecisionConflict):
        match_decisions(Reject("no"), [], decided)
    with pytest.raises(DecisionConflict):
        match_decisions({"c1": Reject("no")}, [waits("c2")], decided)


def test_hp_4_nothing_pending_is_not_paused() -> None:
    with pytest.raises(NotPaused):
        match_decisions(Approve(), [], {})
