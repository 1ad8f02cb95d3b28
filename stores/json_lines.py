"""Values of messages and marks as JSON, losing nothing (CS-12).

What JSON has no form for is tagged: `{"$bytes": base64}`, `{"$datetime": iso, "fold": n}`,
`{"$float": "nan"}`, `{"$int": hex}` from 2**53 on; text whose lone surrogates would come back as
one character is `{"$text": base64}` of its UTF-8 with surrogates. A mapping with a key that begins
with `$`, or one that would have to be tagged, is `{"$mapping": [[key, value], …]}`.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

_PLAIN_INT = 1 << 53  # beyond, other programs' JSON numbers lose digits

# Two code points, each a lone surrogate: JSON's escapes cannot tell them from one character.
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def line(item: Mapping[str, Any]) -> str:
    """One line, ASCII, with its newline."""
    return json.dumps(item, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"


def tagged(value: Any) -> Any:
    """A plain value as what JSON has a form for."""
    if isinstance(value, str):
        if not value.isascii() and _PAIR.search(value):
            return {"$text": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
        return value
    if type(value) is int and not -_PLAIN_INT < value < _PLAIN_INT:
        return {"$int": hex(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat(), "fold": value.fold}
    if isinstance(value, Mapping):
        if any(key.startswith("$") or tagged(key) is not key for key in value):
            return {"$mapping": [[tagged(key), tagged(item)] for key, item in value.items()]}
        return {key: tagged(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [tagged(item) for item in value]
    return value


def untagged(value: Any) -> Any:
    """What `tagged` was given. Raises ValueError, TypeError or KeyError for what it never gives."""
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$text" in value:
        return base64.b64decode(value["$text"], validate=True).decode("utf-8", "surrogatepass")
    if "$int" in value:
        return int(value["$int"], 16)
    if "$float" in value:
        return float(value["$float"])
    if "$bytes" in value:
        return base64.b64decode(value["$bytes"], validate=True)
    if "$datetime" in value:
        return datetime.fromisoformat(value["$datetime"]).replace(fold=value.get("fold", 0))
    if "$mapping" in value:
        return {untagged(key): untagged(item) for key, item in value["$mapping"]}
    return {key: untagged(item) for key, item in value.items()}
