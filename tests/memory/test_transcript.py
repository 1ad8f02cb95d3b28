"""Transcripts from traces and logs, and context policies (E1...E8)."""

from __future__ import annotations

import dataclasses
import datetime
from collections import deque
from types import SimpleNamespace

import pytest

from keepwell.actors.errors import RequestError
from keepwell.memory.budget import fit_context
from keepwell.memory.context_policy import ContextPolicy, ContextPolicyError
from keepwell.memory.transcript import TraceEntry, conversation_transcript, transcript_for
from keepwell.memory.turn import LogTurns, turn_messages
from keepwell.stores.message import Message, ToolCall
from keepwell.stores.record import Record

WHOLE = ContextPolicy("whole_session", max_tokens=1_000)


def state(*entries: TraceEntry) -> SimpleNamespace:
    return SimpleNamespace(trace=entries)


def done(ref: str, **fields) -> TraceEntry:
    return TraceEntry("call", ref, **{"output": "ok", "output_available": True} | fields)


def test_a_run_is_its_input_and_its_calls():
    """E1: three calls give seven turns; other decisions are skipped."""
    trace = state(done("a"), TraceEntry("think", "m"), done("b"), TraceEntry("arr", "f"), done("c"))
    turns = transcript_for(trace, WHOLE, input="go")
    assert len(turns) == 7
    assert turns[0] == {"role": "user", "content": "go"}
    assert [t["role"] for t in turns[1:]] == ["assistant", "tool"] * 3
    assert transcript_for(state(), WHOLE) == [{"role": "user", "content": None}]
    for scope in ("none", "local"):
        assert transcript_for(trace, ContextPolicy(scope), input="go") == []


@pytest.mark.parametrize(
    ("entry", "ref"),
    [
        (done("add"), {"kind": "native", "name": "add"}),
        (done("a/b/c"), {"kind": "mcp", "server": "a", "tool": "b/c"}),
        (TraceEntry("sub", "child/x"), {"kind": "sub", "ref": "child/x"}),
    ],
)
def test_what_was_called(entry, ref):
    """E2."""
    assert [t["ref"] for t in transcript_for(state(entry), WHOLE)[1:]] == [ref, ref]


@pytest.mark.parametrize("call_id", ["c1", ""])
def test_calls_with_an_id(call_id):
    """E3."""
    entry = done("add", call_id=call_id, arguments={"b": "中", "a": 1})
    _, action, result = transcript_for(state(entry), WHOLE)
    assert action["tool_calls"] == [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": "add", "arguments": '{"a":1,"b":"中"}'},
        }
    ]
    assert result["tool_call_id"] == call_id
    (call,) = transcript_for(state(done("add", call_id="x")), WHOLE)[1]["tool_calls"]
    assert call["function"]["arguments"] == "{}"


def test_calls_without_an_id_are_sent_under_their_place():
    """E3."""
    turns = transcript_for(state(done("add"), done("s/t", output={"v": 1})), WHOLE, input="go")
    assert not any("tool_calls" in t or "tool_call_id" in t for t in turns)
    assert turn_messages(turns) == (
        Message("user", "go"),
        Message("assistant", None, [ToolCall("call_1", "add", "")]),
        Message("tool", "ok", tool_call_id="call_1"),
        Message("assistant", None, [ToolCall("call_3", "s/t", "")]),
        Message("tool", '{"v":1}', tool_call_id="call_3"),
    )


def test_calls_with_an_empty_id_are_sent_under_their_place_too():
    """E3: no provider takes an empty id."""
    entries = [done("a", call_id="", step=1), done("b", call_id="", step=1, output="second")]
    turns = transcript_for(state(*entries), WHOLE, input="go")
    assert [call["id"] for call in turns[1]["tool_calls"]] == ["", ""]
    assert turn_messages(turns) == (
        Message("user", "go"),
        Message("assistant", None, [ToolCall("call_1", "a", {}), ToolCall("call_1_1", "b", {})]),
        Message("tool", "ok", tool_call_id="call_1"),
        Message("tool", "second", tool_call_id="call_1_1"),
    )


def test_calls_of_one_step_stand_together():
    """E4."""
    entries = [
        done("a", call_id="1", step=1), done("b", call_id="2", step=1),
        done("c", call_id="3", step=2), done("d", step=3), done("e", step=3),
        done("f", call_id="4"), done("g", call_id="5"),
    ]  # fmt: skip
    turns = transcript_for(state(*entries), WHOLE)[1:]
    assert [[c["id"] for c in t.get("tool_calls", ())] or t.get("tool_call_id") for t in turns] == [
        ["1", "2"], "1", "2", ["3"], "3", None, None, None, None, ["4"], "4", ["5"], "5",
    ]  # fmt: skip


def test_contents_and_references():
    """E5."""
    cases = [
        (done("a", output=None), {"content": None}),
        (TraceEntry("call", "a"), {}),
        (done("a", output_ref="t/sha256:x"), {"content_ref": "t/sha256:x"}),
        (done("a", output={"error": {"type": "semantic", "message": "no"}}),
         {"content": {"error": {"type": "semantic", "message": "no"}}}),
    ]  # fmt: skip
    for entry, want in cases:
        result = transcript_for(state(entry), WHOLE)[2]
        assert {k: v for k, v in result.items() if k.startswith("content")} == want
    action = transcript_for(state(done("a", input_ref="r")), WHOLE)[1]
    assert action["content_ref"] == "r"


def test_a_trace_entry_and_its_defaults():
    """F13a: `state.trace` is a sequence of them, of any kind."""
    entry = TraceEntry("call", "add")
    assert [getattr(entry, field.name) for field in dataclasses.fields(TraceEntry)] == [
        "call", "add", None, None, None, None, None, False, None,
    ]  # fmt: skip
    assert [field.name for field in dataclasses.fields(TraceEntry)] == [
        "decision", "ref", "call_id", "arguments", "input_ref", "output_ref", "output",
        "output_available", "step",
    ]  # fmt: skip
    wanted = transcript_for(state(entry, done("b")), WHOLE, input="go")
    lazily = SimpleNamespace(trace=deque([entry, done("b")]))
    assert transcript_for(lazily, WHOLE, input="go") == wanted


class FakeLog:
    cursor, epoch = 3, 1

    def __init__(self, messages) -> None:
        now = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
        self.records = [Record(i + 1, m, "t1", 7, "unit", now) for i, m in enumerate(messages)]
        self.touched = 0

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index):
        self.touched += 1
        return self.records[index]

    def __iter__(self):
        return iter(self.records)

    def __reversed__(self):
        for record in reversed(self.records):
            self.touched += 1
            yield record

    def systems(self):
        return tuple(r for r in self.records if r.message.role == "system")


MESSAGES = [
    Message("system", "kind"),
    Message("user", "2 + 2?"),
    Message("assistant", None, [ToolCall("c1", "add", {"b": 2, "a": 2})]),
    Message("tool", "4", tool_call_id="c1"),
    Message("assistant", "4"),
]


def test_a_log_is_one_turn_a_record():
    """E6."""
    log = FakeLog(MESSAGES)
    turns = conversation_transcript(log, WHOLE)
    assert isinstance(turns, LogTurns)
    assert len(turns) == 5
    assert turns[2] == {
        "role": "assistant",
        "tool_calls": [
            {"id": "c1", "type": "function",
             "function": {"name": "add", "arguments": '{"a":2,"b":2}'}}
        ],
        "seq": 3, "turn_id": "t1", "tokens": 7, "counter": "unit",
    }  # fmt: skip
    assert turns[1:3] == [turns[1], turns[2]]
    assert list(reversed(turns)) == list(turns)[::-1]
    assert turn_messages(turns) == tuple(MESSAGES)
    assert list(conversation_transcript(log.records, WHOLE)) == list(turns)
    assert conversation_transcript(log, ContextPolicy()) == []
    assert list(conversation_transcript(FakeLog([]), WHOLE)) == []


def test_a_context_cut_from_a_long_log_reads_what_it_shows():
    """F14: the counts stored in the log are used."""
    log = FakeLog([Message(("user", "assistant")[i % 2], str(i)) for i in range(20_001)])

    def count(text: str) -> int:
        assert "elided" in text, "only the marker is counted"
        return 1

    count.name = "unit"
    fit = fit_context(conversation_transcript(log, WHOLE), 50, count)
    assert [t["seq"] for t in fit.shown[1:]] == list(range(19_995, 20_002))
    assert log.touched < 12


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        ({"scope": "all"}, ["CTX_UNKNOWN_SCOPE"]),
        ({"scope": "whole_session"}, ["CTX_NO_BUDGET"]),
        ({"scope": "summary"}, ["CTX_NO_BUDGET", "CTX_NO_SUMMARIZER"]),
        ({"scope": "summary", "max_tokens": 10}, ["CTX_NO_SUMMARIZER"]),
        ({"scope": "local", "max_tokens": 0}, ["CTX_BAD_BUDGET"]),
        ({"scope": "x", "max_tokens": True}, ["CTX_UNKNOWN_SCOPE", "CTX_BAD_BUDGET"]),
        ({"scope": "local", "max_tokens": 10, "summary_tokens": 10}, ["CTX_BAD_BUDGET"]),
        ({"scope": "local", "max_tokens": 10, "summary_tokens": 0}, ["CTX_BAD_BUDGET"]),
        ({"scope": "summary", "max_tokens": 3, "summarizer": print}, ["CTX_BAD_BUDGET"]),
        ({"scope": None}, ["CTX_UNKNOWN_SCOPE"]),
    ],
)
def test_all_faults_of_a_policy_come_at_once(arguments, codes):
    """E8."""
    with pytest.raises(ContextPolicyError) as caught:
        ContextPolicy(**arguments)
    assert list(caught.value.codes) == codes
    assert isinstance(caught.value, RequestError)


def test_good_policies():
    assert ContextPolicy() == ContextPolicy("local")
    assert ContextPolicy("summary", 100, print).reserve == 25
    assert ContextPolicy("summary", 100, print, 99).reserve == 99
    assert WHOLE.reserve == 0
    assert WHOLE.budget == 1_000
    assert [ContextPolicy(s).reads for s in ("none", "local")] == [False, False]
    with pytest.raises(ContextPolicyError):
        _ = ContextPolicy().budget
