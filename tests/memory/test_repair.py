"""Repair of histories (CN-4), and the order in which results are shown (AG-3)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.agent import tool_result
from keepwell.memory.repair import INTERRUPTED, in_call_order, repair
from keepwell.stores.grouping import grouped
from keepwell.stores.message import Message, ToolCall


def history(text: str) -> list[Message]:
    found = []
    for word in text.split():
        match = re.fullmatch(r"([suat])(\d*)(?:\(([\w,]*)\))?('*)", word)
        assert match is not None, word
        role = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}[match[1]]
        if role == "tool":
            found.append(Message(role, word, tool_call_id=match[3]))
            continue
        calls = [ToolCall(c, "f", {}) for c in match[3].split(",")] if match[3] is not None else []
        found.append(Message(role, word, tool_calls=calls))
    return found


def show(messages: Sequence[Message]) -> str:
    return " ".join(
        f"?({m.tool_call_id})" if m.content == INTERRUPTED else str(m.content) for m in messages
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("s1 u1 a1 u2", "s1 u1 a1 u2"),
        ("u1 a(x,y,z) t(x) t(y) t(z) a1", "u1 a(x,y,z) t(x) t(y) t(z) a1"),  # fault F14
        ("u1 a(x,y,z) t(z) t(x) t(y)", "u1 a(x,y,z) t(z) t(x) t(y)"),
        ("u1 a(x,y) t(x)", "u1 a(x,y) t(x) ?(y)"),
        ("u1 a(x) u2", "u1 a(x) ?(x) u2"),  # F26
        ("u1 a(x) u2 t(x)", "u1 a(x) t(x) u2"),
        ("t(x) u1 t(y) a1", "u1 a1"),
        ("u1 a(x) t(x) t(x)' a1", "u1 a(x) t(x) a1"),
        ("u1 a(x,x) t(x)", "u1 a(x,x) t(x) ?(x)"),
        ("a(x) a(x) t(x)", "a(x) ?(x) a(x) t(x)"),
        ("s1 t(x)", "s1"),
    ],
)
def test_table(before, after):
    assert show(repair(history(before))) == after


@pytest.mark.parametrize("content", [None, "", []])
def test_an_assistant_that_says_nothing_goes(content):
    question = Message("user", "u1")
    silent = Message("assistant", content)
    calling = Message("assistant", content, [ToolCall("x", "f", {})])
    result = Message("tool", "", tool_call_id="x")
    assert repair([question, silent]) == (question,)
    assert repair([question, calling, result]) == (question, calling, result)


WORDS = st.sampled_from(
    ["s1", "u1", "a1", "a(x)", "a(y)", "a(x,y)", "a(x,x)", "t(x)", "t(x)'", "t(y)", "t(z)"]
)
HISTORIES = st.lists(WORDS, max_size=14).map(lambda words: history(" ".join(words)))


@given(HISTORIES)
def test_laws(messages):
    """CN-4, faults F14, F26: nothing of a valid history goes, twice equals once."""
    repaired = repair(messages)
    assert repair(repaired) == repaired  # twice equals once
    grouping = grouped(repaired)
    assert not grouping.orphans
    assert not any(group.open_calls for group in grouping.groups)
    for group in grouping.groups:  # every group stands together
        assert list(group.places) == list(
            range(group.places[0], group.places[0] + len(group.places))
        )
    # Nothing but orphans goes, nothing but results for open calls comes.
    before = grouped(messages)
    lost = [m for m in messages if not any(m is r for r in repaired)]
    assert [id(m) for m in lost] == [id(messages[i]) for i in before.orphans]
    made = [m for m in repaired if not any(m is r for r in messages)]
    assert len(made) == sum(len(group.open_calls) for group in before.groups)
    assert all(m.content == INTERRUPTED for m in made)


@given(HISTORIES)
def test_call_order(messages):
    repaired = repair(messages)
    ordered = in_call_order(repaired)
    assert sorted(map(id, ordered)) == sorted(map(id, repaired))
    assert in_call_order(ordered) == ordered
    for group in grouped(ordered).groups:
        if group.messages[0].tool_calls:
            assert [r.tool_call_id for r in group.messages[1:]] == [
                c.id for c in group.messages[0].tool_calls
            ]


def test_results_are_shown_in_call_order():
    """F15: matched by id, never by position."""
    assert show(in_call_order(history("u1 a(x,y,x) t(y) t(x) t(x)' u2"))) == (
        "u1 a(x,y,x) t(x) t(y) t(x)' u2"
    )


def test_the_made_result_is_the_agents_interrupted():
    assert tool_result.interrupted() == INTERRUPTED
    assert json.loads(INTERRUPTED)["error"]["message"] == "interrupted, outcome unknown"  # CN-3
