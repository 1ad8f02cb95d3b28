"""Groups (WN-2, WN-3), with the cases of the window table that turn on grouping."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.stores import Message, ToolCall, grouped

TOKEN = re.compile(r"([suat])(\d*)(?:\(([^)]*)\))?")


def history(text: str) -> list[Message]:
    """`u1 a(c1,c2) t(c1)` in the contract's notation."""
    messages = []
    for word in text.split():
        kind, number, inside = TOKEN.fullmatch(word.rstrip("'")).groups()  # type: ignore[union-attr]  # always matches
        if kind == "t":
            messages.append(Message("tool", word, tool_call_id=inside))
        elif inside:
            messages.append(
                Message("assistant", None, [ToolCall(c, "f", {}) for c in inside.split(",")])
            )
        else:
            messages.append(Message({"s": "system", "u": "user", "a": "assistant"}[kind], number))
    return messages


@pytest.mark.parametrize(
    ("text", "places", "orphans"),
    [
        ("u1 a(c1) t(c1) a1", [(0,), (1, 2), (3,)], ()),
        ("u1 a(c1,c2) t(c2) t(c1) u2", [(0,), (1, 2, 3), (4,)], ()),
        ("t(c9) u1 a1", [(1,), (2,)], (0,)),
        ("u1 a(c1) t(c1) u2 a(c1) t(c1)'", [(0,), (1, 2), (3,), (4, 5)], ()),
        ("u1 a(c1) t(c1) t(c1)' a1", [(0,), (1, 2), (4,)], (3,)),
        ("u1 a(c1) u2 t(c1)", [(0,), (1, 3), (2,)], ()),
        ("u1 a(c1,c1) t(c1) t(c1)'", [(0,), (1, 2, 3)], ()),
        ("a(c1) a(c1) t(c1) t(c1)'", [(0, 3), (1, 2)], ()),
    ],
)
def test_groups(text: str, places: list[tuple[int, ...]], orphans: tuple[int, ...]) -> None:
    result = grouped(history(text))
    assert [group.places for group in result.groups] == places
    assert result.orphans == orphans


def test_open_calls_stay_in_call_order() -> None:
    (group,) = grouped(history("a(c1,c2,c3) t(c2)")).groups
    assert [call.id for call in group.open_calls] == ["c1", "c3"]
    assert group.role == "assistant"


@given(
    st.lists(
        st.sampled_from(["u1", "s1", "a1", "a(x)", "a(x,y)", "a(y,y)", "t(x)", "t(y)"]), max_size=30
    )
)
def test_every_message_is_in_one_group_or_an_orphan(words: list[str]) -> None:
    messages = history(" ".join(words))
    result = grouped(messages)
    seen = sorted(
        [place for group in result.groups for place in group.places] + list(result.orphans)
    )
    assert seen == list(range(len(messages)))
    for group in result.groups:
        assert list(group.places) == sorted(group.places)
        answers = sorted(m.tool_call_id or "" for m in group.messages[1:])
        calls = sorted(call.id for call in group.messages[0].tool_calls)
        assert sorted(answers + [call.id for call in group.open_calls]) == calls
