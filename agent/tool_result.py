"""What a model reads as the result of a tool call: text, or an error it can act on.

`result_text` is TL-5, `error_text` TL-4. Both always give a `str` that every store takes and that
is valid on every wire, whatever the tool returned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from .errors import TOOL_ERROR_TYPES, ToolErrorType

NO_OUTPUT: Final = "(no output)"
INTERRUPTED: Final = "interrupted, outcome unknown"
CANCELLED: Final = "cancelled"
CANCELLED_STARTED: Final = "cancelled, outcome unknown"
SKIPPED: Final = "skipped: the turn reached its limit"


def result_text(value: object) -> str:
    """The text of a tool's return value.

    A str as it is; None and "" become "(no output)"; anything else compact JSON, NaN and the
    infinities null; what is not JSON (sets, objects, circles) its `repr`. Rule: TL-5.
    """
    if isinstance(value, str):
        return str(value) or NO_OUTPUT
    if value is None:
        return NO_OUTPUT
    try:
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except ValueError:  # NaN, infinity; a circle fails again below
            text = json.dumps(_finite(value, 0), ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        try:
            text = repr(value)
        except Exception as error:
            text = f"<{type(value).__name__}: repr failed: {type(error).__name__}>"
    return text or NO_OUTPUT


def _finite(value: object, depth: int) -> object:
    if depth > 100:
        raise ValueError("nested too deeply")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one, depth + 1) for one in value]
    return value


def error_text(type: ToolErrorType, message: str, **details: object) -> str:
    """`{"error": {"type": …, "message": …}}` with further `details`, compact. Rule: TL-4."""
    error: dict[str, object] = {"type": type, "message": message or type, **details}
    return json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":"), default=repr)


def error_type(text: object) -> ToolErrorType | None:
    """The type of an `error_text`, None if `text` is none."""
    if not isinstance(text, str) or not text.startswith('{"error":{'):
        return None
    try:
        name = json.loads(text)["error"]["type"]
    except (ValueError, KeyError, TypeError):
        return None
    return name if name in TOOL_ERROR_TYPES else None


def describe(error: BaseException) -> str:
    """One line for a model: the class and what it says, at most 2,000 characters."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}"[:2000] if text else type(error).__name__
