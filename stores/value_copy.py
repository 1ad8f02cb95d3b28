"""Copying rows in and out of a memory table, so that nobody shares what can change (ETS-16).

A row whose values can never change needs no copy: the same tuple goes in and comes out, which is
what makes a table nearly as fast as a dict. Everything else is copied both ways.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
from typing import Any, Final, TypeVar

import pykka

from .table_errors import BadArgument, shown
from .term_order import Atom

T = TypeVar("T", bound=type)

SCALARS: Final[frozenset[type]] = frozenset(
    {int, str, bytes, float, bool, type(None), Atom, complex}
)

_immutable: set[type] = {
    *SCALARS,
    type(...),
    type(NotImplemented),
    range,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    pathlib.PurePosixPath,
    pathlib.PosixPath,
    pathlib.PureWindowsPath,
    pathlib.WindowsPath,
}


def never_changes(cls: T) -> T:
    """Declare that instances of `cls` never change, so that tables share them instead of copying.

    A class decorator, or a call. It holds for the class itself, not for subclasses. It is a
    promise: a table hands the very object to every reader.
    """
    _immutable.add(cls)
    return cls


class MutableRow(tuple[Any, ...]):
    """A stored row that holds something that can change: whoever reads it gets a copy."""

    __slots__ = ()


def is_immutable(value: Any) -> bool:
    """Whether `value`, all the way down, can never change."""
    kind = type(value)
    if kind in _immutable:
        return True
    if kind is tuple or kind is frozenset:
        return all(map(is_immutable, value))
    return isinstance(value, (pykka.ActorRef, enum.Enum, type))


def copy_value(value: Any) -> Any:
    """Return a value that shares nothing changeable with `value`. Raises BadArgument."""
    kind = type(value)
    if kind in _immutable:
        return value
    if kind is tuple or kind is MutableRow:
        return tuple([copy_value(item) for item in value])
    if kind is list:
        return [copy_value(item) for item in value]
    if kind is dict:
        return {copy_value(key): copy_value(item) for key, item in value.items()}
    if is_immutable(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise BadArgument(
            f"{shown(value)} cannot be copied ({error}): put in plain data, or declare "
            f"its class with never_changes()"
        ) from error


def stored_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the row to store: `row` itself if it can never change, else a `MutableRow` copy."""
    for value in row:
        if type(value) not in SCALARS and not is_immutable(value):
            try:
                return MutableRow([copy_value(item) for item in row])
            except RecursionError:
                raise BadArgument("the row nests too deep, or holds itself") from None
    return row


def read_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a stored row as its reader may have it."""
    return row if type(row) is tuple else tuple([copy_value(value) for value in row])
