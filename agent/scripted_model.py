"""A model that plays a script: tests and demonstrations need replies that are known beforehand."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from ..stores.message import ToolCall
from .errors import ModelError
from .function_model import make_reply, pieces
from .model import ModelReply, ModelRequest, TextDelta


@dataclass(frozen=True, slots=True)
class Call:
    """A scripted tool call; several in a list are one parallel batch.

    `arguments`: a mapping, or raw text as a model may have garbled it. The id is given by the
    model (`call_1`, `call_2`, ... per conversation) unless set.
    """

    name: str
    arguments: Mapping[str, object] | str = ""
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """A scripted reply that comes only when `event` is set.

    An asyncio.Event must belong to the loop that asks; a threading.Event may be set anywhere.
    """

    event: asyncio.Event | threading.Event
    reply: object


@dataclass(frozen=True, slots=True)
class Broken:
    """A scripted stream that shows `partial` and then raises `error` (with that `.partial`)."""

    partial: str
    error: ModelError


class ScriptedModel:
    """Gives the script's replies one after another, to each conversation from the start.

    A reply is a str, a `Call` or a list of them, a ToolCall, Message or ModelReply; an exception
    (raised); a function of the request that returns one of these (sync or async); `Held` or
    `Broken`. With `shared=True` all conversations draw from one script in the order they ask;
    with `repeat=True` the script starts over at its end, else asking further is a ModelError.
    Requests are kept in `requests`, in order of arrival, unless `record=False`. Safe to use from
    several threads and event loops.

    A conversation's place in the script is kept in this object: it survives the crash of an
    agent, not of the process. Use FunctionModel where a new process must go on.
    """

    def __init__(
        self,
        *replies: object,
        name: str = "scripted",
        shared: bool = False,
        repeat: bool = False,
        record: bool = True,
        chunk: int = 8,
    ) -> None:
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1 character, got {chunk}")
        self._script = replies
        self._name = name
        self._shared = shared
        self._repeat = repeat
        self._record = record
        self._chunk = chunk
        self._lock = threading.Lock()
        self._asked: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self.requests: list[ModelRequest] = []

    @property
    def name(self) -> str:
        """The name given when it was made."""
        return self._name

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Give the next reply of the script, or raise its error."""
        reply = await self._next(request)
        if isinstance(reply, Broken):
            raise _broken(reply)
        return reply

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelReply]:
        """Give the next reply of the script in pieces of `chunk` characters, then whole."""
        reply = await self._next(request)
        text = reply.partial if isinstance(reply, Broken) else reply.message.text
        for piece in pieces(text, self._chunk):
            # The loop turns between two pieces, as with a model behind a network.
            await asyncio.sleep(0)
            yield TextDelta(piece)
        if isinstance(reply, Broken):
            raise _broken(reply)
        yield reply

    async def _next(self, request: ModelRequest) -> ModelReply | Broken:
        item = self._draw(request)
        while True:
            if isinstance(item, Held):
                await _set(item.event)
                item = item.reply
            elif isinstance(item, BaseException):
                raise item
            elif callable(item) and not isinstance(item, type):
                item = item(request)
                if inspect.isawaitable(item):
                    item = await item
            else:
                break
        if isinstance(item, Broken):
            return item
        return make_reply(self._with_ids(item, request.conversation_id), request, self._name)

    def _draw(self, request: ModelRequest) -> object:
        key = "" if self._shared else request.conversation_id
        with self._lock:
            if self._record:
                self.requests.append(request)
            place = self._asked.get(key, 0)
            self._asked[key] = place + 1
        if self._repeat and self._script:
            place %= len(self._script)
        if place >= len(self._script):
            raise ModelError(
                f"{self._name}: conversation {request.conversation_id!r} asked {place + 1} times, "
                f"the script has {len(self._script)} replies; add some, or set repeat=True"
            )
        return self._script[place]

    def _with_ids(self, item: object, conversation_id: str) -> object:
        """`Call`s as ToolCalls; anything else unchanged."""
        if isinstance(item, Call):
            return self._tool_call(item, conversation_id)
        if isinstance(item, list | tuple):
            return [
                self._tool_call(each, conversation_id) if isinstance(each, Call) else each
                for each in item
            ]
        return item

    def _tool_call(self, call: Call, conversation_id: str) -> ToolCall:
        call_id = call.id
        if call_id is None:
            with self._lock:
                number = self._calls.get(conversation_id, 0) + 1
                self._calls[conversation_id] = number
            call_id = f"call_{number}"
        arguments = call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
        return ToolCall(id=call_id, name=call.name, arguments=arguments)


def _broken(reply: Broken) -> ModelError:
    """A fresh error each time: one object raised twice would grow its traceback."""
    error = reply.error
    return ModelError(
        str(error),
        partial=reply.partial,
        retryable=error.retryable,
        retry_after=error.retry_after,
        status=error.status,
        code=error.code,
        attempts=error.attempts,
    )


async def _set(event: asyncio.Event | threading.Event) -> None:
    if isinstance(event, asyncio.Event):
        await event.wait()
        return
    # Looking from time to time, and not a thread in event.wait(): that one could not be cancelled
    # and would hold the interpreter's exit.
    while not event.is_set():  # noqa: ASYNC110 -- a threading.Event cannot be awaited
        await asyncio.sleep(0.002)
