"""Flow nodes, their validation and the firewall of children (D1…D12)."""

from __future__ import annotations

import asyncio
import contextvars
import json
import re
from pathlib import Path
from typing import Any

import pytest

from keepwell import AgentSpec, FunctionModel, Runtime, flow, telemetry, tool
from keepwell.actors.errors import RequestError
from keepwell.agent.errors import ToolError
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.turn import turn_text
from keepwell.sessions import (
    Finding,
    RaceFailed,
    SessionDefinitionError,
    SessionValidationError,
    SubFailed,
    current_turn,
    drive_session,
    loop,
    run_session,
    scan,
)
from keepwell.stores.memory_session_store import MemorySessionStore

READING = ContextPolicy("whole_session", 10_000)


def double(x: int) -> int:
    return 2 * x


def boom(value: Any) -> Any:
    raise ValueError("boom")


class Recorder:
    """A model that remembers what it was shown."""

    def __init__(self, answer: str = "reply") -> None:
        self.requests: list[list[tuple[str, Any]]] = []
        self.model = FunctionModel(self._answer)
        self.answer = answer

    def _answer(self, request: Any) -> str:
        self.requests.append([
            (m.role, m.content if not m.tool_calls else [c.name for c in m.tool_calls])
            for m in request.messages
        ])  # fmt: skip
        return f"{self.answer} {len(self.requests)}"

    @property
    def everything(self) -> str:
        return json.dumps(self.requests)


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


def reader(policy: ContextPolicy = READING) -> Any:
    return flow.think(Recorder().model, policy=policy)


SUMMARY = ContextPolicy("summary", 1_000, lambda previous, new: "short")


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
        await flow.run_flow(5, 1)  # type: ignore[arg-type]


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
    for bad in (lambda: flow.think(5), lambda: flow.think(recorder.model, 5),  # type: ignore[arg-type]
                lambda: flow.think(recorder.model, policy="all")):  # type: ignore[arg-type]  # fmt: skip
        with pytest.raises(SessionDefinitionError):
            bad()


async def test_d5_a_reading_think_sees_the_run_so_far() -> None:
    recorder = Recorder()
    node = flow.seq(flow.call(double), flow.arr(str), flow.think(recorder.model, policy=READING))
    await flow.run_flow(node, 4)
    assert recorder.requests == [
        [("user", "4"), ("assistant", ["double"]), ("tool", "8"), ("user", "8")]
    ]


# -- D6…D11: children ----------------------------------------------------------------------------


async def test_d6_result_only_gives_the_childs_value() -> None:
    assert await flow.run_flow(flow.sub(flow.seq(flow.call(double), flow.call(double))), 3) == 12


async def test_d7_compressed_trace_has_steps_without_contents() -> None:
    def failing(x: int) -> int:
        raise ValueError("secret")

    steps = [flow.call(double)] * 60
    child = flow.seq(*steps, flow.race(flow.call(failing), flow.ident()))
    given = await flow.run_flow(flow.sub(child, flow.SubContract("compressed_trace")), 0)
    assert given["result"] == 0
    assert given["trace"] == [{"kind": "call", "name": "double", "ok": True}] * 50
    assert given["omitted"] in (10, 11)
    assert "secret" not in json.dumps(given)


async def test_d8_full_child_ref_is_a_blob_of_the_same_tenant(memory_runtime: Runtime) -> None:
    child = flow.seq(flow.call(double), flow.arr(lambda n: n + 1))
    node = flow.sub(child, flow.SubContract("full_child_ref"))
    body = flow.seq(flow.recv("in"), flow.arr(lambda d: d["msg"]), node, flow.emit("out"))
    handle = await memory_runtime.open_session(loop(body), "s", tenant="mine")
    (given,) = (await handle.request(3)).outputs
    assert given["result"] == 7
    assert given["child_ref"].startswith("mine/sha256:")
    turns = await memory_runtime.session_store.get_blob("mine", given["child_ref"])
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool"]
    assert (turns[0]["content"], turns[2]["content"]) == (3, 6)


async def test_d9_nothing_of_a_child_leaks(memory_runtime: Runtime) -> None:
    canary = "CANARY"
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="parent's")
    parent, child_model, agent_model = Recorder(), Recorder(canary), Recorder(canary)

    def leak(value: Any) -> Any:
        variable.set(canary)
        with pytest.raises(RequestError):
            current_turn().emit(canary)
        return f"{canary} {value}"

    async def leak_on_the_loop(value: Any) -> Any:
        return leak(value)

    def hide(value: Any) -> str:
        return "clean"

    child = flow.seq(
        flow.arr(leak), flow.arr(leak_on_the_loop), flow.call(leak_tool(canary)),
        flow.think(child_model.model, canary, READING), flow.arr(hide),
    )  # fmt: skip
    agent = flow.seq(
        flow.agent(AgentSpec(agent_model.model, instructions=canary, name="helper")),
        flow.arr(hide),
    )
    seen: list[str] = []

    async def note(value: Any) -> Any:
        seen.append(variable.get())
        return value

    body = flow.seq(
        flow.recv("in"), flow.arr(lambda d: d["msg"]), flow.sub(child), flow.sub(agent),
        flow.arr(note), flow.think(parent.model, policy=READING), flow.emit("out"),
    )  # fmt: skip
    handle = await memory_runtime.open_session(loop(body), "s")
    for _ in range(2):
        assert (await handle.request("hello")).outcome == "done"
    log = await memory_runtime.store.read("s", marks=True)
    assert canary not in repr([(r.message, r.mark) for r in log])
    assert canary not in repr([e async for e in handle.events(follow=False)])
    assert canary not in parent.everything
    assert canary not in repr(await handle.state())
    assert seen == ["parent's"] * 2
    assert canary in child_model.everything and agent_model.requests
    assert [info.conversation_id for info in await memory_runtime.store.conversations()] == ["s"]


def leak_tool(canary: str) -> Any:
    def leaking(value: str) -> str:
        return canary

    return leaking


async def test_d9_usage_adds_up(memory_runtime: Runtime) -> None:
    recorder = Recorder()
    used: list[int] = []

    async def note(value: Any) -> Any:
        return value

    child = flow.think(recorder.model)
    body = flow.seq(
        flow.recv("in"), flow.arr(lambda d: d["msg"]), flow.think(recorder.model),
        flow.sub(child), flow.sub(flow.sub(child)), flow.agent(AgentSpec(recorder.model)),
        flow.arr(note), flow.emit("out"),
    )  # fmt: skip
    handle = await memory_runtime.open_session(loop(body), "s")
    await handle.request("hello")
    log = await memory_runtime.store.read("s", marks=True)
    usage = next(record.mark["usage"] for record in log if record.mark and "usage" in record.mark)
    used.append(usage["output_tokens"])
    assert used[0] == 4 * _tokens_of_a_reply(recorder)


def _tokens_of_a_reply(recorder: Recorder) -> int:
    return round(len("reply 1") / 4 + 0.49)


async def test_d9_a_failing_child_gives_class_and_text_only() -> None:
    with pytest.raises(SubFailed) as caught:
        await flow.run_flow(flow.sub(flow.seq(flow.arr(boom))), 1)
    assert (caught.value.error_class, caught.value.text) == ("ValueError", "boom")
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    with pytest.raises(SubFailed) as nested:
        await flow.run_flow(flow.sub(flow.sub(flow.arr(boom))), 1)
    assert (nested.value.error_class, nested.value.text) == ("ValueError", "boom")


async def test_d10_a_child_sees_its_input_and_with_a_policy_its_parents_transcript() -> None:
    blind, sighted = Recorder(), Recorder()
    node = flow.seq(
        flow.call(double),
        flow.par(
            flow.sub(flow.think(blind.model, policy=READING)),
            flow.sub(flow.think(sighted.model, policy=READING), policy=READING),
        ),
    )
    await flow.run_flow(node, 4)
    assert blind.requests == [[("user", "8")]]
    assert sighted.requests[0][:3] == [("user", "4"), ("assistant", ["double"]), ("tool", "8")]
    assert sighted.requests[0][-1] == ("user", "8")


async def test_d10_an_agent_with_a_reading_policy_sees_the_transcript(
    memory_runtime: Runtime,
) -> None:
    blind, sighted = Recorder(), Recorder()
    body = flow.seq(
        flow.recv("in"), flow.arr(lambda d: d["msg"]), flow.call(echo_tool),
        flow.agent(AgentSpec(blind.model)), flow.agent(AgentSpec(sighted.model), READING),
    )  # fmt: skip
    handle = await memory_runtime.open_session(loop(body), "s")
    assert (await handle.request("hello")).outcome == "done"
    assert blind.requests == [[("user", "hello")]]
    assert ("user", "hello") in sighted.requests[0] and len(sighted.requests[0]) > 3


def echo_tool(text: str) -> str:
    return text


async def test_d11_a_result_that_does_not_match_fails_the_child() -> None:
    contract = flow.SubContract(result_schema=int)
    assert await flow.run_flow(flow.sub(flow.ident(), contract), 5) == 5
    with pytest.raises(SubFailed):
        await flow.run_flow(flow.sub(flow.ident(), contract), "five")
    for bad in ({"summary_policy": "all"}, {"result_schema": set}):
        with pytest.raises(SessionDefinitionError):
            flow.SubContract(**bad)
    for child in (5, None, double):
        with pytest.raises(SessionDefinitionError):
            flow.sub(child)  # type: ignore[arg-type]


async def test_d6_a_child_may_be_registered_by_name() -> None:
    node = flow.call(double)
    flow.register("test.double", node)
    flow.register("test.double", node)
    with pytest.raises(RequestError):
        flow.register("test.double", flow.ident())
    assert await flow.run_flow(flow.sub("test.double"), 2) == 4
    with pytest.raises(SubFailed):
        await flow.run_flow(flow.sub("test.unknown"), 2)


# -- D12: validation -----------------------------------------------------------------------------

R, E, ID = flow.recv("in"), flow.emit("out"), flow.ident()


FINDINGS: list[tuple[Any, list[str]]] = [
    (flow.seq(R, E), []),
    (flow.seq(ID, R, flow.par(ID, ID), E), []),
    (ID, ["LOOP_NOT_RECV_GUARDED"]),
    (flow.seq(), ["LOOP_NOT_RECV_GUARDED"]),
    (E, ["LOOP_NOT_RECV_GUARDED"]),
    (flow.seq(E, R), ["LOOP_EMIT_BEFORE_RECV"]),
    (flow.seq(flow.seq(ID, E), flow.seq(R)), ["LOOP_EMIT_BEFORE_RECV"]),
    (flow.seq(R, R), ["LOOP_MULTIPLE_RECV"]),
    (flow.seq(R, R, R), ["LOOP_MULTIPLE_RECV"] * 2),
    (flow.par(R, ID), ["LOOP_NOT_RECV_GUARDED", "RECV_IN_PARALLEL"]),
    (flow.race(ID, flow.seq(R)), ["LOOP_NOT_RECV_GUARDED", "RECV_IN_PARALLEL"]),
    (flow.seq(R, flow.par(E, ID)), ["EMIT_IN_PARALLEL"]),
    (flow.seq(R, flow.race(flow.seq(ID, E))), ["EMIT_IN_PARALLEL"]),
    (flow.par(flow.seq(R, E), reader()), ["LOOP_NOT_RECV_GUARDED", "CTX_PAR_DEGRADED",
                                          "RECV_IN_PARALLEL", "EMIT_IN_PARALLEL"]),
    (flow.seq(flow.recv("other"), E), ["CHANNEL_UNDECLARED"]),
    (flow.seq(flow.recv("out"), E), ["CHANNEL_UNDECLARED"]),
    (flow.seq(R, flow.emit("in")), ["CHANNEL_UNDECLARED"]),
    (flow.seq(R, flow.emit("nowhere")), ["CHANNEL_UNDECLARED"]),
    (flow.seq(R, flow.sub("test.none")), ["LOOP_EVAL_PLAN_CONTROLLER"]),
    (flow.seq(R, flow.sub(flow.seq(R, E))), ["RECV_OUTSIDE_LOOP", "EMIT_OUTSIDE_LOOP"]),
    (flow.seq(R, flow.sub(flow.loop(R))), ["LOOP_IN_EVAL_PLAN"]),
    (flow.loop(flow.seq(R, E)), []),
    (flow.loop(), ["LOOP_BAD_FIELDS"]),
    (flow.loop(5), ["LOOP_BAD_FIELDS"]),
    (flow.loop(R, retries=3), ["LOOP_BAD_FIELDS"]),
    (flow.loop(R, channels=[], state_schema=int, split=True), []),
    (flow.loop(flow.seq(R, flow.loop(R))), ["LOOP_NESTED"]),
    (flow.seq(R, flow.loop(R), E), ["RECV_OUTSIDE_LOOP", "EMIT_OUTSIDE_LOOP"]),
    (flow.par(flow.loop(R), ID), ["LOOP_IN_PARALLEL", "RECV_IN_PARALLEL"]),
    (5, ["LOOP_BAD_FIELDS"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("node", "codes"),
    FINDINGS,
    ids=lambda value: str(value) if isinstance(value, list) else type(value).__name__,
)
def test_d12_findings_of_a_session(node: Any, codes: list[str]) -> None:
    found = [f.code.removeprefix("SESSION_") for f in flow.validate(node)]
    assert found == codes


FLOW_FINDINGS: list[tuple[Any, list[str]]] = [
    (flow.seq(ID, flow.par(ID, flow.sub(ID))), []),
    (flow.seq(R, E, flow.loop(ID)), ["RECV_IN_FLOW", "EMIT_IN_FLOW", "LOOP_IN_FLOW"]),
    (flow.par(R), ["RECV_IN_FLOW"]),
    (flow.sub(R), ["RECV_IN_FLOW"]),
    (flow.sub("test.none"), []),
]


@pytest.mark.parametrize(
    ("node", "codes"),
    FLOW_FINDINGS,
    ids=lambda value: str(value) if isinstance(value, list) else type(value).__name__,
)
def test_d12_findings_of_a_flow(node: Any, codes: list[str]) -> None:
    found = [f.code.removeprefix("SESSION_") for f in flow.validate(node, "flow")]
    assert found == codes


def test_d12_every_code_of_the_contract_is_found_by_one_of_these() -> None:
    contract = Path(__file__).parents[2] / "docs" / "contracts" / "sessions.md"
    _, _, table = contract.read_text(encoding="utf-8").partition("| blocking codes `SESSION_*` |")
    listed = {
        code
        for line in table.partition("\n\n")[0].splitlines()[2:]
        for code in re.findall(r"`([A-Z_]{6,})`", line.split("|")[1])
    }
    assert len(listed) == 16
    found = {code for _node, codes in FINDINGS + FLOW_FINDINGS for code in codes}
    assert found - {"CTX_PAR_DEGRADED"} == listed


def test_d12_a_session_is_refused_with_all_blocking_findings_at_once() -> None:
    bad = flow.seq(E, R, R, flow.par(flow.emit("x"), reader()))
    for make in (scan, loop):
        with pytest.raises(SessionValidationError) as caught:
            make(bad)
        codes = [finding.code for finding in caught.value.findings]
        assert codes == [
            "SESSION_LOOP_EMIT_BEFORE_RECV", "SESSION_LOOP_MULTIPLE_RECV",
            "SESSION_EMIT_IN_PARALLEL", "SESSION_CHANNEL_UNDECLARED",
        ]  # fmt: skip
        assert all(code in str(caught.value) for code in codes)
    finding = flow.validate(bad)[0]
    assert isinstance(finding, Finding) and finding.path == "$[0]" and finding.message


@pytest.mark.parametrize(("make", "said"), [
    (lambda: flow.arr(lambda a, b: a), r"is called with \(value\): missing a required argument"),
    (lambda: flow.arr(lambda: 1), r"is called with \(value\): too many"),
    (lambda: flow.seq([ID, R]), r"pass its nodes one by one, flow.seq\(\*nodes\)"),
    (lambda: flow.par((ID, ID)), r"flow.par\(\*nodes\)"),
])  # fmt: skip
def test_d12_what_could_never_run_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(SessionDefinitionError, match=said):
        make()


def test_d12_a_target_that_does_not_exist_is_a_finding() -> None:
    target: Any = "sessions"
    (finding,) = flow.validate(ID, target)
    assert finding.severity == "error" and "'sessions'" in finding.message


def test_arr_takes_whatever_can_be_called_with_a_value() -> None:
    for function in (str, dict, len, print, lambda v, w=1: v, lambda *a: a):
        flow.arr(function)


def test_d12_channels_are_those_of_the_session() -> None:
    body = flow.seq(flow.recv("questions"), flow.emit("answers"), flow.emit("log"))
    made = loop(body, in_channel="questions", out_channel="answers", extra_channels=["log"])
    assert made.warnings == ()


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
