"""Flow nodes (D1…D5, E5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepwell import AgentSpec, flow, telemetry, tool
from keepwell.actors.errors import RequestError
from keepwell.agent.errors import ToolError
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.turn import turn_text
from keepwell.sessions import (
    RaceFailed,
    SessionDefinitionError,
    SessionValidationError,
    drive_session,
    loop,
    run_session,
    scan,
)
from keepwell.stores.memory_session_store import MemorySessionStore

from .recorder import READING, SUMMARY, Recorder, boom, double, reader

# -- D1, D2: par and race ------------------------------------------------------------------------


async def test_d1_par_gives_a_list_in_branch_order() -> None:
    order: list[str] = []

    async def slow(value: int) -> str:
        await asyncio.sleep(0.02)
        order.append("slow")
        return f"slow {value}"

    async def fast(value: int) -> str:
        order.append("fast")
        return f"fast {value}"

    node = flow.par(flow.arr(slow), flow.arr(fast), flow.ident())
    assert await flow.run_flow(node, 5) == ["slow 5", "fast 5", 5]
    assert order == ["fast", "slow"], "all at once"


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(1), KeyboardInterrupt()])
async def test_d1_the_first_failure_cancels_and_awaits_the_rest(error: BaseException) -> None:
    ended: list[str] = []

    async def stubborn(value: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def fail(value: Any) -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)):
        await flow.run_flow(flow.par(flow.arr(stubborn), flow.arr(fail)), 1)
    assert ended == ["cleaned up"]


async def test_d1_cancelling_a_par_cancels_its_branches() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait(value: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(flow.run_flow(flow.par(flow.arr(wait), flow.ident()), 1))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize("make", [flow.par, flow.race])
def test_d1_branches_are_needed_and_must_be_nodes(make: Any) -> None:
    with pytest.raises(RequestError):
        make()
    for bad in (5, double, "name"):
        with pytest.raises(SessionDefinitionError):
            make(flow.ident(), bad)


async def test_d2_race_gives_the_first_success() -> None:
    cancelled: list[str] = []

    async def never(value: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append("loser")

    async def late(value: Any) -> str:
        await asyncio.sleep(0.01)
        return "won"

    node = flow.race(flow.arr(never), flow.arr(boom), flow.arr(late))
    assert await flow.run_flow(node, 1) == "won"
    assert cancelled == ["loser"]


async def test_d2_all_failing_is_race_failed() -> None:
    def other(value: Any) -> Any:
        raise KeyError("k")

    with pytest.raises(RaceFailed) as caught:
        await flow.run_flow(flow.race(flow.arr(boom), flow.arr(other)), 1)
    assert [type(error) for error in caught.value.errors] == [ValueError, KeyError]


# -- D3: readers make it serial ------------------------------------------------------------------


@pytest.mark.parametrize(
    "branch",
    [
        reader(), reader(SUMMARY), flow.seq(flow.ident(), flow.par(reader(), flow.ident())),
        flow.sub(flow.ident(), policy=READING),
        flow.agent(AgentSpec(Recorder().model), policy=READING),
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", [flow.par, flow.race])
def test_d3_a_transcript_reader_is_warned_of(make: Any, branch: Any) -> None:
    made = loop(flow.seq(flow.recv("in"), make(flow.ident(), branch)))
    top = [finding for finding in made.warnings if finding.path == "$[1][1]"]
    assert [(f.code, f.severity) for f in top] == [("CTX_PAR_DEGRADED", "warning")]


def test_d3_scopes_that_read_nothing_do_not_degrade() -> None:
    quiet = [flow.think(Recorder().model, policy=ContextPolicy(s)) for s in ("none", "local")]
    assert loop(flow.seq(flow.recv("in"), flow.par(*quiet))).warnings == ()


async def test_d3_a_degraded_par_runs_in_branch_order() -> None:
    running = 0
    most = 0
    order: list[int] = []

    def branch(n: int) -> Any:
        async def run(value: Any) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            order.append(n)
            return n

        return flow.arr(run)

    node = flow.par(branch(0), branch(1), flow.seq(branch(2), reader()))
    assert (await flow.run_flow(node, "x"))[:2] == [0, 1]
    assert (order, most) == ([0, 1, 2], 1)
    race = flow.race(flow.seq(branch(3), flow.arr(boom)), flow.seq(branch(4), reader()), branch(5))
    assert await flow.run_flow(race, "x") == "reply 2" or order[-2:] == [3, 4]
    assert order == [0, 1, 2, 3, 4], "to the first success"


# -- D4: recv and emit ---------------------------------------------------------------------------


async def test_d4_recv_gives_carrier_and_message_emit_gives_its_input() -> None:
    seen: list[Any] = []

    def note(value: Any) -> Any:
        seen.append(value)
        return value

    body = flow.seq(
        flow.recv("in"), flow.arr(note), flow.emit("out"), flow.emit("out", None),
        flow.emit("log", "fixed"), flow.arr(note), flow.arr(lambda d: (d["carrier"] or 0) + 1),
    )  # fmt: skip
    events = [e async for e in drive_session(loop(body, extra_channels=["log"]), ["a", "b"])]
    emits = [(e.channel, e.payload) for e in events if e.is_emit()]
    first = {"carrier": None, "msg": "a"}
    assert emits[:3] == [("out", first), ("out", None), ("log", "fixed")]
    assert seen[:2] == [first, first] and seen[2] == {"carrier": 1, "msg": "b"}


async def test_d4_a_scans_flow_gives_a_pair() -> None:
    body = flow.seq(flow.recv("in"), flow.arr(lambda d: ((d["carrier"] or 0) + d["msg"], "out")))
    assert await run_session(scan(body), [1, 2]) == (3, ["out", "out"])


async def test_d4_recv_that_times_out_is_told_and_waits_on() -> None:
    told = asyncio.Event()
    loop_ = asyncio.get_running_loop()

    async def feed() -> Any:
        await asyncio.wait_for(told.wait(), 20)
        yield "late"

    body = flow.seq(flow.recv("in", timeout=0.01), flow.arr(lambda d: d["msg"]), flow.emit("out"))
    with telemetry.attach(
        "keepwell.session.recv_timeout", lambda *_: loop_.call_soon_threadsafe(told.set)
    ):
        assert (await run_session(loop(body), feed())).outputs == ["late"]
    for bad in (0, -1, True, "1"):
        with pytest.raises(SessionDefinitionError):
            flow.recv("in", timeout=bad)


async def test_d4_recv_and_emit_have_no_place_outside_a_session() -> None:
    for node in (flow.recv("in"), flow.emit("out"), flow.loop(flow.recv("in"))):
        with pytest.raises(SessionValidationError):
            await flow.run_flow(node, 1)
    with pytest.raises(RequestError):
        await flow.run_flow(5, 1)  # type: ignore[arg-type]  # is refused


# -- D5: call and think --------------------------------------------------------------------------


async def test_d5_call_is_a_tool_on_the_input() -> None:
    @tool
    async def add(x: int, y: int = 10) -> int:
        return x + y

    def one_mapping(value: dict[str, int]) -> int:
        return sum(value.values())

    assert await flow.run_flow(flow.call(double), 4) == 8
    assert await flow.run_flow(flow.call(double), {"x": 4}) == 8
    assert await flow.run_flow(flow.call(add), {"x": 1}) == 11
    assert await flow.run_flow(flow.call(one_mapping), {"a": 1, "b": 2}) == 3
    for bad in ({"x": "text"}, [1, 2]):
        with pytest.raises(ToolError):
            await flow.run_flow(flow.call(add), bad)


async def test_d5_a_tools_timeout_and_retries_have_effect() -> None:
    tries: list[int] = []

    @tool(idempotent=True, retries=2)
    async def flaky(x: int) -> int:
        tries.append(x)
        if len(tries) < 3:
            raise ToolError("try again", type="transient")
        return x

    @tool(timeout=0.01)
    async def slow(x: int) -> int:
        await asyncio.Event().wait()
        return x

    assert await flow.run_flow(flow.call(flaky), 1) == 1
    assert len(tries) == 3
    with pytest.raises(TimeoutError):
        await flow.run_flow(flow.call(slow), 1)


@pytest.mark.parametrize(
    ("value", "asked"), [("text", "text"), ({"a": "中"}, '{"a":"中"}'), (None, "null"), (5, "5")]
)
async def test_d5_think_asks_with_the_input_as_user_turn(value: Any, asked: str) -> None:
    recorder = Recorder()
    assert await flow.run_flow(flow.think(recorder.model, "be brief"), value) == "reply 1"
    assert recorder.requests == [[("system", "be brief"), ("user", asked)]]
    assert await flow.run_flow(flow.think(recorder.model), value) == "reply 2"
    assert recorder.requests[1] == [("user", asked)]
    for bad in (lambda: flow.think(5), lambda: flow.think(recorder.model, 5),  # type: ignore[arg-type]  # is refused
                lambda: flow.think(recorder.model, policy="all")):  # type: ignore[arg-type]  # is refused  # fmt: skip
        with pytest.raises(SessionDefinitionError):
            bad()


async def test_d5_a_reading_think_sees_the_run_so_far() -> None:
    recorder = Recorder()
    node = flow.seq(flow.call(double), flow.arr(str), flow.think(recorder.model, policy=READING))
    await flow.run_flow(node, 4)
    assert recorder.requests == [
        [("user", "4"), ("assistant", ["double"]), ("tool", "8"), ("user", "8")]
    ]


# -- large outputs -------------------------------------------------------------------------------


async def test_e5_large_outputs_are_kept_as_blobs_and_fetched_when_shown() -> None:
    recorder = Recorder()
    store = MemorySessionStore()
    big = "x" * 40_000

    def produce(x: int) -> str:
        return big

    body = flow.seq(
        flow.recv("in"), flow.arr(lambda d: d["msg"]), flow.call(produce),
        flow.arr(lambda v: "what was it?"),
        flow.think(recorder.model, policy=ContextPolicy("whole_session", 50_000)), flow.emit("out"),
    )  # fmt: skip
    await run_session(loop(body), [1, 2], store=store, session_id="s")
    assert recorder.requests[0][2] == ("tool", big)
    assert [role for role, _ in recorder.requests[1]].count("tool") == 2
    assert len(turn_text({"role": "user", "content": big})) == 40_000
