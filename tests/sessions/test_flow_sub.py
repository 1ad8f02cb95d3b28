"""Children of flows behind their firewall (D6…D11)."""

from __future__ import annotations

import contextvars
import json
from typing import Any

import pytest

from keepwell import AgentSpec, Runtime, flow
from keepwell.actors.errors import RequestError
from keepwell.sessions import (
    SessionDefinitionError,
    SubFailed,
    current_turn,
    loop,
)

from .recorder import READING, Recorder, boom, double

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
            flow.sub(child)  # type: ignore[arg-type]  # is refused


async def test_d6_a_child_may_be_registered_by_name() -> None:
    node = flow.call(double)
    flow.register("test.double", node)
    flow.register("test.double", node)
    with pytest.raises(RequestError):
        flow.register("test.double", flow.ident())
    assert await flow.run_flow(flow.sub("test.double"), 2) == 4
    with pytest.raises(SubFailed):
        await flow.run_flow(flow.sub("test.unknown"), 2)
