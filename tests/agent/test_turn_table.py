"""The durable turn as a table: from the records in the log to what comes next (RS-1…10)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from keepwell.agent import tool_result
from keepwell.agent.approval import (
    Answer,
    Approve,
    Ask,
    Deny,
    Proceed,
    Reject,
    Retry,
    decision_to_plain,
    verdict_to_plain,
)
from keepwell.agent.turn import fold
from keepwell.agent.turn_action import (
    AwaitDecision,
    CallModel,
    ComposeAnswer,
    Ended,
    EndTurn,
    Rules,
    RunCalls,
    StoreQuestion,
    next_action,
    resume_action,
)
from keepwell.agent.turn_closing import closing_records, dangling_calls, heal_records, open_turn
from keepwell.stores.message import Message, ToolCall
from keepwell.stores.record import Record

NOW = datetime(2026, 1, 1, tzinfo=UTC)
T = "turn-1"


def log(*items: Any, turn_id: str | None = T) -> list[Record]:
    """Records from `u`, `a`, `a:c1,c2`, `t:c1`, messages, marks or (message, mark) pairs."""
    records = []
    for seq, item in enumerate(items, 1):
        mark = None
        if isinstance(item, tuple):
            item, mark = item
        if isinstance(item, dict):
            item, mark = None, item
        if isinstance(item, str):
            kind, _, ids = item.partition(":")
            if kind == "u":
                item = Message("user", "question")
            elif kind == "t":
                name, _, text = ids.partition("=")
                item = Message("tool", text or "result", tool_call_id=name)
            else:
                calls = [ToolCall(i, i.rstrip("0123456789'"), {}) for i in ids.split(",") if i]
                item = Message("assistant", None if calls else "answer", calls)
        records.append(Record(seq, item, turn_id, 1, "test", NOW, mark))
    return records


def names(action: Any) -> tuple[list[str], list[tuple[str, str]]]:
    assert isinstance(action, RunCalls)
    return (
        [call.call.id for call in action.run],
        [(call.call.id, text) for call, text in action.settle],
    )


INTERRUPTED = tool_result.interrupted()
RESUMED = {"resumed": 1}
AGAIN = Rules(repeats=lambda name: name == "again")


def test_rs_1_nothing_in_the_log_is_admitted_again() -> None:
    assert resume_action(fold(T, []), Rules()) == StoreQuestion()


def test_rs_2_a_question_alone_goes_to_the_model() -> None:
    assert resume_action(fold(T, log("u")), Rules()) == CallModel(1)


def test_rs_3_open_calls_run_again_only_if_idempotent() -> None:
    action = resume_action(fold(T, log("u", "a:once1,again1,again2", "t:again1")), AGAIN)
    assert names(action) == (["again2"], [("once1", INTERRUPTED)])


def test_rs_3_a_denied_call_gets_its_denial_and_is_not_run() -> None:
    verdicts = {"verdicts": [verdict_to_plain(Deny("no")), {"verdict": "allowed"}]}
    state = fold(T, log("u", (log("a:again1,once1")[0].message, verdicts)))
    assert names(resume_action(state, AGAIN)) == (
        [],
        [("again1", tool_result.denied("no")), ("once1", INTERRUPTED)],
    )


def test_rs_3_then_the_model() -> None:
    assert resume_action(fold(T, log("u", "a:c1", f"t:c1={INTERRUPTED}")), Rules()) == CallModel(3)


def test_rs_4_all_results_there_goes_to_the_model_with_the_next_step() -> None:
    assert resume_action(fold(T, log("u", "a:c1,c2", "t:c2", "t:c1")), Rules()) == CallModel(4)
    assert resume_action(
        fold(T, log("u", "a:c1,c2", "t:c2", "t:c1", "a:c3", "t:c3")), Rules()
    ) == CallModel(6)


def test_rs_4_tl_6_a_return_direct_batch_is_composed_in_call_order() -> None:
    rules = Rules(direct=lambda name: name == "d")
    assert resume_action(
        fold(T, log("u", "a:d1,d2", "t:d2=two", "t:d1=one")), rules
    ) == ComposeAnswer("one\ntwo")
    assert next_action(fold(T, log("u", "a:d1,x1", "t:d1", "t:x1")), rules) == CallModel(4)
    failed = tool_result.error_result("semantic", "bad")
    assert next_action(fold(T, log("u", "a:d1,d2", f"t:d1={failed}", "t:d2")), rules) == CallModel(
        4
    )


def awaiting(*kinds: Any) -> dict[str, Any]:
    return {"verdicts": [verdict_to_plain(kind) for kind in kinds]}


def test_rs_5_awaiting_calls_stay_paused_and_are_not_run() -> None:
    message = log("a:again1")[0].message
    action = resume_action(fold(T, log("u", (message, awaiting(Ask("sure?"))))), AGAIN)
    assert isinstance(action, AwaitDecision)
    assert [(p.call_id, p.kind, p.reason) for p in action.pending] == [("again1", "gate", "sure?")]


def test_rs_5_pausing_is_never_given_up_however_often_it_was_resumed() -> None:
    message = log("a:again1")[0].message
    state = fold(T, log("u", (message, awaiting(Ask())), RESUMED, RESUMED, RESUMED, RESUMED))
    assert isinstance(resume_action(state, AGAIN), AwaitDecision)


@pytest.mark.parametrize(
    ("decision", "settled"),
    [
        (Approve(), INTERRUPTED),
        (Reject("not today"), tool_result.denied("not today")),
        (Answer("blue"), "blue"),
    ],
)
def test_rs_6_a_decision_without_result_may_have_started(decision: Any, settled: str) -> None:
    message = log("a:once1")[0].message
    state = fold(
        T, log("u", (message, awaiting(Ask())), {"decision": {"0": decision_to_plain(decision)}})
    )
    assert names(resume_action(state, AGAIN)) == ([], [("once1", settled)])


def test_rs_6_an_approved_idempotent_call_runs_again() -> None:
    message = log("a:again1")[0].message
    state = fold(
        T,
        log(
            "u",
            (message, awaiting(Ask())),
            {"decision": {"0": decision_to_plain(Approve({"x": 1}))}},
        ),
    )
    action = resume_action(state, AGAIN)
    assert names(action) == (["again1"], [])
    assert isinstance(action, RunCalls)
    assert action.run[0].decision == Approve({"x": 1})


@pytest.mark.parametrize("ended", ["completed", "failed", "limit", "cancelled", "abandoned"])
def test_rs_7_an_ended_turn_needs_nothing(ended: str) -> None:
    answer = log("a")[0].message
    assert resume_action(fold(T, log("u", (answer, {"ended": ended}))), Rules()) == Ended(ended)
    assert resume_action(fold(T, log("u", {"ended": ended})), Rules()) == Ended(ended)


def test_rs_10_three_resumes_after_the_same_step_end_it_failed() -> None:
    two = log("u", "a:c1", "t:c1", RESUMED, RESUMED)
    assert resume_action(fold(T, two), Rules()) == CallModel(3)
    three = log("u", "a:c1", "t:c1", RESUMED, RESUMED, RESUMED)
    action = resume_action(fold(T, three), Rules())
    assert isinstance(action, EndTurn)
    assert action.status == "failed"


def test_rs_10_a_step_made_in_between_starts_the_count_anew() -> None:
    records = log("u", RESUMED, RESUMED, "a:c1", RESUMED, "t:c1", RESUMED, RESUMED)
    assert resume_action(fold(T, records), Rules()) == CallModel(3)


def test_ag_6_a_failed_turn_run_again_goes_on_from_the_log() -> None:
    records = log("u", "a:c1", "t:c1", RESUMED, RESUMED, RESUMED, {"ended": "failed"})
    assert next_action(fold(T, records), Rules()) == Ended("failed")
    again = log("u", "a:c1", "t:c1", RESUMED, RESUMED, RESUMED, {"ended": "failed"}, RESUMED)
    state = fold(T, again)
    assert (state.ended, state.resumes) == (None, 1)
    assert resume_action(state, Rules()) == CallModel(3)


def test_ag_3_steps_are_numbered_over_the_whole_turn() -> None:
    state = fold(T, log("u", "a:c1,c2", "t:c2", "t:c1", "a:c3", "t:c3", "a"))
    assert state.next_step == 7
    assert state.append_id(state.next_step) == "turn-1/7"
    assert [step for step, _entry in state.entries()] == [0, 1, 4, 6]
    assert [m.tool_call_id for m in state.messages() if m.role == "tool"] == ["c1", "c2", "c3"]


def test_tl_1_the_same_id_twice_is_answered_in_order() -> None:
    state = fold(T, log("u", "a:c1,c1", "t:c1=first"))
    assert state.batch is not None
    assert [call.index for call in state.batch.open_calls()] == [1]


def test_records_beside_the_turn_are_passed_over() -> None:
    other = log("u", "a", turn_id="turn-0")
    beside = log("u", turn_id=None)
    mine = log("u", "a:again1")
    assert names(resume_action(fold(T, [*other, mine[0], *beside, mine[1]]), AGAIN)) == (
        ["again1"],
        [],
    )


# -- limits -----------------------------------------------------------------------------------


def live(*items: Any) -> Any:
    """A state as the runner builds it: calls of the last reply have not started."""
    state = fold(T, log(*items))
    if state.batch is not None:
        for call in state.batch.calls:
            call.started = False
    return state


SKIPPED = tool_result.skipped("max_rounds")
OVER = tool_result.skipped("max_tool_calls")


def test_lm_1_calls_of_the_last_allowed_round_are_skipped_then_the_turn_ends() -> None:
    rules = Rules(max_rounds=2)
    assert next_action(live("u", "a:c1", "t:c1"), rules) == CallModel(3)
    assert names(next_action(live("u", "a:c1", "t:c1", "a:c2"), rules)) == ([], [("c2", SKIPPED)])
    assert next_action(live("u", "a:c1", "t:c1", "a:c2", f"t:c2={SKIPPED}"), rules) == EndTurn(
        "limit", "max_rounds"
    )


def test_lm_1_tool_calls_do_not_overshoot() -> None:
    rules = Rules(max_tool_calls=3)
    action = next_action(live("u", "a:c1,c2", "t:c1", "t:c2", "a:c3,c4"), rules)
    assert names(action) == (["c3"], [("c4", OVER)])
    done = live("u", "a:c1,c2", "t:c1", "t:c2", "a:c3,c4", "t:c3", f"t:c4={OVER}")
    assert next_action(done, rules) == EndTurn("limit", "max_tool_calls")


def test_lm_1_a_limit_that_was_just_met_does_not_end_the_turn() -> None:
    assert next_action(live("u", "a:c1,c2", "t:c1", "t:c2"), Rules(max_tool_calls=2)) == CallModel(
        4
    )


def test_lm_1_return_direct_calls_run_in_the_last_round() -> None:
    rules = Rules(max_rounds=1, direct=lambda _name: True)
    assert names(next_action(live("u", "a:c1"), rules)) == (["c1"], [])


# -- pauses -----------------------------------------------------------------------------------


def test_hp_2_allowed_calls_run_at_once_beside_awaiting_ones() -> None:
    message = log("a:x1,y1")[0].message
    state = live("u", (message, awaiting(Ask("sure?"), Ask("name?", "human"))))
    assert [p.kind for p in state.pending()] == ["gate", "human"]
    state = live(
        "u", (message, {"verdicts": [{"verdict": "allowed"}, verdict_to_plain(Ask("sure?"))]})
    )
    assert names(next_action(state, Rules())) == (["x1"], [])


def test_hp_1_a_verdict_that_cannot_be_read_awaits_rather_than_runs() -> None:
    message = log("a:x1")[0].message
    assert isinstance(next_action(live("u", (message, {"verdicts": [None]})), AGAIN), AwaitDecision)


def test_hp_6_an_environment_error_awaits_retry_or_proceed() -> None:
    real = tool_result.error_result("environment", "no key")
    assert [p.kind for p in fold(T, log("u", "a:c1", {"environment": {"0": real}})).pending()] == [
        "environment"
    ]
    retry = {"decision": {"0": decision_to_plain(Retry())}}
    retried = fold(T, log("u", "a:again1", {"environment": {"0": real}}, retry))
    assert names(resume_action(retried, AGAIN)) == (["again1"], [])
    proceed = {"decision": {"0": decision_to_plain(Proceed())}}
    proceeded = fold(T, log("u", "a:c1", {"environment": {"0": real}}, proceed))
    assert names(resume_action(proceeded, Rules())) == ([], [("c1", real)])


# -- closing and healing ----------------------------------------------------------------------


def test_cn_1_closing_answers_open_calls_and_ends_in_one_append() -> None:
    state = fold(T, log("u", "a:c1,c2,c3", "t:c2"))
    assert state.batch is not None
    state.batch.calls[2].started = False
    records = closing_records(state, "cancelled")
    assert [(r.message.tool_call_id, r.message.content) for r in records if r.message] == [
        ("c1", tool_result.cancelled(started=True)),
        ("c3", tool_result.cancelled(started=False)),
    ]
    assert [r.mark for r in records] == [None, {"ended": "cancelled"}]


def test_cn_1_closing_keeps_partial_text() -> None:
    records = closing_records(fold(T, log("u")), "cancelled", partial="half an ans")
    assert [(r.message.role, r.message.content) for r in records if r.message] == [
        ("assistant", "half an ans")
    ]
    assert records[-1].mark == {"ended": "cancelled", "partial": True}


def test_ag_5_a_turn_without_anything_to_say_ends_with_a_pure_mark() -> None:
    records = closing_records(fold(T, log("u")), "failed", mark={"error": "boom"})
    assert [(r.message, r.mark) for r in records] == [(None, {"ended": "failed", "error": "boom"})]


def test_hp_6_an_abandoned_environment_pause_keeps_the_real_error() -> None:
    real = tool_result.error_result("environment", "no key")
    state = fold(T, log("u", "a:c1", {"environment": {"0": real}}))
    assert [r.message.content for r in closing_records(state, "abandoned") if r.message] == [real]


def test_closing_then_folding_the_log_is_an_ended_turn() -> None:
    before = log("u", "a:c1,c2", "t:c2")
    records = closing_records(fold(T, before), "cancelled")
    after = before + [
        Record(9 + i, r.message, T, 1, "test", NOW, r.mark) for i, r in enumerate(records)
    ]
    assert resume_action(fold(T, after), Rules()) == Ended("cancelled")
    assert dangling_calls(after) == []
    assert open_turn(after) is None
    assert open_turn(before) == T


def test_cn_3_healing_answers_what_dangles_and_only_once() -> None:
    records = log("u", "a:c1,c2", "t:c1", "u", "a:c1", "u", turn_id=None)
    healed = heal_records(records)
    assert [(append_id, new.message.tool_call_id) for append_id, new in healed if new.message] == [
        ("heal/2/1", "c2"),
        ("heal/5/0", "c1"),
    ]
    after = records + [
        Record(7 + i, new.message, None, 1, "test", NOW, None)
        for i, (_id, new) in enumerate(healed)
    ]
    assert heal_records(after) == []


def test_cn_3_a_late_result_of_an_older_call_heals_nothing_twice() -> None:
    assert heal_records(log("a:c1", "u", "t:c1", turn_id=None)) == []


def test_us_1_usage_is_the_sum_of_the_marks() -> None:
    usage = {"usage": {"input_tokens": 5, "output_tokens": 2}}
    message, answer = log("a:c1")[0].message, log("a")[0].message
    state = fold(T, log("u", (message, usage), "t:c1", (answer, {**usage, "ended": "completed"})))
    assert (state.usage.input_tokens, state.usage.output_tokens, state.rounds) == (10, 4, 2)
