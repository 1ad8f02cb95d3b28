"""The chat completions protocol: our messages to its JSON, its JSON to our replies. Pure.

Everything that comes from the wire is checked as untyped data: "OpenAI-compatible" servers differ
in what they leave out, and the SDK passes through what it does not know.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from typing import Any

from ..stores.message import Message, ToolCall
from .errors import ModelError
from .model import FinishReason, ModelReply, ModelRequest, Usage
from .sdk_error import corrupt, stream_error
from .wire import (
    arguments_object,
    assistant_message,
    clean_json,
    clean_text,
    estimated_usage,
    json_text,
    strict_schema,
    token_count,
    tool_call,
    wire_name,
    with_wire_ids,
)

_FINISH: Mapping[object, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def openai_payload(request: ModelRequest) -> dict[str, Any]:
    """The request's messages, tools and output schema as fields of a chat completion request."""
    payload: dict[str, Any] = {"messages": [*map(_message, with_wire_ids(request.messages))]}
    if request.tools:
        payload["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": clean_text(tool.description),
                    "parameters": clean_json(tool.parameters),
                },
            }
            for tool in request.tools
        ]
    if request.output_schema is not None:
        payload["response_format"] = {
            "type": "json_schema",
            "json_schema": {
                "name": "answer",
                "schema": clean_json(request.output_schema),
                "strict": strict_schema(request.output_schema),
            },
        }
    return payload


def openai_reply(data: object, request: ModelRequest, model: str) -> ModelReply:
    """The reply in a chat completion. Raises ModelError: corrupt, empty_reply."""
    if not isinstance(data, Mapping):
        raise corrupt(model, f"a chat completion is an object, got {str(data)[:100]!r}")
    choices = data.get("choices")
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise corrupt(model, "the completion has no choices")
    choice = choices[0]
    found = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(found, Mapping):
        raise corrupt(model, "the completion's first choice has no message")
    taken: set[str] = set()
    calls = [_call(call, taken) for call in _sequence(found.get("tool_calls"))]
    return make_reply(
        request,
        text=_text(found.get("content")),
        refusal=_text(found.get("refusal")),
        reasoning=_reasoning(found),
        calls=calls,
        finish=choice.get("finish_reason"),
        usage=data.get("usage"),
        model=model,
        reported=data.get("model"),
    )


def make_reply(
    request: ModelRequest,
    *,
    text: str,
    refusal: str,
    reasoning: str,
    calls: Sequence[ToolCall],
    finish: object,
    usage: object,
    model: str,
    reported: object,
) -> ModelReply:
    """The ModelReply of the parts of a completion or of a stream that was put together."""
    reason = _FINISH.get(finish, "stop")
    if calls and reason == "stop":
        reason = "tool_calls"
    if refusal and not text:
        text, reason = refusal, "content_filter"
    if reason == "content_filter" and not text and not calls:
        raise ModelError(f"{model}: the content filter held the reply back", code="refused")
    message = assistant_message(
        text,
        calls,
        model=model,
        cut=reason == "length",
        reasoning=reasoning,
        refusal=refusal,
    )
    return ModelReply(
        message=message,
        usage=openai_usage(usage) or estimated_usage(request, message),
        finish_reason=reason,
        model=reported if isinstance(reported, str) and reported else model,
    )


def openai_usage(usage: object) -> Usage | None:
    """The usage of a completion; None where the endpoint reports none."""
    if not isinstance(usage, Mapping):
        return None
    shown, written = (
        token_count(usage.get("prompt_tokens")),
        token_count(usage.get("completion_tokens")),
    )
    if not shown and not written:
        return None
    cached = reasoning = 0
    if isinstance(details := usage.get("prompt_tokens_details"), Mapping):
        cached = token_count(details.get("cached_tokens"))
    if isinstance(details := usage.get("completion_tokens_details"), Mapping):
        reasoning = token_count(details.get("reasoning_tokens"))
    return Usage(shown, written, cached, reasoning)


class CompletionStream:
    """Puts the chunks of one streamed completion together."""

    def __init__(self, request: ModelRequest, model: str) -> None:
        self._request = request
        self._model = model
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_PartialCall] = []
        self._usage: object = None
        self._reported: object = None
        self._finish: object = None

    @property
    def finished(self) -> bool:
        """Whether the finish reason has come: the reply is complete."""
        return self._finish is not None

    @property
    def nothing_follows(self) -> bool:
        """Whether the chunk with the usage, the last one, has come too."""
        return self.finished and self._usage is not None

    def usage(self, written: str) -> Usage:
        """The usage reported; estimated from `written`, the text of the reply, if none was."""
        message = Message("assistant", written)
        return openai_usage(self._usage) or estimated_usage(self._request, message)

    def add(self, chunk: object) -> str:
        """Take a chunk in; returns the text to show, "" if none. Raises ModelError "corrupt"."""
        if not isinstance(chunk, Mapping):
            raise corrupt(self._model, f"a chunk is an object, got {str(chunk)[:100]!r}")
        if isinstance(error := chunk.get("error"), Mapping | str):
            raise stream_error(chunk if isinstance(error, Mapping) else error, self._model)
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        if isinstance(chunk.get("model"), str):
            self._reported = chunk["model"]
        choices = _sequence(chunk.get("choices"))
        if not choices:
            if "choices" not in chunk and "usage" not in chunk:
                raise corrupt(self._model, f"a chunk without choices: {str(chunk)[:100]!r}")
            return ""
        choice = choices[0]
        if not isinstance(choice, Mapping):
            raise corrupt(self._model, "a chunk's choice is no object")
        if choice.get("finish_reason") is not None:
            self._finish = choice["finish_reason"]
        delta = choice.get("delta")
        if not isinstance(delta, Mapping):
            return ""
        self._reasoning.append(_reasoning(delta))
        for call in _sequence(delta.get("tool_calls")):
            self._add_call(call)
        self._refusal.append(_text(delta.get("refusal")))
        text = _text(delta.get("content"))
        self._text.append(text)
        return text

    def reply(self) -> ModelReply:
        """The whole reply. Raises ModelError "truncated" if no finish reason came. F28."""
        text, refusal = "".join(self._text), "".join(self._refusal)
        if self._finish is None:
            raise ModelError(
                f"{self._model}: the stream ended without a finish reason; the reply is cut off",
                partial=text or refusal,
                retryable=True,
                code="truncated",
            )
        taken: set[str] = set()
        calls = [
            tool_call(call.id, call.name, "".join(call.arguments), taken) for call in self._calls
        ]
        return make_reply(
            self._request,
            text=text,
            refusal=refusal,
            reasoning="".join(self._reasoning),
            calls=calls,
            finish=self._finish,
            usage=self._usage,
            model=self._model,
            reported=self._reported,
        )

    def _add_call(self, delta: object) -> None:
        if not isinstance(delta, Mapping):
            raise corrupt(self._model, "a tool call's delta is no object")
        function = delta.get("function")
        function = function if isinstance(function, Mapping) else {}
        index, call_id = delta.get("index"), delta.get("id")
        name, arguments = function.get("name"), function.get("arguments")
        call = self._call_for(index, call_id, name)
        if isinstance(call_id, str) and call_id:
            call.id = call_id
        if isinstance(name, str):
            call.name += name if call.name != name else ""
        if isinstance(arguments, str):
            call.arguments.append(arguments)
        elif arguments is not None:
            call.arguments.append(json_text(arguments))

    def _call_for(self, index: object, call_id: object, name: object) -> _PartialCall:
        """The call that a delta continues, else a new one.

        By index, as the protocol says; but some servers give every call the index 0, or none:
        another id that comes with a name begins another call.
        """
        same = [call for call in self._calls if call.index == index] if index is not None else []
        last = same[-1] if same else (self._calls[-1] if index is None and self._calls else None)
        begins = isinstance(call_id, str) and call_id and isinstance(name, str) and name
        if last is None or (begins and last.id and last.id != call_id):
            last = _PartialCall(index)
            self._calls.append(last)
        return last


class _PartialCall:
    def __init__(self, index: object) -> None:
        self.index = index
        self.id: str = ""
        self.name: str = ""
        self.arguments: list[str] = []


# -- to the wire ------------------------------------------------------------------------------


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        # Results may have parts elsewhere; here they are text.
        return {
            "role": "tool",
            "tool_call_id": message.tool_call_id,
            "content": _as_text(message.content),
        }
    if message.role == "assistant":
        sent: dict[str, Any] = {"role": "assistant", "content": _as_text(message.content) or None}
        if message.tool_calls:
            sent["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": wire_name(call.name),
                        "arguments": json_text(arguments_object(call.arguments)),
                    },
                }
                for call in message.tool_calls
            ]
        elif sent["content"] is None:
            sent["content"] = ""
        return sent
    if message.role == "system" or message.content is None or isinstance(message.content, str):
        return {"role": message.role, "content": _as_text(message.content)}
    return {"role": "user", "content": [_part(part) for part in message.content]}


def _as_text(content: object) -> str:
    """Content where only text is allowed: parts that are no text stand as their JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return clean_text(content)
    return "\n".join(
        clean_text(part["text"]) if isinstance(part.get("text"), str) else json_text(part)
        for part in _sequence(content)
        if isinstance(part, Mapping)
    )


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    """A content part. Ours (text, image, file, with url or data) are translated, the protocol's
    own (image_url, input_audio, file) pass as they are."""
    kind = part["type"]
    if kind == "text":
        return {"type": "text", "text": clean_text(str(part.get("text", "")))}
    if kind in ("image", "file") and ("url" in part or "data" in part):
        url = part.get("url") or data_url(part)
        if kind == "image":
            return {"type": "image_url", "image_url": {"url": url}}
        name = str(part.get("name", "file"))
        return {"type": "file", "file": {"file_data": url, "filename": clean_text(name)}}
    cleaned = clean_json(part)
    assert isinstance(cleaned, dict)  # a mapping stays one
    return cleaned


def data_url(part: Mapping[str, object]) -> str:
    """The payload of a part (bytes, or base64 text) as a data URL."""
    media_type, payload = media(part)
    return f"data:{media_type};base64,{payload}"


def media(part: Mapping[str, object]) -> tuple[str, str]:
    """`(media type, base64)` of a part with `data`; the type from `media_type`, `name` or kind."""
    data = part.get("data")
    payload = base64.b64encode(data).decode() if isinstance(data, bytes) else str(data)
    media_type = part.get("media_type")
    if not isinstance(media_type, str):
        guessed = mimetypes.guess_type(str(part.get("name", "")))[0]
        fallback = "image/png" if part.get("type") == "image" else "application/octet-stream"
        media_type = guessed or fallback
    return media_type, payload


# -- from the wire ----------------------------------------------------------------------------


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    # Some servers answer in parts.
    return "".join(
        part["text"]
        for part in _sequence(value)
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
    )


def _reasoning(message: Mapping[str, object]) -> str:
    return _text(message.get("reasoning_content")) or _text(message.get("reasoning"))


def _call(call: object, taken: set[str]) -> ToolCall:
    if not isinstance(call, Mapping):
        return tool_call(None, "", json_text(call), taken)
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    return tool_call(call.get("id"), function.get("name"), function.get("arguments"), taken)
