"""A turn ends exactly once wherever agent, provider or store die (RS-1…10, DF-2, F12, F32)."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors import failpoint
from keepwell.actors.errors import ActorDied
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.scripted_model import Held, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.tool_result import error_type_of
from keepwell.agent.turn_errors import ConversationCleared, TurnCancelled
from keepwell.runtime import Runtime
from keepwell.stores.message import Message, ToolCall
from keepwell.stores.record import Record
from keepwell.testing.provider_rules import check_history

VICTIMS = ("agent", "provider", "store")
POINTS = [
    ("turn.question", 1),
    ("turn.append", 1), ("turn.append", 2), ("turn.append", 3), ("turn.append", 4),
    ("turn.append", 5),
    ("turn.reply", 1), ("turn.reply", 2),
    ("turn.settled", 1), ("turn.settled", 2),
    ("turn.before_tools", 1),
    ("turn.result", 1), ("turn.result", 2),
    ("turn.before_answer", 1),
    ("provider.append", 2), ("provider.history", 1),
    ("in_model", 1), ("in_model", 2), ("in_tool", 1), ("in_tool", 2),
    ("store.commit.begin", 2), ("store.commit.planned", 2), ("store.commit.before_flush", 2),
    ("store.commit.after_flush", 2), ("store.publish", 2), ("store.commit.published", 2),
    ("store.acknowledge", 1), ("store.acknowledge", 2),
]  # fmt: skip
TOGETHER = 4
"""Points tried in one runtime, each in a conversation of its own: a default store may crash five
times in ten seconds."""


def check_log(records: Sequence[Record]) -> None:
    """What every log must be, whatever happened to the turn."""
    assert [r.seq for r in records] == list(range(1, len(records) + 1))
    open_calls: Counter[str] = Counter()
    questions: Counter[Any] = Counter()
    for record in records:
        message = record.message
        if message is None:
            continue
        if message.role == "user":
            questions[record.turn_id] += 1
            assert not +open_calls, "a question inside a call/result group"
        elif message.role == "assistant":
            assert not +open_calls, "a reply before all results"
            open_calls.update(call.id for call in message.tool_calls)
        else:
            open_calls[message.tool_call_id or ""] -= 1
            assert open_calls[message.tool_call_id or ""] >= 0, "a result twice"
    assert not +open_calls
    assert set(questions.values()) <= {1}
    ended = Counter(r.turn_id for r in records if r.mark and "ended" in r.mark)
    assert set(ended.values()) <= {1}


class Scene:
    """One runtime, one agent with two tools, and somebody who is killed."""

    def __init__(self, runtime: Runtime, idempotent: bool, name: str = "c") -> None:
        self.runtime, self.name = runtime, name
        self.ran: Counter[str] = Counter()
        scene = self

        @tool(idempotent=idempotent)
        async def work(name: str) -> str:
            """Work."""
            scene.ran[name] += 1
            failpoint.failpoint("in_tool")
            await asyncio.sleep(0.001)
            return f"worked on {name}"

        def reply(request: Any) -> Any:
            failpoint.failpoint("in_model")
            if request.messages[-1].role == "user":
                return Message(
                    "assistant", None,
                    [ToolCall("x", "work", {"name": "x"}), ToolCall("y", "work", {"name": "y"})],
                )  # fmt: skip
            return "done"

        self.spec = AgentSpec(FunctionModel(reply), tools=[work])

    async def open(self) -> None:
        self.agent = await self.runtime.spawn(self.spec, self.name)

    def kill(self, victim: str) -> None:
        match victim:
            case "agent":
                self.agent.ref.kill()
            case "provider":
                (home,) = self.runtime._memories.homes()
                home.ref.kill()
            case _:
                assert self.runtime.store.port.ref is not None
                self.runtime.store.port.ref.kill()


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "once"])
@pytest.mark.parametrize("victim", VICTIMS)
async def test_the_turn_ends_once_at_every_point(
    victim: str, idempotent: bool, tmp_path: Path, record_property: Any
) -> None:
    """Crash matrix: {agent, provider, store} x {step boundaries, inside model, tool and append}."""
    counts: Counter[str] = Counter()
    for start in range(0, len(POINTS), TOGETHER):
        async with Runtime(tmp_path / str(start)) as runtime:
            for point, n in POINTS[start : start + TOGETHER]:
                scene = Scene(runtime, idempotent, f"{point} {n}")
                await scene.open()
                action = failpoint.on_hit(n, lambda scene=scene: scene.kill(victim))
                with failpoint.active({point: action}) as hits:
                    result = await asyncio.wait_for(scene.agent.run("go", turn_id="T"), 20)
                    assert hits.get(point, 0) >= n, f"{point} {n} was never reached"
                counts["killed"] += 1
                await ended_once(scene, result, victim, idempotent, counts)
    what = ", ".join(f"{number} {name}" for name, number in counts.items())
    kind = "idempotent" if idempotent else "once"
    record_property("counts", f"crash matrix: {victim} x {kind}: {what}")


async def ended_once(
    scene: Scene, result: Any, victim: str, idempotent: bool, counts: Counter[str]
) -> None:
    """The turn has the one valid history and the documented outcome."""
    assert (result.text, result.status) == ("done", "completed")
    log = tuple(await scene.runtime.store.read(scene.name, marks=True))
    check_log(log)
    check_history(r.message for r in log if r.message is not None)
    assert (await scene.agent.run("go", turn_id="T")) == result
    kinds = {
        r.message.tool_call_id: error_type_of(r.message.content)
        for r in log
        if r.message is not None and r.message.role == "tool"
    }
    assert set(kinds) == {"x", "y"}
    assert set(kinds.values()) <= {None, "interrupted"}
    if victim != "agent":
        assert set(kinds.values()) == {None}, scene.name
        assert scene.ran == {"x": 1, "y": 1}
    elif idempotent:
        assert set(kinds.values()) == {None}
    else:
        assert max(scene.ran.values(), default=0) <= 1
    counts["turns resumed"] += any(r.mark is not None and "resumed" in r.mark for r in log)
    counts["calls run again"] += sum(n - 1 for n in scene.ran.values())
    counts["calls interrupted"] += list(kinds.values()).count("interrupted")
    counts["turns ended once"] += 1


@pytest.mark.parametrize("victim", ["agent", "store"])
async def test_a_crash_by_an_exception_at_every_point(victim: str, tmp_path: Path) -> None:
    """As above, but the code at the point raises what it did not expect."""
    points = [p for p in POINTS if p[0].startswith("turn.")] if victim == "agent" else [
        ("store.acknowledge", 1), ("store.acknowledge", 3),
    ]  # fmt: skip
    for number, (point, n) in enumerate(points):
        async with Runtime(tmp_path / str(number)) as runtime:
            scene = Scene(runtime, idempotent=True)
            await scene.open()
            with failpoint.active({point: failpoint.on_hit(n, failpoint.raise_error)}):
                result = await asyncio.wait_for(scene.agent.run("go", turn_id="T"), 20)
            assert result.text == "done"
            check_log(tuple(await runtime.store.read("c", marks=True)))


async def test_rs_10_a_turn_that_kills_its_agent_every_time_ends_failed(tmp_path: Path) -> None:
    def poison(_request: Any) -> Any:
        raise SystemExit(1)

    async with Runtime(tmp_path) as runtime:
        neighbour = await runtime.spawn(AgentSpec(ScriptedModel("fine")), "d")
        agent = await runtime.spawn(AgentSpec(FunctionModel(poison)), "c")
        with pytest.raises(ActorDied, match=r"died 4 times .* the last time by SystemExit") as died:
            await agent.run("go")
        assert isinstance(died.value.__cause__, SystemExit)
        assert died.value.reason is died.value.__cause__
        log = await runtime.store.read("c", marks=True)
        marks = [next(iter(r.mark)) for r in log if r.mark]
        assert marks == ["resumed", "resumed", "resumed", "ended"]
        assert (await neighbour.run("x")).text == "fine"


async def test_fl_4_an_agent_past_its_intensity_is_given_up_alone() -> None:
    async with Runtime() as runtime:
        others = [await runtime.spawn(AgentSpec(ScriptedModel("fine"))) for _ in range(9)]
        bad = await runtime.spawn(AgentSpec(ScriptedModel(Held(asyncio.Event(), "x"))), "bad")
        running = bad.run("go")
        while not running.done():
            if bad.ref.is_alive():
                bad.ref.kill()
            await asyncio.sleep(0)
        with pytest.raises(ActorDied):
            await running
        with pytest.raises(ActorDied):
            await bad.run("more")
        assert [(await other.run("x")).text for other in others] == ["fine"] * 9
        again = await runtime.spawn(AgentSpec(ScriptedModel("back", repeat=True)), "bad")
        assert (await again.run("hello")).text == "back"


async def test_ag_9_a_stateless_turn_does_not_survive_its_agent() -> None:
    async with Runtime() as runtime:
        started = asyncio.Event()

        async def wait(_request: Any) -> Any:
            if not started.is_set():
                started.set()
                await asyncio.Event().wait()
            return "next"

        agent = await runtime.spawn(AgentSpec(FunctionModel(wait), memory=False))
        running = agent.run("go")
        await started.wait()
        agent.ref.kill()
        with pytest.raises(ActorDied):
            await running
        assert (await agent.run("again")).text == "next"


async def test_rs_1_waiting_turns_survive_the_crash_in_order() -> None:
    async with Runtime() as runtime:
        gate = asyncio.Event()
        numbers = itertools.count()

        async def reply(_request: Any) -> Any:
            await gate.wait()
            return f"answer {next(numbers)}"

        agent = await runtime.spawn(AgentSpec(FunctionModel(reply)), "c")
        runs = [agent.run(f"q{i}") for i in range(4)]
        await asyncio.sleep(0.01)
        agent.ref.kill()
        gate.set()
        assert [(await run).text for run in runs] == [f"answer {i}" for i in range(4)]
        log = await runtime.store.read("c", marks=True)
        check_log(tuple(log))
        assert [r.message.content for r in log if r.message and r.message.role == "user"] == [
            "q0", "q1", "q2", "q3",
        ]  # fmt: skip


async def test_a_cancel_survives_the_crash_of_the_agent_it_was_for() -> None:
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel(Held(asyncio.Event(), "x"), "y")), "c")
        running = agent.run("go")
        await asyncio.sleep(0.01)
        agent.ref.kill()
        await agent.cancel()
        with pytest.raises(TurnCancelled):
            await running
        check_log(tuple(await runtime.store.read("c", marks=True)))


async def test_ag_6_turn_ids_hold_across_runtimes(tmp_path: Path) -> None:
    model = ScriptedModel("one", "two")
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(model), "c")
        first = await agent.run("q", turn_id="T")
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(model), "c")
        assert await agent.run("q", turn_id="T") == first
        assert (await agent.run("q2")).text == "two"
        assert [m.content for m in await agent.messages()] == ["q", "one", "q2", "two"]


async def test_closing_the_runtime_in_a_turn_leaves_it_to_be_resumed(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        never = Held(asyncio.Event(), "x")
        agent = await runtime.spawn(AgentSpec(ScriptedModel(never)), "c")
        running = agent.run("q", turn_id="T")
        while not (await runtime.store.info("c")).count:  # noqa: ASYNC110 - state, not an event
            await asyncio.sleep(0)
    with pytest.raises(ActorDied):
        await running
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel("resumed")), "c")
        assert (await agent.run("q", turn_id="T")).text == "resumed"
        check_log(tuple(await runtime.store.read("c", marks=True)))


async def test_rs_8_a_turn_whose_log_was_cleared_meanwhile_is_dropped() -> None:
    async with Runtime() as runtime:
        model = ScriptedModel(Held(asyncio.Event(), "x"), "fresh")
        agent = await runtime.spawn(AgentSpec(model), "c")
        running = agent.run("q")
        # The question is stored, and the first reply of the script has been asked for.
        while not (model.requests and (await runtime.store.info("c")).count):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        # Before the kill: the next incarnation would else resume what it still finds.
        await runtime.store.clear("c")
        agent.ref.kill()
        with pytest.raises(ConversationCleared):
            await running
        assert await runtime.store.get("c") == ()
        assert (await agent.run("q2")).text == "fresh"
