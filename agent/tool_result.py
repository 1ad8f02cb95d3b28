"""What a tool call's result looks like to the model: a text, whatever came of the call.

A failed call is a result too, `{"error": {"type", "message"}}` as compact JSON: the model can
read it, and every provider accepts the history. All functions here are pure. Rules: TL-4, TL-5.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import uuid
from collections.abc import Iterable, Mapping
from typing import Final

from ..actors.errors import KeepwellError, Unavailable
from .errors import TOOL_ERROR_TYPES, ModelError, ToolError, ToolErrorType

NO_OUTPUT: Final = "(no output)"

_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

# Four bytes a character at most, so that a result always fits a store's max_message_bytes (16 MiB).
MAX_RESULT_CHARACTERS: Final = 4_000_000

MAX_KEPT_CHARACTERS: Final = 64_000_000
"""Most characters of a result that is kept as a blob."""


def result_text(value: object, most: int = MAX_RESULT_CHARACTERS) -> str:
    """The text of what a tool returned.

    A str as it is; None and "" as "(no output)"; anything else as compact JSON (NaN and
    infinities as null; dataclasses and pydantic models as objects; enums by value; dates, UUIDs,
    paths and decimals as text), or its `repr` where it has no JSON form. Longer than `most`
    characters, it is cut and says so at its end. Never raises. Rule: TL-5.
    """
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        text = str(value)
    elif value is None:
        text = ""
    else:
        try:
            text = _COMPACT.encode(_plain(value))
        except Exception:
            text = _safe_repr(value)
    return cut(text, most) or NO_OUTPUT


def cut(text: str, most: int = MAX_RESULT_CHARACTERS) -> str:
    """A text of at most `most` characters and, if it was longer, a note that says so."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[{len(text) - most} more characters left out]"


def error_result(error_type: ToolErrorType, message: str) -> str:
    """An error as the text of a result."""
    return _COMPACT.encode({"error": {"type": error_type, "message": message}})


def error_type_of(content: object) -> ToolErrorType | None:
    """The type of an error result, None if `content` is none of ours."""
    if not isinstance(content, str) or not content.startswith('{"error":{"type":"'):
        return None
    try:
        found = json.loads(content)["error"]["type"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    for known in TOOL_ERROR_TYPES:
        if found == known:
            return known
    return None


def unknown_tool(name: str, known: Iterable[str]) -> str:
    """The model called a tool that does not exist: the result names those that do. F16."""
    listed = ", ".join(sorted(known)) or "none"
    return error_result("unknown_tool", f"there is no tool {name!r}; available: {listed}")


def invalid_arguments(message: str) -> str:
    """The arguments do not fit the tool's schema."""
    return error_result("invalid_arguments", message)


def denied(reason: str = "") -> str:
    """The gate, or a human, refused the call; it was not run."""
    return error_result("denied", reason or "this call was not allowed; it was not run")


def cancelled(*, started: bool) -> str:
    """The turn was cancelled before the call had a result. CN-1."""
    if started:
        return error_result("cancelled", "cancelled while running; outcome unknown")
    return error_result("cancelled", "cancelled; it was not run")


def interrupted() -> str:
    """The process or agent died while the call was open. CN-3, RS-3."""
    return error_result("interrupted", "interrupted, outcome unknown")


def skipped(limit: str) -> str:
    """The call lies beyond a limit of the turn; it was not run. LM-1."""
    return error_result("skipped", f"not run: the turn reached its limit ({limit})")


def timed_out(seconds: float) -> str:
    """The call did not end within its deadline. TL-3."""
    return error_result("transient", f"timed out after {seconds:g} s; outcome unknown")


def failed(error: BaseException) -> str:
    """The result of a call whose function raised."""
    return error_result(classify(error), error_message(error))


def classify(error: BaseException) -> ToolErrorType:
    """The error type of an exception that a tool raised. Rule: TL-4.

    A ToolError brings its own. `transient`: timeouts, connections, `Unavailable`, retryable
    ModelErrors. `environment`: PermissionError, and ModelErrors about credentials or missing
    parts. `crashed`: what is no `Exception` (SystemExit, CancelledError), and MemoryError.
    Everything else is `semantic`: the call made no sense to the tool.
    """
    if isinstance(error, ToolError):
        return error.type
    if isinstance(error, ModelError):
        if error.code in ("unauthorized", "not_installed"):
            return "environment"
        return "transient" if error.retryable else "semantic"
    if isinstance(error, asyncio.CancelledError) or not isinstance(error, Exception):
        return "crashed"
    if isinstance(error, MemoryError | RecursionError):
        return "crashed"
    if isinstance(error, TimeoutError | ConnectionError | Unavailable):
        return "transient"
    if isinstance(error, PermissionError):
        return "environment"
    if isinstance(error, OSError) and type(error).__name__ in ("gaierror", "herror"):
        return "transient"  # name resolution
    return "semantic"


def error_message(error: BaseException) -> str:
    """Class and text of an exception, in one line for a model; ours by their text alone."""
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, KeepwellError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _plain(value: object) -> object:
    """JSON data of a value; raises TypeError where there is none."""
    if value is None or (isinstance(value, bool | int) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {_key(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, uuid.UUID | pathlib.PurePath | decimal.Decimal):
        return str(value)
    dump = getattr(value, "model_dump", None)  # pydantic
    if callable(dump) and not isinstance(value, type):
        return _plain(dump(mode="json"))
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _key(key: object) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key)
    raise TypeError(f"{type(key).__name__} cannot be a JSON key")


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return object.__repr__(value)
