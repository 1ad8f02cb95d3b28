"""Every fault of the wire, at every adapter of a wire protocol and a fallback over two of them.

An agent asks, over real HTTP against raw bytes: each fault ends in a good answer or a typed error,
within its deadline, and leaves a history that the next turn can use. Run whole and streamed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import pytest

import keepwell
from keepwell.agent.anthropic_model import AnthropicModel
from keepwell.agent.fallback_model import FallbackModel
from keepwell.agent.openai_model import OpenAIModel
from keepwell.agent.retry import RetryPolicy
from keepwell.memory.repair import repair
from keepwell.testing.raw_server import Disconnect, Pause, event_stream, http, raw_server

pytestmark = pytest.mark.usefixtures("sdks")

FAST = RetryPolicy(retries=2, base=0.0)
DEADLINE = 0.2
"""Seconds for a call whose endpoint is too slow."""
Calls = Sequence[tuple[str, str, str]]
"""Id, name and arguments as JSON."""


def look_up(city: str) -> str:
    """Look up the weather of a city."""
    return f"mild in {city}"


class OpenAI:
    """The chat completions protocol, spoken by a server."""

    def connect(self, url: str, timeout: float) -> OpenAIModel:
        return OpenAIModel(
            "m", base_url=f"{url}/v1", api_key="k", timeout=timeout, idle_timeout=timeout,
            retry=FAST,
        )  # fmt: skip

    def whole(self, text: str = "", calls: Calls = (), finish: str = "", **more: Any) -> Any:
        message: dict[str, Any] = {"role": "assistant", "content": text or None, **more}
        if calls:
            message["tool_calls"] = [self._call(*call) for call in calls]
        return {
            "id": "x", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{
                "index": 0, "message": message,
                "finish_reason": finish or ("tool_calls" if calls else "stop"),
            }],
        }  # fmt: skip

    def pieces(
        self, text: str = "", calls: Calls = (), finish: str = "", **more: Any
    ) -> list[Any]:
        chunks = [self._chunk({"content": word}) for word in text.split("|") if word]
        chunks += [self._chunk({key: value}) for key, value in more.items()]
        for index, call in enumerate(calls):
            chunks.append(self._chunk({"tool_calls": [{"index": index, **self._call(*call)}]}))
        end = self._chunk({}, finish or ("tool_calls" if calls else "stop"))
        return [*chunks, end, "data: [DONE]\n\n"]

    broken = 'data: {"choices": [{"del\n\n'
    refusal: ClassVar[dict[str, Any]] = {"refusal": "I will not."}

    def _call(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {
            "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }  # fmt: skip


class Anthropic:
    """The messages protocol, spoken by a server."""

    def connect(self, url: str, timeout: float) -> AnthropicModel:
        return AnthropicModel(
            "m", base_url=url, api_key="k", timeout=timeout, idle_timeout=timeout, retry=FAST
        )

    def whole(self, text: str = "", calls: Calls = (), finish: str = "", **_: Any) -> Any:
        content: list[Any] = [{"type": "text", "text": text}] if text else []
        for call_id, name, arguments in calls:
            # This protocol's arguments are an object: garbled ones have lost some of it.
            given = {"city": "Rome"} if arguments.endswith("}") else {}
            content.append({"type": "tool_use", "id": call_id, "name": name, "input": given})
        return {
            "id": "x", "type": "message", "role": "assistant", "model": "m", "content": content,
            "stop_reason": finish or ("tool_use" if calls else "end_turn"), "stop_sequence": None,
            "usage": {"input_tokens": 3, "output_tokens": 2},
        }  # fmt: skip

    def pieces(
        self, text: str = "", calls: Calls = (), finish: str = "", **_: Any
    ) -> list[Any]:
        events: list[Any] = [
            {"type": "message_start", "message": self.whole() | {"stop_reason": None}}
        ]
        blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        if text:
            words = [{"type": "text_delta", "text": word} for word in text.split("|")]
            blocks.append(({"type": "text", "text": ""}, words))
        for call_id, name, arguments in calls:
            start = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
            blocks.append((start, [{"type": "input_json_delta", "partial_json": arguments}]))
        for index, (start, deltas) in enumerate(blocks):
            events.append({"type": "content_block_start", "index": index, "content_block": start})
            events += [
                {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
            ]
            events.append({"type": "content_block_stop", "index": index})
        reason = finish or ("tool_use" if calls else "end_turn")
        events.append({
            "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 2},
        })  # fmt: skip
        return [*events, {"type": "message_stop"}]

    broken = "event: content_block_delta\ndata: {broken\n\n"
    refusal: ClassVar[dict[str, Any]] = {"finish": "refusal"}


Dialect = OpenAI | Anthropic


def good(dialect: Dialect, streaming: bool, text: str = "good") -> list[Any]:
    if streaming:
        return event_stream(*dialect.pieces(text.replace("o", "o|", 1)))
    return http(dialect.whole(text))


def calls(*given: tuple[str, str, str]) -> Callable[[Dialect, bool], list[Any]]:
    def play(dialect: Dialect, streaming: bool) -> list[Any]:
        if streaming:
            return event_stream(*dialect.pieces(calls=list(given)))
        return http(dialect.whole(calls=list(given)))

    return play


def status(line: str, *headers: str) -> Callable[[Dialect, bool], list[Any]]:
    error = {"type": "error", "error": {"type": "some_error", "message": "no"}}
    return lambda _dialect, _streaming: http(error, status=line, headers=headers)


def truncated(dialect: Dialect, streaming: bool) -> list[Any]:
    if streaming:
        return event_stream(*dialect.pieces("half|of it")[:-3], end=False)
    return http(dialect.whole("half"), length=10_000)


def corrupt(dialect: Dialect, streaming: bool) -> list[Any]:
    if streaming:
        pieces = dialect.pieces("half|of it")
        return event_stream(*pieces[:-3], dialect.broken, *pieces[-2:])
    return http('{"choices": [{"mess')


def reset(dialect: Dialect, streaming: bool) -> list[Any]:
    if streaming:
        return event_stream(*dialect.pieces("half|of it")[:-3], Disconnect())
    return [*http(dialect.whole("half"), length=10_000), Disconnect()]


def drip(dialect: Dialect, streaming: bool) -> list[Any]:
    if streaming:
        start = dialect.pieces("half|of it")[:-3]
        return event_stream(*start, *[one for _ in range(200) for one in (": x\n\n", Pause(0.02))])
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10000\r\n\r\n"
    return [head, *[item for _ in range(200) for item in (b" ", Pause(0.02))]]


def empty(dialect: Dialect, streaming: bool) -> list[Any]:
    return event_stream(*dialect.pieces()) if streaming else http(dialect.whole())


def refusal(dialect: Dialect, streaming: bool) -> list[Any]:
    if streaming:
        return event_stream(*dialect.pieces(**dialect.refusal))
    return http(dialect.whole(**dialect.refusal))


ROME = '{"city": "Rome"}'
LASTING: dict[str, tuple[Callable[[Dialect, bool], list[Any]], set[str]]] = {
    "429 with Retry-After": (
        status("429 Too Many Requests", "Retry-After: 0"), {"rate_limited"}
    ),
    "429 with a long Retry-After": (
        status("429 Too Many Requests", "Retry-After: 3600"), {"rate_limited"}
    ),
    "429 without Retry-After": (status("429 Too Many Requests"), {"rate_limited"}),
    "500": (status("500 Internal Server Error"), {"server_error"}),
    "503": (status("503 Service Unavailable"), {"server_error", "rate_limited"}),
    "529": (status("529 Overloaded"), {"server_error", "rate_limited"}),
    "silence": (lambda _d, _s: [Pause(30)], {"timeout"}),
    "a slow drip": (drip, {"timeout"}),
    "no reply": (lambda _d, _s: [Disconnect()], {"disconnected"}),
    "truncated": (truncated, {"truncated", "disconnected"}),
    "reset in the middle": (reset, {"disconnected"}),
    "corrupt": (corrupt, {"corrupt"}),
    "a wrong content type": (
        lambda _d, _s: http("<html>login</html>", content_type="text/html"), {"corrupt"}
    ),
    "an empty reply": (empty, {"empty_reply"}),
    "a refusal": (refusal, {"refused", "I will not."}),
}  # fmt: skip
SLOW = ("silence", "a slow drip")
TOOLS = {
    "duplicate tool ids": (calls(("a", "look_up", ROME), ("a", "look_up", ROME)), 2),
    "an unknown tool": (calls(("a", "fly", ROME)), 1),
    "invalid arguments": (calls(("a", "look_up", '{"city": "Ro')), 1),
}
DIALECTS: dict[str, tuple[Dialect, ...]] = {
    "openai": (OpenAI(),), "anthropic": (Anthropic(),), "fallback": (OpenAI(), Anthropic()),
}  # fmt: skip


class Wire:
    """A model over as many servers as it has endpoints, and an agent that uses it."""

    def __init__(self, dialects: tuple[Dialect, ...], streaming: bool, timeout: float) -> None:
        self.dialects, self.streaming, self.timeout = dialects, streaming, timeout

    async def __aenter__(self) -> Wire:
        self._stack = AsyncExitStack()
        enter = self._stack.enter_async_context
        self.servers = [await enter(raw_server([])) for _ in self.dialects]
        self.models: list[Any] = [
            dialect.connect(server.url, self.timeout)
            for dialect, server in zip(self.dialects, self.servers, strict=True)
        ]
        model = self.models[0] if len(self.models) == 1 else FallbackModel(*self.models)
        runtime = await enter(keepwell.Runtime())
        self.agent = await runtime.spawn(keepwell.AgentSpec(model, tools=[look_up]), "c")
        return self

    async def __aexit__(self, *_: object) -> None:
        for model in self.models:
            await model.aclose()
        await self._stack.aclose()

    def play(self, *responses: Callable[[Dialect, bool], list[Any]]) -> None:
        """From the next request on."""
        for server, dialect in zip(self.servers, self.dialects, strict=True):
            server.requests.clear()
            server.responses = [response(dialect, self.streaming) for response in responses]

    async def ask(self, question: str) -> str:
        """The text of the answer, or the code of the ModelError."""
        try:
            if not self.streaming:
                return (await self.agent.run(question)).text
            shown = ""
            async for event in self.agent.stream(question):
                if isinstance(event, keepwell.TextDelta):
                    shown += event.text
                elif isinstance(event, keepwell.StepRestarted):
                    shown = ""
                elif isinstance(event, keepwell.TurnEnded):
                    assert shown == event.result.text
                    return shown
            raise AssertionError("a stream ends with its turn, or raises")
        except keepwell.ModelError as error:
            assert str(error)
            assert error.attempts >= 1
            return error.code

    async def goes_on(self) -> None:
        """The next turn is answered, with a history that every provider accepts as it is."""
        for model in self.models:
            model._timeout = model._idle_timeout = 20.0  # where the fault was that it is short
        self.play(good)
        assert await self.ask("And now?") == "good"
        messages = list(await self.agent.messages())
        assert list(repair(messages)) == messages


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepwell.agent.model_call.FIRST_DELAY", 0.001)


how = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
who = pytest.mark.parametrize("endpoint", DIALECTS)


@who
@how
@pytest.mark.parametrize("fault", LASTING)
async def test_a_fault_that_lasts_ends_typed(fault: str, streaming: bool, endpoint: str) -> None:
    respond, outcomes = LASTING[fault]
    timeout = DEADLINE if fault in SLOW else 20.0
    async with Wire(DIALECTS[endpoint], streaming, timeout) as wire:
        wire.play(respond)
        start = time.monotonic()
        assert await wire.ask("How is Rome?") in outcomes
        assert time.monotonic() - start < 15, "not by the deadline of the test"
        if "long" in fault:
            assert [len(server.requests) for server in wire.servers] == [1] * len(wire.servers)
        await wire.goes_on()


@pytest.mark.parametrize("endpoint", ["openai", "anthropic"])
@pytest.mark.parametrize("fault", [name for name in LASTING if name not in SLOW])
async def test_a_fault_that_passes_is_not_seen(fault: str, endpoint: str) -> None:
    respond, outcomes = LASTING[fault]
    if "long" in fault or "refusal" in fault:
        outcomes = {*outcomes, "good"}  # nobody waits an hour, or asks for another opinion
    else:
        outcomes = {"good"}
    async with Wire(DIALECTS[endpoint], True, 20.0) as wire:
        wire.play(respond, good)
        assert await wire.ask("How is Rome?") in outcomes
        await wire.goes_on()


@who
@how
@pytest.mark.parametrize("fault", TOOLS)
async def test_a_call_that_cannot_be_is_told(fault: str, streaming: bool, endpoint: str) -> None:
    respond, count = TOOLS[fault]
    async with Wire(DIALECTS[endpoint], streaming, 20.0) as wire:
        wire.play(respond, good)
        assert await wire.ask("How is Rome?") == "good"
        messages = await wire.agent.messages()
        (said,) = (m for m in messages if m.tool_calls)
        ids = [call.id for call in said.tool_calls]
        assert len(set(ids)) == len(ids) == count
        results = [m for m in messages if m.role == "tool"]
        assert [m.tool_call_id for m in results] == ids
        wrong = {"an unknown tool": "unknown_tool", "invalid arguments": "invalid_arguments"}
        assert wrong.get(fault, "mild in Rome") in results[0].text
        await wire.goes_on()


@how
@pytest.mark.parametrize("fault", LASTING)
async def test_the_spare_answers_for_the_first(fault: str, streaming: bool) -> None:
    """Unless half of an answer has been shown: nobody else's is put after it."""
    respond, outcomes = LASTING[fault]
    timeout = DEADLINE if fault in SLOW else 20.0
    async with Wire(DIALECTS["fallback"], streaming, timeout) as wire:
        first, spare = wire.servers
        first.responses = [respond(wire.dialects[0], streaming)]
        spare.responses = [good(wire.dialects[1], streaming)]
        wire.models[1]._timeout = wire.models[1]._idle_timeout = 20.0
        outcome = await wire.ask("How is Rome?")
        if outcome != "good":
            shows_half = fault in ("a slow drip", "truncated", "reset in the middle", "corrupt")
            assert fault == "a refusal" or (streaming and shows_half)
            assert outcome in outcomes
        await wire.goes_on()
