"""Plain values made immutable: what a message, a mark or a tool call may hold.

Storable are None, bool, int of any size, float (NaN and infinities too), str (lone surrogates
too), bytes, datetime, and sequences and mappings of these with `str` keys, nested at most 100
deep (CS-12, CS-13). Frozen, a sequence is a tuple and a mapping a `FrozenDict`; `thaw` gives
lists and dicts back. Only tuple/list and bytes/bytearray are not told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import shown

MAX_DEPTH = 100
"""How deep sequences and mappings may be nested inside one field (CS-13)."""

MAX_NODES = 1 << 22
"""Most values in one field: bounds the work for a list that holds one list many times."""

Plain = (
    None | bool | int | float | str | bytes | datetime | tuple["Plain", ...] | Mapping[str, "Plain"]
)


class Unstorable(Exception):
    """Internal: a value that cannot be stored; `path` is collected from the inside outwards."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.steps: list[str] = []

    @property
    def path(self) -> str:
        return "".join(reversed(self.steps)).removeprefix(".")


class Frozen:
    """Base of immutable objects with slots, which are set once by the slots' own setters."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(
            f"cannot assign to {name!r}: a {type(self).__name__} is immutable"
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete {name!r}: a {type(self).__name__} is immutable")

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self


def slot_setters(kind: type[Any]) -> tuple[Callable[[Any, object], None], ...]:
    """The setters of a frozen dataclass's slots, in the order of its fields.

    For an `__init__` by hand where many are made: the one that `dataclass` generates goes through
    `object.__setattr__`, which looks each name up, and takes twice as long.
    """
    return tuple(kind.__dict__[field.name].__set__ for field in fields(kind))


class FrozenDict(dict[str, Any]):
    """A dict that refuses changes: equal to a dict of the same items, hashable, JSON-ready."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a stored mapping cannot be changed; make a dict of it first: dict(value)")

    if not TYPE_CHECKING:  # typed as dict has them: calling one is an error at run time only
        __setitem__ = __delitem__ = __ior__ = _refuse
        clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # dict has None here
        return hash(frozenset(self.items()))

    def __copy__(self) -> FrozenDict:
        return self

    def __deepcopy__(self, memo: object) -> FrozenDict:
        return self

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


EMPTY: FrozenDict = FrozenDict()

_ATOMS = frozenset({str, int, float, bool, type(None), bytes})


def freeze(value: Any, depth: int = 0) -> Any:
    """Return a deeply immutable copy of a storable value; raise `Unstorable` naming the path.

    `depth` is the nesting that is counted already; -1 where `value` maps field names to values.
    """
    if type(value) in _ATOMS:
        return value
    return _freeze(value, depth, [MAX_NODES])


def freeze_mapping(value: Mapping[str, Any]) -> FrozenDict:
    """`freeze` for what must be a mapping, such as a mark."""
    # A dict, as nearly all are, need not be held against the abstract class.
    if type(value) is not dict and not isinstance(value, Mapping):
        raise Unstorable(f"must be a mapping, not {shown(value)}")
    return _freeze_items(value, 1, [MAX_NODES])


def _freeze(value: Any, depth: int, budget: list[int]) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict or kind is FrozenDict or isinstance(value, Mapping):
        return _freeze_items(value, depth + 1, budget)
    if kind is list or kind is tuple or isinstance(value, (list, tuple)):
        return _freeze_sequence(value, depth + 1, budget)
    return _atom(value)


def _enter(size: int, depth: int, budget: list[int]) -> None:
    if depth > MAX_DEPTH:
        raise Unstorable(f"nested more than {MAX_DEPTH} deep; flatten it")
    budget[0] -= size
    if budget[0] < 0:
        raise Unstorable(f"holds more than {MAX_NODES} values; store a reference to it instead")


def _freeze_items(value: Mapping[Any, Any], depth: int, budget: list[int]) -> FrozenDict:
    _enter(len(value), depth, budget)
    items: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            if not isinstance(key, str):
                raise Unstorable(
                    f"key {shown(key)} is no str; use {shown(str(key))} or a list of pairs"
                )
            key = str.__str__(key)
        if type(item) in _ATOMS:
            items[key] = item
            continue
        try:
            items[key] = _freeze(item, depth, budget)
        except Unstorable as problem:
            problem.steps.append(f".{key}" if key.isidentifier() else f"[{shown(key, 40)}]")
            raise
    return FrozenDict(items)


def _freeze_sequence(value: Iterable[Any], depth: int, budget: list[int]) -> tuple[Any, ...]:
    values = tuple(value)
    _enter(len(values), depth, budget)
    frozen = []
    for place, item in enumerate(values):
        if type(item) in _ATOMS:
            frozen.append(item)
            continue
        try:
            frozen.append(_freeze(item, depth, budget))
        except Unstorable as problem:
            problem.steps.append(f"[{place}]")
            raise
    return tuple(frozen)


def _atom(value: Any) -> Any:
    """Reduce a subclass of a plain type (an enum, say) to that type, if it stays equal."""
    if isinstance(value, bytearray | bytes):
        return bytes(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, datetime):
        return _fixed(value)
    hint = {
        "set": "a list",
        "frozenset": "a list",
        "Decimal": "a str",
        "UUID": "a str",
        "Path": "a str",
        "date": "a datetime or its isoformat()",
        "generator": "a list",
    }.get(type(value).__name__)
    raise Unstorable(
        f"values of type {type(value).__name__} cannot be stored ({shown(value)}); "
        f"use {hint or 'plain values (None, bool, int, float, str, bytes, datetime, list, dict)'}"
    )


def _fixed(value: datetime) -> datetime:
    """The same instant and wall time with a fixed offset instead of a zone (CS-12)."""
    try:
        offset = value.utcoffset()
    except Exception as problem:  # a zone is foreign code
        raise Unstorable(f"{type(value).__name__}: its time zone raised {problem!r}") from problem
    zone = None if offset is None else UTC if offset == timedelta(0) else timezone(offset)
    plain = datetime(
        value.year,
        value.month,
        value.day,
        value.hour,
        value.minute,
        value.second,
        value.microsecond,
        zone,
        fold=value.fold if zone is None else 0,
    )
    if type(value) is not datetime and plain != value:
        raise Unstorable(
            f"a {type(value).__name__} finer than a microsecond cannot be stored; use a str"
        )
    return plain


def thaw(value: Any) -> Any:
    """The frozen value as fresh lists and dicts that the caller may change."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    return value
