"""When two keys are the same, and which of two comes first: Erlang's rules for Python values.

A table of type set, bag or duplicate_bag tells keys apart exactly: `1`, `1.0` and `True` are three
keys (Python's `==` would make them one). An ordered_set compares by order: `1` and `1.0` are one
key, `True` is another, and keys of different kinds sort by kind instead of raising (ETS-2). The
kinds in ascending order:

    number < word (None, bool, Atom) < ref < tuple < dict < list < str < bytes

Numbers compare by exact value, words by their text (None counts as Erlang's `undefined`), tuples by
length and then item by item, dicts by size, then by their keys, then by their values, lists item by
item, str by code point. A Python str takes the place of an Erlang binary, as in most JSON libraries
for Erlang; `Atom` is a str that takes an atom's.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, Final, TypeAlias

import pykka

from ..actors.errors import InvalidValue
from .table_errors import BadArgument

Term: TypeAlias = Any
"""A value in a table."""

MAX_DEPTH: Final = 100
"""How deep tuples, lists and dicts may nest in a key."""


class Atom(str):
    """A word: a str that sorts, matches and is told apart from plain strings as Erlang's atoms are.

    For rows that come from or go to Erlang; Python code hardly needs it. Raises InvalidValue for
    the words that have a Python value of their own: use True, False and None.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Atom:
        if text in _TAKEN:
            raise InvalidValue(f"Atom({text!r}): use {_TAKEN[text]!r} itself")
        return super().__new__(cls, text)

    def __repr__(self) -> str:
        return f"Atom({str.__repr__(self)})"


_TAKEN: Final[dict[str, object]] = {"true": True, "false": False, "undefined": None}
WORDS: Final = {True: "true", False: "false", None: "undefined"}
"""The text by which the Python values among the words are ordered."""


class UnusableKey(BadArgument):
    """A value that cannot be a key, with the reason."""


class _Mark:
    """Stands in an exact key for a type, so that equal values of different types differ."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


_FLOAT: Final = _Mark("float")
_TRUE: Final = _Mark("True")
_FALSE: Final = _Mark("False")
_LIST: Final = _Mark("list")
_MAP: Final = _Mark("dict")
_ABSENT: Final = _Mark("absent")

PLAIN: Final = frozenset({int, str, bytes, type(None)})
"""Types whose values are their own exact key: no two of them are ever equal across types."""


def exact_key(term: Term, depth: int = 0) -> Hashable:
    """Return a hashable that equals another term's if and only if both are the same key of a set.

    Raises UnusableKey for NaN, for what nests deeper than `MAX_DEPTH`, and for values that are
    neither terms nor hashable.
    """
    kind = type(term)
    if kind in PLAIN:
        return term  # type: ignore[no-any-return]  # these are hashable
    if kind is tuple:
        _check_depth(depth)
        return tuple([exact_key(item, depth + 1) for item in term])
    if kind is float:
        _check_number(term)
        return (_FLOAT, term)
    if kind is bool:
        return _TRUE if term else _FALSE
    if kind is list:
        _check_depth(depth)
        return (_LIST, *[exact_key(item, depth + 1) for item in term])
    if kind is dict:
        _check_depth(depth)
        pairs = [(exact_key(k, depth + 1), exact_key(v, depth + 1)) for k, v in term.items()]
        return (_MAP, frozenset(pairs))
    if isinstance(term, pykka.ActorRef):
        return term
    if kind.__hash__ is None:
        raise UnusableKey(f"a {kind.__name__} cannot be compared: use a tuple, list or dict")
    return (kind, term)


_NUMBER, _WORD, _REF, _TUPLE, _DICT, _SEQUENCE, _TEXT, _BYTES = range(8)


def order_key(term: Term, depth: int = 0) -> tuple[Any, ...]:
    """Return a tuple that compares with another term's as the terms do; equal means the same key.

    It is hashable, consistently with equality. Raises UnusableKey for NaN, for what nests deeper
    than `MAX_DEPTH` and for values that are no terms.
    """
    kind = type(term)
    if kind is int or kind is float:
        _check_number(term)
        return (_NUMBER, term)
    if kind is str:
        return (_TEXT, term)
    if kind is tuple:
        _check_depth(depth)
        return (_TUPLE, len(term), tuple([order_key(item, depth + 1) for item in term]))
    if kind is bytes:
        return (_BYTES, term)
    if term is None or kind is bool:
        return (_WORD, WORDS[term])
    if kind is Atom:
        return (_WORD, str(term))
    if kind is list:
        _check_depth(depth)
        return (_SEQUENCE, tuple([order_key(item, depth + 1) for item in term]))
    if kind is dict:
        _check_depth(depth)
        # Keys inside a dict are exact: an int comes before the float of the same value.
        keyed = sorted(
            (order_key(k, depth + 1), type(k) is float, order_key(v, depth + 1))
            for k, v in term.items()
        )
        return (_DICT, len(keyed), tuple([k[:2] for k in keyed]), tuple([k[2] for k in keyed]))
    if isinstance(term, pykka.ActorRef):
        return (_REF, term.actor_urn)
    raise UnusableKey(
        f"a {kind.__name__} has no place in the order: use numbers, str, bytes, bool, None, refs, "
        "and tuples, lists and dicts of them"
    )


def exactly_equal(left: Term, right: Term) -> bool:
    """Whether two terms are the same value of the same type, all the way down (Erlang's `=:=`).

    NaN is not equal to itself. Values that are no terms are compared by type and `==`.
    """
    kind = type(left)
    if kind is not type(right):
        return False
    if kind is tuple or kind is list:
        return len(left) == len(right) and all(map(exactly_equal, left, right))
    if kind is dict:
        if len(left) != len(right):
            return False
        try:
            others = {exact_key(k): v for k, v in right.items()}
            return all(exactly_equal(v, others.get(exact_key(k), _ABSENT)) for k, v in left.items())
        except UnusableKey:
            return False  # a NaN among the keys
    return bool(left == right)


def _check_number(number: float) -> None:
    if number != number:
        raise UnusableKey("NaN is not equal to itself and could never be found again")


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise UnusableKey(f"a key may nest {MAX_DEPTH} levels deep, not more")


def is_number(term: Term) -> bool:
    """Whether `term` is an int or a float; a bool is a word, NaN is not comparable."""
    kind = type(term)
    return kind is int or (kind is float and not math.isnan(term))
