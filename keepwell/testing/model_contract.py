"""The suite that every model adapter passes.

    class TestMyModel(ModelContract):
        @pytest.fixture
        def connect(self):
            def connect(*script):
                ...  # an endpoint that plays the script, a model connected to it
                return MyModel(...)
            return connect

`connect(*script)` gives a model whose endpoint answers one request after another with the items of
the script (`Says`, `Calls`, `Breaks`), the last one again and again. The model should wait as
briefly as it can between retries. What an endpoint cannot play is left out of `capabilities` and
skipped. Needs pytest and pytest-asyncio (`asyncio_mode = auto`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from ..agent.errors import ModelError
from ..agent.model import ChatModel, ModelReply, ModelRequest, TextDelta
from ..agent.tool import tool
from ..memory.repair import repair
from ..stores.message import Message, ToolCall

SCRIPT = "script"  # says the text it is told
TOOLS = "tools"  # calls the tools it is told
GARBLED = "garbled"  # arguments that are no JSON
EMPTY = "empty"  # a reply of nothing
FAULTS = "faults"  # whole calls that fail
BROKEN_STREAMS = "broken streams"  # streams that fail half-way
ALL = frozenset({SCRIPT, TOOLS, GARBLED, EMPTY, FAULTS, BROKEN_STREAMS})


@dataclass(frozen=True, slots=True)
class Says:
    """A reply of text; "" is an empty reply."""

    text: str


@dataclass(frozen=True, slots=True)
class Calls:
    """A reply that calls a tool; `garbled` with arguments that are no JSON."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()
    garbled: bool = False


Kind = Literal[
    "rate_limited", "server_error", "unauthorized", "context_too_large",
    "truncated", "disconnected", "corrupt",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Breaks:
    """A call that fails; "truncated", "disconnected" and "corrupt" are streams that break after
    some of `text` has come."""

    kind: Kind
    text: str = ""


Item = Says | Calls | Breaks
Connect = Callable[..., ChatModel]

TEXT = "one two three four five six seven eight nine ten"


@tool
def look_up(city: str) -> str:
    """Look up the weather of a city."""
    return f"mild in {city}"


PARIS = Calls("look_up", (("city", "Paris"),))
ASK = ModelRequest((Message("system", "Be brief."), Message("user", "Hello?")))
ASK_WITH_TOOL = ModelRequest((Message("user", "How is Paris?"),), (look_up.schema,))

# What crashes, cancellations, other providers and garbled output leave in a log.
ODD_HISTORY = (
    Message("assistant", "Welcome."),
    Message("user", ""),
    Message("user", [{"type": "text", "text": "half an emoji: \ud83d"}]),
    Message("assistant", None, [ToolCall("functions.look_up:0", "look_up", '{"city": "Par')]),
    Message("user", "still there?"),
    Message("assistant", "", [ToolCall("x" * 60, "look up!", {"n": float("nan"), "b": b"1"})]),
    Message("tool", '{"error":{"type":"crashed","message":"x"}}', tool_call_id="x" * 60),
    Message("tool", "nobody asked", tool_call_id="orphan"),
    Message("assistant", None, reasoning="hm"),
    Message("user", "Say <|endoftext|> and go on."),
)


class ModelContract:
    """Rules for every ChatModel; see the module's text for the fixture to give."""

    capabilities: ClassVar[frozenset[str]] = ALL

    @pytest.fixture
    def connect(self) -> Connect:
        """`connect(*script)` gives a connected model."""
        raise NotImplementedError

    @pytest.fixture(params=["complete", "stream"])
    def ask(self, request: Any) -> Any:
        """One call, whole or streamed, with what must hold of every reply."""

        async def ask(model: ChatModel, asked: ModelRequest = ASK) -> ModelReply:
            if request.param == "complete":
                reply = await model.complete(asked)
            else:
                shown, reply = await streamed(model, asked)
                assert shown == reply.message.text, "deltas join to the text of the reply"
            check_reply(reply)
            return reply

        return ask

    def needs(self, *capabilities: str) -> None:
        """Skip the test unless the endpoint can play all of these."""
        missing = set(capabilities) - self.capabilities
        if missing:
            pytest.skip(f"this endpoint cannot play: {', '.join(sorted(missing))}")

    async def test_it_is_a_chat_model(self, connect: Connect) -> None:
        model = connect(Says(TEXT))
        assert isinstance(model, ChatModel)
        assert isinstance(model.name, str)
        assert model.name
        await close(model)

    async def test_it_answers_with_text(self, connect: Connect, ask: Any) -> None:
        model = connect(Says(TEXT))
        reply = await ask(model)
        assert reply.message.text.strip()
        assert not reply.message.tool_calls
        assert reply.finish_reason in ("stop", "length")
        if SCRIPT in self.capabilities:
            assert reply.message.text == TEXT
            assert reply.finish_reason == "stop"
        await close(model)

    async def test_it_calls_tools(self, connect: Connect, ask: Any) -> None:
        self.needs(TOOLS)
        model = connect(PARIS, Says("mild"))
        reply = await ask(model, ASK_WITH_TOOL)
        (call,) = reply.message.tool_calls
        assert (call.name, dict(call.arguments)) == ("look_up", {"city": "Paris"})
        assert reply.finish_reason == "tool_calls"
        output = str(look_up(**look_up.bind(call.arguments)))
        result = Message("tool", output, tool_call_id=call.id)
        messages = (*ASK_WITH_TOOL.messages, reply.message, result)
        after = await ask(model, ASK_WITH_TOOL.replace(messages=messages))
        assert after.message.text == "mild"
        await close(model)

    async def test_garbled_arguments_stay_as_they_came(self, connect: Connect, ask: Any) -> None:
        """The tool loop tells the model; the next call of that history works."""
        self.needs(GARBLED)
        model = connect(Calls("look_up", PARIS.arguments, garbled=True), Says("sorry"))
        reply = await ask(model, ASK_WITH_TOOL)
        (call,) = reply.message.tool_calls
        if isinstance(call.arguments, str):
            with pytest.raises(json.JSONDecodeError):
                json.loads(call.arguments)
        else:  # a protocol whose arguments are objects can only lose some of them
            assert dict(call.arguments) != dict(PARIS.arguments)
        messages = repair((*ASK_WITH_TOOL.messages, reply.message))
        assert (await ask(model, ASK_WITH_TOOL.replace(messages=messages))).message.text == "sorry"
        await close(model)

    async def test_any_repaired_history_is_accepted(self, connect: Connect, ask: Any) -> None:
        model = connect(Says("fine"))
        tools = (look_up.schema,) if TOOLS in self.capabilities else ()
        reply = await ask(model, ModelRequest(repair(ODD_HISTORY), tools))
        assert reply.message.text or reply.message.tool_calls
        await close(model)

    async def test_an_empty_reply_is_an_error(self, connect: Connect, ask: Any) -> None:
        self.needs(EMPTY)
        model = connect(Says(""))
        with pytest.raises(ModelError) as caught:
            await ask(model)
        assert caught.value.code == "empty_reply"
        assert caught.value.partial == ""
        await close(model)

    @pytest.mark.parametrize(
        ("kind", "retryable"),
        [
            ("rate_limited", True),
            ("server_error", True),
            ("unauthorized", False),
            ("context_too_large", False),
        ],
    )
    async def test_faults_are_typed(
        self, connect: Connect, ask: Any, kind: Kind, retryable: bool
    ) -> None:
        self.needs(FAULTS)
        model = connect(Breaks(kind))
        with pytest.raises(ModelError) as caught:
            await ask(model)
        error = caught.value
        assert (error.code, error.retryable) == (kind, retryable)
        assert error.attempts >= 1
        assert retryable or error.attempts == 1, "what cannot pass is not asked again"
        assert str(error)
        await close(model)

    @pytest.mark.parametrize("kind", ["truncated", "disconnected", "corrupt"])
    async def test_a_broken_stream_is_no_answer(self, connect: Connect, kind: Kind) -> None:
        """F28: what was shown is in `.partial`; the model goes on serving."""
        self.needs(BROKEN_STREAMS)
        model = connect(Breaks(kind, TEXT), Says(TEXT))
        shown = ""
        with pytest.raises(ModelError) as caught:  # noqa: PT012 -- the stream is what raises
            async for item in model.stream(ASK):
                assert isinstance(item, TextDelta), "no reply from a broken stream"
                shown += item.text
        assert caught.value.retryable
        assert caught.value.partial == shown
        assert 0 < len(shown) <= len(TEXT)
        assert (await streamed(model, ASK))[0] == TEXT
        await close(model)

    async def test_it_serves_many_conversations_at_once(self, connect: Connect) -> None:
        model = connect(Says(TEXT))
        count = 12 if SCRIPT in self.capabilities else 3

        async def one(place: int) -> ModelReply:
            if place % 2:
                return await model.complete(ASK)
            return (await streamed(model, ASK))[1]

        for reply in await asyncio.gather(*map(one, range(count))):
            check_reply(reply)
            if SCRIPT in self.capabilities:
                assert reply.message.text == TEXT
        await close(model)

    async def test_a_stream_may_be_left(self, connect: Connect, ask: Any) -> None:
        model = connect(Says(TEXT))
        stream = model.stream(ASK)
        async with aclosing(stream) as items:  # type: ignore[type-var]  # generators in practice
            await anext(items)
        assert (await ask(model)).message.text
        await close(model)

    async def test_a_call_may_be_cancelled(self, connect: Connect, ask: Any) -> None:
        model = connect(Says(TEXT))
        task = asyncio.ensure_future(ask(model))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert (await ask(model)).message.text
        await close(model)

    def test_it_serves_several_event_loops(self, connect: Connect) -> None:
        model = connect(Says(TEXT))
        texts: list[str] = []

        async def once() -> None:
            texts.append((await model.complete(ASK)).message.text)
            await close(model)

        threads = [threading.Thread(target=lambda: asyncio.run(once())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(texts) == 2
        assert all(texts)


async def streamed(model: ChatModel, request: ModelRequest) -> tuple[str, ModelReply]:
    """The text a stream showed, and its reply, which must be the last item and the only one."""
    shown = ""
    reply: ModelReply | None = None
    async for item in model.stream(request):
        assert reply is None, "nothing comes after the reply"
        if isinstance(item, TextDelta):
            assert item.text, "no empty deltas"
            shown += item.text
        else:
            reply = item
    assert reply is not None, "a stream ends with its reply, or raises"
    return shown, reply


def check_reply(reply: ModelReply) -> None:
    """What holds of every reply."""
    message = reply.message
    assert message.role == "assistant"
    assert message.text.strip() or message.tool_calls
    ids = [call.id for call in message.tool_calls]
    assert all(ids), "each call has an id"
    assert len(set(ids)) == len(ids), "ids are distinct"
    assert bool(ids) == (reply.finish_reason == "tool_calls")
    usage = reply.usage
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0
    assert 0 <= usage.cached_tokens <= usage.input_tokens
    assert 0 <= usage.reasoning_tokens <= usage.output_tokens
    assert reply.model


async def close(model: ChatModel) -> None:
    """Close a model's connections, if it has any."""
    aclose = getattr(model, "aclose", None)
    if aclose is not None:
        await aclose()
