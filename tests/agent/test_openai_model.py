"""OpenAIModel against real HTTP servers: a third-party mock with faults, and raw bytes.

Every fault ends in a good answer or a typed ModelError, within the deadline.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.anthropic_model import AnthropicModel
from keepwell.agent.errors import ModelError
from keepwell.agent.model import ChatModel, ModelReply, ModelRequest, TextDelta
from keepwell.agent.openai_model import OpenAIModel
from keepwell.agent.retry import NO_RETRY, RetryPolicy
from keepwell.agent.tool import tool
from keepwell.stores.message import Message
from keepwell.testing.raw_server import Disconnect, Pause, event_stream, http, raw_server

pytestmark = pytest.mark.usefixtures("sdks")

FAST = RetryPolicy(retries=2, base=0.0)
ASK = ModelRequest((Message("user", "What is 2 + 2?"),))


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"21 C in {city}"


WITH_TOOL = ModelRequest((Message("user", "weather in Paris?"),), (get_weather.schema,))


def connect(url: str, **options: object) -> OpenAIModel:
    given = {"base_url": f"{url}/v1", "api_key": "secret-key", "timeout": 5.0, "retry": FAST}
    return OpenAIModel("gpt-test", **given | options)


async def streamed(model: ChatModel, request: ModelRequest = ASK) -> tuple[str, ModelReply]:
    shown: list[str] = []
    reply = None
    async for item in model.stream(request):
        assert reply is None, "the reply is the last item"
        if isinstance(item, TextDelta):
            shown.append(item.text)
        else:
            reply = item
    assert reply is not None
    assert "".join(shown) == reply.message.text
    return "".join(shown), reply


async def drained(model: ChatModel) -> tuple[str, ModelReply | None, ModelError | None]:
    """What a stream showed, and how it ended."""
    shown, reply = "", None
    try:
        async for item in model.stream(ASK):
            if isinstance(item, TextDelta):
                shown += item.text
            else:
                reply = item
    except ModelError as error:
        return shown, reply, error
    return shown, reply, None


async def answered(model: ChatModel, streaming: bool, request: ModelRequest = ASK) -> ModelReply:
    return (await streamed(model, request))[1] if streaming else await model.complete(request)


both_ways = pytest.mark.parametrize("streaming", [False, True], ids=["complete", "stream"])


# -- against the mock server ------------------------------------------------------------------


@both_ways
async def test_text_and_usage(llmock, streaming):
    llmock.reply("four")
    model = connect(llmock.url)
    reply = await answered(model, streaming)
    assert reply.message == Message("assistant", "four")
    assert reply.finish_reason == "stop"
    assert reply.usage.input_tokens > 0
    assert not reply.usage.estimated
    llmock.assert_resilient(strict=True)


@both_ways
async def test_tool_calls_and_their_results(llmock, streaming):
    llmock.call_tool("get_weather", {"city": "Paris"})
    model = connect(llmock.url)
    reply = await answered(model, streaming, WITH_TOOL)
    (call,) = reply.message.tool_calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})
    assert reply.finish_reason == "tool_calls"
    llmock.reply("21 degrees")
    result = Message("tool", "21 C in Paris", tool_call_id=call.id)
    after = WITH_TOOL.replace(messages=(*WITH_TOOL.messages, reply.message, result))
    assert (await answered(model, streaming, after)).message.text == "21 degrees"
    llmock.assert_resilient(strict=True)


@both_ways
@pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
async def test_broken_tool_calls_come_through(llmock, streaming, kind):
    """F16, F17: they are the tool loop's matter; the raw text is kept."""
    llmock.break_tool_call(kind)
    (call,) = (await answered(connect(llmock.url), streaming, WITH_TOOL)).message.tool_calls
    if kind == "unknown_tool":
        assert call.name != "get_weather"
    else:
        assert isinstance(call.arguments, str)


@both_ways
async def test_a_rate_limit_is_waited_out(llmock, streaming):
    llmock.rate_limit(times=1, retry_after=0.2).reply("later")
    start = time.monotonic()
    reply = await answered(connect(llmock.url), streaming)
    assert reply.message.text == "later"
    assert time.monotonic() - start >= 0.2
    llmock.assert_resilient(strict=True)


@both_ways
@pytest.mark.parametrize("status", [500, 502, 408])
async def test_servers_in_trouble_are_asked_again(llmock, streaming, status):
    llmock.fail(status, times=2).reply("well again")
    model = connect(llmock.url, retry=RetryPolicy(retries=2, base=0.02))
    assert (await answered(model, streaming)).message.text == "well again"
    assert len(llmock.requests) == 3
    llmock.assert_resilient()


@both_ways
@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "bad_request"), (401, "unauthorized"), (403, "unauthorized"), (404, "bad_request")],
)
async def test_what_cannot_pass_is_not_asked_again(llmock, streaming, status, code):
    llmock.fail(status, times=None)
    with pytest.raises(ModelError) as caught:
        await answered(connect(llmock.url), streaming)
    error = caught.value
    assert (error.status, error.code) == (status, code)
    assert (error.retryable, error.attempts) == (False, 1)
    assert "secret-key" not in str(error)
    llmock.assert_resilient(strict=True)


@both_ways
async def test_an_outage_ends_typed(llmock, streaming):
    llmock.fail(529, times=None, retry_after=0.05)
    with pytest.raises(ModelError) as caught:
        await answered(connect(llmock.url, retry=RetryPolicy(retries=1)), streaming)
    error = caught.value
    assert (error.status, error.code, error.attempts) == (529, "server_error", 2)
    assert error.retryable
    assert error.retry_after is not None


@both_ways
async def test_a_prompt_too_long_says_so(llmock, streaming):
    llmock.context_overflow()
    with pytest.raises(ModelError) as caught:
        await answered(connect(llmock.url), streaming)
    assert (caught.value.code, caught.value.retryable) == ("context_too_large", False)


@pytest.mark.parametrize(
    ("fault", "code"),
    [("truncate", "truncated"), ("disconnect", "disconnected"), ("corrupt", "corrupt")],
)
async def test_a_stream_that_breaks_after_some_text(llmock, fault, code):
    """F28: what was shown is in `.partial`, and it is never taken for the answer."""
    llmock.reply("one two three four five six", times=None)
    getattr(llmock, fault)(after_chunks=3)
    model = connect(llmock.url)
    shown, reply, error = await drained(model)
    assert reply is None
    assert error is not None
    assert (error.code, error.retryable, error.attempts) == (code, True, 1)
    assert error.partial == shown != ""
    assert (await streamed(model))[0] == "one two three four five six"
    assert len(llmock.requests) == 2
    assert "truncated_stream_accepted" not in {f.code for f in llmock.verdict().findings}


async def test_a_stalled_stream_ends_at_the_idle_timeout(llmock):
    llmock.reply("one two three four five six").stall(after_chunks=3, seconds=30)
    model = connect(llmock.url, idle_timeout=0.2, retry=NO_RETRY)
    start = time.monotonic()
    with pytest.raises(ModelError) as caught:
        await streamed(model)
    assert caught.value.code == "timeout"
    assert time.monotonic() - start < 3


# -- against raw bytes ------------------------------------------------------------------------


def completion(message: dict, finish: object = "stop", **fields: object) -> dict:
    return {
        "id": "x", "object": "chat.completion", "created": 1, "model": "raw",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        **fields,
    }  # fmt: skip


def chunk(delta: dict, finish: object = None, **fields: object) -> dict:
    return {
        "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "raw",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **fields,
    }  # fmt: skip


HALF = chunk({"content": "half"})
USAGE = {"id": "x", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
DONE = "data: [DONE]\n\n"
GOOD = http(completion({"content": "good"}))
GOOD_STREAM = event_stream(
    chunk({"content": "go"}), chunk({"content": "od"}), chunk({}, "stop"), USAGE, DONE
)

WHOLE_FAULTS = {
    "no reply": [Disconnect()],
    "head only": [b"HTTP/1.1 200 OK\r\n", Disconnect()],
    "no HTTP": [b"SSH-2.0-OpenSSH_9.6\r\n\r\n"],
    "body cut off": http(completion({"content": "cut"}), length=10_000),
    "empty body": http(""),
    "not JSON": http('{"choices": [{"mess'),
    "not UTF-8": http(b'{"choices": "\xff\xfe"}'),
    "an array": http([1, 2]),
    "a string": http('"x"'),
    "null": http("null"),
    "no choices": http({"id": "x"}),
    "empty choices": http({"choices": []}),
    "HTML with status 200": http("<html>login</html>", content_type="text/html"),
    "empty text": http(completion({"content": ""})),
    "null text": http(completion({"content": None})),
    "reasoning only": http(completion({"content": "", "reasoning_content": "hm"})),
    "500 in HTML": http("<h1>oops</h1>", status="500 Oops", content_type="text/html"),
    "503 without body": http("", status="503 Service Unavailable"),
    "429 without Retry-After": http({"error": {"message": "slow"}}, status="429 Too Many Requests"),
    "429 with a garbled Retry-After": http(
        {"error": {"message": "slow"}}, status="429 Slow Down", headers=["Retry-After: soon"]
    ),
    "wrong types": http({"id": 1, "choices": [{"message": {"content": 3, "tool_calls": 3}}]}),
}  # fmt: skip
STREAM_FAULTS = {
    "no reply": [Disconnect()],
    "no events": event_stream(),
    "only [DONE]": event_stream(DONE),
    "no finish reason": event_stream(HALF, DONE),
    "closed without the last chunk": event_stream(HALF, end=False),
    "reset": event_stream(HALF, Disconnect()),
    "a chunk that is no JSON": event_stream(
        HALF, 'data: {"choices": [{"del\n\n', chunk({}, "stop"), DONE
    ),
    "a chunk that is no object": event_stream(HALF, "data: 3\n\n", chunk({}, "stop"), DONE),
    "an error event": event_stream(HALF, {"error": {"message": "boom", "type": "server_error"}}),
    "empty reply": event_stream(chunk({"content": ""}), chunk({}, "stop"), DONE),
    "HTML with status 200": http("<html>login</html>", content_type="text/html"),
    "JSON that is no completion": http({"detail": "no"}),
    "500": http({"error": {"message": "oops"}}, status="500 Internal Server Error"),
}


@pytest.mark.parametrize("fault", WHOLE_FAULTS)
async def test_a_passing_fault_is_followed_by_a_good_answer(fault):
    async with raw_server(WHOLE_FAULTS[fault], GOOD) as server:
        model = connect(server.url)
        reply = await model.complete(ASK)
        assert reply.message.text == "good"
        assert len(server.requests) == 2
        await model.aclose()


@pytest.mark.parametrize("fault", WHOLE_FAULTS)
async def test_a_lasting_fault_ends_in_a_typed_error(fault):
    async with raw_server(WHOLE_FAULTS[fault]) as server:
        with pytest.raises(ModelError) as caught:
            await connect(server.url).complete(ASK)
        error = caught.value
        assert (error.retryable, error.attempts) == (True, 3)
        assert error.code in (
            "disconnected", "corrupt", "empty_reply", "server_error", "rate_limited"
        )  # fmt: skip
        assert len(server.requests) == 3


@pytest.mark.parametrize("fault", STREAM_FAULTS)
async def test_stream_faults(fault):
    """Before any text is shown the call is repeated; after that it is an error with `.partial`."""
    async with raw_server(STREAM_FAULTS[fault], GOOD_STREAM) as server:
        model = connect(server.url)
        shown, reply, error = await drained(model)
        if error is not None:
            assert reply is None
            assert error.partial == shown == "half"
            assert error.retryable
            assert error.attempts == len(server.requests) == 1
        else:
            assert reply is not None
            assert shown == reply.message.text == "good"
            assert len(server.requests) == 2
        await model.aclose()


@pytest.mark.parametrize(
    "ending",
    [
        event_stream(HALF, chunk({}, "stop"), end=False),
        event_stream(HALF, chunk({}, "stop"), Disconnect()),
        event_stream(HALF, chunk({}, "stop"), "data: {broken\n\n"),
        event_stream(HALF, chunk({}, "stop"), DONE),
        event_stream(chunk({"content": "half"}, "stop")),
    ],
    ids=["closed", "reset", "garbage", "done", "at once"],
)
async def test_after_the_finish_reason_the_reply_is_complete(ending):
    async with raw_server(ending) as server:
        text, reply = await streamed(connect(server.url))
        assert text == "half"
        assert reply.usage.estimated  # US-1: the usage chunk never came
        assert len(server.requests) == 1


async def test_the_deadline_holds_against_a_slow_drip():
    drip = [piece for _ in range(200) for piece in (HALF, Pause(0.05))]
    async with raw_server(event_stream(*drip)) as server:
        start = time.monotonic()
        with pytest.raises(ModelError) as caught:
            await streamed(connect(server.url, timeout=0.5, idle_timeout=10))
        assert caught.value.code == "timeout"
        assert caught.value.partial.startswith("halfhalf")
        assert time.monotonic() - start < 3


async def test_the_deadline_holds_against_silence_and_retries():
    async with raw_server([Pause(30)]) as server:
        start = time.monotonic()
        with pytest.raises(ModelError) as caught:
            await connect(server.url, timeout=0.4, retry=RetryPolicy(retries=50)).complete(ASK)
        assert caught.value.code == "timeout"
        assert time.monotonic() - start < 3


async def test_a_long_retry_after_is_not_waited_for():
    limited = http({"error": {"message": "slow"}}, status="429 Too Many Requests",
                   headers=["Retry-After: 3600"])  # fmt: skip
    async with raw_server(limited) as server:
        with pytest.raises(ModelError) as caught:
            await connect(server.url).complete(ASK)
        assert (caught.value.retry_after, caught.value.attempts) == (3600.0, 1)
        assert caught.value.retryable


async def test_an_exhausted_quota_is_not_asked_again():
    quota = http({"error": {"message": "pay", "code": "insufficient_quota"}},
                 status="429 Too Many Requests")  # fmt: skip
    async with raw_server(quota) as server:
        with pytest.raises(ModelError) as caught:
            await connect(server.url).complete(ASK)
        assert (caught.value.code, caught.value.retryable) == ("rate_limited", False)
        assert len(server.requests) == 1


async def test_nobody_listens():
    async with raw_server(GOOD) as server:
        url = server.url
    with pytest.raises(ModelError) as caught:
        await connect(url).complete(ASK)
    assert (caught.value.code, caught.value.attempts) == ("disconnected", 3)


async def test_a_server_that_does_not_stream_is_understood():
    async with raw_server(GOOD) as server:
        text, reply = await streamed(connect(server.url))
        assert text == reply.message.text == "good"


async def test_json_under_another_content_type_is_understood():
    async with raw_server(
        http(completion({"content": "good"}), content_type="text/plain")
    ) as server:
        assert (await connect(server.url).complete(ASK)).message.text == "good"


async def test_duplicate_and_missing_call_ids_become_distinct():
    def call(call_id: object, name: str) -> dict:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}

    calls = [call("a", "f"), call("a", "g"), call("", "h"), call(None, "i")]
    async with raw_server(
        http(completion({"content": None, "tool_calls": calls}, "tool_calls"))
    ) as server:
        found = (await connect(server.url).complete(WITH_TOOL)).message.tool_calls
        assert [c.name for c in found] == ["f", "g", "h", "i"]
        assert len({c.id for c in found}) == 4


async def test_what_is_sent():
    async with raw_server(GOOD, GOOD_STREAM) as server:
        model = connect(
            server.url, max_output_tokens=99, temperature=0.5, options={"top_k": 3},
            headers={"X-Extra": "yes"},
        )  # fmt: skip
        request = ModelRequest((Message("user", "half an emoji: \ud83d"),), (get_weather.schema,))
        await model.complete(request)
        await streamed(model, request)
        first, second = server.requests
        assert first.line == "POST /v1/chat/completions HTTP/1.1"
        assert first.headers["authorization"] == "Bearer secret-key"
        assert first.headers["x-extra"] == "yes"
        assert first.json["messages"] == [{"role": "user", "content": "half an emoji: \ufffd"}]
        assert first.json["model"] == "gpt-test"
        assert (first.json["max_tokens"], first.json["temperature"], first.json["top_k"]) == (
            99,
            0.5,
            3,
        )
        assert [t["function"]["name"] for t in first.json["tools"]] == ["get_weather"]
        assert second.json["stream"] is True
        assert second.json["stream_options"] == {"include_usage": True}
        await model.aclose()


async def test_closing_a_stream_early_drops_the_connection():
    drip = [piece for _ in range(500) for piece in (HALF, Pause(0.01))]
    async with raw_server(event_stream(*drip)) as server:
        model = connect(server.url)
        async with aclosing(model.stream(ASK)) as stream:
            assert await anext(stream) == TextDelta("half")
        await asyncio.wait_for(server.dropped.wait(), 5)
        await model.aclose()


@both_ways
async def test_cancelling_a_call_ends_it(streaming):
    async with raw_server([Pause(30)]) as server:
        model = connect(server.url, timeout=60)
        task = asyncio.create_task(answered(model, streaming))
        await server.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await model.aclose()


async def test_many_conversations_at_once(llmock):
    llmock.reply("yes", times=None)
    model = connect(llmock.url, timeout=30)
    replies = await asyncio.gather(*(answered(model, i % 2 == 0) for i in range(16)))
    assert {reply.message.text for reply in replies} == {"yes"}
    await model.aclose()
    await model.aclose()  # again is harmless
    assert (await model.complete(ASK)).message.text == "yes"  # and the model stays usable


def test_one_model_serves_several_event_loops(llmock):
    llmock.reply("yes", times=None)
    model = connect(llmock.url, timeout=30)
    texts: list[str] = []

    def loop() -> None:
        texts.append(asyncio.run(model.complete(ASK)).message.text)

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["yes"] * 4


async def test_keys_are_never_shown(monkeypatch):
    model = OpenAIModel("m", api_key="secret-key")
    assert "secret" not in repr(model)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ModelError, match="set OPENAI_API_KEY") as caught:
        await OpenAIModel("m").complete(ASK)
    assert caught.value.code == "unauthorized"


@pytest.mark.parametrize("adapter", [OpenAIModel, AnthropicModel])
@pytest.mark.parametrize(
    "bad",
    [
        {"timeout": 0}, {"timeout": True}, {"idle_timeout": -1}, {"timeout": "5"},
        {"max_output_tokens": 0}, {"max_output_tokens": 9.5}, {"temperature": -1},
        {"temperature": "warm"}, {"base_url": 80},
    ],
)  # fmt: skip
def test_bad_options_are_refused(bad, adapter):
    with pytest.raises(InvalidValue, match=next(iter(bad))):
        adapter("m", **bad)
    with pytest.raises(InvalidValue):
        adapter("")


def test_a_key_that_is_none_is_refused_unshown():
    with pytest.raises(InvalidValue, match="api_key must be a str") as caught:
        OpenAIModel("m", api_key=[b"s3cret"])
    assert "s3cret" not in str(caught.value)


def test_without_the_sdk_the_extra_is_named(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'keepwell\[openai\]'") as caught:
        OpenAIModel("m")
    assert caught.value.code == "not_installed"
