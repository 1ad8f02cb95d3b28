"""The messages protocol: our messages to its JSON, its JSON to our replies. Pure.

It is stricter than most: the first message must be the user's, roles alternate, results stand
first in the message after their calls, texts are not blank. A history that repair has passed is
brought into that form here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..stores.message import Message, ToolCall
from .errors import ModelError
from .model import FinishReason, ModelReply, ModelRequest, Usage
from .openai_wire import media
from .sdk_error import corrupt, stream_error
from .tool_result import error_type_of
from .wire import (
    arguments_object,
    assistant_message,
    clean_json,
    clean_text,
    estimated_usage,
    json_text,
    token_count,
    tool_call,
    wire_name,
    with_wire_ids,
)

_FINISH: Final[Mapping[object, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
BLANK: Final = "(empty)"
"""Stands for a text of nothing or white space, which the protocol refuses."""
ELIDED: Final = "(earlier messages left out)"
"""Stands before a history that begins with the assistant."""

_THINKING: Final = "thinking"
"""The extra field of a message that holds the reply's thinking blocks with their signatures: in a
tool loop they must be sent back as they came."""


def anthropic_payload(request: ModelRequest) -> dict[str, Any]:
    """The request's messages, tools and output schema as fields of a messages request."""
    system = "\n\n".join(
        clean_text(message.text)
        for message in request.messages
        if message.role == "system" and message.text.strip()
    )
    payload: dict[str, Any] = {"messages": _messages(with_wire_ids(request.messages))}
    if system:
        payload["system"] = system
    if request.tools:
        payload["tools"] = [
            {
                "name": tool.name,
                "description": clean_text(tool.description),
                "input_schema": {"type": "object", **_mapping(clean_json(tool.parameters))},
            }
            for tool in request.tools
        ]
    if request.output_schema is not None:
        payload["output_config"] = {
            "format": {"type": "json_schema", "schema": clean_json(request.output_schema)}
        }
    return payload


def anthropic_reply(data: object, request: ModelRequest, model: str) -> ModelReply:
    """The reply in a message object. Raises ModelError: corrupt, empty_reply, refused."""
    if not isinstance(data, Mapping):
        raise corrupt(model, f"a message is an object, got {str(data)[:100]!r}")
    content = data.get("content")
    if not isinstance(content, list | tuple):
        raise corrupt(model, "the message has no content")
    stream = MessageStream(request, model)
    stream.add({"type": "message_start", "message": data})
    for index, block in enumerate(content):
        stream.add({"type": "content_block_start", "index": index, "content_block": block})
    # A whole body is whole: some compatible servers leave the reason out.
    reason = data.get("stop_reason") or "end_turn"
    stream.add({"type": "message_delta", "delta": {"stop_reason": reason}})
    return stream.reply()


class MessageStream:
    """Puts the events of one streamed message together."""

    def __init__(self, request: ModelRequest, model: str) -> None:
        self._request = request
        self._model = model
        self._blocks: dict[object, dict[str, Any]] = {}
        self._inputs: dict[object, list[str]] = {}
        self._usage: dict[str, object] = {}
        self._reported: object = None
        self._stop_reason: object = None
        self._stopped = False

    @property
    def finished(self) -> bool:
        """Whether the stop reason has come: the reply is complete."""
        return self._stop_reason is not None

    @property
    def nothing_follows(self) -> bool:
        """Whether the last event has come."""
        return self._stopped

    def add(self, chunk: object) -> str:
        """Take an event in; returns the text to show, "" if none. Raises ModelError."""
        event = chunk
        if not isinstance(event, Mapping):
            raise corrupt(self._model, f"an event is an object, got {str(event)[:100]!r}")
        kind = event.get("type")
        if kind == "message_start":
            message = _mapping(event.get("message"))
            self._usage |= _mapping(message.get("usage"))
            self._reported = message.get("model")
        elif kind == "content_block_start":
            return self._begin(event.get("index"), event.get("content_block"))
        elif kind == "content_block_delta":
            return self._extend(event.get("index"), event.get("delta"))
        elif kind == "message_delta":
            counted = _mapping(event.get("usage"))
            self._usage |= {key: value for key, value in counted.items() if value is not None}
            reason = _mapping(event.get("delta")).get("stop_reason")
            if reason is not None:
                self._stop_reason = reason
        elif kind == "message_stop":
            self._stopped = True
        elif kind == "error":
            raise stream_error(event, self._model)
        elif not isinstance(kind, str):
            raise corrupt(self._model, f"an event without type: {str(event)[:100]!r}")
        return ""  # unknown kinds are to be ignored, says the protocol

    def reply(self) -> ModelReply:
        """The whole reply. Raises ModelError "truncated" if no stop reason came. F28."""
        blocks = list(self._blocks.values())
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        if self._stop_reason is None:
            raise ModelError(
                f"{self._model}: the stream ended without a stop reason; the reply is cut off",
                partial=text,
                retryable=True,
                code="truncated",
            )
        taken: set[str] = set()
        calls: list[ToolCall] = []
        for index, block in self._blocks.items():
            if block["type"] == "tool_use":
                written = "".join(self._inputs.get(index, ()))
                arguments = written or block.get("input")
                calls.append(tool_call(block.get("id"), block.get("name"), arguments, taken))
        thinking = [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
        reasoning = "".join(str(block.get("thinking", "")) for block in thinking)
        return self._make(text, calls, thinking, reasoning)

    def _make(
        self,
        text: str,
        calls: Sequence[ToolCall],
        thinking: Sequence[Mapping[str, object]],
        reasoning: str,
    ) -> ModelReply:
        reason = _FINISH.get(self._stop_reason, "stop")
        if calls and reason == "stop":
            reason = "tool_calls"
        if reason == "content_filter" and not text.strip() and not calls:
            raise ModelError(f"{self._model}: the model refused to answer", code="refused")
        message = assistant_message(
            text,
            calls,
            model=self._model,
            cut=reason == "length",
            reasoning=reasoning,
            thinking=[clean_json(block) for block in thinking],
        )
        reported = self._reported
        return ModelReply(
            message=message,
            usage=anthropic_usage(self._usage) or estimated_usage(self._request, message),
            finish_reason=reason,
            model=reported if isinstance(reported, str) and reported else self._model,
        )

    def _begin(self, index: object, block: object) -> str:
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise corrupt(self._model, f"a content block is an object, got {str(block)[:100]!r}")
        self._blocks[index] = {**block}
        if block["type"] != "text":
            return ""
        text = block.get("text")
        self._blocks[index]["text"] = text if isinstance(text, str) else ""
        return str(self._blocks[index]["text"])

    def _extend(self, index: object, delta: object) -> str:
        block = self._blocks.get(index)
        if block is None or not isinstance(delta, Mapping):
            raise corrupt(self._model, f"a delta for no block: {str(delta)[:100]!r}")
        text, thinking = delta.get("text"), delta.get("thinking")
        partial, signature = delta.get("partial_json"), delta.get("signature")
        if isinstance(partial, str):
            self._inputs.setdefault(index, []).append(partial)
        if isinstance(thinking, str):
            block["thinking"] = f"{block.get('thinking') or ''}{thinking}"
        if isinstance(signature, str):
            block["signature"] = f"{block.get('signature') or ''}{signature}"
        if isinstance(text, str) and block["type"] == "text":
            block["text"] += text
            return text
        return ""


def anthropic_usage(usage: Mapping[str, object]) -> Usage | None:
    """The usage of a message; None where the endpoint reports none.

    The protocol counts what came from or went to the prompt cache apart; ours is the sum.
    """
    read = token_count(usage.get("cache_read_input_tokens"))
    written = token_count(usage.get("cache_creation_input_tokens"))
    shown = token_count(usage.get("input_tokens")) + read + written
    output = token_count(usage.get("output_tokens"))
    if not shown and not output:
        return None
    details = _mapping(usage.get("output_tokens_details"))
    return Usage(shown, output, read, token_count(details.get("thinking_tokens")))


# -- to the wire ------------------------------------------------------------------------------


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"].extend(blocks)
        else:
            sent.append({"role": role, "content": blocks})
    if not sent or sent[0]["role"] == "assistant":
        sent.insert(0, {"role": "user", "content": [_text_block(ELIDED)]})
    return sent


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        failed = error_type_of(message.content) is not None
        result: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": message.tool_call_id,
            "content": _content(message) or BLANK,
        }
        return [result | {"is_error": True}] if failed else [result]
    if message.role != "assistant":
        return _content(message) or [_text_block(BLANK)]
    blocks = [
        _mapping(clean_json(block))
        for block in message.extra.get(_THINKING, ())
        if isinstance(block, Mapping)
    ]
    blocks += _content(message)
    blocks += [
        {
            "type": "tool_use",
            "id": call.id,
            "name": wire_name(call.name),
            "input": arguments_object(call.arguments),
        }
        for call in message.tool_calls
    ]
    return blocks or [_text_block(BLANK)]


def _content(message: Message) -> list[dict[str, Any]]:
    if message.content is None or isinstance(message.content, str):
        text = clean_text(message.content or "")
        return [_text_block(text)] if text.strip() else []
    return [_part(part) for part in message.content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    """A content part: ours (text, image, file) and OpenAI's image_url translated, the protocol's
    own (image, document with a source) as they are, anything else as its JSON text."""
    kind = part["type"]
    if kind == "text":
        text = clean_text(str(part.get("text", "")))
        return _text_block(text if text.strip() else BLANK)
    if kind in ("image", "document") and isinstance(part.get("source"), Mapping):
        return _mapping(clean_json(part))
    if kind in ("image", "file") and ("url" in part or "data" in part):
        block = "image" if kind == "image" else "document"
        url = part.get("url")
        if isinstance(url, str):
            return {"type": block, "source": _source(url)}
        media_type, data = media(part)
        source = {"type": "base64", "media_type": media_type, "data": data}
        return {"type": block, "source": source}
    if kind == "image_url" and isinstance(_mapping(part.get("image_url")).get("url"), str):
        return {"type": "image", "source": _source(part["image_url"]["url"])}
    return _text_block(json_text(part))


def _source(url: str) -> dict[str, str]:
    head, comma, data = url.partition(",")
    if url.startswith("data:") and comma and head.endswith(";base64"):
        media_type = head.removeprefix("data:").removesuffix(";base64")
        return {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "url", "url": clean_text(url)}


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
