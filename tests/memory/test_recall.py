"""Recall: what a budget left out and matters all the same, within the budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwell.actors.errors import InvalidValue
from keepwell.memory.budget import ContextTooLarge, fit_context
from keepwell.memory.context import Recalled
from keepwell.memory.full_text_retriever import FullTextRetriever
from keepwell.memory.log_messages import LogMessages
from keepwell.memory.prepared import Prepared
from keepwell.memory.recall_provider import RecallProvider
from keepwell.memory.recalled import choose_recalled, is_recalled, without_marker
from keepwell.memory.repair import in_call_order, repair
from keepwell.memory.retriever import Hit, Retrieved, Retriever
from keepwell.memory.turn import Turn, TurnCost, message_turn
from keepwell.stores import MemoryStore, Message, NoCounter


def count(text: str) -> int:
    return max(1, len(text) // 4)


def turns(spelled: str) -> list[Turn]:
    """`u`, `a`, `s`; `A1` an assistant's call 1, `T1` its result; one character costs one token."""
    out: list[Turn] = []
    for word in spelled.split():
        kind, number = word[0], word[1:]
        if kind == "A":
            call = {"id": number, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            out.append({"role": "assistant", "tool_calls": [call]})
        elif kind == "T":
            out.append({"role": "tool", "content": "r", "tool_call_id": number})
        else:
            role = {"u": "user", "a": "assistant", "s": "system"}[kind]
            out.append({"role": role, "content": word})
    return out


LOG = "u0 a u2 A1 T1 A2 T2 a u8 s a u11"


@pytest.mark.parametrize(("hits", "room", "shown", "expected"), [
    ([], 99, [], []),
    ([1], 99, [], [0, 1]),  # an answer comes with its question
    ([0], 99, [], [0, 1]),  # and a question with its answer
    ([4], 99, [], [2, 3, 4, 5, 6, 7]),  # a result with the exchange it stands in
    ([4], 5, [], [2, 3, 4]),  # or, without room for that, with its call and its question
    ([4], 2, [], [3, 4]),  # or with its call
    ([4], 1, [], []),  # never parted
    ([4, 1], 3, [], [2, 3, 4]),  # the better hit first,
    ([1, 4], 5, [], [0, 1, 2, 3, 4]),  # then what still fits
    ([8], 99, [], [8, 10]),  # system turns are shown anyway
    ([11], 99, [11], []),  # what is shown is not recalled
    ([4], 99, [5, 6, 7], [2, 3, 4]),  # nor a part of it
    ([99, -1], 99, [], []),  # foreign code may say anything
])  # fmt: skip
def test_what_is_recalled(
    hits: list[int], room: int, shown: list[int], expected: list[int]
) -> None:
    ranked = [Hit(place, 10.0 - number) for number, place in enumerate(hits)]
    chosen = choose_recalled(turns(LOG), ranked, shown=shown, fits=lambda p: len(p) <= room)
    assert list(chosen) == expected


def test_hits_far_below_the_best_are_noise() -> None:
    hits = [Hit(1, 10.0), Hit(4, 0.5)]
    assert list(choose_recalled(turns(LOG), hits, shown=[], fits=lambda _: True)) == [0, 1]


def test_a_call_without_answer_is_not_recalled() -> None:
    hits = [Hit(1, 1.0), Hit(2, 0.9)]
    found = choose_recalled(turns("u A1 a u"), hits, shown=[], fits=lambda _: True)
    assert list(found) == [0, 2]


# -- the provider --------------------------------------------------------------------------------


class Fixed:
    """A retriever that gives the same hits whatever it is asked."""

    def __init__(self, *hits: Hit, note: str = "") -> None:
        self.hits, self.note = hits, note
        self.asked: list[tuple[str, int]] = []

    async def retrieve(
        self, conversation_id: str, log: Any, query: str, *, upto: int, limit: int
    ) -> Retrieved:
        self.asked.append((query, upto))
        return Retrieved(self.hits, self.note)


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = await MemoryStore(counter=NoCounter()).spawn()
    yield store
    await store.stop()


def of(count: int) -> list[dict[str, str]]:
    return [
        {"role": "assistant" if n % 2 else "user", "content": f"message {n:03d} of the day"}
        for n in range(count)
    ]


async def view(store: MemoryStore, *question: str) -> LogMessages:
    return LogMessages(await store.read("c"), [Message("user", text) for text in question])


async def test_a_conversation_that_fits_is_shown_as_it_is(store: MemoryStore) -> None:
    await store.add("c", of(4))
    retriever = Fixed(Hit(0, 1.0))
    messages = await view(store, "and now?")
    shown = await RecallProvider(store, retriever, 500, count_tokens=count).prepare("c", messages)
    assert list(shown) == list(messages) and not retriever.asked


async def test_recalled_ones_stand_ahead_and_are_announced(store: MemoryStore) -> None:
    await store.add("c", [{"role": "system", "content": "Be kind."}, *of(40)])
    retriever = Fixed(Hit(6, 5.0))
    messages = await view(store, "what of 005?")
    provider = RecallProvider(store, retriever, 120, recall_tokens=40, count_tokens=count)
    shown = await provider.prepare("c", messages)
    assert isinstance(shown, Prepared) and isinstance(retriever, Retriever)
    texts = [message.text for message in shown]
    assert texts[0] == "Be kind."
    assert texts[1] == f"{shown.report.elided} earlier turns elided"
    assert texts[2] == "Recalled from earlier: the first 2 messages below."
    assert texts[3:5] == ["message 004 of the day", "message 005 of the day"]
    assert texts[-2:] == ["message 039 of the day", "what of 005?"]
    assert [is_recalled(m) for m in shown] == [False, False, True, True, True] + [False] * (
        len(shown) - 5)  # fmt: skip
    report = shown.report
    assert report.recalled == (Recalled(6, 5.0, 5), Recalled(7, 5.0, 5))
    assert report.tokens == sum(count(m.text) for m in shown) <= report.max_tokens == 120
    assert report.kept + report.elided == 41 and report.kept == len(shown) - 3
    ((query, upto),) = retriever.asked
    assert query == "what of 005?" and messages[upto].text == texts[5]
    assert (await store.info("c")).count == 41, "nothing is stored"


class Raises:
    async def retrieve(self, *_: Any, **__: Any) -> Retrieved:
        raise OSError("disk on fire")


class GivesNonsense:
    async def retrieve(self, *_: Any, **__: Any) -> Any:
        return ["nonsense"]


class Hangs:
    async def retrieve(self, *_: Any, **__: Any) -> Retrieved:
        await asyncio.get_running_loop().create_future()
        raise AssertionError


class Crashes:
    def retrieve(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("at once")


@pytest.mark.parametrize(("retriever", "said"), [
    (Raises(), "OSError: disk on fire"), (GivesNonsense(), "TypeError"), (Crashes(), "at once"),
    (Hangs(), "no answer in 0.01 s"), (Fixed(Hit(90, 1.0)), ""), (Fixed(Hit(-1, 1.0)), ""),
    (Fixed(), ""), (Fixed(note="2 behind"), "2 behind"),
], ids=["raises", "nonsense", "crashes", "hangs", "beyond", "below", "none", "note"])  # fmt: skip
async def test_a_failing_retriever_costs_the_turn_nothing(
    store: MemoryStore, retriever: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepwell.memory.recall_provider.RETRIEVE_SECONDS", 0.01)
    await store.add("c", of(40))
    messages = await view(store, "what?")
    provider = RecallProvider(store, retriever, 100, count_tokens=count)
    shown = await provider.prepare("c", messages)
    without = fit_context([message_turn(m) for m in messages], 100, count)
    assert [m.text for m in shown] == [turn["content"] for turn in without.shown]
    assert isinstance(shown, Prepared)
    assert said in shown.report.note and bool(said) == bool(shown.report.note)
    assert not shown.report.recalled
    await provider.clear("c")
    assert (await store.info("c")).count == 0


async def test_what_is_found_and_does_not_fit_is_said(store: MemoryStore) -> None:
    await store.add("c", [{"role": "user", "content": "x" * 200}, *of(40)])
    provider = RecallProvider(store, Fixed(Hit(0, 1.0)), 100, count_tokens=count)
    shown = await provider.prepare("c", await view(store, "what?"))
    assert isinstance(shown, Prepared) and not shown.report.recalled
    assert shown.report.note == "what was found had no room in recall_tokens"


async def test_without_room_beside_the_question_nothing_is_recalled(store: MemoryStore) -> None:
    await store.add("c", of(10))
    question = "x" * 320
    provider = RecallProvider(store, Fixed(Hit(0, 1.0)), 100, count_tokens=count)
    shown = await provider.prepare("c", await view(store, question))
    assert isinstance(shown, Prepared) and shown.report.tokens <= 100
    assert "no room" in shown.report.note and shown[-1].text == question
    with pytest.raises(ContextTooLarge):
        await provider.prepare("c", await view(store, "x" * 800))


@pytest.mark.parametrize(("settings", "said"), [
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 10, "recall_tokens": 0}, "recall_tokens"),
    ({"max_tokens": 10, "recall_tokens": 10}, "less than max_tokens"),
    ({"max_tokens": 10, "limit": 0}, "limit"), ({"max_tokens": "9"}, "max_tokens"),
    ({"max_tokens": 10, "retriever": object()}, "no Retriever"),
    ({"max_tokens": 10, "store": "default"}, "'default' is no conversation store"),
])  # fmt: skip
def test_bad_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        RecallProvider(**{"store": MemoryStore(), "retriever": Fixed(), **settings})


def test_a_retriever_of_no_store_is_refused() -> None:
    store: Any = "default"
    with pytest.raises(InvalidValue, match="'default' is no conversation store"):
        FullTextRetriever(store)


# -- laws ----------------------------------------------------------------------------------------

_texts = st.sampled_from(["", "short", "a longer text of some words", "x" * 90])


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """A log as agents leave it: questions, answers, parallel calls with their results, systems."""
    out: list[Message] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from("uuaacccs"), max_size=24)):
        if kind == "c":
            ids = [f"c{calls + n}" for n in range(draw(st.integers(1, 3)))]
            calls += len(ids)
            out.append(Message("assistant", None, [
                {"id": i, "name": "f", "arguments": {}} for i in ids]))  # fmt: skip
            results = draw(st.permutations(ids))
            out += [Message("tool", draw(_texts), tool_call_id=i) for i in results]
        else:
            role = {"u": "user", "a": "assistant", "s": "system"}[kind]
            out.append(Message(role, f"{len(out)} {draw(_texts)}"))
    return out


async def check_laws(
    store: MemoryStore, logged: Sequence[Message], hits: Sequence[Hit], budget: int, share: int
) -> str:
    """The laws for one conversation; what happened, to see that the cases are not all alike."""
    await store.clear("c")
    await store.add("c", logged)
    provider = RecallProvider(
        store, Fixed(*hits), budget, recall_tokens=max(1, budget * share // 10), count_tokens=count
    )
    messages = await view(store, "the question")
    try:
        shown = await provider.prepare("c", messages)
    except ContextTooLarge:
        with pytest.raises(ContextTooLarge):
            fit_context([message_turn(m) for m in messages], budget, count)
        return "too large"
    assert isinstance(shown, Prepared)
    cost = TurnCost(count)
    real = sum(cost(message_turn(message)) for message in shown)
    assert real == shown.report.tokens <= budget, "never over, by a real count"
    # Nothing is shown twice, nothing is made up, and what is left out is counted exactly.
    given = [_key(message) for message in messages]
    spoken = [m for m in shown if m.role != "system" or not m.extra.get("keepwell")]
    assert set(map(_key, spoken)) <= set(given)
    assert len(set(map(_key, spoken))) == len(spoken)
    said = without_marker(shown)[1]
    assert said == shown.report.elided == len(given) - len(spoken)
    recalled = [m for m in spoken if is_recalled(m)]
    places = [given.index(_key(message)) for message in recalled]
    assert places == sorted(places)
    assert [one.seq for one in shown.report.recalled] == [place + 1 for place in places]
    assert shown[-1].text == "the question"
    # Every call shown has its results, every result its call.
    assert len(in_call_order(repair(list(shown)))) == len(shown)
    # The same again, and over messages without a log.
    assert await provider.prepare("c", messages) == shown
    assert await provider.prepare("c", tuple(messages)) == shown
    return "recalled" if recalled else "cut" if said else "whole"


def _key(message: Message) -> Any:
    """What tells messages of a case apart: contents are numbered, ids of calls are unique."""
    ids = [call.id for call in message.tool_calls]
    return (message.role, message.content, message.tool_call_id, *ids)


_cases = st.tuples(
    conversations(),
    st.lists(st.tuples(st.integers(0, 40), st.floats(0.01, 9.0)).map(lambda pair: Hit(*pair)),
             max_size=6),
    st.integers(2, 160), st.integers(0, 9),
)  # fmt: skip


def run_laws(cases: Any, examples: int) -> set[str]:
    """Check the laws over that many cases, over one store."""
    seen: set[str] = set()
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(_spawn())

    @settings(max_examples=examples, deadline=None)
    @given(cases)
    def laws(case: Any) -> None:
        seen.add(loop.run_until_complete(check_laws(store, *case)))

    try:
        laws()
    finally:
        loop.run_until_complete(_stop(store))
        loop.close()
    return seen


async def _spawn() -> MemoryStore:
    return await MemoryStore(counter=NoCounter()).spawn()


async def _stop(store: MemoryStore) -> None:
    await store.stop()


def test_the_budget_holds_whatever_is_recalled() -> None:
    """Never over budget, groups whole, nothing twice, counts exact, the same again."""
    run_laws(_cases, 60)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_budget_holds_in_thousands_of_cases() -> None:
    assert run_laws(_cases, 5_000) == {"too large", "recalled", "cut", "whole"}
