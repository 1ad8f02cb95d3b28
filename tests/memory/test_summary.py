"""Summaries (F12, F13): each turn is passed once, races have one winner, clears start anew."""

from __future__ import annotations

import asyncio

import pytest

from keepwell.actors import telemetry
from keepwell.actors.errors import InvalidValue
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.summary import (
    MemorySummaries,
    StoredSummaries,
    Summary,
    fit_with_summary,
    summarizer_name,
)
from keepwell.memory.turn import Turn
from keepwell.stores.memory_session_store import MemorySessionStore


def conversation(count: int, system: bool = False) -> list[Turn]:
    turns = [
        {"role": ("user", "assistant")[i % 2], "content": f"turn {i:02} "} for i in range(count)
    ]
    return [{"role": "system", "content": "kind"}, *turns] if system else turns


class Recorder:
    """A summarizer that notes what it is given and says which turns it covers."""

    name = "recorder"

    def __init__(self, *, fail: int = 0, gate: asyncio.Event | None = None) -> None:
        self.calls: list[tuple[str | None, list[str]]] = []
        self.fail, self.gate = fail, gate
        self.asked = asyncio.Event()

    async def __call__(self, previous, new):
        self.calls.append((previous, [t["content"][5:7] for t in new]))
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.fail:
            self.fail -= 1
            raise RuntimeError("no model")
        return f"to {self.calls[-1][1][-1]}"


def policy(summarizer, max_tokens: int = 120, summary_tokens: int = 60) -> ContextPolicy:
    return ContextPolicy("summary", max_tokens, summarizer, summary_tokens)


async def fitted(turns, recorder, summaries, epoch=0, **options):
    return await fit_with_summary(
        turns,
        policy(recorder, **options),
        len,
        summaries=summaries,
        conversation_id="c",
        epoch=epoch,
    )


@pytest.fixture(params=["memory", "session store"])
def summaries(request):
    return MemorySummaries() if request.param == "memory" else StoredSummaries(MemorySessionStore())


async def test_each_turn_is_passed_once(summaries):
    recorder = Recorder()
    seen: list[str] = []
    for count in range(1, 40, 2):
        fit = await fitted(conversation(count), recorder, summaries)
        assert fit.tokens <= 120
        assert fit.shown[-1]["content"] == f"turn {count - 1:02} "
        if fit.elided_count:
            assert fit.shown[0]["content"].startswith(f"Summary of {fit.elided_count} earlier turn")
            assert f"to {fit.cut - 1:02}" in fit.shown[0]["content"]
    for _, new in recorder.calls:
        seen += new
    assert seen == [f"{i:02}" for i in range(len(seen))]
    before = len(recorder.calls)
    await fitted(conversation(39), recorder, summaries)  # nothing new: no call
    assert len(recorder.calls) == before
    assert recorder.calls[1][0] == "to " + recorder.calls[0][1][-1]  # the old one is folded in


async def test_a_long_backlog_comes_in_chunks(summaries):
    recorder = Recorder()
    turns = conversation(101, system=True)
    turns[10] = {"role": "user", "content": "turn xx" + "x" * 500}  # larger than any chunk
    fit = await fitted(turns, recorder, summaries)
    passed = [n for _, new in recorder.calls for n in new]
    assert len(passed) == fit.cut - 1  # the system turn stays where it is
    assert max(len(new) for _, new in recorder.calls) <= 120 // 8
    assert ["xx"] in [new for _, new in recorder.calls]


@pytest.mark.parametrize("result", ["", " ", None, 3])
async def test_an_unusable_text_leaves_the_marker_and_the_watermark(result, summaries):
    asked = []

    def bad(previous, new):
        asked.append(len(new))
        return result

    why: list[str] = []
    with telemetry.attach("keepwell.memory.summary.failed", lambda _, f: why.append(f["why"])):
        for _ in range(2):
            fit = await fitted(conversation(31), bad, summaries)
            assert fit.shown[0]["content"] == f"{fit.elided_count} earlier turns elided"
    assert len(asked) == len(why) == 2
    assert asked[0] == asked[1]


async def test_a_summarizer_that_raises_is_asked_again_next_time(summaries):
    recorder = Recorder(fail=1)
    fit = await fitted(conversation(21), recorder, summaries)
    assert "elided" in fit.shown[0]["content"]
    fit = await fitted(conversation(21), recorder, summaries)
    assert fit.shown[0]["content"].startswith("Summary")
    assert recorder.calls[0][1] == recorder.calls[1][1]


async def test_without_room_nobody_is_asked(summaries):
    recorder = Recorder()
    turns = [*conversation(20), {"role": "user", "content": "q" * 92}]
    fit = await fitted(turns, recorder, summaries, summary_tokens=28)
    assert fit.shown[0]["content"] == "20 earlier turns elided"
    assert recorder.calls == []


async def test_summaries_do_not_grow(summaries):
    """F25: five compactions; the text stays within its own budget."""

    async def wordy(previous, new):
        return (previous or "") + " and then " * 20

    for count in (21, 41, 61, 81, 101):
        fit = await fitted(conversation(count), wordy, summaries)
        assert len(fit.shown[0]["content"]) <= 60 + len("14 ")
        assert fit.tokens <= 120


async def test_a_lost_race_takes_the_winners_text(summaries):
    gate = asyncio.Event()
    slow, fast = Recorder(gate=gate), Recorder()
    losing = asyncio.create_task(fitted(conversation(21), slow, summaries))
    await slow.asked.wait()
    won = await fitted(conversation(21), fast, summaries)
    gate.set()
    lost = await losing
    assert lost.shown == won.shown
    assert len(slow.calls) == 1
    both = await asyncio.gather(
        *(fitted(conversation(41), Recorder(), summaries) for _ in range(5))
    )
    assert len({fit.shown[0]["content"] for fit in both}) == 1


async def test_a_clear_starts_anew(summaries):
    recorder = Recorder()
    await fitted(conversation(31), recorder, summaries, epoch=1)
    count = len(recorder.calls)
    await fitted(conversation(31), recorder, summaries, epoch=2)
    assert recorder.calls[count] == (None, recorder.calls[0][1])
    kept = await summaries.load("c", "recorder")
    assert kept is not None
    assert kept.epoch == 2


async def test_conversations_and_summarizers_are_apart(summaries):
    assert await summaries.load("c", "a") is None
    assert await summaries.save("c", "a", Summary("x", 1, 0, 1))
    assert await summaries.save("a:c", "1", Summary("y", 1, 0, 1))
    assert not await summaries.save("c", "a", Summary("z", 1, 0, 1))
    assert not await summaries.save("c", "a", Summary("z", 1, 0, 3))
    assert (await summaries.load("c", "a")).text == "x"
    assert await summaries.load("c", "b") is None


async def test_other_scopes(summaries):
    recorder = Recorder()
    whole = ContextPolicy("whole_session", 60)
    fit = await fit_with_summary(
        conversation(21), whole, len, summaries=summaries, conversation_id="c"
    )
    assert "elided" in fit.shown[0]["content"]
    with pytest.raises(InvalidValue, match="'local'"):
        await fit_with_summary([], ContextPolicy(), len, summaries=summaries, conversation_id="c")
    assert recorder.calls == []


def test_names():
    def inner(previous, new):
        return ""

    assert summarizer_name(Recorder()) == "recorder"
    assert summarizer_name(inner).endswith("test_names.<locals>.inner")
