"""Budgets: the contract's own table, laws, and equality with brute force (F1...F14)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwell.actors.errors import InvalidValue, RequestError
from keepwell.memory.budget import (
    ContextTooLarge,
    elision_marker,
    fit_context,
    split_to_budget,
    summary_turn,
)
from keepwell.memory.token_counter import TiktokenCounter, approx_token_count
from keepwell.memory.turn import Turn, TurnCost, call_ids, turn_text

CONTRACT = Path(__file__).parents[2] / "docs" / "contracts" / "sessions.md"
_, _, _below = CONTRACT.read_text(encoding="utf-8").partition("turns | budget | kept | shown\n")
TABLE = _below.partition("```")[0]


def turn(word: str) -> Turn:
    """A turn in the contract's shorthand; its unit cost is stored under the counter "unit"."""
    name, _, cost = word.partition("^")
    match = re.fullmatch(r"([suaATBR])(\d*)", name)
    assert match is not None, word
    kind, digits = match[1], match[2]
    role = {"s": "system", "u": "user", "T": "tool", "R": "tool"}.get(kind, "assistant")
    made: Turn = {"role": role, "content": name, "tokens": int(cost or 1), "counter": "unit"}
    if kind == "A":
        made["tool_calls"] = [
            {"id": d, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            for d in digits
        ]
    elif kind == "T":
        made["tool_call_id"] = digits
    elif kind in "BR":
        made["ref"] = {"kind": "native", "name": "f"}
    return made


def turns_of(text: str) -> list[Turn]:
    return [turn(word) for word in text.split()]


class Unit:
    """Counts stored turns as stored, and any other text (markers, the system prompt) as 1."""

    name = "unit"

    def __call__(self, text: str) -> int:
        return 1


def show(turns: Sequence[Turn]) -> str:
    words = []
    for each in turns:
        marker = re.fullmatch(r"(\d+) earlier turns? elided", str(each["content"]))
        words.append(f"E{marker[1]}" if marker else str(each["content"]))
    return " ".join(words)


def rows() -> Iterator[tuple[str, dict, int, str | None, str | None]]:
    transcript, options = "", {}
    for line in TABLE.strip().splitlines():
        given_, budgets, kept, shown = (cell.strip() for cell in line.split("|"))
        if given_ != "same":
            transcript, _, option = given_.partition(",")
            options = {}
            if "system" in option:
                options = {"system": "system"}
            elif option:
                name, value = option.strip().split("=")
                options = {name: int(value)}
        both = [cell.split(" / ") for cell in (budgets, kept, shown)]
        for i, budget in enumerate(both[0]):
            want = both[1][i] if kept else None
            yield transcript, options, int(budget), want, both[2][min(i, len(both[2]) - 1)]


ROWS = list(rows())


@pytest.mark.parametrize(("transcript", "options", "budget", "kept", "shown"), ROWS)
def test_the_contracts_table(transcript, options, budget, kept, shown):
    turns = turns_of(transcript)
    everything = show(turns)
    if kept is not None:
        want = {"all": everything, "-": "", "all but u1": everything.removeprefix("u1 ")}
        elided, got = split_to_budget(turns, budget, Unit())
        assert elided + got == turns
        assert show(got) == want.get(kept, kept)
    if shown == "TL":
        with pytest.raises(ContextTooLarge):
            fit_context(turns, budget, Unit(), **options)
        return
    fit = fit_context(turns, budget, Unit(), **options)
    assert show(fit.shown) == (everything if shown == "all" else shown)
    assert fit.tokens <= budget


def test_the_table_is_whole():
    assert len(ROWS) == 28


def test_the_guides_table_is_true():
    """F8: what docs/context.md shows of each log at each budget."""
    page = Path(__file__).parents[2] / "docs" / "context.md"
    table = page.read_text(encoding="utf-8").split("each costs one token")[1].split("```")[0]
    head, *rows = [re.split(r" {2,}", line) for line in table.strip().splitlines()]
    budgets = [int(column.removeprefix("budget ")) for column in head[1:]]
    assert len(rows) == len(budgets) == 3
    for log, *cells in rows:
        for budget, cell in zip(budgets, cells, strict=True):
            assert show(fit_context(turns_of(log), budget, Unit()).shown) == cell


# -- brute force ------------------------------------------------------------------------------


def brute(turns, budget, cost, *, system, elided_before, reserve):
    """The rules F6...F10 word by word: every suffix of the groups is tried."""
    head = ([{"role": "system", "content": system}] if system is not None else []) + [
        t for t in turns if t["role"] == "system"
    ]
    groups: list[list[int]] = []
    answered: dict[int, int] = {}
    dropped: set[int] = set()
    waiting: list[tuple[str, int]] = []  # (id, group), the nearest last
    action: int | None = None
    for place, each in enumerate(turns):
        if each["role"] == "system":
            continue
        if each["role"] == "tool":
            if each.get("tool_call_id") is None:
                if action is None:
                    dropped.add(place)
                else:
                    groups[action].append(place)
                continue
            found = [w for w in waiting if w[0] == each["tool_call_id"]]
            if not found:
                dropped.add(place)
                continue
            waiting.reverse()
            waiting.remove(found[-1])
            waiting.reverse()
            groups[found[-1][1]].append(place)
            answered[found[-1][1]] = answered.get(found[-1][1], 0) + 1
            continue
        groups.append([place])
        if each["role"] == "assistant":
            action = len(groups) - 1
            waiting += [(i, len(groups) - 1) for i in call_ids(each)]
    ok = [g for n, g in enumerate(groups) if len(call_ids(turns[g[0]])) == answered.get(n, 0)]
    users = [g for g in ok if turns[g[0]]["role"] == "user"]
    question = users[-1] if users else None
    others = [g for g in ok if g is not question]
    total = sum(1 for t in turns if t["role"] != "system")

    def price(places):
        return sum(cost(turns[p]) for p in places)

    best = None
    for start in range(len(others), -1, -1):
        run = others[start:]
        shown = sorted(run + ([question] if question else []))
        places = [p for g in shown for p in g]
        left_out = total - len(places) + elided_before
        spent = sum(map(cost, head)) + price(places)
        if left_out == 0:
            if spent <= budget:
                return head + [turns[p] for p in places], spent, 0
            continue
        if question and shown and turns[shown[0][0]]["role"] != "user":
            continue
        marker = elision_marker(left_out)
        if spent + max(cost(marker), reserve) <= budget:
            best = head + [marker] + [turns[p] for p in places], spent + cost(marker), left_out
    return best


WORDS = st.sampled_from(
    ["s", "u1", "u2", "a1", "a2", "A1", "A2", "A12", "A11", "T1", "T2", "T9", "B", "R",
     "u3^2", "a3^3", "A1^0", "T1^2"]
)  # fmt: skip
TRANSCRIPTS = st.lists(WORDS, max_size=12).map(lambda words: turns_of(" ".join(words)))


class Wordy:
    """Markers cost by their number's digits, so that costs do not fall steadily with the run."""

    name = "unit"

    def __call__(self, text: str) -> int:
        number = re.match(r"\d+", text)
        return len(number[0]) if number else 2


BRUTE = (
    TRANSCRIPTS,
    st.integers(0, 16),
    st.none() | st.just("sys"),
    st.sampled_from([0, 0, 8, 97]),
    st.sampled_from([0, 0, 2, 5]),
    st.sampled_from([Unit(), Wordy()]),
)


def equals_brute_force(turns, budget, system, before, reserve, counter):
    options = {"system": system, "elided_before": before, "reserve": reserve}
    want = brute(turns, budget, TurnCost(counter), **options)
    try:
        fit = fit_context(turns, budget, counter, **options)
    except ContextTooLarge as error:
        assert want is None
        assert error.max_tokens == budget < error.needed
        assert error.part in ("system", "question", "announcement")
        return
    assert want is not None
    assert (fit.shown, fit.tokens, fit.elided_count) == want


@settings(max_examples=300)
@given(*BRUTE)
def test_it_equals_brute_force(turns, budget, system, before, reserve, counter):
    """F6…F10."""
    equals_brute_force(turns, budget, system, before, reserve, counter)


LAWS = (TRANSCRIPTS, st.integers(0, 16), st.sampled_from([0, 3]))


def holds_the_laws(turns, budget, before):
    """F9: never over, never silent, the question never dropped; F6: no group is parted."""
    try:
        fit = fit_context(turns, budget, Unit(), elided_before=before)
    except ContextTooLarge:
        return
    cost = TurnCost(Unit())
    assert sum(map(cost, fit.shown)) == fit.tokens <= budget
    left_out = [t for t in turns if not any(t is s for s in fit.shown)]
    assert fit.elided == left_out
    assert fit.elided_count == (len(left_out) + before)
    assert [t for t in fit.shown if t is elision_marker] == []
    markers = [t for t in fit.shown if "elided" in t["content"]]
    assert len(markers) == bool(fit.elided_count)
    users = [t for t in turns if t["role"] == "user"]
    assert not users or any(t is users[-1] for t in fit.shown)
    open_ids: list[str] = []
    for each in fit.shown:
        if each["role"] == "tool" and "tool_call_id" in each:
            open_ids.remove(each["tool_call_id"])
        else:
            assert not open_ids or each["role"] == "tool"
            open_ids += call_ids(each)
    assert not open_ids
    assert all(turns[i]["role"] == "system" or turns[i] in fit.elided or turns[i] in fit.shown
               for i in range(fit.cut))  # fmt: skip


@given(*LAWS)
def test_laws(turns, budget, before):
    """F9: never over, never silent, the question never dropped; F6: no group is parted."""
    holds_the_laws(turns, budget, before)


SPLITS = (TRANSCRIPTS, st.integers(0, 16))


def holds_the_laws_of_splits(turns, budget):
    elided, kept = split_to_budget(turns, budget, Unit())
    assert elided + kept == turns
    assert sum(map(TurnCost(Unit()), kept)) <= budget
    ids = {i for t in elided for i in call_ids(t)}
    seen: set[str] = set()
    for place, each in enumerate(kept):
        seen.update(call_ids(each))
        if "tool_call_id" in each:
            assert place > 0
            assert each["tool_call_id"] in seen or each["tool_call_id"] not in ids
    if not any("tool_call_id" in t for t in turns):  # then only the budget cuts
        more = turns[len(elided) - 1 :] if elided else []
        assert not more or sum(map(TurnCost(Unit()), more)) > budget


@given(*SPLITS)
def test_split_laws(turns, budget):
    """F4, F5: a contiguous suffix that fits, and no result in it whose call was elided."""
    holds_the_laws_of_splits(turns, budget)


# -- counting ---------------------------------------------------------------------------------


def call(name: str, arguments: str) -> dict:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"role": "user", "content": "hi"}, "hi"),
        ({"role": "user", "content": ""}, ""),
        ({"role": "tool", "content": {"答": ["中", 1.5, None]}}, '{"答":["中",1.5,null]}'),
        ({"role": "tool", "content": None}, ""),
        ({"role": "assistant", "tool_calls": [call("f", "{}")]}, "f\n{}"),
        (
            {
                "role": "assistant",
                "content": "so",
                "tool_calls": [call("f", "{}"), call("g", "中")],
            },
            "so\nf\n{}\ng\n中",
        ),
    ],
)
def test_turn_text(given_, text):
    """F2."""
    assert turn_text(given_) == text


def test_stored_counts_are_used_under_their_name_only():
    """F1."""
    stored = {"role": "user", "content": "abcdefgh", "tokens": 50, "counter": "o200k_base"}
    assert TurnCost(approx_token_count)(stored) == 2
    assert TurnCost(TiktokenCounter())(stored) == 50 + TiktokenCounter.per_turn
    assert TurnCost(TiktokenCounter("cl100k_base"))(stored) < 20


@pytest.mark.parametrize("bad", [-1, 1.5, "1", None, True])
def test_what_is_no_count_is_refused(bad):
    with pytest.raises(RequestError):
        fit_context(turns_of("u1"), 10, lambda text: bad)
    with pytest.raises(RequestError):
        fit_context(
            [{"role": "user", "content": "", "tokens": bad or -1, "counter": "unit"}], 9, Unit()
        )
    with pytest.raises(InvalidValue):
        fit_context(turns_of("u1"), bad, Unit())
    with pytest.raises(InvalidValue):
        split_to_budget(turns_of("u1"), bad, Unit())
    with pytest.raises(InvalidValue):
        fit_context([], 1, Unit(), reserve=bad)
    with pytest.raises(InvalidValue):
        fit_context([], 1, Unit(), elided_before=bad)
    with pytest.raises(InvalidValue):
        fit_context([], 1, "o200k_base")


def test_markers_and_summaries_read_as_said():
    assert elision_marker(1)["content"] == "1 earlier turn elided"
    assert elision_marker(2) == {"role": "system", "content": "2 earlier turns elided"}
    assert summary_turn("so", 3)["content"] == "Summary of 3 earlier turns:\nso"
    assert summary_turn("so", 1)["content"] == "Summary of 1 earlier turn:\nso"
    assert summary_turn("so")["content"] == "Summary of earlier turns:\nso"
    for bad in (0, -1, True, 1.0):
        with pytest.raises(RequestError):
            elision_marker(bad)


@pytest.mark.parametrize(
    ("turns", "budget", "options", "part"),
    [
        ("u1^5", 4, {}, "question"),
        ("s^5 u1", 4, {}, "system"),
        ("u1", 1, {"system": "x"}, "question"),
        ("u1 a1 u2", 1, {}, "announcement"),
        ("u1 a1 u2", 2, {"reserve": 3}, "announcement"),
    ],
)
def test_what_is_too_large_is_named(turns, budget, options, part):
    with pytest.raises(ContextTooLarge) as caught:
        fit_context(turns_of(turns), budget, Unit(), **options)
    assert caught.value.part == part
    assert caught.value.needed > budget
    assert str(caught.value.needed) in str(caught.value)


# -- summaries --------------------------------------------------------------------------------

LONG = [{k: v for k, v in t.items() if k != "tokens"} | {"content": t["content"] * 10}
        for t in turns_of("u1 a1 u2 a2 u3 a3 u4")]  # fmt: skip


def test_a_summary_takes_the_markers_place():
    fit = fit_context(LONG, 60, len, reserve=34)
    assert show(fit.shown) == f"E6 {'u4' * 10}"
    short = fit.with_summary("all well, but it rains")
    assert short.shown[0]["content"] == "Summary of 6 earlier turns:\nall well, b…"
    assert short.tokens == sum(len(t["content"]) for t in short.shown) == 60
    assert (short.shown[1:], short.elided_count, short.cut) == (fit.shown[1:], 6, fit.cut)
    assert fit.shown[0]["content"] == "6 earlier turns elided"  # the fit itself is not changed


@pytest.mark.parametrize("text", ["", " \n", None, 3, ["x"]])
def test_an_unusable_summary_leaves_the_marker(text):
    """F13."""
    fit = fit_context(LONG, 60, len, reserve=34)
    assert fit.with_summary(text) is fit


def test_no_room_leaves_the_marker_and_nothing_elided_needs_no_summary():
    fit = fit_context(LONG, 45, len)
    assert fit.with_summary("all well") is fit
    whole = fit_context(LONG, 400, len)
    assert whole.with_summary("all well") is whole
    assert whole.elided == []


@settings(deadline=None)  # the first example loads the vocabulary
@given(st.text(max_size=60), st.integers(24, 90))
def test_a_summary_never_breaks_the_budget(text, budget):
    """F11, F25, for a real counter."""
    counter = TiktokenCounter()
    turns = [{"role": "user", "content": "word " * 50}, {"role": "assistant", "content": "yes"},
             {"role": "user", "content": "and?"}]  # fmt: skip
    fit = fit_context(turns, budget, counter, reserve=0).with_summary(text)
    assert sum(map(TurnCost(counter), fit.shown)) == fit.tokens <= budget


# -- cost -------------------------------------------------------------------------------------


class CountingTurns(Sequence[Turn]):
    """A lazy transcript that counts the turns read; the third of each round is large."""

    def __init__(self, size: int) -> None:
        self.size, self.read = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index):
        self.read += 1
        role = "user" if index % 2 == 0 else "assistant"
        return {"role": role, "content": str(index), "tokens": 10, "counter": "unit"}

    def __reversed__(self):
        return (self[i] for i in range(self.size - 1, -1, -1))

    def systems(self) -> list[Turn]:
        return [{"role": "system", "content": "kind", "tokens": 3, "counter": "unit"}]


def test_reads_do_not_depend_on_the_length():
    """F14: K shown of N turns reads O(K), and counts only the system prompt and markers."""
    reads = []
    for size in (101, 100_001):
        counted: list[str] = []

        class Counter:
            name = "unit"

            def __call__(self, text: str, counted: list[str] = counted) -> int:
                counted.append(text)
                return 1

        turns = CountingTurns(size)
        fit = fit_context(turns, 215, Counter(), system="you")
        assert len(fit.shown) == 1 + 1 + 1 + 21
        assert fit.elided_count == size - 1 - 21
        reads.append((turns.read, len(counted)))
    assert reads[0] == reads[1]
    assert reads[0][0] <= 24
    assert reads[0][1] <= 4
