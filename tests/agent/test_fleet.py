"""Fleets: one agent per conversation, on demand, passivated when idle (FL-1…4, F39, F40)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.clock import SystemClock
from keepwell.actors.errors import ActorDied, InvalidValue
from keepwell.agent.approval import Approve, Ask
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.scripted_model import Call, Held, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.turn_errors import Busy, TurnNotRunning
from keepwell.runtime import Runtime
from keepwell.stores import InvalidConversationId


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with Runtime() as runtime:
        yield runtime


class Count:
    """A model that counts how many agents ask at once."""

    def __init__(self) -> None:
        self.asked = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, _request: Any) -> str:
        self.asked += 1
        await self.go_on.wait()
        return "x"


async def active(fleet: Any, count: int) -> None:
    async with asyncio.timeout(10):
        while fleet.active != count:  # noqa: ASYNC110 - what is waited for is state
            await asyncio.sleep(0.001)


async def test_fl_1_a_hundred_first_calls_make_one_agent(runtime: Runtime) -> None:
    fleet = runtime.fleet(AgentSpec(FunctionModel(Count()), max_queue=100))
    results = await asyncio.gather(*(fleet.agent("c").run(f"q{i}") for i in range(100)))
    assert [r.text for r in results] == ["x"] * 100
    assert fleet.active == 1
    questions = [m.content for m in await fleet.agent("c").messages() if m.role == "user"]
    assert questions == [f"q{i}" for i in range(100)]


async def test_fl_1_an_agent_costs_nothing_before_it_is_asked(runtime: Runtime) -> None:
    fleet = runtime.fleet(AgentSpec(FunctionModel(Count())))
    agents = [fleet.agent(f"c{i}") for i in range(1000)]
    assert (fleet.active, fleet._places) == (0, {})
    assert await agents[7].messages() == ()
    assert await agents[7].pending() == ()
    assert fleet.active == 0
    with pytest.raises(InvalidConversationId):
        fleet.agent("")


async def test_fl_2_f39_idle_agents_are_passivated_and_come_back(runtime: Runtime) -> None:
    fleet = runtime.fleet(AgentSpec(FunctionModel(Count())), idle_timeout=0.05)
    agent = fleet.agent("c")
    await agent.run("q1")
    assert fleet.active == 1
    async with asyncio.timeout(10):
        while fleet.active:
            await agent.messages()  # a read is no activity
            await asyncio.sleep(0.005)
    assert (await agent.run("q2")).text == "x"
    assert [m.content for m in await agent.messages()] == ["q1", "x", "q2", "x"]


async def test_fl_2_a_running_turn_is_never_passivated(runtime: Runtime) -> None:
    count = Count()
    count.go_on.clear()
    fleet = runtime.fleet(AgentSpec(FunctionModel(count)), idle_timeout=0.01)
    running = fleet.agent("c").run("q")
    await active(fleet, 1)
    await asyncio.sleep(0.05)
    assert fleet.active == 1
    count.go_on.set()
    assert (await running).text == "x"
    await active(fleet, 0)


async def test_fl_2_beyond_max_active_the_longest_idle_gives_way(runtime: Runtime) -> None:
    fleet = runtime.fleet(AgentSpec(FunctionModel(Count())), max_active=2)
    for name in "abcd":
        assert (await fleet.agent(name).run("q")).text == "x"
        assert fleet.active <= 2
    results = await asyncio.gather(*(fleet.agent(f"c{i}").run("q") for i in range(20)))
    assert len(results) == 20
    assert fleet.active <= 2


async def test_fl_2_when_all_are_busy_a_request_waits_then_gets_busy(runtime: Runtime) -> None:
    count = Count()
    count.go_on.clear()
    fleet = runtime.fleet(AgentSpec(FunctionModel(count)), max_active=1, wait_timeout=0.05)
    first = fleet.agent("a").run("q")
    await active(fleet, 1)
    with pytest.raises(Busy):
        await fleet.agent("b").run("q")
    waiting = fleet.agent("c").run("q")
    count.go_on.set()
    assert (await first).text == "x"
    assert (await waiting).text == "x"


async def test_fl_2_requests_while_an_agent_leaves_are_served(runtime: Runtime) -> None:
    fleet = runtime.fleet(AgentSpec(FunctionModel(Count())))
    agent = fleet.agent("c")
    await agent.run("q0")
    for i in range(10):
        stopping = agent.stop()
        assert (await agent.run(f"q{i}")).text == "x"
        await stopping
    assert fleet.active == 1


async def test_a_fleets_agent_streams_cancels_and_pauses(runtime: Runtime) -> None:
    @tool
    async def risky() -> str:
        """Do."""
        return "did"

    fleet = runtime.fleet(
        AgentSpec(
            ScriptedModel("a text", [Call("risky")], "done", Held(asyncio.Event(), "x")),
            tools=[risky], gate=lambda _call: Ask(),
        )
    )  # fmt: skip
    agent = fleet.agent("c")
    assert [type(e).__name__ async for e in agent.stream("q")][-1] == "TurnEnded"
    assert (await agent.run("q")).status == "paused"
    await agent.stop()
    assert fleet.active == 0
    assert len(await agent.pending()) == 1
    assert (await agent.resume(Approve())).text == "done"
    running = agent.run("q")
    await asyncio.sleep(0.01)
    await agent.cancel()
    assert running.done()
    with pytest.raises(TurnNotRunning):
        await agent.cancel()


async def test_fl_3_f40_open_turns_are_found_and_recovered(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        fleet = runtime.fleet(AgentSpec(ScriptedModel(Held(asyncio.Event(), "x")), name="clerk"))
        runs = [fleet.agent(f"c{i}").run("q", turn_id=f"t{i}") for i in range(5)]
        done = await runtime.spawn(AgentSpec(ScriptedModel("done")), "finished")
        await done.run("q")
        paused = await runtime.spawn(
            AgentSpec(ScriptedModel([Call("x")]), gate=lambda _call: Ask()), "paused"
        )
        await paused.run("q")
        async with asyncio.timeout(10):
            counts: list[int] = []
            while sum(counts) < 5:
                counts = [(await runtime.store.info(f"c{i}")).count for i in range(5)]
    for run in runs:
        with pytest.raises(ActorDied):
            await run
    async with Runtime(tmp_path) as runtime:
        turns = {turn.conversation_id: turn for turn in await runtime.open_turns()}
        assert set(turns) == {*(f"c{i}" for i in range(5)), "paused"}
        assert turns["c3"].turn_id == "t3"
        assert (turns["c3"].agent, turns["paused"].paused) == ("clerk", True)
        fleet = runtime.fleet(AgentSpec(ScriptedModel("resumed"), name="clerk"))
        assert await fleet.recover() == 5
        results = [await fleet.agent(f"c{i}").run("q", turn_id=f"t{i}") for i in range(5)]
        assert [r.text for r in results] == ["resumed"] * 5
        assert [turn.conversation_id for turn in await runtime.open_turns()] == ["paused"]


async def test_fl_4_the_fleet_goes_on_when_one_is_given_up(runtime: Runtime) -> None:
    fleet = runtime.fleet(AgentSpec(FunctionModel(Count())))
    await asyncio.gather(*(fleet.agent(f"c{i}").run("q") for i in range(10)))
    bad = fleet.agent("c3")
    ref = bad.ref
    async with asyncio.timeout(20):
        while bad.ref is not None:
            if bad.ref is ref or bad.ref.is_alive():
                bad.ref.kill()
            await asyncio.sleep(0)
    assert fleet.active == 9
    assert (await bad.run("again")).text == "x"
    assert (await fleet.agent("c4").run("q")).text == "x"


async def test_a_closed_runtime_refuses(tmp_path: Path) -> None:
    async with Runtime(tmp_path) as runtime:
        fleet = runtime.fleet(AgentSpec(FunctionModel(Count())))
        agent = fleet.agent("c")
        await agent.run("q")
    with pytest.raises(ActorDied):
        await agent.run("q")


@pytest.mark.parametrize(
    "options", [{"idle_timeout": 0}, {"max_active": 0}, {"max_active": True}, {"wait_timeout": "5"}]
)
async def test_options_are_checked(runtime: Runtime, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        runtime.fleet(AgentSpec(ScriptedModel("x")), **options)


def test_the_clock_of_idle_times_is_the_runtimes() -> None:
    clock = SystemClock()
    with Runtime(clock=clock) as runtime:
        assert runtime.clock is clock
