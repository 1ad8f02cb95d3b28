"""The calls of one batch: parallel, isolated, with deadlines, always a result (TL-1…6, F13…F20)."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from keepwell.agent.errors import ToolError
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.scripted_model import Call, ScriptedModel
from keepwell.agent.tool import tool
from keepwell.agent.tool_context import ToolContext
from keepwell.agent.tool_result import error_type_of
from keepwell.memory.call_threads import call_threads
from keepwell.stores.message import Message


async def outcome(bench: Any, function: Any, arguments: Any = "", **options: Any) -> str:
    """The result text of one call of one tool; the turn must end well."""
    one = function if hasattr(function, "schema") else tool(function)
    agent = await bench.agent(
        ScriptedModel([Call(one.name, arguments)], "done"), tools=[one], **options
    )
    assert (await agent.run("go")).text == "done"
    text = bench.store.results("c")["call_1"]
    assert isinstance(text, str)
    return text


async def test_tl_1_calls_run_at_the_same_time(bench: Any) -> None:
    arrived = [asyncio.Event(), asyncio.Event()]

    @tool
    async def meet(place: int) -> str:
        """Wait for the other."""
        arrived[place].set()
        await arrived[1 - place].wait()
        return f"met {place}"

    model = ScriptedModel([Call("meet", {"place": 0}), Call("meet", {"place": 1})], "done")
    agent = await bench.agent(model, tools=[meet])
    await agent.run("go")
    assert bench.store.results("c") == {"call_1": "met 0", "call_2": "met 1"}


async def test_tl_1_plain_functions_run_at_the_same_time_too(bench: Any) -> None:
    barrier = threading.Barrier(3)

    @tool
    def meet() -> str:
        """Wait for the others."""
        barrier.wait(10)
        return "met"

    agent = await bench.agent(ScriptedModel([Call("meet")] * 3, "done"), tools=[meet])
    await agent.run("go")
    assert set(bench.store.results("c").values()) == {"met"}


@pytest.mark.parametrize("how", ["spec", "tool"])
async def test_tl_1_serial_batches_run_in_call_order(bench: Any, how: str) -> None:
    running: list[int] = []
    order: list[int] = []

    @tool(serial=how == "tool")
    async def step(n: int) -> str:
        """Step."""
        running.append(n)
        assert len(running) == 1
        await asyncio.sleep(0)
        order.append(n)
        running.remove(n)
        return str(n)

    calls = [Call("step", {"n": n}) for n in range(4)]
    agent = await bench.agent(
        ScriptedModel(calls, "done"), tools=[step], parallel_tools=how == "tool"
    )
    await agent.run("go")
    assert order == [0, 1, 2, 3]
    assert all(error_type_of(text) is None for text in bench.store.results("c").values())


async def test_tl_1_a_serial_batch_may_be_longer_than_the_stack_is_deep(bench: Any) -> None:
    count = 1500
    seen: list[int] = []

    @tool(serial=True)
    async def note(n: int) -> str:
        """End without waiting for anything."""
        seen.append(n)
        return str(n)

    model = ScriptedModel([Call("note", {"n": n}) for n in range(count)], "done")
    agent = await bench.agent(model, tools=[note])
    assert (await agent.run("go")).text == "done"
    assert seen == list(range(count))
    assert len(bench.store.results("c")) == count


async def test_tl_4_a_call_may_be_tried_more_often_than_the_stack_is_deep(bench: Any) -> None:
    tries = 1500
    left = iter(range(tries))

    @tool(idempotent=True, retries=tries)
    async def reach() -> str:
        """Fail at once, again and again."""
        if next(left, None) is None:
            return "reached"
        raise TimeoutError

    assert await outcome(bench, reach) == "reached"


async def test_a_call_that_ends_at_once_runs_in_a_task_of_its_own(bench: Any) -> None:
    """`asyncio.timeout` and `current_task` in a tool are the tool's, never its turn's."""

    @tool
    async def look() -> str:
        """Let a deadline of its own pass."""
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(60)
        except TimeoutError:
            return f"{task.cancelling()} {task is asyncio.current_task()}"
        return "went on"

    assert await outcome(bench, look) == "0 True"


async def test_tl_1_f15_results_are_matched_by_id_and_shown_in_call_order(bench: Any) -> None:
    fast_done = asyncio.Event()

    @tool
    async def slow() -> str:
        """Slow."""
        await fast_done.wait()
        return "slow"

    @tool
    async def fast() -> str:
        """Fast."""
        fast_done.set()
        return "fast"

    model = ScriptedModel([Call("slow", id="x"), Call("fast", id="y")], "done")
    agent = await bench.agent(model, tools=[slow, fast])
    await agent.run("go")
    assert bench.store.shape("c") == "u a(x,y) t(y) t(x) a"
    assert [m.content for m in model.requests[1].messages[-2:]] == ["slow", "fast"]
    await bench.crash(agent)  # a successor reads the log, and orders it the same
    agent = await bench.agent(other := ScriptedModel("again"))
    await agent.run("more")
    assert [m.content for m in other.requests[0].messages[2:4]] == ["slow", "fast"]


async def test_tl_1_the_same_id_twice_is_answered_in_order(bench: Any) -> None:
    @tool
    async def echo(text: str) -> str:
        """Echo."""
        return text

    calls = [Call("echo", {"text": "one"}, id="x"), Call("echo", {"text": "two"}, id="x")]
    model = ScriptedModel(calls, "done")
    agent = await bench.agent(model, tools=[echo], parallel_tools=False)
    await agent.run("go")
    assert [m.content for m in model.requests[1].messages[-2:]] == ["one", "two"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("bad"), "semantic"),
        (SystemExit(3), "crashed"),
        (KeyboardInterrupt(), "crashed"),
        (asyncio.CancelledError(), "crashed"),
        (StopIteration(), None),
        (TimeoutError("late"), "transient"),
        (ConnectionResetError("gone"), "transient"),
        (PermissionError("no key"), "environment"),
        (ToolError("set the key", type="environment"), "environment"),
        (ToolError("no such page"), "semantic"),
    ],
)
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_tl_2_f13_f45_a_raising_call_hurts_only_itself(
    bench: Any, error: BaseException, kind: str | None, how: str
) -> None:
    if how == "sync":

        @tool
        def bad() -> str:
            """Fail."""
            raise error
    else:

        @tool
        async def bad() -> str:
            """Fail."""
            raise error

    @tool
    async def good() -> str:
        """Work."""
        await asyncio.sleep(0.001)
        return "fine"

    agent = await bench.agent(
        ScriptedModel([Call("good"), Call("bad"), Call("good")], "done"), tools=[good, bad]
    )
    assert (await agent.run("go")).text == "done"
    results = bench.store.results("c")
    assert (results["call_1"], results["call_3"]) == ("fine", "fine")
    found = error_type_of(results["call_2"])
    assert found == kind if kind else found is not None


async def test_tl_3_a_deadline_holds_whatever_cleanup_does(bench: Any) -> None:
    leave = asyncio.Event()

    @tool(timeout=0.02)
    async def stubborn() -> str:
        """Do not stop."""
        while True:
            try:
                await leave.wait()
                return "late"
            except asyncio.CancelledError:
                continue

    text = await outcome(bench, stubborn)
    assert error_type_of(text) == "transient"
    assert "timed out" in text
    leave.set()


async def test_tl_3_a_stuck_thread_is_abandoned_and_counted(bench: Any) -> None:
    leave = threading.Event()

    @tool(timeout=0.02)
    def stuck() -> str:
        """Do not return."""
        leave.wait(20)
        return "late"

    before = call_threads().abandoned
    text = await outcome(bench, stuck)
    assert error_type_of(text) == "transient"
    assert call_threads().abandoned == before + 1
    leave.set()
    await bench.until(lambda: call_threads().abandoned == before)
    assert bench.store.results("c")["call_1"] == text  # late output is discarded


async def test_tl_3_the_agents_tool_timeout_serves_tools_without_one(bench: Any) -> None:
    async def forever() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return ""

    assert "timed out after 0.02 s" in await outcome(bench, forever, tool_timeout=0.02)


async def test_tl_4_f16_an_unknown_tool_is_answered_with_the_names_there_are(bench: Any) -> None:
    @tool
    def list_files() -> str:
        """List."""
        return ""

    agent = await bench.agent(ScriptedModel([Call("lst_files")], "done"), tools=[list_files])
    result = await agent.run("go")
    error = json.loads(bench.store.results("c")["call_1"])["error"]
    assert error["type"] == "unknown_tool"
    assert "list_files" in error["message"]
    assert [step.error for step in result.steps if step.kind == "tool"] == ["unknown_tool"]


@pytest.mark.parametrize(
    "arguments", ['{"a": 1, "b', "[1]", '{"a": "x", "b": 2}', '{"a": 1}', "null"]
)
async def test_tl_4_f17_bad_arguments_are_answered_and_kept(bench: Any, arguments: str) -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    text = await outcome(bench, add, arguments)
    assert error_type_of(text) == "invalid_arguments"
    (calls,) = [r.message.tool_calls for r in bench.store.logs["c"] if r.message.tool_calls]
    assert calls[0].arguments == arguments


async def test_tl_4_only_transient_failures_of_idempotent_tools_are_tried_again(bench: Any) -> None:
    tries: list[str] = []

    @tool(idempotent=True, retries=2)
    async def flaky() -> str:
        """Fail twice."""
        tries.append("x")
        if len(tries) < 3:
            raise ConnectionError("again")
        return "third"

    assert await outcome(bench, flaky) == "third"

    @tool(retries=2)
    async def once() -> str:
        """Fail."""
        tries.append("y")
        raise ConnectionError("no")

    @tool(idempotent=True, retries=2)
    async def wrong() -> str:
        """Fail."""
        tries.append("z")
        raise ValueError("no")

    agent = await bench.agent(
        ScriptedModel([Call("once"), Call("wrong")], "x"), "d", tools=[once, wrong]
    )
    await agent.run("go")
    assert (tries.count("y"), tries.count("z")) == (1, 1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as is", "as is"),
        ("", "(no output)"),
        (None, "(no output)"),
        ({"b": 1, "a": [1.5, None]}, '{"b":1,"a":[1.5,null]}'),
        ({"v": float("nan")}, '{"v":null}'),
        ("a\ud83d", "a\ud83d"),
        ("<|endoftext|>", "<|endoftext|>"),
        ("nul\0", "nul\0"),
        ({1: "a"}, '{"1":"a"}'),
    ],
)
async def test_tl_5_f18_f19_f20_f42_what_a_tool_returns_is_stored_and_later_turns_work(
    bench: Any, value: Any, text: str
) -> None:
    async def give() -> Any:
        return value

    give.__doc__ = "Give."
    assert await outcome(bench, give) == text
    model = ScriptedModel("later")
    agent = await bench.agent(model)
    assert (await agent.run("next")).text == "later"
    assert model.requests[0].messages[2].content == text


async def test_tl_6_return_direct_joins_results_and_asks_no_model(bench: Any) -> None:
    @tool(return_direct=True)
    async def one() -> str:
        """One."""
        await asyncio.sleep(0.001)
        return "first"

    @tool(return_direct=True)
    async def two() -> str:
        """Two."""
        return "second"

    model = ScriptedModel([Call("one"), Call("two")], "never")
    agent = await bench.agent(model, tools=[one, two])
    result = await agent.run("go")
    assert (result.text, len(model.requests)) == ("first\nsecond", 1)
    assert bench.store.shape("c").endswith(" a")
    assert (await agent.run("go", turn_id=result.turn_id)).text == "first\nsecond"


async def test_tl_6_a_failed_call_goes_back_to_the_model(bench: Any) -> None:
    @tool(return_direct=True)
    async def one() -> str:
        """One."""
        raise ValueError("no")

    agent = await bench.agent(ScriptedModel([Call("one")], "explained"), tools=[one])
    assert (await agent.run("go")).text == "explained"


async def test_a_tool_knows_its_call(bench: Any) -> None:
    seen: list[ToolContext] = []

    @tool
    async def who(context: ToolContext) -> str:
        """Tell."""
        seen.append(context)
        return "ok"

    agent = await bench.agent(
        ScriptedModel([Call("who")], "done"), tools=[who], tool_values={"db": 7}, name="boss"
    )
    await agent.run("go", turn_id="T")
    (context,) = seen
    assert (context.conversation_id, context.turn_id, context.step) == ("c", "T", 2)
    assert (context.call_id, context.agent, context.values["db"]) == ("call_1", "boss", 7)


async def test_ag_4_whatever_a_model_calls_the_log_stays_usable(bench: Any) -> None:
    nasty = Message(
        "assistant",
        "text \ud83d\0 <|endoftext|>",
        [{"id": "x", "name": "no such \u0000 tool", "arguments": '{"a": NaN'}],
    )
    replies = iter([nasty, "fine"])
    agent = await bench.agent(FunctionModel(lambda _request: next(replies)))
    assert (await agent.run("go")).text == "fine"
    assert bench.store.shape("c") == "u a(x) t(x) a"
