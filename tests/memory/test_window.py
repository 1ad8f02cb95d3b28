"""The sliding window: the contract's table, and its laws over arbitrary histories (WN-1...7)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.actors.errors import InvalidValue
from keepwell.memory.repair import repair
from keepwell.memory.window import Window, apply_window
from keepwell.stores.grouping import grouped
from keepwell.stores.message import Message, ToolCall


def history(text: str) -> list[Message]:
    """Messages in the contract's shorthand: s1 u1 a1 a(c1,c2) t(c1) t(c1)'."""
    return [_message(word) for word in text.split()]


def _message(word: str) -> Message:
    match = re.fullmatch(r"([suat])(\d*)(?:\(([\w,]*)\))?('*)", word)
    assert match is not None, word
    role = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}[match[1]]
    if role == "tool":
        return Message(role, word, tool_call_id=match[3])
    calls = [ToolCall(c, "f", {}) for c in match[3].split(",")] if match[3] is not None else []
    return Message(role, word, tool_calls=calls)


def show(messages: Sequence[Message]) -> str:
    return " ".join(str(m.content) for m in messages)


L = "u1 a1 u2 a(c1) t(c1) a(c2) t(c2) a(c3) t(c3)"
CONTRACT = Path(__file__).parents[2] / "docs" / "contracts" / "memory.md"


def contract_table() -> Iterator[tuple[str, list[int], str, str]]:
    """The contract's own table as (rule, sizes, before, after): cases of a row part at `;`."""
    for line in CONTRACT.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| WT-"):
            continue
        rule, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        sizes, before, after = (cell.split("; ") for cell in cells)
        for case in range(max(len(sizes), len(before), len(after))):
            size, given_, shown = (c[case] if len(c) > 1 else c[0] for c in (sizes, before, after))
            start = {"L": L, "nothing": ""}.get(given_, given_.strip("`"))
            if shown.startswith("unchanged"):
                end = start
            elif shown.startswith("L without "):
                end = L.removeprefix(shown.removeprefix("L without ").strip("`") + " ")
            else:
                end = "" if shown == "nothing" else shown.strip("`")
            yield rule, [int(n) for n in size.split(", ")], start, end


TABLE = list(contract_table())


@pytest.mark.parametrize(
    ("n", "given_", "expected"),
    [
        pytest.param(n, before, after, id=f"{rule}-{n}")
        for rule, ns, before, after in TABLE
        for n in ns
    ],
)
def test_the_contracts_table(n, given_, expected):
    """WT-1…18."""
    assert show(apply_window(history(given_), n)) == expected
    assert show(Window(n).apply(history(given_))) == expected


def test_the_table_is_whole():
    assert sum(len(sizes) for _rule, sizes, _before, _after in TABLE) == 30
    assert ("WT-10", [8], L, L.removeprefix("u1 ")) in TABLE
    assert ("WT-16", [2], "u1 a(c1) u2 t(c1)", "u2") in TABLE
    assert ("WT-12", [5], "s1 t(c1)", "s1") in TABLE


WORDS = st.sampled_from(
    [
        "s1",
        "u1",
        "u2",
        "a1",
        "a2",
        "a(c1)",
        "a(c2)",
        "a(c1,c2)",
        "a(c1,c1)",
        "t(c1)",
        "t(c2)",
        "t(c3)",
    ]
)
HISTORIES = st.lists(WORDS, max_size=14).map(lambda words: history(" ".join(words)))
SIZES = st.integers(1, 12)


def _reference(messages: Sequence[Message], n: int) -> list[Message]:
    """The rules word by word over the groups of the whole history."""
    systems = [m for m in messages if m.role == "system"]
    groups = [g for g in grouped(messages).groups if g.role != "system"]
    question = max((i for i, g in enumerate(groups) if g.role == "user"), default=None)
    kept = {len(groups) - 1, question} - {None, -1}
    size = sum(len(groups[i].messages) for i in kept)
    for i in range(len(groups) - 1, -1, -1):
        if i in kept:
            continue
        size += len(groups[i].messages)
        if size > n:
            break
        kept.add(i)
    return systems + [m for i in sorted(kept) for m in groups[i].messages]


@given(HISTORIES, SIZES)
def test_it_equals_the_rules_word_by_word(messages, n):
    """WN-1…6; D-5."""
    assert list(apply_window(messages, n)) == _reference(messages, n)


@given(HISTORIES, SIZES)
def test_laws(messages, n):
    window = apply_window(messages, n)
    assert apply_window(window, n) == window  # idempotent
    assert [m for m in window if m.role == "system"] == [m for m in messages if m.role == "system"]
    assert not grouped(window).orphans  # F21: no result without its call
    counted = [m for m in window if m.role != "system"]
    if len(counted) > n:  # only the pinned two
        groups = grouped(counted).groups
        assert len(groups) <= 2
    asked = [m for m in messages if m.role == "user"]
    if asked:
        assert any(m is asked[-1] for m in window)
    if any(m.role in ("user", "assistant") for m in messages):
        assert counted
    # What repair makes of it keeps every pair, and the window's own messages.
    assert repair(window)[: len(window)] is not None
    assert grouped(repair(window)).orphans == ()


@given(HISTORIES)
def test_a_wide_window_changes_nothing_of_a_valid_history(messages):
    valid = [*(m for m in messages if m.role == "system")]
    valid += [m for m in repair(messages) if m.role != "system"]
    assert list(apply_window(valid, 1_000)) == valid


@given(HISTORIES, SIZES)
def test_a_smaller_window_shows_less(messages, n):
    larger = apply_window(messages, n + 1)
    smaller = apply_window(messages, n)
    assert len(smaller) <= len(larger)
    assert {id(m) for m in smaller} <= {id(m) for m in larger}


class CountingLog(Sequence[Message]):
    """A lazy sequence that counts what is read of it."""

    def __init__(self, size: int, make) -> None:
        self.size, self.make, self.read = size, make, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index):
        self.read += 1
        return self.make(index)

    def __reversed__(self) -> Iterator[Message]:
        return (self[i] for i in range(self.size - 1, -1, -1))

    def systems(self) -> tuple[Message, ...]:
        return (Message("system", "be kind"),)


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_window_reads_what_it_keeps(size):
    log = CountingLog(size, lambda i: Message("user" if i % 2 == 0 else "assistant", str(i)))
    shown = apply_window(log, 50)
    assert len(shown) == 51
    assert shown[-1].content == str(size - 1)
    assert log.read <= 52


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "5", None])
def test_a_bad_size_is_refused(n):
    """PV-5."""
    with pytest.raises(InvalidValue, match="at least 1"):
        Window(n)
