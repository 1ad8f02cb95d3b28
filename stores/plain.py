"""Plain data: what sessions carry, send, emit and store (A1, A2, C10).

None, bool, int of 64 bits, finite float, str, list and dict with str keys, nested at most 100
deep. Everything here is JSON and msgpack alike, means the same in every language, and is copied
wherever it changes hands. Messages of conversations may hold more (see `frozen`); a carrier must
outlive the program that wrote it, so it may not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeAlias

from ..actors.errors import InvalidValue
from .errors import shown

Plain: TypeAlias = Any
"""Plain data. Any to type checkers: dict and list are invariant, and a precise type would refuse
the `dict[str, str]` of a caller."""

MAX_DEPTH: Final = 100
"""How deep lists and dicts may be nested."""

MAX_CONTAINERS: Final = 1 << 18
"""Most lists and dicts in one piece of data: a list may hold one list many times, and that many
times more often at each level. Atoms are not counted, the size limits bound those."""

# Kept: `json.dumps` would make one a call.
_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1


class NotPlain(InvalidValue):
    """A value is no plain data; `path` leads to the part at fault, `$.a[3]`. Nothing was kept."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}", code="not_plain")
        self.path, self.problem = path, problem


class _Fault(Exception):
    """Internal: collects the path from the inside outwards."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.steps: list[str] = []


def copy_plain(value: object) -> Plain:
    """Return a deep copy of plain data; a tuple becomes a list, a subclass its plain base.

    Raises NotPlain with the path of the first part that is none: NaN and infinities, bytes, keys
    that are no str, lone surrogates, integers over 64 bits, any other type, nesting over 100.
    Rules: A1, A2.

        >>> copy_plain({"a": (1, 2)})
        {'a': [1, 2]}
    """
    kind = type(value)
    if kind is bool or value is None:
        return value
    try:
        return _copy(value, 0, [MAX_CONTAINERS])
    except _Fault as fault:
        raise NotPlain("$" + "".join(reversed(fault.steps)), fault.problem) from None


def _copy(value: object, depth: int, budget: list[int]) -> Plain:
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not _LOWEST <= value <= _HIGHEST:
            raise _Fault(f"{shown(value)} has more than 64 bits; pass it as a str")
        return int.__index__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Fault(f"{value!r} is no JSON number; pass None or a str")
        return float.__float__(value)
    if isinstance(value, Mapping):
        _enter(depth, budget)
        return _copy_items(value, depth, budget)
    if isinstance(value, list | tuple):
        _enter(depth, budget)
        return _copy_list(value, depth, budget)
    raise _Fault(
        f"{shown(value)} is a {type(value).__name__}; pass None, bool, int, float, str, list or "
        "dict"
    )


def _enter(depth: int, budget: list[int]) -> None:
    if depth >= MAX_DEPTH:
        raise _Fault(f"nested more than {MAX_DEPTH} deep; flatten it")
    budget[0] -= 1
    if budget[0] < 0:
        raise _Fault(f"holds more than {MAX_CONTAINERS} lists and dicts; store a blob instead")


def _copy_items(value: Mapping[object, object], depth: int, budget: list[int]) -> dict[str, Plain]:
    items: dict[str, Plain] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise _Fault(f"key {shown(key)} is no str; pass {shown(str(key))}")
        try:
            key = _text(key)
        except _Fault as fault:
            raise _Fault(f"key {shown(key)}: {fault.problem}") from None
        try:
            items[key] = _copy(item, depth + 1, budget)
        except _Fault as fault:
            fault.steps.append(f".{key}" if key.isidentifier() else f"[{json.dumps(key)}]")
            raise
    return items


def _copy_list(value: Sequence[object], depth: int, budget: list[int]) -> list[Plain]:
    items: list[Plain] = []
    for place, item in enumerate(value):
        try:
            items.append(_copy(item, depth + 1, budget))
        except _Fault as fault:
            fault.steps.append(f"[{place}]")
            raise
    return items


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as problem:
            raise _Fault(
                f"lone surrogate at index {problem.start}, which UTF-8 cannot encode"
            ) from None
    return value if type(value) is str else str.__str__(value)


def canonical_json(value: object) -> bytes:
    """Plain data as compact, key-sorted, ASCII-escaped JSON: its encoded form and size (A6, C10).

    Equal data gives equal bytes; 1, 1.0 and True differ. `value` must be plain already.
    """
    return _CANONICAL.encode(value).encode("ascii")


def value_fingerprint(value: object) -> str:
    """The SHA-256 of the canonical JSON of plain data, 64 hex digits. Raises NotPlain. Rule: C10.

        >>> value_fingerprint((1, 2)) == value_fingerprint([1, 2])
        True
    """
    return sha256(canonical_json(copy_plain(value))).hexdigest()
