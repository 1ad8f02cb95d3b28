"""Laws of contexts by hypothesis: a hundred cases each in every run, thousands in the soak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwell.memory.budget import ContextTooLarge, fit_context
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.token_counter import TiktokenCounter
from keepwell.memory.transcript import TraceEntry, conversation_transcript, transcript_for
from keepwell.memory.turn import Turn, message_turn, record_turn, turn_messages
from keepwell.stores import MemoryStore, Message, NoCounter

from . import test_budget as budgets

READING = ContextPolicy("whole_session", 1_000)

# -- a real count of what is sent -----------------------------------------------------------------

TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "word " * 30, "你好世界" * 9, "<|endoftext|>", "\n" * 50]),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """Turns with texts of all kinds, calls in parallel, results that are missing or too many."""
    turns: list[Turn] = []
    ids = 0
    for kind in draw(st.lists(st.sampled_from("uuaacrs"), max_size=14)):
        if kind == "c":
            calls = [f"c{ids + n}" for n in range(draw(st.integers(1, 2)))]
            ids += len(calls)
            arguments = draw(st.sampled_from(["{}", '{"q":"Lisbon, then Porto"}', "{broken"]))
            function = {"name": "look_up", "arguments": arguments}
            turns.append({"role": "assistant", "tool_calls": [
                {"id": i, "type": "function", "function": function} for i in calls]})  # fmt: skip
            turns += [{"role": "tool", "tool_call_id": i, "content": draw(TEXTS)}
                      for i in draw(st.permutations(calls))]  # fmt: skip
        elif kind == "r":
            turns.append({"role": "tool", "tool_call_id": f"c{draw(st.integers(0, 9))}",
                          "content": draw(TEXTS)})  # fmt: skip
        else:
            role = {"u": "user", "a": "assistant", "s": "system"}[kind]
            turns.append({"role": role, "content": draw(TEXTS)})
    return turns


def never_over_by_a_real_count(turns: list[Turn], budget: int, system: str | None) -> None:
    """F9: the messages that are sent, counted anew with a real vocabulary."""
    counter = TiktokenCounter()
    try:
        fit = fit_context(turns, budget, counter, system=system)
    except ContextTooLarge:
        return
    sent = turn_messages(fit.shown)
    assert sum(counter.per_turn + counter.count_message(message) for message in sent) <= budget
    assert len(sent) == len(fit.shown)


# -- one pass ------------------------------------------------------------------------------------


class Watched(Sequence[Turn]):
    """Turns that count how often each is read."""

    def __init__(self, turns: list[Turn]) -> None:
        self.turns, self.reads = turns, Counter[int]()

    def __len__(self) -> int:
        return len(self.turns)

    def __getitem__(self, index: Any) -> Any:
        self.reads[index] += 1
        return self.turns[index]

    def __reversed__(self) -> Iterator[Turn]:
        return (self[place] for place in range(len(self.turns) - 1, -1, -1))

    def systems(self) -> list[Turn]:
        return [turn for turn in self.turns if turn["role"] == "system"]


def ends_in_one_pass(turns: list[Turn], budget: int, before: int) -> None:
    """F8, F14: whatever the input, each turn is looked at once and counted at most twice."""
    watched = Watched(turns)
    counted = Counter[str]()

    def count(text: str) -> int:
        counted[text] += 1
        return len(text) % 7

    given_ = deepcopy(turns)
    try:
        fit_context(watched, budget, count, elided_before=before)
    except ContextTooLarge:
        pass
    assert max(watched.reads.values(), default=0) <= 1
    assert sum(counted.values()) <= 2 * len(turns) + 4
    assert turns == given_


# -- projection ----------------------------------------------------------------------------------

PLAIN = st.one_of(st.none(), st.booleans(), st.text(max_size=9), st.integers(-9, 9),
                  st.lists(st.text(max_size=3), max_size=2),
                  st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=2))  # fmt: skip
ENTRIES = st.builds(
    TraceEntry, st.sampled_from(["call", "sub", "think", "emit"]),
    st.sampled_from(["tool", "server/tool", "a/b/c"]), st.none() | st.sampled_from(["", "1", "2"]),
    PLAIN, st.none() | st.just("t/in"), st.none() | st.just("t/out"), PLAIN, st.booleans(),
    st.none() | st.integers(0, 2),
)  # fmt: skip


@dataclass
class Run:
    trace: list[TraceEntry]


def is_deterministic_and_idempotent(trace: list[TraceEntry], asked: Any) -> None:
    """E1…E4: the same each time, changes nothing, and what is sent of it is sent of it again."""
    before = deepcopy(trace)
    first = transcript_for(Run(trace), READING, input=asked)
    assert transcript_for(Run(trace), READING, input=asked) == first
    assert trace == before
    shown = sum(entry.decision in ("call", "sub") for entry in trace)
    results = sum(turn["role"] == "tool" for turn in first)
    assert results == shown and first[0] == {"role": "user", "content": asked}
    once = [message_turn(message) for message in turn_messages(first)]
    assert [message_turn(message) for message in turn_messages(once)] == once


def of_a_log_is_of_its_messages(turns: list[Turn], _: int) -> None:
    """E6: a turn a record, lazily or not; read twice it is the same."""
    store = MemoryStore(counter=NoCounter()).start()
    messages = turn_messages(turns)
    store.add("c", messages).get()
    log = store.read("c").get()
    lazily = conversation_transcript(log, READING)
    assert list(lazily) == list(lazily) == [record_turn(record) for record in log]
    assert list(reversed(lazily)) == list(lazily)[::-1]
    assert turn_messages(list(lazily)) == messages
    assert all(isinstance(message, Message) for message in messages)
    store.stop().get()


CASES: dict[str, tuple[Callable[..., None], tuple[Any, ...], int]] = {
    "never over by a real count": (
        never_over_by_a_real_count,
        (conversations(), st.integers(0, 260), st.none() | st.just("You are kind.")), 50),
    "one pass": (
        ends_in_one_pass, (conversations(), st.integers(0, 40), st.sampled_from([0, 5])), 50),
    "projection": (
        is_deterministic_and_idempotent, (st.lists(ENTRIES, max_size=8), PLAIN), 50),
    "log": (of_a_log_is_of_its_messages, (conversations(), st.just(0)), 15),
}  # fmt: skip


def check(law: Callable[..., None], cases: tuple[Any, ...], examples: int) -> None:
    settings(max_examples=examples, deadline=None)(given(*cases)(law))()


@pytest.mark.parametrize("name", CASES)
def test_law(name: str) -> None:
    check(*CASES[name])


THOUSANDS = {
    **{name: (law, cases) for name, (law, cases, _) in CASES.items()},
    "brute force": (budgets.equals_brute_force, budgets.BRUTE),
    "budgets": (budgets.holds_the_laws, budgets.LAWS),
    "splits": (budgets.holds_the_laws_of_splits, budgets.SPLITS),
}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", THOUSANDS)
def test_law_in_thousands_of_cases(name: str) -> None:
    law, cases = THOUSANDS[name]
    check(law, cases, 5_000)
