"""The kernel and its filters, in full and delta mode (KF-1…11)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.errors import ModelError
from keepwell.agent.events import StepRestarted, TextDelta
from keepwell.agent.filters import Filter, in_order
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.kernel import Kernel, KernelResult
from keepwell.agent.memory_filter import memory_filter
from keepwell.agent.model import ModelReply, Usage
from keepwell.agent.scripted_model import Broken, Call, Held, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.tool_result import error_type_of
from keepwell.agent.turn_errors import LimitReached
from keepwell.runtime import Runtime
from keepwell.stores.conversation_id import TEMPORARY_PREFIX
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.errors import AppendConflict
from keepwell.stores.message import Message, ToolCall
from keepwell.stores.request import Append, Clear
from keepwell.stores.verify import verify


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with Runtime() as runtime:
        yield runtime


class Noting(Filter):
    def __init__(self, name: str, order: int, notes: list[str]) -> None:
        self.name, self.order, self.notes = name, order, notes

    async def around_chat(self, request: Any, next: Any) -> Any:  # noqa: A002 - the contract's word
        self.notes.append(f"{self.name} {len(request.messages)}")
        reply = await next(request)
        self.notes.append(self.name)
        return reply


async def test_kf_1_order_is_stable_and_outer_is_smaller() -> None:
    notes: list[str] = []
    filters = [Noting("c", 5, notes), Noting("a", 0, notes), Noting("b", 0, notes)]
    kernel = Kernel(ScriptedModel("x"), filters=filters)
    await kernel.invoke("hi")
    assert notes == ["a 1", "b 1", "c 1", "c", "b", "a"]


def test_kf_1_two_memories_or_equal_names_are_refused(runtime: Runtime) -> None:
    notes: list[str] = []
    with pytest.raises(InvalidValue, match="two filters"):
        Kernel(ScriptedModel("x"), filters=[Noting("a", 0, notes), Noting("a", 1, notes)])
    memory = memory_filter(runtime.store)
    with pytest.raises(InvalidValue, match="memory filter"):
        Kernel(ScriptedModel("x"), filters=[memory, memory_filter(runtime.store)])
    for bad in (Noting, 5, object()):
        with pytest.raises(InvalidValue):
            in_order([bad])  # type: ignore[list-item]  # what is tested
    with pytest.raises(InvalidValue):
        memory_filter(object())  # type: ignore[arg-type]  # what is tested


async def test_kf_2_short_circuit_and_retry() -> None:
    class Short(Filter):
        async def around_chat(self, request: Any, next: Any) -> Any:  # noqa: A002 - as above
            return ModelReply(Message("assistant", "cached"))

    model = ScriptedModel("never")
    assert (await Kernel(model, filters=[Short()]).invoke("hi")).text == "cached"
    assert model.requests == []

    class Again(Filter):
        async def around_chat(self, request: Any, next: Any) -> Any:  # noqa: A002 - as above
            try:
                return await next(request)
            except ModelError:
                return await next(request)

    model = ScriptedModel(ModelError("down"), "up")
    assert (await Kernel(model, filters=[Again()]).invoke("hi")).text == "up"
    with pytest.raises(ModelError):
        await Kernel(ScriptedModel(ModelError("down"))).invoke("hi")


async def test_kf_2_state_lives_for_one_invocation() -> None:
    seen: list[int] = []

    class Counting(Filter):
        async def around_chat(self, request: Any, next: Any) -> Any:  # noqa: A002 - as above
            request.state["n"] = request.state.get("n", 0) + 1
            seen.append(request.state["n"])
            return await next(request)

    model = ScriptedModel([Call("add", {"a": 1, "b": 2})], "three", "again")
    kernel = Kernel(model, tools=[add], filters=[Counting()])
    await kernel.invoke("hi")
    await kernel.invoke("hi")
    assert seen == [1, 2, 1]


async def test_full_mode_passes_everything_and_forgets(runtime: Runtime) -> None:
    """D-1: full mode, which keeps nothing."""
    model = ScriptedModel([Call("add", {"a": 1, "b": 2})], "three", "who?")
    kernel = Kernel(model, tools=[add])
    result = await kernel.invoke("1+2?")
    assert (result.text, result.rounds, result.conversation_id) == ("three", 2, None)
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert [len(r.messages) for r in model.requests] == [1, 3]
    await kernel.invoke("again")
    assert len(model.requests[2].messages) == 1
    assert await runtime.store.conversations() == ()


async def test_kf_3_delta_mode_stores_and_shows_the_history(runtime: Runtime) -> None:
    model = ScriptedModel([Call("add", {"a": 1, "b": 2})], "three", "hello again")
    kernel = Kernel(model, tools=[add], filters=[memory_filter(runtime.store)])
    await kernel.invoke("1+2?", conversation_id="c")
    assert len(await runtime.store.get("c")) == 4
    result = await kernel.invoke("hi", conversation_id="c")
    assert (result.text, result.conversation_id) == ("hello again", "c")
    assert [len(r.messages) for r in model.requests] == [1, 3, 5]
    assert len(await runtime.store.get("c")) == 6
    plain = Kernel(ScriptedModel("a1", "a2"), filters=[memory_filter(runtime.store)])
    for _ in range(2):
        await plain.invoke("q", conversation_id="d")
    assert [len(r.messages) for r in plain.model.requests] == [1, 3]  # type: ignore[attr-defined]  # a ScriptedModel
    assert len(await runtime.store.get("d")) == 4


async def test_kf_4_the_prompt_is_seen_once_by_default_filters_and_never_stored(
    runtime: Runtime,
) -> None:
    """D-2: the default filters see it."""
    notes: list[str] = []
    model = ScriptedModel("x", "y")
    kernel = Kernel(
        model, instructions="be brief",
        filters=[Noting("n", 0, notes), memory_filter(runtime.store)],
    )  # fmt: skip
    await kernel.invoke("q1", conversation_id="c")
    await kernel.invoke("q2", conversation_id="c")
    assert [[m.role for m in r.messages].count("system") for r in model.requests] == [1, 1]
    assert notes[0] == "n 2"
    assert [m.role for m in await runtime.store.get("c")] == ["user", "assistant"] * 2


async def test_kf_5_d_3_an_outer_retry_stores_the_delta_once(runtime: Runtime) -> None:
    class Retry(Filter):
        order = -2000

        async def around_chat(self, request: Any, next: Any) -> Any:  # noqa: A002 - as above
            for _ in range(3):
                try:
                    return await next(request)
                except ModelError:
                    pass
            raise AssertionError

    model = ScriptedModel(ModelError("down"), ModelError("down"), "up")
    kernel = Kernel(model, filters=[Retry(), memory_filter(runtime.store)])
    assert (await kernel.invoke("q", conversation_id="c")).text == "up"
    assert [m.content for m in await runtime.store.get("c")] == ["q", "up"]


async def test_kf_5_a_re_sent_invocation_stores_its_input_once(runtime: Runtime) -> None:
    kernel = Kernel(ScriptedModel("one", "two"), filters=[memory_filter(runtime.store)])
    await kernel.invoke("q", conversation_id="c", invocation_id="I")
    await kernel.invoke("q", conversation_id="c", invocation_id="I")
    assert [m.content for m in await runtime.store.get("c")] == ["q", "one"]
    with pytest.raises(AppendConflict):
        await kernel.invoke("another", conversation_id="c", invocation_id="I")


async def test_kf_7_after_a_model_error_the_delta_stays_and_pairs_hold(runtime: Runtime) -> None:
    model = ScriptedModel([Call("add", {"a": 1, "b": 2})], ModelError("down"), "fine")
    kernel = Kernel(model, tools=[add], filters=[memory_filter(runtime.store)])
    with pytest.raises(ModelError):
        await kernel.invoke("q", conversation_id="c")
    assert [m.role for m in await runtime.store.get("c")] == ["user", "assistant", "tool"]
    assert (await kernel.invoke("q2", conversation_id="c")).text == "fine"


@pytest.mark.parametrize("how", ["answer", "error", "cancel"])
async def test_kf_8_a_temporary_conversation_is_cleared_however_it_ends(
    runtime: Runtime, how: str
) -> None:
    ids: list[str] = []
    never = asyncio.Event()

    async def reply(request: Any) -> Any:
        ids.append(request.conversation_id)
        if how == "error":
            raise ModelError("down")
        if how == "cancel":
            await never.wait()
        return "x"

    kernel = Kernel(FunctionModel(reply), filters=[memory_filter(runtime.store)])
    task = asyncio.ensure_future(kernel.invoke("q"))
    if how == "answer":
        assert (await task).conversation_id is None
    elif how == "error":
        with pytest.raises(ModelError):
            await task
    else:
        while not ids:  # noqa: ASYNC110 - state, not an event
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await kernel_done(runtime, ids[0])
    assert ids[0].startswith(TEMPORARY_PREFIX)
    assert await runtime.store.get(ids[0]) == ()


KILLED = """
import asyncio, sys
from keepwell.actors.failpoint import kill_process
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.kernel import Kernel
from keepwell.agent.memory_filter import memory_filter
from keepwell.runtime import Runtime
from keepwell.stores import NoCounter
from keepwell.stores.message import ToolCall

async def main():
    async with Runtime(sys.argv[1], counter=NoCounter()) as runtime:
        there = asyncio.Event()

        async def reply(request):
            if len(request.messages) < 3:
                return ToolCall("c1", "nothing", {})
            log = await runtime.store.get(request.conversation_id)
            assert len(log) == 3, log  # input, call and result are on disk
            print(request.conversation_id, flush=True)
            if there.is_set():
                kill_process()
            there.set()
            await asyncio.Event().wait()

        kernel = Kernel(FunctionModel(reply), filters=[memory_filter(runtime.store)])
        running = asyncio.ensure_future(kernel.invoke("q"))
        await there.wait()
        await kernel.invoke("q", conversation_id="given")

asyncio.run(main())
"""


def test_kf_8_after_a_kill_temporary_conversations_go_at_the_next_open(tmp_path: Path) -> None:
    """Those of ended processes only: a store that crashes beside its kernels keeps theirs."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, timeout=50,
        check=False, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    temporary, given = killed.stdout.decode().split()
    assert (temporary.startswith(TEMPORARY_PREFIX), given) == (True, "given")
    untouched = DiskEngine(tmp_path, readonly=True)
    assert len(untouched.get(temporary)) == 3  # so it was there
    untouched.close()

    for _ in range(2):
        engine = DiskEngine(tmp_path)
        assert [info.conversation_id for info in engine.conversations()] == ["given"]
        assert engine.get(temporary) == ()
        assert len(engine.get("given")) == 3
        engine.settle()
        assert verify(engine).conversations == 1  # nothing is left of it, its epoch neither
        # Opened again in one process, as after a crash of the store: what runs here is kept.
        engine.commit([Append(f"{TEMPORARY_PREFIX}mine", [{"role": "user", "content": "x"}])])
        engine.close()
        engine = DiskEngine(tmp_path)
        assert len(engine.get(f"{TEMPORARY_PREFIX}mine")) == 1
        engine.commit([Clear(f"{TEMPORARY_PREFIX}mine")])
        engine.close()


async def kernel_done(runtime: Runtime, conversation_id: str) -> None:
    """The shielded end of a cancelled invocation has run when its gate is free."""
    gates = memory_filter(runtime.store).gates
    while gates.holder(conversation_id) is not None:  # noqa: ASYNC110 - state, not an event
        await asyncio.sleep(0)


async def test_kf_8_a_cancelled_invocation_leaves_calls_answered(runtime: Runtime) -> None:
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return ""

    kernel = Kernel(
        ScriptedModel([Call("wait")], "x"), tools=[wait], filters=[memory_filter(runtime.store)]
    )
    task = asyncio.ensure_future(kernel.invoke("q", conversation_id="c"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await kernel_done(runtime, "c")
    messages = await runtime.store.get("c")
    assert [m.role for m in messages] == ["user", "assistant", "tool"]
    assert error_type_of(messages[2].content) == "cancelled"


async def test_kf_9_invocations_and_turns_of_a_conversation_take_turns(runtime: Runtime) -> None:
    async def reply(_request: Any) -> str:
        await asyncio.sleep(0)
        return "x"

    kernels = [
        Kernel(FunctionModel(reply), filters=[memory_filter(runtime.store)]) for _ in range(3)
    ]
    agent = await runtime.spawn(AgentSpec(FunctionModel(reply)), "c")
    await asyncio.gather(
        *(kernel.invoke("q", conversation_id="c") for kernel in kernels),
        agent.run("q"), agent.run("q"),
    )  # fmt: skip
    assert [m.role for m in await runtime.store.get("c")] == ["user", "assistant"] * 5


async def test_kf_10_streaming_transforms_change_what_is_seen_only(runtime: Runtime) -> None:
    class Upper(Filter):
        def transform_delta(self, text: str, state: Any) -> Any:
            state["upper"] = state.get("upper", 0) + len(text)
            return (text.upper(),)

        def flush_delta(self, state: Any) -> Any:
            return (f" [{state['upper']}]",)

    kernel = Kernel(
        ScriptedModel("a longer answer"), filters=[Upper(), memory_filter(runtime.store)]
    )
    items = [item async for item in kernel.stream("q", conversation_id="c")]
    shown = "".join(item.text for item in items if isinstance(item, TextDelta))
    assert shown == "A LONGER ANSWER [15]"
    assert isinstance(items[-1], KernelResult)
    assert items[-1].text == "a longer answer"
    assert [m.content for m in await runtime.store.get("c")] == ["q", "a longer answer"]


async def shown_by(stream: Any) -> tuple[str, int, KernelResult]:
    """What a consumer has on its screen at the end, how often it began anew, and the result."""
    text, restarts, result = "", 0, None
    async for item in stream:
        if isinstance(item, TextDelta):
            text += item.text
        elif isinstance(item, StepRestarted):
            text, restarts = "", restarts + 1
        else:
            result = item
    assert result is not None
    return text, restarts, result


async def test_kf_10_a_repeated_model_call_voids_what_was_shown() -> None:
    broken = Broken("half an ", ModelError("cut", retryable=True, retry_after=0.001))
    shown, restarts, result = await shown_by(Kernel(ScriptedModel(broken, "whole")).stream("q"))
    assert (shown, restarts, result.text) == ("whole", 1, "whole")


async def test_kf_10_so_does_a_filter_that_asks_again() -> None:
    class Twice(Filter):
        async def around_chat(self, request: Any, next: Any) -> Any:  # noqa: A002 - as above
            await next(request)
            return await next(request)

    kernel = Kernel(ScriptedModel("first", "second"), filters=[Twice()])
    shown, restarts, result = await shown_by(kernel.stream("q"))
    assert (shown, restarts, result.text) == ("second", 1, "second")


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("remembering", [False, True])
async def test_an_answer_of_a_form_is_repaired_and_stored_once(
    runtime: Runtime, streaming: bool, remembering: bool
) -> None:
    """As with an agent: answers that do not fit are neither stored nor shown in the end."""
    cost = Usage(10, 1)
    script = [ModelReply(Message("assistant", text), cost) for text in ("no", '{"n": "x"}')]
    model = ScriptedModel(Call("add", {"a": 1, "b": 2}), *script, '{"n": 3}')
    filters = [memory_filter(runtime.store)] if remembering else []
    kernel = Kernel(model, tools=[add], filters=filters)
    given: Any = {"output": NUMBER, "conversation_id": "c" if remembering else None}
    if streaming:
        shown, restarts, result = await shown_by(kernel.stream("q", **given))
        assert (shown, restarts) == ('{"n": 3}', 2)
    else:
        result = await kernel.invoke("q", **given)
    assert (result.text, result.output) == ('{"n": 3}', {"n": 3})
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert {request.output_schema["type"] for request in model.requests} == {"object"}
    note = model.requests[-1].messages[-1]
    assert note.role == "user"
    assert "$.n" in note.text
    assert result.usage.input_tokens >= 20
    if remembering:
        stored = await runtime.store.get("c")
        assert [m.text for m in stored] == ["q", "", "3", '{"n": 3}']


async def test_repairs_of_an_answer_are_bounded(runtime: Runtime) -> None:
    model = ScriptedModel("no", "nor this", "fine")
    kernel = Kernel(model, filters=[memory_filter(runtime.store)])
    with pytest.raises(ModelError, match="after 1 repairs") as caught:
        await kernel.invoke("q", conversation_id="c", output=NUMBER, output_repairs=1)
    assert (caught.value.code, caught.value.partial) == ("invalid_output", "nor this")
    assert (await kernel.invoke("q2", conversation_id="c")).text == "fine"
    assert [m.text for m in await runtime.store.get("c")] == ["q", "q2", "fine"]


async def test_an_answer_that_a_filter_has_changed_is_checked_too() -> None:
    class Talks(Filter):
        async def around_chat(self, request: Any, next: Any) -> Any:  # noqa: A002 - as above
            reply = await next(request)
            return replace(reply, message=Message("assistant", "The number is 3."))

    kernel = Kernel(ScriptedModel('{"n": 3}'), filters=[Talks()])
    with pytest.raises(ModelError, match="behind the filters") as caught:
        await kernel.invoke("q", output=NUMBER)
    assert caught.value.code == "invalid_output"


@pytest.mark.parametrize(
    "bad", [{"output": "json"}, {"output": {"type": "array"}}, {"output_repairs": -1}]
)
def test_a_form_that_cannot_be_is_refused_at_once(bad: Any) -> None:
    with pytest.raises(InvalidValue, match=next(iter(bad))):
        Kernel(ScriptedModel("x")).invoke("q", **bad)


@pytest.mark.parametrize("how", ["broken", "abandoned"])
async def test_kf_10_a_stream_cut_short_stores_no_reply(runtime: Runtime, how: str) -> None:
    cut = Broken("half", ModelError("cut")) if how == "broken" else Held(asyncio.Event(), "x")
    kernel = Kernel(ScriptedModel(cut), filters=[memory_filter(runtime.store)])
    stream = kernel.stream("q", conversation_id="c")
    if how == "broken":
        with pytest.raises(ModelError):
            [item async for item in stream]
    else:
        reader = asyncio.ensure_future(anext(stream))  # type: ignore[arg-type]  # an awaitable
        while not await runtime.store.get("c"):  # noqa: ASYNC110 - state, not an event
            await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await kernel_done(runtime, "c")
    assert [m.content for m in await runtime.store.get("c")] == ["q"]


async def test_kf_11_limits_hold_and_pairs_too(runtime: Runtime) -> None:
    model = ScriptedModel([Call("add", {"a": 1, "b": 2})], [Call("add", {"a": 1, "b": 2})], "next")
    kernel = Kernel(model, tools=[add], filters=[memory_filter(runtime.store)], max_rounds=2)
    with pytest.raises(LimitReached) as caught:
        await kernel.invoke("q", conversation_id="c")
    assert caught.value.limit == "max_rounds"
    messages = await runtime.store.get("c")
    assert [m.role for m in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert error_type_of(messages[-1].content) == "skipped"
    assert (await kernel.invoke("q2", conversation_id="c")).text == "next"


async def test_kf_11_an_agents_kernel_brings_model_tools_and_filters(runtime: Runtime) -> None:
    notes: list[str] = []

    class Around(Filter):
        async def around_tool(self, request: Any, next: Any) -> Any:  # noqa: A002 - as above
            notes.append(request.tool.name)
            value = await next(request.replace(arguments={"a": 40, "b": 2}))
            return f"<{value}>"

    model = ScriptedModel([Call("add", {"a": 1, "b": 2})], "done")
    kernel = Kernel(
        model, tools=[add], filters=[Noting("n", 0, notes), Around()], instructions="kernel's"
    )
    agent = await runtime.spawn(AgentSpec(kernel=kernel, instructions="the agent's"), "c")
    assert (await agent.run("go")).text == "done"
    assert notes == ["n 2", "n", "add", "n 4", "n"]
    assert (await runtime.store.get("c"))[2].content == "<42>"
    systems = [m.content for m in model.requests[0].messages if m.role == "system"]
    assert systems == ["the agent's"]
    with pytest.raises(InvalidValue, match="memory filter"):
        AgentSpec(kernel=Kernel(model, filters=[memory_filter(runtime.store)]))


@pytest.mark.parametrize("messages", [[], 5, [{"role": "x"}], None])
def test_what_is_no_input_is_refused_at_once(messages: Any) -> None:
    with pytest.raises(InvalidValue):
        Kernel(ScriptedModel("x")).invoke(messages)


async def test_kf_6_replies_keep_text_reasoning_and_calls(runtime: Runtime) -> None:
    reply = Message(
        "assistant", "let me see", [ToolCall("x", "add", {"a": 1, "b": 2})],
        reasoning=[{"type": "thinking", "text": "hm", "signature": "abc"}],
    )  # fmt: skip
    replies = iter([reply, "three"])
    kernel = Kernel(
        FunctionModel(lambda _request: next(replies)), tools=[add],
        filters=[memory_filter(runtime.store)],
    )  # fmt: skip
    result = await kernel.invoke("q", conversation_id="c")
    assert (await runtime.store.get("c"))[1] == reply == result.messages[1]
