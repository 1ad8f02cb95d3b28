"""Scripted and function models: deterministic, and honest about what a real model may do."""

from __future__ import annotations

import asyncio
import threading

import pytest

from keepwell.agent.errors import ModelError
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.model import ChatModel, ModelReply, ModelRequest, TextDelta, Usage
from keepwell.agent.scripted_model import Broken, Call, Held, ScriptedModel
from keepwell.stores.message import Message, ToolCall


def ask(text: str = "hello", conversation_id: str = "") -> ModelRequest:
    return ModelRequest((Message("user", text),), conversation_id=conversation_id)


async def streamed(model: ChatModel, request: ModelRequest) -> tuple[list[str], ModelReply]:
    items = [item async for item in model.stream(request)]
    assert isinstance(items[-1], ModelReply)
    assert all(isinstance(item, TextDelta) for item in items[:-1])
    return [item.text for item in items[:-1]], items[-1]


async def test_replies_come_in_order():
    model = ScriptedModel(
        "one", Call("add", {"a": 1}), [Call("f"), Call("g", '{"cut')], Message("assistant", "two")
    )
    assert isinstance(model, ChatModel)
    first = await model.complete(ask("12345678"))
    assert first.message == Message("assistant", "one")
    assert (first.finish_reason, first.model) == ("stop", "scripted")
    assert first.usage == Usage(2, 1, estimated=True)
    second = await model.complete(ask())
    assert second.finish_reason == "tool_calls"
    assert second.message.tool_calls == (ToolCall("call_1", "add", {"a": 1}),)
    third = await model.complete(ask())
    assert third.message.tool_calls == (
        ToolCall("call_2", "f", ""),
        ToolCall("call_3", "g", '{"cut'),
    )
    assert (await model.complete(ask())).message.text == "two"
    with pytest.raises(ModelError, match="asked 5 times, the script has 4"):
        await model.complete(ask())
    assert len(model.requests) == 5


async def test_each_conversation_plays_the_script_from_its_start():
    model = ScriptedModel("1", "2", Call("f"))

    async def conversation(name: str) -> list[object]:
        got: list[object] = []
        for _ in range(3):
            reply = await model.complete(ask(conversation_id=name))
            got.append(reply.message.text or reply.message.tool_calls[0].id)
            await asyncio.sleep(0)
        return got

    results = await asyncio.gather(*(conversation(f"c{i}") for i in range(50)))
    assert results == [["1", "2", "call_1"]] * 50


async def test_a_shared_script_and_a_repeated_one():
    shared = ScriptedModel("1", "2", shared=True)
    assert [(await shared.complete(ask(conversation_id=c))).message.text for c in "ab"] == [
        "1",
        "2",
    ]
    again = ScriptedModel("1", "2", repeat=True, record=False)
    assert [(await again.complete(ask())).message.text for _ in range(5)] == list("12121")
    assert again.requests == []


async def test_streams_join_to_the_reply():
    model = ScriptedModel("hello, world", "", Call("f"), chunk=5)
    assert (await streamed(model, ask()))[0] == ["hello", ", wor", "ld"]
    assert (await streamed(model, ask()))[0] == []
    deltas, reply = await streamed(model, ask())
    assert (deltas, reply.finish_reason) == ([], "tool_calls")


async def test_errors_functions_and_broken_streams():
    async def later(request: ModelRequest) -> object:
        return Call("echo", {"text": request.messages[-1].text})

    lost = ModelError("lost", retryable=True, status=500)
    model = ScriptedModel(
        lost, lambda request: request.messages[-1].text.upper(), later, Broken("half an", lost)
    )
    with pytest.raises(ModelError) as caught:
        await model.complete(ask())
    assert caught.value is lost
    assert (await model.complete(ask("abc"))).message.text == "ABC"
    assert (await model.complete(ask("abc"))).message.tool_calls[0].arguments == {"text": "abc"}
    stream = model.stream(ask())
    assert [await anext(stream)] == [TextDelta("half an")]
    with pytest.raises(ModelError, match="lost") as caught:
        await anext(stream)
    assert caught.value.partial == "half an"
    assert (caught.value.retryable, caught.value.status) == (True, 500)


@pytest.mark.parametrize("kind", [asyncio.Event, threading.Event])
async def test_a_held_reply_waits_for_its_event(kind):
    event = kind()
    model = ScriptedModel(Held(event, "now"), "other", shared=True)
    waiting = asyncio.create_task(model.complete(ask()))
    await asyncio.sleep(0)  # it has drawn its reply
    assert (await model.complete(ask())).message.text == "other"
    assert not waiting.done()
    event.set()
    assert (await waiting).message.text == "now"


async def test_a_held_reply_can_be_cancelled():
    model = ScriptedModel(Held(threading.Event(), "never"))
    waiting = asyncio.create_task(model.complete(ask()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_function_model():
    model = FunctionModel(lambda request: f"{len(request.messages)} seen", name="counter")
    assert isinstance(model, ChatModel)
    assert (await model.complete(ask())).message.text == "1 seen"
    deltas, reply = await streamed(model, ask())
    assert "".join(deltas) == reply.message.text == "1 seen"
    assert reply.model == "counter"
    for bad in (3, None, [], ["x"]):
        with pytest.raises(ModelError, match=r"is no reply|a list stands for"):
            await FunctionModel(lambda request, bad=bad: bad).complete(ask())
    exact = ModelReply(Message("assistant", "x"), Usage(1, 2, 3, 4), "length", "m")
    assert await FunctionModel(lambda request: exact).complete(ask()) is exact


def test_usage_adds_up():
    total = Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40, estimated=True)
    assert total == Usage(11, 22, 33, 44, True)
    assert total.total_tokens == 33
    assert Usage.from_dict(total.to_dict()) == total
    assert Usage.from_dict({"input_tokens": "x"}) == Usage()
