"""What every adapter does to messages on their way to an endpoint and back. Pure.

A log keeps whatever users, tools and models wrote: cut-off JSON, half emojis, ids of another
provider. Endpoints refuse such things with a 400 that would come again at every later turn, so
they are made acceptable here, on the wire only. Rules: AG-4, F17, F19, F20.
"""

from __future__ import annotations

import base64
import json
import math
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from ..stores.errors import InvalidMessage
from ..stores.message import Message, ToolCall
from .errors import ModelError
from .json_schema import Schema
from .model import ModelRequest, Usage

RAW_ARGUMENTS: Final = "raw_arguments"
"""The member under which arguments that are no JSON object travel in one."""

_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


def clean_text(text: str) -> str:
    """Text that UTF-8 can encode: a lone surrogate becomes U+FFFD. F19."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # Through UTF-16 pairs of surrogates that were split and stored apart join again.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def json_text(value: object) -> str:
    """Compact JSON that any parser accepts: NaN as null, bytes as base64, dates as ISO. F20."""
    return json.dumps(clean_json(value), ensure_ascii=False, separators=(",", ":"))


def clean_json(value: object) -> object:
    """A storable value as JSON data that UTF-8 can encode."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def arguments_object(arguments: Mapping[str, object] | str) -> dict[str, object]:
    """Tool arguments as a JSON object, whatever the model had written. F17.

    Raw text that is no JSON object stands under RAW_ARGUMENTS; empty text is an empty object.
    """
    if not isinstance(arguments, str):
        cleaned = clean_json(arguments)
        assert isinstance(cleaned, dict)  # a mapping stays one
        return cleaned
    if not arguments.strip():
        return {}
    parsed = _parsed_object(arguments)
    if parsed is None:
        return {RAW_ARGUMENTS: clean_text(arguments)}
    cleaned = clean_json(parsed)
    assert isinstance(cleaned, dict)
    return cleaned


def wire_name(name: str) -> str:
    """A tool's name with what endpoints refuse in names replaced; 1 to 64 characters."""
    return _NOT_IN_NAMES.sub("_", name)[:64] or "unknown"


def with_wire_ids(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages under call ids that every endpoint accepts, each id once in the request.

    Ids stay as they are but for foreign characters, emptiness, over 40 characters, or another call
    of that id before: some servers count their calls from `call_0` in every reply, and the messages
    protocol refuses a request in which an id comes twice. Results follow their call: of equal ids
    the nearest batch before with an open call, in it the first open one (WN-2). A replacement is
    made of what stands before it only: a history that grows keeps its ids, and prompt caches hold.
    """
    used: set[str] = set()
    calls = 0
    waiting: dict[str, list[str]] = {}  # the ids sent for open calls of an id, the next one last

    def sendable(call_id: str) -> str:
        wire_id = call_id
        if not call_id or len(call_id) > 40 or call_id in used or _NOT_IN_NAMES.search(call_id):
            number = calls
            while (wire_id := f"call_{number}") in used:
                number += 1
        used.add(wire_id)
        return wire_id

    sent = list(messages)
    changed = False
    for place, message in enumerate(messages):
        if message.role == "tool":
            call_id = message.tool_call_id or ""
            open_calls = waiting.get(call_id)
            wire_id = open_calls.pop() if open_calls else sendable(call_id)
            if wire_id != call_id:
                sent[place] = message.replace(tool_call_id=wire_id)
                changed = True
        elif message.tool_calls:
            renamed = []
            for call in message.tool_calls:
                wire_id = sendable(call.id)
                calls += 1
                renamed.append(
                    call
                    if wire_id == call.id
                    else ToolCall(wire_id, call.name, call.arguments, **call.extra)
                )
            for call, new in zip(reversed(message.tool_calls), reversed(renamed), strict=True):
                waiting.setdefault(call.id, []).append(new.id)
            if tuple(renamed) != message.tool_calls:
                sent[place] = message.replace(tool_calls=renamed)
                changed = True
    return sent if changed else messages


def tool_call(call_id: object, name: object, arguments: object, taken: set[str]) -> ToolCall:
    """A call as a model wrote it, made storable: nothing about it can fail an append. AG-4.

    Arguments that are a JSON object of storable values become a mapping, all else stays raw text.
    A missing id, or one that is in `taken`, is replaced; `taken` is added to.
    """
    identity = call_id if isinstance(call_id, str) else ""
    if not identity or identity in taken:
        identity = f"call_{uuid.uuid4().hex[:24]}"
    taken.add(identity)
    wanted = name if isinstance(name, str) else ""
    parsed: Mapping[str, object] | None
    if isinstance(arguments, Mapping):
        raw, parsed = "", arguments
    elif isinstance(arguments, str):
        raw, parsed = arguments, _parsed_object(arguments)
    elif arguments is None:
        raw, parsed = "", {}
    else:
        raw, parsed = json_text(arguments), None
    if parsed is not None:
        try:
            return ToolCall(identity, wanted, parsed)
        except InvalidMessage:
            raw = raw or repr(parsed)
    return ToolCall(identity, wanted, raw)


def assistant_message(
    text: str, calls: Sequence[ToolCall], *, model: str, cut: bool = False, **extra: object
) -> Message:
    """The reply as a message. Raises ModelError "empty_reply" for neither text nor calls.

    `cut`: the endpoint stopped at an output limit; then asking again would end the same way.
    """
    if not text.strip() and not calls:
        why = (
            "it used up its output tokens before it said anything: raise max_output_tokens"
            if cut
            else "neither text nor tool calls came"
        )
        raise ModelError(f"{model}: empty reply; {why}", code="empty_reply", retryable=not cut)
    given = {key: value for key, value in extra.items() if value}
    return Message.from_dict(
        {"role": "assistant", "content": text or None, "tool_calls": calls, **given}
    )


def token_count(value: object) -> int:
    """A token count as an endpoint reports it: 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return max(0, value)


def estimated_usage(request: ModelRequest, message: Message) -> Usage:
    """Usage at four characters a token, for endpoints that report none. US-1."""
    shown = sum(_characters(each) for each in request.messages)
    shown += sum(len(json_text(each.parameters)) + len(each.description) for each in request.tools)
    return Usage(-(-shown // 4), -(-_characters(message) // 4), estimated=True)


def strict_schema(schema: Schema) -> bool:
    """Whether OpenAI can enforce a schema: objects closed and all their members required."""
    for sub in _subschemas(schema):
        if sub.get("type") == "object" or "properties" in sub:
            properties = sub.get("properties", {})
            required = sub.get("required", ())
            if sub.get("additionalProperties") is not False:
                return False
            if not isinstance(properties, Mapping) or not isinstance(required, list | tuple):
                return False
            if set(properties) != set(required):
                return False
        if "default" in sub or "oneOf" in sub or "prefixItems" in sub or sub == {}:
            return False
    return True


def _subschemas(schema: object) -> Iterable[Mapping[str, object]]:
    if not isinstance(schema, Mapping):
        return
    yield schema
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            for sub in value.values():
                yield from _subschemas(sub)
        elif key in ("items", "not"):
            yield from _subschemas(value)
        elif key in ("anyOf", "allOf", "oneOf") and isinstance(value, list | tuple):
            for sub in value:
                yield from _subschemas(sub)


def _parsed_object(text: str) -> Mapping[str, object] | None:
    try:
        parsed: object = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _characters(message: Message) -> int:
    calls = sum(len(call.name) + len(str(call.arguments)) for call in message.tool_calls)
    return len(message.text) + calls
