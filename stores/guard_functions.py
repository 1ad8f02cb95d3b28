"""The operators of match specifications, by name and number of arguments.

They are Erlang's guard functions on Python values; a str counts as a binary, `Atom`, None and bools
as atoms. A wrong argument raises ValueError, TypeError, ArithmeticError or LookupError, upon which
the guard does not hold.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import pykka

from ..actors.context import current_actor
from .term_order import Atom, Term, exactly_equal, is_number, order_key

Thunk: TypeAlias = Callable[[], Any]

MAX_SHIFT: Final = 1 << 20
"""Most bits that `bsl` shifts by: a specification is data and must not fill the memory."""


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[Term, Term], bool]:
    def compared(left: Term, right: Term) -> bool:
        if is_number(left) and is_number(right):
            return compare(left, right)
        if type(left) is str and type(right) is str:
            return compare(left, right)
        return compare(order_key(left), order_key(right))

    return compared


def _equal(left: Term, right: Term) -> bool:
    """Erlang's `==`: 1 equals 1.0, and everything else only itself."""
    if is_number(left) and is_number(right):
        return bool(left == right)
    try:
        return order_key(left) == order_key(right)
    except ValueError:
        return exactly_equal(left, right)


def _number(value: Term) -> Any:
    if not is_number(value):
        raise TypeError("not a number")
    return value


def _int(value: Term) -> int:
    if type(value) is not int:
        raise TypeError("not an int")
    return value


def _bool(value: Term) -> bool:
    if type(value) is not bool:
        raise TypeError("not a bool")
    return value


def _arithmetic(apply: Callable[[Any, Any], Any]) -> Callable[[Term, Term], Any]:
    return lambda left, right: apply(_number(left), _number(right))


def _integral(apply: Callable[[int, int], int]) -> Callable[[Term, Term], int]:
    return lambda left, right: apply(_int(left), _int(right))


def _quotient(left: int, right: int) -> int:
    """Division towards zero, as Erlang's `div`; Python's rounds down."""
    whole = abs(left) // abs(right)
    return whole if (left < 0) == (right < 0) else -whole


def _remainder(left: int, right: int) -> int:
    return left - right * _quotient(left, right)


def _shift_left(value: int, bits: int) -> int:
    if bits > MAX_SHIFT or value.bit_length() > MAX_SHIFT:
        raise ValueError("shifts too far")
    return value << bits if bits >= 0 else value >> -bits


def _shift_right(value: int, bits: int) -> int:
    return _shift_left(value, -bits)


def _round(value: Term) -> int:
    """Half away from zero, as Erlang; Python rounds half to even."""
    number: float = _number(value)
    if type(number) is int:
        return number
    magnitude = math.floor(abs(number) + 0.5)
    return -magnitude if number < 0 else magnitude


def _of(*kinds: type) -> Callable[[Term], bool]:
    return lambda value: type(value) in kinds


def _is_word(value: Term) -> bool:
    return value is None or type(value) in (bool, Atom)


def _is_record(value: Term, tag: Term, size: Term = None) -> bool:
    if type(value) is not tuple or not value or not exactly_equal(value[0], tag):
        return False
    return size is None or len(value) == _int(size)


def _element(position: Term, row: Term) -> Any:
    """The item of a tuple at a position from 0."""
    if type(row) is not tuple or not 0 <= _int(position) < len(row):
        raise IndexError("no such position")
    return row[position]


def _sized(*kinds: type) -> Callable[[Term], int]:
    def size(value: Term) -> int:
        if type(value) not in kinds:
            raise TypeError("has no such size")
        return len(value.encode("utf-8", "surrogatepass")) if type(value) is str else len(value)

    return size


def _head(value: Term) -> Any:
    if type(value) is not list:
        raise TypeError("not a list")
    return value[0]


def _tail(value: Term) -> list[Any]:
    if type(value) is not list or not value:
        raise TypeError("not a list with items")
    return value[1:]


def _is_map_key(key: Term, value: Term) -> bool:
    if type(value) is not dict:
        raise TypeError("not a dict")
    return any(exactly_equal(key, other) for other in value)


def _map_get(key: Term, value: Term) -> Any:
    if not _is_map_key(key, value):
        raise KeyError(key)
    return value[key]


def _self() -> Any:
    return current_actor()


_byte_size = _sized(str, bytes)

FUNCTIONS: Final[dict[tuple[str, int], Callable[..., Any]]] = {
    ("==", 2): _equal,
    ("/=", 2): lambda left, right: not _equal(left, right),
    ("=:=", 2): exactly_equal,
    ("=/=", 2): lambda left, right: not exactly_equal(left, right),
    ("<", 2): _comparison(operator.lt),
    ("=<", 2): _comparison(operator.le),
    (">", 2): _comparison(operator.gt),
    (">=", 2): _comparison(operator.ge),
    ("+", 1): _number,
    ("-", 1): lambda value: -_number(value),
    ("+", 2): _arithmetic(operator.add),
    ("-", 2): _arithmetic(operator.sub),
    ("*", 2): _arithmetic(operator.mul),
    ("/", 2): _arithmetic(operator.truediv),
    ("div", 2): _integral(_quotient),
    ("rem", 2): _integral(_remainder),
    ("band", 2): _integral(operator.and_),
    ("bor", 2): _integral(operator.or_),
    ("bxor", 2): _integral(operator.xor),
    ("bnot", 1): lambda value: ~_int(value),
    ("bsl", 2): _integral(_shift_left),
    ("bsr", 2): _integral(_shift_right),
    ("abs", 1): lambda value: abs(_number(value)),
    ("float", 1): lambda value: float(_number(value)),
    ("round", 1): _round,
    ("trunc", 1): lambda value: math.trunc(_number(value)),
    ("ceil", 1): lambda value: math.ceil(_number(value)),
    ("floor", 1): lambda value: math.floor(_number(value)),
    ("not", 1): lambda value: not _bool(value),
    ("xor", 2): lambda left, right: _bool(left) != _bool(right),
    ("is_integer", 1): _of(int),
    ("is_float", 1): _of(float),
    ("is_number", 1): _of(int, float),
    ("is_atom", 1): _is_word,
    ("is_boolean", 1): _of(bool),
    ("is_tuple", 1): _of(tuple),
    ("is_list", 1): _of(list),
    ("is_map", 1): _of(dict),
    ("is_binary", 1): _of(str, bytes),
    ("is_pid", 1): lambda value: isinstance(value, pykka.ActorRef),
    ("is_reference", 1): lambda _value: False,
    ("is_port", 1): lambda _value: False,
    ("is_function", 1): lambda _value: False,
    ("is_record", 2): _is_record,
    ("is_record", 3): _is_record,
    ("element", 2): _element,
    ("hd", 1): _head,
    ("tl", 1): _tail,
    ("length", 1): _sized(list),
    ("size", 1): _sized(tuple, str, bytes),
    ("tuple_size", 1): _sized(tuple),
    ("map_size", 1): _sized(dict),
    ("byte_size", 1): _byte_size,
    ("bit_size", 1): lambda value: 8 * _byte_size(value),
    ("is_map_key", 2): _is_map_key,
    ("map_get", 2): _map_get,
    ("self", 0): _self,
}


def _all(parts: Sequence[Thunk]) -> bool:
    """`and`: every part is evaluated and must be a bool."""
    values = [_bool(part()) for part in parts]
    return all(values)


def _any(parts: Sequence[Thunk]) -> bool:
    values = [_bool(part()) for part in parts]
    return any(values)


def _and_also(parts: Sequence[Thunk]) -> Any:
    """`andalso`: stops at the first False; the last part may be anything."""
    for part in parts[:-1]:
        if not _bool(part()):
            return False
    return parts[-1]()


def _or_else(parts: Sequence[Thunk]) -> Any:
    for part in parts[:-1]:
        if _bool(part()):
            return True
    return parts[-1]()


LAZY: Final[dict[str, Callable[[Sequence[Thunk]], Any]]] = {
    "and": _all,
    "or": _any,
    "andalso": _and_also,
    "orelse": _or_else,
}
"""Operators of one or more arguments that decide themselves which of them to evaluate."""
