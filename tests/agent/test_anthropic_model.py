"""AnthropicModel against raw bytes: every fault is a good answer or a typed error."""

from __future__ import annotations

import time

import pytest

from keepwell.agent.anthropic_model import AnthropicModel
from keepwell.agent.errors import ModelError
from keepwell.agent.model import ModelReply, ModelRequest, TextDelta
from keepwell.agent.retry import RetryPolicy
from keepwell.stores.message import Message
from keepwell.testing.raw_server import Disconnect, Pause, event_stream, http, raw_server

pytestmark = pytest.mark.usefixtures("sdks")

FAST = RetryPolicy(retries=2, base=0.0)
ASK = ModelRequest((Message("user", "What is 2 + 2?"),))


def connect(url: str, **options: object) -> AnthropicModel:
    given = {"base_url": url, "api_key": "secret-key", "timeout": 5.0, "retry": FAST}
    return AnthropicModel("claude-test", **given | options)


def message(*content: object, stop: str = "end_turn") -> dict:
    return {
        "id": "x", "type": "message", "role": "assistant", "model": "raw",
        "content": list(content), "stop_reason": stop, "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }  # fmt: skip


def text(value: str) -> dict:
    return {"type": "text", "text": value}


START = {"type": "message_start", "message": message() | {"stop_reason": None}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": text("")}
STOP = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn"},
    "usage": {"output_tokens": 2},
}
END = {"type": "message_stop"}


def says(value: str) -> dict:
    return {
        "type": "content_block_delta", "index": 0,
        "delta": {"type": "text_delta", "text": value},
    }  # fmt: skip


HALF = (START, BLOCK, says("half"))
GOOD = http(message(text("good")))
GOOD_STREAM = event_stream(START, BLOCK, says("go"), says("od"), STOP, END)
WHOLE_FAULTS = {
    "no reply": [Disconnect()],
    "body cut off": http(message(text("cut")), length=10_000),
    "not JSON": http('{"content": [{"ty'),
    "an array": http([1]),
    "no content": http({"id": "x"}),
    "HTML with status 200": http("<html></html>", content_type="text/html"),
    "empty": http(message()),
    "529": http({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
                status="529 Overloaded"),
    "500 in HTML": http("<h1>oops</h1>", status="500 Oops", content_type="text/html"),
}  # fmt: skip
STREAM_FAULTS = {
    "no reply": [Disconnect()],
    "no events": event_stream(),
    "no stop reason": event_stream(*HALF, END),
    "closed": event_stream(*HALF, end=False),
    "reset": event_stream(*HALF, Disconnect()),
    "no JSON": event_stream(*HALF, "event: content_block_delta\ndata: {broken\n\n", STOP, END),
    "an error event": event_stream(
        *HALF, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    ),
    "empty": event_stream(START, STOP, END),
    "HTML with status 200": http("<html></html>", content_type="text/html"),
}


@pytest.mark.parametrize("fault", WHOLE_FAULTS)
async def test_a_passing_fault_is_followed_by_a_good_answer(fault):
    async with raw_server(WHOLE_FAULTS[fault], GOOD) as server:
        assert (await connect(server.url).complete(ASK)).message.text == "good"
        assert len(server.requests) == 2


@pytest.mark.parametrize("fault", WHOLE_FAULTS)
async def test_a_lasting_fault_ends_in_a_typed_error(fault):
    async with raw_server(WHOLE_FAULTS[fault]) as server:
        with pytest.raises(ModelError) as caught:
            await connect(server.url).complete(ASK)
        assert (caught.value.retryable, caught.value.attempts) == (True, 3)
        assert caught.value.code in (
            "disconnected", "corrupt", "empty_reply", "server_error"
        )  # fmt: skip


async def drained(model: AnthropicModel) -> tuple[str, ModelReply | None, ModelError | None]:
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


@pytest.mark.parametrize("fault", STREAM_FAULTS)
async def test_stream_faults(fault):
    async with raw_server(STREAM_FAULTS[fault], GOOD_STREAM) as server:
        shown, reply, error = await drained(connect(server.url))
        if error is not None:
            assert reply is None
            assert error.partial == shown == "half"
            assert error.retryable
            assert error.attempts == len(server.requests) == 1
        else:
            assert reply is not None
            assert shown == reply.message.text == "good"
            assert len(server.requests) == 2


@pytest.mark.parametrize(
    "ending",
    [
        event_stream(*HALF, STOP, end=False),
        event_stream(*HALF, STOP, Disconnect()),
        event_stream(*HALF, STOP, "event: ping\ndata: {broken\n\n", END),
        GOOD,
    ],
    ids=["closed", "reset", "garbage", "not streamed"],
)
async def test_after_the_stop_reason_the_reply_is_complete(ending):
    async with raw_server(ending) as server:
        shown, reply, error = await drained(connect(server.url))
        assert error is None
        assert reply is not None
        assert shown == reply.message.text != ""
        assert len(server.requests) == 1


@pytest.mark.parametrize("options", [{"timeout": 0.4}, {"idle_timeout": 0.2}])
async def test_the_deadline_holds(options):
    stall = event_stream(*HALF, Pause(30))
    async with raw_server(stall) as server:
        start = time.monotonic()
        shown, _, error = await drained(connect(server.url, **options))
        assert error is not None
        assert (error.code, error.partial, shown) == ("timeout", "half", "half")
        assert time.monotonic() - start < 3


async def test_what_is_sent(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from-env")
    async with raw_server(GOOD) as server:
        request = ModelRequest((Message("system", "kind"), Message("user", "\ud83d")))
        model = connect(
            server.url, api_key=None, max_output_tokens=99, temperature=0.5, options={"top_k": 3}
        )
        await model.complete(request)
        (got,) = server.requests
        assert got.line == "POST /v1/messages HTTP/1.1"
        key = got.headers.get("x-api-key") or got.headers.get("authorization", "")
        assert key.endswith("from-env")
        assert got.json == {
            "model": "claude-test", "max_tokens": 99, "temperature": 0.5, "top_k": 3,
            "system": "kind",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "\ufffd"}]}],
        }  # fmt: skip
        assert "env" not in repr(model)


async def test_without_a_key_the_variable_is_named(monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelError, match="set ANTHROPIC_API_KEY"):
        await AnthropicModel("m").complete(ASK)
