"""Filters: onions around model and tool calls (KF-1, KF-2, KF-4, KF-10).

A filter with a smaller `order` is further out; of equal orders the one given first. The outermost
sees the request first and the reply last. A filter that does not call `next` answers itself; one
that calls it again retries. Requests are immutable: `request.replace(…)` gives the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ..actors.errors import InvalidValue
from ..stores.message import Message
from .model import ModelReply

if TYPE_CHECKING:
    from .tool import Tool, ToolSchema
    from .tool_context import ToolContext

MEMORY_ORDER: Final = -1000
SYSTEM_PROMPT_ORDER: Final = -500


@dataclass(frozen=True)
class ChatRequest:
    """One model call as filters see it.

    `messages`: in delta mode what is new in this round, until the memory filter has replaced it by
    the history; in full mode everything so far. `round` counts model calls from 0. `state` is a
    dict of this invocation that all filters share: what a filter must remember goes there, under
    its own name, since one filter object serves many invocations at once.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    conversation_id: str = ""
    invocation_id: str = ""
    round: int = 0
    streaming: bool = False
    state: MutableMapping[str, Any] = None  # type: ignore[assignment]  # given by the kernel

    def replace(self, **changes: Any) -> ChatRequest:
        """A copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class ToolRequest:
    """One tool call as filters see it; `arguments` are checked and converted."""

    tool: Tool
    arguments: Mapping[str, Any]
    context: ToolContext

    def replace(self, **changes: Any) -> ToolRequest:
        """A copy with some fields changed."""
        return replace(self, **changes)


NextChat = Callable[[ChatRequest], Awaitable[ModelReply]]
NextTool = Callable[[ToolRequest], Awaitable[object]]


class Filter:
    """Base of filters; override what is needed. `name` must be unique within a kernel."""

    name: str = ""
    order: int = 0

    async def around_chat(self, request: ChatRequest, next: NextChat) -> ModelReply:  # noqa: A002 - the contract's word
        """Wrap one model call. What it raises passes outwards."""
        return await next(request)

    async def around_tool(self, request: ToolRequest, next: NextTool) -> object:  # noqa: A002 - as above
        """Wrap one tool call; returns the tool's value. What it raises is the call's error."""
        return await next(request)

    def transform_delta(self, text: str, state: MutableMapping[str, Any]) -> Iterable[str]:  # noqa: ARG002 - overridden
        """What the consumer of a stream sees instead of `text`: any number of pieces.

        Changes neither the reply nor what is stored. `state` is the invocation's.
        """
        return (text,)

    def flush_delta(self, state: MutableMapping[str, Any]) -> Iterable[str]:  # noqa: ARG002 - overridden
        """What is left to show when the reply is complete."""
        return ()


class SystemPromptFilter(Filter):
    """Puts a system prompt at the head of every model call; it is never stored (KF-4)."""

    name = "system_prompt"
    order = SYSTEM_PROMPT_ORDER

    def __init__(self, text: str) -> None:
        self.text = text

    async def around_chat(self, request: ChatRequest, next: NextChat) -> ModelReply:  # noqa: A002 - as above
        """Prepend the prompt."""
        prompt = Message("system", self.text)
        return await next(request.replace(messages=(prompt, *request.messages)))


def in_order(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    """Filters from the outermost to the innermost. Raises InvalidValue. Rule: KF-1."""
    listed = list(filters)
    seen: set[str] = set()
    for one in listed:
        if isinstance(one, type) or not all(
            callable(getattr(one, method, None)) for method in ("around_chat", "around_tool")
        ):
            raise InvalidValue(f"{one!r} is no filter: pass an instance of a Filter subclass")
        order: object = getattr(one, "order", 0)
        if not isinstance(order, int) or isinstance(order, bool):
            raise InvalidValue(f"filter {name_of(one)!r}: order must be an int, got {order!r}")
        if name_of(one) in seen:
            raise InvalidValue(
                f"two filters are called {name_of(one)!r}: set another name on one of them"
            )
        seen.add(name_of(one))
    return tuple(sorted(listed, key=lambda one: getattr(one, "order", 0)))


def name_of(one: Filter) -> str:
    """A filter's name, its class's if it has none."""
    return getattr(one, "name", "") or type(one).__name__


def chat_chain(filters: Sequence[Filter], innermost: NextChat) -> NextChat:
    """The model call wrapped by all filters."""
    chain = innermost
    for one in reversed(filters):
        chain = _bind_chat(one, chain)
    return chain


def _bind_chat(one: Filter, following: NextChat) -> NextChat:
    async def call(request: ChatRequest) -> ModelReply:
        return await one.around_chat(request, following)

    return call


def tool_chain(filters: Sequence[Filter], innermost: NextTool) -> NextTool:
    """The tool call wrapped by all filters that wrap tools."""
    chain = innermost
    for one in reversed(filters):
        if type(one).around_tool is not Filter.around_tool:
            chain = _bind_tool(one, chain)
    return chain


def _bind_tool(one: Filter, following: NextTool) -> NextTool:
    async def call(request: ToolRequest) -> object:
        return await one.around_tool(request, following)

    return call


class DeltaChain:
    """The filters' view transforms of one stream, innermost first."""

    def __init__(self, filters: Sequence[Filter], state: MutableMapping[str, Any]) -> None:
        self._filters = [
            one
            for one in reversed(filters)
            if type(one).transform_delta is not Filter.transform_delta
            or type(one).flush_delta is not Filter.flush_delta
        ]
        self._state = state

    def show(self, text: str) -> list[str]:
        """What the consumer sees of one delta."""
        return self._through(0, [text])

    def flush(self) -> list[str]:
        """What is left at the end, each filter's rest passed through those around it."""
        out: list[str] = []
        for place, one in enumerate(self._filters):
            out += self._through(place + 1, list(one.flush_delta(self._state)))
        return out

    def _through(self, start: int, pieces: list[str]) -> list[str]:
        for one in self._filters[start:]:
            pieces = [out for piece in pieces for out in one.transform_delta(piece, self._state)]
        return [piece for piece in pieces if piece]
