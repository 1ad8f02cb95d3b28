"""The strict checker of histories finds each breach of the providers' rules."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from keepwell.stores.message import Message, ToolCall
from keepwell.testing.provider_rules import check_history, check_requests


def history(text: str) -> list[Message]:
    """`u a(c1,c2) t(c1) t(c2) a -`: a minus is an assistant message that says nothing."""
    found = []
    for word in text.split():
        match = re.fullmatch(r"([suat-])(?:\(([\w,]*)\))?", word)
        assert match is not None, word
        kind, ids = match.groups()
        if kind == "t":
            found.append(Message("tool", word, tool_call_id=ids))
        elif ids:
            calls = [ToolCall(i, "f", {}) for i in ids.split(",")]
            found.append(Message("assistant", None, calls))
        elif kind == "-":
            found.append(Message("assistant", ""))
        else:
            role = {"s": "system", "u": "user", "a": "assistant"}[kind]
            found.append(Message(role, word))
    return found


@pytest.mark.parametrize(
    "good",
    ["", "u", "s u a u a", "u a(x,y) t(y) t(x) a", "u a(x) t(x) a(x) t(x) a", "a(x,x) t(x) t(x)"],
)
def test_what_providers_accept(good: str) -> None:
    check_history(history(good))
    check_requests(history(good))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("u t(x)", "message 1: a result of 'x' without an open call"),
        ("u a(x) t(x) t(x)", "message 3: a result of 'x' without"),
        ("u a(x)", "after message 1: no results of 'x'"),
        ("u a(x,y) t(x)", "no results of 'y'"),
        ("u a(x,x) t(x)", "no results of 'x'"),
        ("u a(x) u t(x)", "message 2 comes before the results of 'x'"),
        ("u a(x,y) t(x) a t(y)", "message 3 comes before the results of 'y'"),
        ("u a(x) t(y)", "message 2: a result of 'y'"),
    ],
)
def test_what_they_refuse(bad: str, why: str) -> None:
    messages: Sequence[Message] = history(bad)
    with pytest.raises(AssertionError, match=re.escape(why)):
        check_history(messages)
    with pytest.raises(AssertionError):
        check_requests(messages)


def test_an_answer_of_nothing() -> None:
    with pytest.raises(AssertionError, match="it says nothing"):
        check_history(history("u - u"))
