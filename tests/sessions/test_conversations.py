"""What reading leaves see of a conversation, and what turns add to it (E7, E8, F12…F14)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwell import (
    AgentSpec,
    FunctionModel,
    NewRecord,
    NoCounter,
    Runtime,
    SimpleStore,
    StoreUnavailable,
    flow,
    telemetry,
)
from keepwell.memory.context import (
    ContextReport,
    JoinedTurns,
    MemorySummaries,
    Source,
    Summary,
    cut_context,
)
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.turn import Turn, TurnCost
from keepwell.sessions import loop, run_session
from keepwell.stores.memory_session_store import MemorySessionStore
from keepwell.stores.session_state import LogRecords
from keepwell.surroundings import append_until_acknowledged
from keepwell.testing.store_contract import CharacterCounter

from .gate import crash, told

READING = ContextPolicy("whole_session", 10_000)


class Recorder:
    def __init__(self) -> None:
        self.requests: list[list[tuple[str, Any]]] = []
        self.model = FunctionModel(self._answer)

    def _answer(self, request: Any) -> str:
        self.requests.append([(m.role, m.text) for m in request.messages])
        return f"reply {len(self.requests)}"


def talking(recorder: Recorder, policy: ContextPolicy = READING, *more: Any) -> Any:
    return loop(flow.seq(
        flow.recv("in"), flow.arr(lambda d: d["msg"]), *more,
        flow.think(recorder.model, "", policy), flow.emit("out"), flow.arr(lambda _: None),
    ))  # fmt: skip


def echo(text: str) -> str:
    return text


# -- E7 ------------------------------------------------------------------------------------------


async def test_e7_turn_2_knows_turn_1_also_after_a_crash(runtime: Runtime) -> None:
    recorder = Recorder()
    handle = await runtime.open_session(talking(recorder, READING, flow.call(echo)), "s")
    await handle.request("the codeword is mango")
    await crash(handle)
    await handle.request("what is it?")
    assert ("user", "the codeword is mango") in recorder.requests[1]
    assert ("assistant", "reply 1") in recorder.requests[1]
    log = await runtime.store.read("s")
    assert [record.message.role for record in log] == ["user", "assistant", "tool", "assistant"] * 2
    assert {record.turn_id for record in log} == {log[0].turn_id, log[4].turn_id}
    assert log[0].turn_id != log[4].turn_id


async def test_e7_a_result_reads_the_same_in_its_turn_and_later(runtime: Runtime) -> None:
    """A context that begins as the last one did is what providers cache."""
    recorder = Recorder()

    def look_up(text: str) -> dict[str, Any]:
        return {"text": text, "found": [1, 2], "ö": None}

    ask = flow.seq(flow.arr(lambda text: {"text": text}), flow.call(look_up), flow.arr(str))
    handle = await runtime.open_session(talking(recorder, READING, ask), "s")
    await handle.request("a")
    await handle.request("b")
    first, second = recorder.requests
    assert first[2] == ("tool", '{"text":"a","found":[1,2],"ö":null}')
    assert second[:3] == first[:3]


async def test_e7_a_failed_turn_adds_nothing(runtime: Runtime) -> None:
    recorder = Recorder()

    def fail(value: Any) -> Any:
        if value == "bad":
            raise ValueError
        return value

    handle = await runtime.open_session(talking(recorder, READING, flow.arr(fail)), "s")
    assert (await handle.request("bad")).outcome == "failed"
    assert len(await runtime.store.read("s")) == 0
    await handle.request("good")
    assert len(await runtime.store.read("s")) == 2


async def test_e7_nothing_is_added_to_a_log_that_was_cleared_meanwhile(runtime: Runtime) -> None:
    recorder = Recorder()

    async def clear(value: Any) -> Any:
        await runtime.store.clear("s")
        return value

    handle = await runtime.open_session(talking(recorder, READING, flow.arr(clear)), "s")
    assert (await handle.request("a")).outcome == "done", "the turn is none the worse"
    assert len(await runtime.store.read("s")) == 0


async def test_e7_the_conversation_may_be_another_one(runtime: Runtime) -> None:
    recorder = Recorder()
    await runtime.store.add("shared", [{"role": "user", "content": "from elsewhere"}])
    handle = await runtime.open_session(talking(recorder), "s", conversation_id="shared")
    await handle.request("a")
    assert recorder.requests[0] == [("user", "from elsewhere"), ("user", "a")]
    assert len(await runtime.store.read("shared")) == 3
    assert len(await runtime.store.read("s")) == 0


async def test_e7_function_sessions_add_nothing_themselves(runtime: Runtime) -> None:
    handle = await runtime.open_session(loop(lambda message, carrier: message), "s")
    await handle.request("a")
    assert len(await runtime.store.read("s")) == 0


async def test_e7_a_turn_holds_its_conversations_gate(runtime: Runtime) -> None:
    model, recorder = Recorder(), Recorder()
    began, go = asyncio.Event(), asyncio.Event()

    async def wait(value: Any) -> Any:
        began.set()
        await go.wait()
        return value

    handle = await runtime.open_session(talking(recorder, READING, flow.arr(wait)), "s")
    turn = asyncio.ensure_future(handle.request("flow"))
    await began.wait()
    agent = await runtime.spawn(AgentSpec(model.model), conversation_id="s")
    run = asyncio.ensure_future(agent.run("agent"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert model.requests == []
    go.set()
    await asyncio.wait_for(asyncio.gather(turn, run), 20)
    texts = [record.message.text for record in await runtime.store.read("s")]
    assert "|".join(texts) == "flow|reply 1|agent|reply 1"


async def test_e7_a_foreign_store_gets_the_records_until_it_takes_them() -> None:
    class Shaky:
        def __init__(self) -> None:
            self.kept: list[Any] = []
            self.refusals = 2

        async def get(self, conversation_id: str) -> list[Any]:
            return list(self.kept)

        async def add(self, conversation_id: str, messages: list[Any]) -> None:
            if self.refusals:
                self.refusals -= 1
                raise StoreUnavailable("shaky")
            self.kept.extend(messages)

        async def clear(self, conversation_id: str) -> None:
            self.kept.clear()

    shaky = Shaky()
    records = (NewRecord({"role": "user", "content": "one"}, "t"),)
    log = LogRecords("c", records, "t")
    await append_until_acknowledged(SimpleStore(shaky, counter=NoCounter()), log)
    assert (len(shaky.kept), shaky.refusals) == (1, 0)


async def test_e7_what_a_store_refuses_is_not_added(runtime: Runtime) -> None:
    records = (NewRecord({"role": "user", "content": "one"}, "t"),)
    await append_until_acknowledged(runtime.store, LogRecords("c", records, "t", epoch=5))
    assert len(await runtime.store.read("c")) == 0


async def test_e7_a_driven_session_remembers_for_as_long_as_it_is_driven() -> None:
    recorder = Recorder()
    await run_session(talking(recorder), ["one", "two"])
    assert recorder.requests[1] == [("user", "one"), ("assistant", "reply 1"), ("user", "two")]


# -- E8, F8: budgets -----------------------------------------------------------------------------


async def test_e8_none_and_local_show_the_direct_input_only(runtime: Runtime) -> None:
    for number, scope in enumerate(("none", "local")):
        recorder = Recorder()
        policy = ContextPolicy(scope)  # type: ignore[arg-type]  # a str, not a Literal
        handle = await runtime.open_session(talking(recorder, policy), f"s{number}")
        await handle.request("one")
        await handle.request("two")
        assert recorder.requests[1] == [("user", "two")]


async def test_f8_what_is_left_out_is_announced_and_reported() -> None:
    recorder = Recorder()
    reports: list[ContextReport] = []
    with telemetry.attach("keepwell.context.shown", lambda _, f: reports.append(f["report"])):
        policy = ContextPolicy("whole_session", 12)
        store = MemorySessionStore()
        await run_session(talking(recorder, policy), ["aaaa" * 3] * 5, store=store, session_id="s")
    last = recorder.requests[-1]
    assert last[0][0] == "system" and last[0][1].endswith("earlier turns elided")
    assert last[-1] == ("user", "aaaa" * 3)
    report = reports[-1]
    assert report.tokens <= 12 and report.max_tokens == 12
    assert f"{report.elided} earlier" in last[0][1]
    assert (report.by, report.scope, report.conversation_id) == ("think", "whole_session", "s")
    assert report.kept == len(last) - 1


async def test_reports_stand_in_the_log(runtime: Runtime) -> None:
    recorder = Recorder()
    handle = await runtime.open_session(talking(recorder), "s")
    await handle.request("one")
    log = await runtime.store.read("s", marks=True)
    (mark,) = [record.mark for record in log if record.mark]
    (report,) = mark["context_report"]
    assert (report["scope"], report["elided"], report["kept"]) == ("whole_session", 0, 1)


# -- F12, F13: summaries -------------------------------------------------------------------------


class Summarizer:
    """Remembers which turns it was passed; `fails`: how many calls fail first."""

    name = "test"

    def __init__(self, fails: int = 0, text: Any = None) -> None:
        self.passed: list[str] = []
        self.previous: list[str | None] = []
        self.fails = fails
        self.text = text

    async def __call__(self, previous: str | None, new: Sequence[Turn]) -> Any:
        self.passed += [str(turn["content"]) for turn in new]
        self.previous.append(previous)
        if self.fails:
            self.fails -= 1
            raise OSError("no model")
        return self.text if self.text is not None else f"S{len(self.passed)}"


def turns_of(count: int) -> list[Turn]:
    return [{"role": "assistant" if n % 2 else "user", "content": f"t{n}"} for n in range(count)]


def one(text: str) -> int:
    return len(text)


async def cut(
    turns: Sequence[Turn], summarizer: Summarizer, summaries: Any, *, budget: int = 100,
    logged: int | None = None, epoch: int = 0,
) -> Any:  # fmt: skip
    policy = ContextPolicy("summary", budget, summarizer, 60)
    source = Source("c", epoch, len(turns) if logged is None else logged)
    return await cut_context(turns, policy, one, source=source, summaries=summaries)


@pytest.fixture(params=["plain", "rows"])
def summaries(request: pytest.FixtureRequest) -> Any:
    return MemorySummaries() if request.param == "plain" else MemorySessionStore()


async def test_f12_each_turn_is_summarized_once(summaries: Any) -> None:
    summarizer = Summarizer()
    shown: list[str] = []
    for count in range(1, 80, 2):
        fit = await cut(turns_of(count), summarizer, summaries)
        assert fit.tokens <= 100
        shown.append(str(fit.shown[0]["content"]))
    assert summarizer.passed == [f"t{n}" for n in range(len(summarizer.passed))]
    assert len(summarizer.passed) > 50
    assert shown[-1].startswith("Summary of ") and shown[-1].endswith(f"S{len(summarizer.passed)}")
    assert summarizer.previous[0] is None and summarizer.previous[1] is not None


async def test_f12_a_clear_forgets_the_summary(summaries: Any) -> None:
    summarizer = Summarizer()
    await cut(turns_of(41), summarizer, summaries)
    before = len(summarizer.passed)
    await cut(turns_of(41), summarizer, summaries)
    assert len(summarizer.passed) == before
    await cut(turns_of(41), summarizer, summaries, epoch=1)
    assert len(summarizer.passed) == 2 * before


async def test_f12_turns_come_in_chunks_of_at_most_the_budget(summaries: Any) -> None:
    sizes: list[int] = []

    class Counting(Summarizer):
        async def __call__(self, previous: str | None, new: Sequence[Turn]) -> Any:
            sizes.append(sum(map(TurnCost(one), new)))
            return await super().__call__(previous, new)

    await cut(turns_of(201), Counting(), summaries)
    assert max(sizes) <= 100 and len(sizes) > 3


async def test_f12_the_loser_of_a_race_takes_the_winners_text(summaries: Any) -> None:
    summarizer = Summarizer()

    class Slow(Summarizer):
        async def __call__(self, previous: str | None, new: Sequence[Turn]) -> Any:
            text = await super().__call__(previous, new)
            await cut(turns_of(41), summarizer, summaries)  # another one is faster
            return text

    fit = await cut(turns_of(41), Slow(text="the loser's"), summaries)
    assert "the loser's" not in str(fit.shown[0]["content"])
    assert f"S{len(summarizer.passed)}" in str(fit.shown[0]["content"])


@pytest.mark.parametrize("budget", [100, 140])
async def test_f25_a_summary_stays_within_its_own_budget(budget: int, summaries: Any) -> None:
    class Growing(Summarizer):
        """Wraps the old summary into the new one, every time."""

        async def __call__(self, previous: str | None, new: Sequence[Turn]) -> Any:
            await super().__call__(previous, new)
            return f"{previous or ''}{' '.join(str(turn['content']) for turn in new)} " * 2

    summarizer = Growing()
    for count in range(1, 120, 4):
        fit = await cut(turns_of(count), summarizer, summaries, budget=budget)
        assert fit.tokens <= budget
    assert len(summarizer.previous) > 5
    assert all(len(previous or "") <= 60 for previous in summarizer.previous)
    _, stored = await summaries.summary("c", "test", 0)
    assert len(stored) <= 60 and stored.endswith("…")
    assert stored.startswith("t0")  # what was folded in first is not what is cut off


async def test_f25_a_giant_summary_is_never_counted_whole(summaries: Any) -> None:
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text)

    policy = ContextPolicy("summary", 100, Summarizer(text="x" * 1_000_000), 60)
    await cut_context(turns_of(41), policy, count, source=Source("c", 0, 41), summaries=summaries)
    assert max(counted) < 10_000


@pytest.mark.parametrize("how", [{"text": ""}, {"text": "  "}, {"text": 5}, {"fails": 9}], ids=str)
async def test_f13_a_failing_summarizer_costs_only_the_summary(
    how: dict[str, Any], summaries: Any
) -> None:
    summarizer = Summarizer(**how)
    failed: list[Any] = []
    with telemetry.attach("keepwell.context.summary_failed", lambda _, f: failed.append(f)):
        fit = await cut(turns_of(41), summarizer, summaries)
    assert str(fit.shown[0]["content"]).endswith("earlier turns elided")
    assert len(failed) == 1
    known = await summaries.summary("c", "test", 0)
    assert known is None, "the watermark has not moved"
    summarizer.fails, summarizer.text = 0, "now"
    again = await cut(turns_of(41), summarizer, summaries)
    assert str(again.shown[0]["content"]).endswith("now")


async def test_f13_nothing_new_is_no_call(summaries: Any) -> None:
    summarizer = Summarizer()
    await cut(turns_of(3), summarizer, summaries)
    assert summarizer.previous == []
    await cut(turns_of(41), summarizer, summaries)
    calls = len(summarizer.previous)
    await cut(turns_of(41), summarizer, summaries)
    assert len(summarizer.previous) == calls


async def test_f12_sync_summarizers_and_system_turns(summaries: Any) -> None:
    passed: list[Turn] = []

    def plain(previous: str | None, new: Sequence[Turn]) -> str:
        passed.extend(new)
        return "sum"

    turns = turns_of(41)
    turns.insert(3, {"role": "system", "content": "rule"})
    policy = ContextPolicy("summary", 100, plain, 60)
    fit = await cut_context(
        turns, policy, one, source=Source("c", 0, len(turns)), summaries=summaries
    )
    assert fit.shown[0]["content"] == "rule"
    assert "rule" not in [turn["content"] for turn in passed]
    assert fit.tokens <= 100


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("uats"), st.integers(1, 60)), min_size=1, max_size=30),
    st.integers(40, 200), st.data(),
)  # fmt: skip
def test_f12_laws_of_summaries(kinds: Any, budget: int, data: Any) -> None:
    """Never over the budget; each log turn passed at most once; text grows with the cut."""
    roles = {"u": "user", "a": "assistant", "t": "user", "s": "system"}
    turns: list[Turn] = [
        {"role": roles[kind], "content": "x" * size} for kind, size in kinds if kind != "s"
    ] or [{"role": "user", "content": "x"}]
    turns.append({"role": "user", "content": "q"})
    steps = data.draw(st.lists(st.integers(1, len(turns)), min_size=1, max_size=6).map(sorted))

    async def run() -> None:
        summaries, summarizer = MemorySummaries(), Summarizer()
        for step in [*steps, len(turns)]:
            seen = [*turns[:step], {"role": "user", "content": "?"}]
            fit = await cut(seen, summarizer, summaries, budget=max(budget, 61), logged=step)
            assert sum(map(TurnCost(one), fit.shown)) == fit.tokens <= max(budget, 61)
        assert len(summarizer.passed) <= len(turns)

    asyncio.run(run())


async def test_a_summary_survives_in_the_sessions_environment(runtime: Runtime) -> None:
    store = runtime.session_store
    assert await store.swap_summary("c", "s", 0, 0, Summary(3, "text")) == (3, "text")
    assert await store.swap_summary("c", "s", 0, 0, Summary(9, "late")) == (3, "text")
    assert await store.summary("c", "s", 0) == (3, "text")
    assert await store.summary("c", "s", 1) is None
    assert await store.summary("c", "other", 0) is None


# -- F14: cost -----------------------------------------------------------------------------------


async def test_f14_a_turn_reads_what_it_shows_however_long_the_log_is(tmp_path: Any) -> None:
    async with Runtime(tmp_path, durability="process", counter=CharacterCounter()) as runtime:
        touched = {length: await touched_turns(runtime, length) for length in (100, 3_000)}
    assert touched[100] == touched[3_000] < 60


async def touched_turns(runtime: Runtime, length: int) -> int:
    """How many turns one model call looks at, over a log of `length` messages."""
    name = f"c{length}"
    for start in range(0, length, 100):
        await runtime.store.add(name, [
            {"role": "user" if n % 2 == 0 else "assistant", "content": f"text {n % 10}"}
            for n in range(start, start + 100)
        ])  # fmt: skip
    reads = 0
    real = JoinedTurns._whole

    def counting(self: JoinedTurns, turn: Turn) -> Turn:
        nonlocal reads
        reads += 1
        return real(self, turn)

    JoinedTurns._whole = counting  # type: ignore[method-assign]  # to count
    try:
        defined = talking(Recorder(), ContextPolicy("whole_session", 120))
        handle = await runtime.open_session(defined, f"s{length}", conversation_id=name)
        assert (await handle.request("question")).outcome == "done"
    finally:
        JoinedTurns._whole = real  # type: ignore[method-assign]  # back again
    return reads


async def test_told_is_a_helper_of_its_own() -> None:
    assert await told("keepwell.test", lambda: telemetry.emit("keepwell.test", a=1)) == {"a": 1}


async def test_c16_a_conversation_holds_the_blobs_of_its_records(tmp_path: Any) -> None:
    def produce(text: str) -> str:
        return "x" * 40_000

    async with Runtime(tmp_path, durability="process", counter=NoCounter()) as runtime:
        defined = talking(Recorder(), ContextPolicy(), flow.call(produce), flow.arr(lambda _: "?"))
        handle = await runtime.open_session(defined, "s", conversation_id="c")
        assert (await handle.request("go")).outcome == "done"
        log = await runtime.store.read("c")
        (ref,) = [r.message.extra["content_ref"] for r in log if "content_ref" in r.message.extra]
        store = runtime.session_store
        assert (await store.collect(0)).blobs == 0
        assert await store.get_blob("default", ref) == "x" * 40_000
        await runtime.store.clear("c")
        assert (await store.collect(0)).blobs == 1
