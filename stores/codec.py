"""Values and records as bytes: msgpack, lossless, never pickle (CS-12).

Beyond msgpack's own types: integers of any size and datetimes are extension types, and lone
surrogates pass through UTF-8 unchanged. What is decoded is frozen. Only validated (frozen) values
are encoded here, so encoding never meets a type that it does not know.

A record's body is the array `[turn_id, mark, role, content, calls, tool_call_id, extra]`, its
trailing None fields left out: the part of a record that the caller knows. What the commit adds
(seq, time, running totals) stands in the row's header, see `row.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgpack

from .frozen import EMPTY, FrozenDict
from .message import ROLES, Message, ToolCall

_BIG_INT, _DATETIME = 1, 2
_ROLE_CODE = {role: code for code, role in enumerate(ROLES)}


def _default(value: Any) -> msgpack.ExtType:
    if isinstance(value, int):
        return msgpack.ExtType(
            _BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
        )
    if isinstance(value, datetime):
        return msgpack.ExtType(_DATETIME, b"%d" % value.fold + value.isoformat().encode())
    raise TypeError(f"{type(value).__name__} was not validated before encoding")


def _ext(code: int, data: bytes) -> Any:
    if code == _BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    if code == _DATETIME:
        return datetime.fromisoformat(data[1:].decode()).replace(fold=data[0] - 48)
    raise ValueError(f"unknown extension type {code}")


# Idle packers: making one costs three times as much as packing a message. A packer that raised, or
# that holds a large buffer, is dropped.
_packers: list[msgpack.Packer] = []
_KEEP_BUFFER = 1 << 16


def encode(value: Any) -> bytes:
    """A frozen value as bytes."""
    try:
        packer = _packers.pop()
    except IndexError:
        packer = msgpack.Packer(default=_default, unicode_errors="surrogatepass")
    packed: bytes = packer.pack(value)
    if len(packed) <= _KEEP_BUFFER:
        _packers.append(packer)
    return packed


def decode(data: bytes | memoryview) -> Any:
    """The frozen value (tuples and `FrozenDict`s). Raises ValueError if the bytes are damaged."""
    try:
        return msgpack.unpackb(
            data,
            use_list=False,
            object_hook=FrozenDict,
            ext_hook=_ext,
            unicode_errors="surrogatepass",
        )
    except ValueError:
        raise
    except (TypeError, OverflowError, RecursionError, msgpack.UnpackException) as problem:
        raise ValueError(f"damaged value: {problem}") from problem


def encode_body(
    message: Message | None, turn_id: str | None, mark: Mapping[str, Any] | None
) -> bytes:
    """The body of a record: `decode_body` gives the three values back."""
    if message is None:
        return encode((turn_id, mark))
    role = _ROLE_CODE[message.role]
    fields: tuple[object, ...]
    if message.extra:
        fields = (
            turn_id,
            mark,
            role,
            message.content,
            _calls(message),
            message.tool_call_id,
            message.extra,
        )
    elif message.tool_call_id is not None:
        fields = (turn_id, mark, role, message.content, None, message.tool_call_id)
    elif message.tool_calls:
        fields = (turn_id, mark, role, message.content, _calls(message))
    else:
        fields = (turn_id, mark, role, message.content)
    return encode(fields)


def _calls(message: Message) -> tuple[tuple[Any, ...], ...] | None:
    if not message.tool_calls:
        return None
    return tuple(
        (call.id, call.name, call.arguments, call.extra)
        if call.extra
        else (call.id, call.name, call.arguments)
        for call in message.tool_calls
    )


def decode_body(data: bytes | memoryview) -> tuple[Message | None, str | None, Any]:
    """Message, turn id and mark of a record. Raises ValueError if the bytes are damaged."""
    fields = decode(data)
    try:
        if len(fields) == 4:
            turn_id, mark, role, content = fields
            return Message._trusted(ROLES[role], content), turn_id, mark
        turn_id, mark, *rest = fields
        if not rest:
            return None, turn_id, mark
        role = rest[0]
        content, calls, call_id, extra = (*rest[1:], None, None, None)[:4]
        return (
            Message._trusted(
                ROLES[role],
                content,
                tuple(ToolCall._trusted(*call[:3], *(call[3:] or (EMPTY,))) for call in calls)
                if calls
                else (),
                call_id,
                EMPTY if extra is None else extra,
            ),
            turn_id,
            mark,
        )
    except (TypeError, IndexError) as problem:
        raise ValueError(f"damaged record: {problem}") from problem
