"""What `update_counter` and `update_element` make of a row: pure functions (ETS-6).

Positions count from 0. They raise BadArgument, with the reason, before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .table_errors import BadArgument, shown

Row: TypeAlias = tuple[Any, ...]
CounterOp: TypeAlias = "int | tuple[int, int] | tuple[int, int, int, int]"


def count(row: Row, keypos: int, op: CounterOp | Sequence[CounterOp]) -> tuple[Row, Any]:
    """Apply a counter operation, or a list of them in order; return the new row and the result.

    `n` adds to the value after the key; `(pos, n)` to the one at `pos`; `(pos, n, threshold,
    reset)` gives `reset` where the sum passes the threshold (upwards for n >= 0, else downwards).
    The result is the new value, or the list of them. The values must be ints; bools are not.
    """
    if type(op) is list:
        values = list(row)
        return_values = [_apply(values, keypos, _explicit(one, keypos, listed=True)) for one in op]
        return tuple(values), return_values
    values = list(row)
    result = _apply(values, keypos, _explicit(op, keypos, listed=False))
    return tuple(values), result


def _explicit(op: Any, keypos: int, *, listed: bool) -> tuple[int, ...]:
    if type(op) is int and not listed:
        return (keypos + 1, op)
    if type(op) is tuple and len(op) in (2, 4) and all(type(part) is int for part in op):
        return op
    forms = "(pos, n) or (pos, n, threshold, reset)"
    forms = forms if listed else f"n, {forms}"
    raise BadArgument(f"counter operation {shown(op)}: use {forms}, of ints")


def _apply(values: list[Any], keypos: int, op: tuple[int, ...]) -> int:
    position, increment = op[0], op[1]
    _check_position(position, len(values), keypos)
    old = values[position]
    if type(old) is not int:
        raise BadArgument(f"the value at position {position} is {shown(old)}, not an int")
    new: int = old + increment
    if len(op) == 4:
        threshold, reset = op[2], op[3]
        if (new > threshold) if increment >= 0 else (new < threshold):
            new = reset
    values[position] = new
    return new


def replace(row: Row, keypos: int, changes: Mapping[int, Any]) -> Row:
    """Return the row with the values at some positions replaced; never the key."""
    values = list(row)
    for position, value in changes.items():
        if type(position) is not int:
            raise BadArgument(f"position {shown(position)} is no int")
        _check_position(position, len(values), keypos)
        values[position] = value
    return tuple(values)


def _check_position(position: int, length: int, keypos: int) -> None:
    if not 0 <= position < length:
        raise BadArgument(f"position {position}: the row has positions 0 to {length - 1}")
    if position == keypos:
        raise BadArgument(f"position {position} is the key's: delete the row and insert another")
