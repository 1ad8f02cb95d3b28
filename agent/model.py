"""What a model is asked, what it answers, and the protocol every model adapter fulfils.

Adapters translate between these shapes and a wire protocol; nothing above them knows which
provider is behind. A reply is complete or it is a `ModelError`: there is no half-good reply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Final,
    Literal,
    Protocol,
    Self,
    TypedDict,
    Unpack,
    runtime_checkable,
)

from ..stores.frozen import slot_setters

if TYPE_CHECKING:
    from ..stores.message import Message
    from .tool import ToolSchema

FinishReason = Literal["stop", "tool_calls", "length", "content_filter"]


@dataclass(frozen=True, slots=True, init=False)
class Usage:
    """Tokens of one model call, or of several added up.

    `input_tokens` includes `cached_tokens`, `output_tokens` includes `reasoning_tokens`.
    `estimated` is true as soon as one summand was counted by us and not reported by the
    endpoint. `cost`: in the currency of `AgentSpec(price=…)`, 0 without. Rule: US-1.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    cost: float = 0.0

    # By hand, with the slots' own setters: some are made for each model call, and what a frozen
    # dataclass generates takes twice as long.
    def __init__(
        self,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        reasoning_tokens: int = 0,
        estimated: bool = False,
        cost: float = 0.0,
    ) -> None:
        _set_input(self, input_tokens)
        _set_output(self, output_tokens)
        _set_cached(self, cached_tokens)
        _set_reasoning(self, reasoning_tokens)
        _set_estimated(self, estimated)
        _set_cost(self, cost)

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
            self.cost + other.cost,
        )

    def less(self, part: Usage) -> Usage:
        """What is left of this sum without one of its summands."""
        return Usage(
            self.input_tokens - part.input_tokens,
            self.output_tokens - part.output_tokens,
            self.cached_tokens - part.cached_tokens,
            self.reasoning_tokens - part.reasoning_tokens,
            self.estimated,
            max(0.0, self.cost - part.cost),
        )

    def to_dict(self) -> dict[str, int | float | bool]:
        """Plain data for a record's mark; `from_dict` reads it back."""
        data: dict[str, int | float | bool] = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "estimated": self.estimated,
        }
        if self.cost:
            data["cost"] = self.cost
        return data

    def plus(self, data: Mapping[str, object]) -> Usage:
        """The sum with what `to_dict` gave: one object where `from_dict` and + would make two."""
        sent, received, cached, reasoning, estimated, cost = _read(data)
        return Usage(
            self.input_tokens + sent,
            self.output_tokens + received,
            self.cached_tokens + cached,
            self.reasoning_tokens + reasoning,
            self.estimated or estimated,
            self.cost + cost,
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        """Read `to_dict`'s form; absent or foreign fields count as 0."""
        return cls(*_read(data))


def _read(data: Mapping[str, object]) -> tuple[int, int, int, int, bool, float]:
    get = data.get
    sent, received = get("input_tokens", 0), get("output_tokens", 0)
    cached, reasoning = get("cached_tokens", 0), get("reasoning_tokens", 0)
    cost = get("cost", 0.0)
    return (
        sent if isinstance(sent, int) else 0,
        received if isinstance(received, int) else 0,
        cached if isinstance(cached, int) else 0,
        reasoning if isinstance(reasoning, int) else 0,
        bool(get("estimated", False)),
        float(cost) if isinstance(cost, int | float) else 0.0,
    )


_set_input, _set_output, _set_cached, _set_reasoning, _set_estimated, _set_cost = slot_setters(
    Usage
)

NO_USAGE: Final = Usage()
"""Nothing used."""


class RequestChanges(TypedDict, total=False):
    """The fields that `ModelRequest.replace` takes, those of ModelRequest."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    output_schema: Mapping[str, object] | None
    conversation_id: str
    turn_id: str
    step: int


@dataclass(frozen=True, slots=True, init=False)
class ModelRequest:
    """One model call: what the model is shown, and the tools it may call.

    `output_schema`: a JSON Schema (type object) that the final text must satisfy, or None.
    `conversation_id`, `turn_id`, `step` identify the call in telemetry and for scripted models;
    adapters do not send them.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    output_schema: Mapping[str, object] | None = None
    conversation_id: str = ""
    turn_id: str = ""
    step: int = 0

    # By hand, as that of Usage.
    def __init__(
        self,
        messages: tuple[Message, ...],
        tools: tuple[ToolSchema, ...] = (),
        output_schema: Mapping[str, object] | None = None,
        conversation_id: str = "",
        turn_id: str = "",
        step: int = 0,
    ) -> None:
        _set_messages(self, messages)
        _set_tools(self, tools)
        _set_schema(self, output_schema)
        _set_conversation(self, conversation_id)
        _set_turn(self, turn_id)
        _set_step(self, step)

    def replace(self, **changes: Unpack[RequestChanges]) -> ModelRequest:
        """A copy with some fields changed."""
        return replace(self, **changes)


_set_messages, _set_tools, _set_schema, _set_conversation, _set_turn, _set_step = slot_setters(
    ModelRequest
)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the reply's text. The deltas of a stream join to the text of its `ModelReply`."""

    text: str


@dataclass(frozen=True, slots=True, init=False)
class ModelReply:
    """A complete reply.

    `message` is an assistant message with text or tool calls (each call has an id, unique within
    the reply). `finish_reason` "length": the model hit its output limit, the text is cut.
    `model`: the name that the endpoint reports.
    """

    message: Message
    usage: Usage = NO_USAGE
    finish_reason: FinishReason = "stop"
    model: str = ""

    # By hand, as that of Usage.
    def __init__(
        self,
        message: Message,
        usage: Usage = NO_USAGE,
        finish_reason: FinishReason = "stop",
        model: str = "",
    ) -> None:
        _set_message(self, message)
        _set_usage(self, usage)
        _set_finish(self, finish_reason)
        _set_model(self, model)


_set_message, _set_usage, _set_finish, _set_model = slot_setters(ModelReply)


@runtime_checkable
class ChatModel(Protocol):
    """A chat model. One object serves many conversations at once, from any event loops."""

    @property
    def name(self) -> str:
        """The model's name, for telemetry and errors."""
        ...

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer the request in one piece. Raises ModelError; any other exception is a bug.

        Cancelling the call drops the connection.
        """
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelReply]:
        """Yield text as it comes; the last item, and only the last, is the ModelReply.

        Raises ModelError with the text so far in `.partial` if the stream breaks, or ends
        without a finish reason. Closing the iterator drops the connection.
        """
        ...
