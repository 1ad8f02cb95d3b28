"""A model that is a Python function, for tests, demonstrations and rule-based agents."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from ..stores.message import Message, ToolCall
from .errors import ModelError
from .model import ModelReply, ModelRequest, TextDelta, Usage

ReplyFunction = Callable[[ModelRequest], object]


class FunctionModel:
    """Answers each request with what `function(request)` returns or raises.

    The function may be async and may be called from several conversations at once. It returns a
    str, a ToolCall or several in a list or tuple, a Message, or a ModelReply; usage is estimated
    at four characters a token unless a ModelReply brings its own. Streams come in pieces of
    `chunk` characters. Anything it raises goes to the caller as it is.
    """

    def __init__(self, function: ReplyFunction, *, name: str = "function", chunk: int = 8) -> None:
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1 character, got {chunk}")
        self._function = function
        self._name = name
        self._chunk = chunk

    @property
    def name(self) -> str:
        """The name given when it was made."""
        return self._name

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer the request. Raises what the function raises; ModelError for no usable reply."""
        result = self._function(request)
        if inspect.isawaitable(result):
            result = await _returned(result)
        return make_reply(result, request, self._name)

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelReply]:
        """Answer the request in pieces of text, then the reply."""
        reply = await self.complete(request)
        for piece in pieces(reply.message.text, self._chunk):
            # The loop turns between two pieces, as with a model behind a network.
            await asyncio.sleep(0)
            yield TextDelta(piece)
        yield reply


def make_reply(value: object, request: ModelRequest, model: str) -> ModelReply:
    """The ModelReply for what a script or function gave. Raises ModelError if it is none."""
    if isinstance(value, ModelReply):
        return value
    if isinstance(value, str):
        message = Message(role="assistant", content=value)
    elif isinstance(value, ToolCall):
        message = Message(role="assistant", content=None, tool_calls=(value,))
    elif isinstance(value, list | tuple) and value:
        calls = tuple(each for each in value if isinstance(each, ToolCall))
        if len(calls) != len(value):
            raise ModelError(f"{model}: a list stands for tool calls, but holds {value!r}")
        message = Message(role="assistant", content=None, tool_calls=calls)
    elif isinstance(value, Message):
        message = value
    else:
        raise ModelError(
            f"{model}: {value!r} is no reply; give a str, ToolCalls, a Message or a ModelReply"
        )
    return ModelReply(
        message=message,
        usage=estimate_usage(request, message),
        finish_reason="tool_calls" if message.tool_calls else "stop",
        model=model,
    )


def estimate_usage(request: ModelRequest, message: Message) -> Usage:
    """Usage at four characters a token (rounded up), flagged as estimated. Rule: US-1."""
    shown = sum(_characters(each) for each in request.messages)
    return Usage(
        input_tokens=-(-shown // 4), output_tokens=-(-_characters(message) // 4), estimated=True
    )


def pieces(text: str, size: int) -> Iterator[str]:
    """A text in pieces of `size` characters."""
    for i in range(0, len(text), size):
        yield text[i : i + size]


def _characters(message: Message) -> int:
    count = len(message.text)
    for call in message.tool_calls:
        count += len(call.name) + len(str(call.arguments))
    return count


async def _returned(result: Awaitable[object]) -> object:
    return await result
