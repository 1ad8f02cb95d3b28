"""Agents that recall: reports in the log, an index that may die, be damaged or behind."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from keepwell import (
    AgentSpec,
    ContextPolicy,
    FullTextRetriever,
    FunctionModel,
    NoCounter,
    RecallProvider,
    RetrieverError,
    Runtime,
    approx_token_count,
    telemetry,
    tool,
)
from keepwell.actors import failpoint
from keepwell.actors.errors import ActorDied, KeepwellError, StartFailed
from keepwell.memory import full_text_retriever
from keepwell.memory.search_index import FILE, FullTextSearchMissing
from keepwell.stores.message import Message, ToolCall

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Bench:
    runtime: Runtime
    retriever: FullTextRetriever
    supervisor: Any
    folder: Path
    requests: list[Any]

    def provider(self, budget: int = 100) -> RecallProvider:
        return RecallProvider(
            self.runtime.store, self.retriever, budget, count_tokens=approx_token_count
        )

    async def agent(self, budget: int = 100, reply: Any = None, **settings: Any) -> Any:
        def model(request: Any) -> Any:
            self.requests.append(request)
            return "noted" if reply is None else reply(request)

        spec = AgentSpec(FunctionModel(model), memory=self.provider(budget), **settings)
        return await self.runtime.spawn(spec, "c")

    async def tell(self, agent: Any, turns: int = 20) -> None:
        await agent.run("My dog is called Rex")
        for number in range(turns):
            await agent.run(f"The weather in town {number} is fine")

    async def kill_index(self) -> Any:
        """Kill the index's actor; whoever asks the supervisor next finds it restarted."""
        ref = self.retriever.ref
        ref.kill()
        await ref.ended()

    def texts(self) -> list[str]:
        return [message.text for message in self.requests[-1].messages]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Runtime(tmp_path / "data", counter=NoCounter(), durability="process") as runtime:
        retriever = FullTextRetriever(runtime.store, tmp_path / "recall")
        supervisor = await runtime.start_child(retriever.child_spec())
        yield Bench(runtime, retriever, supervisor, tmp_path / "recall", [])


async def test_what_matters_is_recalled_and_reported(bench: Bench) -> None:
    agent = await bench.agent(instructions="Be brief.")
    reports: list[Any] = []
    await bench.tell(agent)
    with telemetry.attach("keepwell.context.shown", lambda _, f: reports.append(f["report"])):
        result = await agent.run('What is my "dog" called? (NOT a cat) OR *')
    texts = bench.texts()
    assert texts[0] == "Be brief." and texts[1].endswith(" earlier turns elided")
    assert texts[2] == "Recalled from earlier: the first 2 messages below."
    assert texts[3:5] == ["My dog is called Rex", "noted"]
    assert texts.count("My dog is called Rex") == 1
    records = list(await bench.runtime.store.read("c", marks=True))
    (report,) = records[-1].mark["context_report"]
    assert [one["seq"] for one in report["recalled"]] == [1, 2]
    assert all(one["score"] > 0 and one["tokens"] > 0 for one in report["recalled"])
    assert report["tokens"] <= report["max_tokens"] == 100 and report["note"] == ""
    assert (report["turn_id"], report["step"]) == (result.turn_id, 1)
    assert [one.to_dict()["recalled"] for one in reports] == [tuple(report["recalled"])]
    assert len(await agent.messages()) == 2 * 22, "what is recalled is not stored again"
    assert all("keepwell" not in message.extra for message in await agent.messages())


async def test_tool_calls_are_recalled_whole(bench: Bench) -> None:
    def reply(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "user" and "Lisbon" in last.text and "look" in last.text:
            return Message("assistant", None, [ToolCall("1", "look_up", {"city": "Lisbon"}),
                                               ToolCall("2", "look_up", {"city": "Porto"})])
        return "noted"

    def look_up(city: str) -> str:
        """Look the weather of a city up."""
        return f"{city} sunny"

    agent = await bench.agent(240, reply, tools=[look_up])
    await agent.run("please look after Lisbon for me")
    await bench.tell(agent, 40)
    await agent.run("Porto?")
    shown = bench.requests[-1].messages
    assert [m.role for m in shown[2:7]] == ["user", "assistant", "tool", "tool", "assistant"]
    assert {m.tool_call_id for m in shown[4:6]} == {"1", "2"}


async def test_a_clear_is_forgotten_at_once(bench: Bench) -> None:
    agent = await bench.agent()
    await bench.tell(agent)
    await agent.run("dog?")
    await agent.clear()
    await bench.retriever.forget("other")  # behind the clear's own
    assert b"rex" not in (bench.folder / FILE).read_bytes()
    await bench.tell(agent, 0)
    await agent.run("dog?")
    assert bench.texts() == ["My dog is called Rex", "noted", "dog?"]


async def test_a_clear_past_the_provider_is_found_by_the_sweep(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bench.runtime.store
    for name in ("a", "b", "c"):
        await store.add(name, [{"role": "user", "content": f"the dog {name}"}])
        await bench.retriever.retrieve(name, await store.read(name), "dog", upto=1, limit=1)
    await store.clear("b")
    monkeypatch.setattr(full_text_retriever, "SWEEP_PAGE", 1)
    for after in ("", "a", "b", "c"):
        await bench.retriever.ref.ask(full_text_retriever.Sweep(after), block=False)
    log = await store.read("b")
    assert not (await bench.retriever.retrieve("b", log, "dog", upto=1, limit=1)).hits
    assert b"dog b" not in (bench.folder / FILE).read_bytes()


async def test_an_index_that_is_behind_says_so_and_catches_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_text_retriever, "CATCH_UP", 500)
    store = bench.runtime.store
    await store.add("c", [{"role": "user", "content": f"dog w{n}"} for n in range(1_700)])
    log = await store.read("c")
    seen = await bench.retriever.retrieve("c", log, "w1600 w7", upto=1_700, limit=3)
    assert seen.note == "the index is 1200 messages behind"
    assert [hit.place for hit in seen.hits] == [7]
    while seen.note:  # each answer is a portion further, without another question too
        seen = await bench.retriever.retrieve("c", log, "w1600 w7", upto=1_700, limit=3)
    assert {hit.place for hit in seen.hits} == {7, 1600}


# -- trouble -------------------------------------------------------------------------------------


async def test_a_dead_index_costs_no_turn_and_comes_back(bench: Bench) -> None:
    agent = await bench.agent()
    await bench.tell(agent)
    first = bench.retriever.ref
    await bench.kill_index()
    await agent.run("My dog?")
    await bench.supervisor.which_children()
    assert bench.retriever.ref is not first
    await agent.run("My dog?")
    assert "My dog is called Rex" in bench.texts()
    records = list(await bench.runtime.store.read("c", marks=True))
    assert records[-1].mark["context_report"][0]["note"] == ""


async def test_an_index_that_is_given_up_costs_no_turn(bench: Bench) -> None:
    agent = await bench.agent()
    await bench.tell(agent)
    for _ in range(full_text_retriever.RESTARTS):
        await bench.kill_index()
        await bench.supervisor.which_children()
    await bench.kill_index()
    await bench.supervisor.ended()
    with pytest.raises(ActorDied):
        await bench.retriever.forget("c")
    assert (await agent.run("My dog?")).text == "noted"
    records = list(await bench.runtime.store.read("c", marks=True))
    assert records[-1].mark["context_report"][0]["note"].startswith("nothing was recalled: Actor")
    assert bench.runtime.health().live, "nobody else is given up with it"


@pytest.mark.parametrize("how", ["its tables are dropped", "it is garbled and opened again"])
async def test_an_index_that_is_damaged_is_made_again(bench: Bench, how: str) -> None:
    agent = await bench.agent()
    await bench.tell(agent)
    await agent.run("My dog?")
    events: list[Any] = []
    with telemetry.attach("keepwell.recall.rebuilt", lambda _, fields: events.append(fields)):
        if how.startswith("its"):
            db = sqlite3.connect(bench.folder / FILE)
            db.execute("DROP TABLE messages")
            db.commit()
            db.close()
            assert (await agent.run("My dog?")).text == "noted"
            records = list(await bench.runtime.store.read("c", marks=True))
            assert "damaged" in records[-1].mark["context_report"][0]["note"]
        else:
            for name in (FILE, f"{FILE}-wal"):
                size = os.path.getsize(bench.folder / name)
                (bench.folder / name).write_bytes(b"\xa5" * size)
            await bench.kill_index()
            await bench.supervisor.which_children()
        await agent.run("My dog?")
    assert len(events) == 1
    assert "My dog is called Rex" in bench.texts()


async def test_trouble_with_the_disk_is_a_note(bench: Bench) -> None:
    agent = await bench.agent()
    await bench.tell(agent)

    def full() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with failpoint.active({"recall.commit.before": full}):
        await agent.run("My dog?")
    records = list(await bench.runtime.store.read("c", marks=True))
    note = records[-1].mark["context_report"][0]["note"]
    assert "RetrieverError" in note and "disk is full" in note
    await agent.run("My dog?")
    assert "My dog is called Rex" in bench.texts()


def cause_of(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """The cause of that kind, however deep."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error


async def test_a_retriever_that_is_not_started_says_what_to_do(tmp_path: Path) -> None:
    async with Runtime(counter=NoCounter()) as runtime:
        retriever = FullTextRetriever(runtime.store)
        memory = RecallProvider(runtime.store, retriever, 60, count_tokens=approx_token_count)
        agent = await runtime.spawn(AgentSpec(FunctionModel(lambda _: "ok"), memory=memory), "c")
        for number in range(20):
            await agent.run(f"number {number}, as it were")
        records = list(await runtime.store.read("c", marks=True))
        assert "start_child" in records[-1].mark["context_report"][0]["note"]
        (tmp_path / "file").write_text("no directory")
        unusable = FullTextRetriever(runtime.store, tmp_path / "file")
        with pytest.raises(StartFailed) as failed:
            await runtime.start_child(unusable.child_spec())
        assert isinstance(cause_of(failed.value, RetrieverError), RetrieverError)


async def test_without_full_text_search_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise FullTextSearchMissing

    monkeypatch.setattr("keepwell.memory.search_index._check_full_text_search", missing)
    async with Runtime(counter=NoCounter()) as runtime:
        with pytest.raises(StartFailed) as failed:
            await runtime.start_child(FullTextRetriever(runtime.store).child_spec())
        assert cause_of(failed.value, FullTextSearchMissing) is not None
        assert runtime.health().live


@pytest.mark.parametrize(("budget", "recalls"), [(100, False), (160, True)])
async def test_a_budget_of_the_agent_shows_recall_whole_or_not(
    bench: Bench, budget: int, recalls: bool
) -> None:
    """`context=` beside it: announcements stay true, the sum of what is left out exact."""
    agent = await bench.agent(
        100, context=ContextPolicy("whole_session", budget), instructions="Be brief.",
        count_tokens=approx_token_count,
    )  # fmt: skip
    await bench.tell(agent)
    await agent.run("What of my dog?")
    shown = bench.requests[-1].messages
    stored = len(await agent.messages()) - 1
    announced = [m.text for m in shown if m.role == "system"][1:]
    spoken = [m for m in shown if m.role != "system"]
    left_out = f"{stored - len(spoken)} earlier turns elided"
    assert left_out in announced and len(announced) == 1 + recalls
    assert ("My dog is called Rex" in bench.texts()) is recalls
    assert sum(approx_token_count(m.text) for m in shown) <= budget
    records = list(await bench.runtime.store.read("c", marks=True))
    (report,) = records[-1].mark["context_report"]
    assert (report["by"], report["scope"]) == ("agent", "whole_session")
    assert report["elided"] == stored - len(spoken) and report["kept"] == len(spoken)
    assert bool(report["recalled"]) is recalls and bool(report["note"]) is not recalls


def test_killed_while_it_indexes(tmp_path: Path) -> None:
    """kill -9 around the index's commits: each message is found once, none is missing."""
    points = ["before", "after@3", "before@8"]
    jobs = []
    for number, point in enumerate(points):
        name, _, hit = point.partition("@")
        kill = f"recall.commit.{name}=kill{'@' if hit else ''}{hit}"
        jobs += [[f"{tmp_path}/{number}", 25, kill], [f"{tmp_path}/{number}", 25, ""]]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("recall_child.py")), json.dumps(jobs)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=50, check=True)  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line for line in lines if isinstance(line, int)] == [-9, 0] * len(points), done.stderr
    seen = [line for line in lines if isinstance(line, dict)]
    assert len(seen) == len(points)
    for found in seen:
        assert found["found"] == found["users"] and len(found["users"]) == 25 and not found["note"]


@pytest.mark.parametrize(("words", "fits"), [(150, True), (2000, False)])
async def test_room_for_recall_never_hides_what_a_call_gave(
    bench: Bench, words: int, fits: bool
) -> None:
    """It gives way to the result of the turn; what does not fit at all ends the turn (F9)."""

    @tool
    async def look() -> str:
        """Give a lot."""
        return "much " * words

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        return ToolCall("c", "look", {}) if last.text == "Who is Rex?" else "seen"

    agent = await bench.agent(budget=250, reply=reply, tools=[look])
    await bench.tell(agent)
    if fits:
        assert (await agent.run("Who is Rex?")).text == "seen"
    else:
        with pytest.raises(KeepwellError, match="result of the last tool calls"):
            await agent.run("Who is Rex?")
