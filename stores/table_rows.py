"""What a table's rows can do, whatever holds them: the interface between `Table` and its two kinds.

`Table` says what the calls mean; a `Rows` says where the rows are. Keys come to it as *idents*,
made by the table's kind once per call, so that an unusable key or row is refused before anything
changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, TypeAlias

Row: TypeAlias = tuple[Any, ...]
Ident: TypeAlias = Any
"""What tells keys apart: a hashable in memory, bytes on disk."""
Stored: TypeAlias = Any
"""A row as it is held: itself or a copy in memory, bytes on disk."""
Handle: TypeAlias = Any
"""Names one row until the table changes."""
Position: TypeAlias = Any
"""Where a traversal in chunks goes on; still good after the table has changed."""
TableType: TypeAlias = Literal["set", "ordered_set", "bag", "duplicate_bag"]

TABLE_TYPES: Final = ("set", "ordered_set", "bag", "duplicate_bag")


class _EndOfTable:
    __slots__ = ()

    def __repr__(self) -> str:
        return "END_OF_TABLE"

    def __copy__(self) -> _EndOfTable:
        return self

    def __deepcopy__(self, _memo: object) -> _EndOfTable:
        return self


END_OF_TABLE: Final = _EndOfTable()
"""What `first`, `last`, `next`, `prev` and a traversal in chunks give when there is no more."""


class Rows(ABC):
    """The rows of one table, in one of the four types."""

    __slots__ = ()

    @abstractmethod
    def get(self, ident: Ident) -> list[Row]:
        """The rows with a key, in order of insertion."""

    @abstractmethod
    def has(self, ident: Ident) -> bool:
        """Whether a row has the key."""

    @abstractmethod
    def put(self, ident: Ident, stored: Stored) -> None:
        """Insert a row by the rules of the type: replace, add if new, or add (ETS-1)."""

    @abstractmethod
    def remove(self, ident: Ident) -> None:
        """Remove the rows with a key, if any."""

    @abstractmethod
    def remove_row(self, ident: Ident, row: Row) -> None:
        """Remove the rows that equal `row` exactly, if any."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all rows."""

    @abstractmethod
    def size(self) -> int:
        """The number of rows."""

    @abstractmethod
    def first(self) -> Any:
        """The first key or END_OF_TABLE."""

    @abstractmethod
    def last(self) -> Any:
        """The last key of an ordered_set, else the first; or END_OF_TABLE."""

    @abstractmethod
    def next(self, ident: Ident) -> Any:
        """The key after one, or END_OF_TABLE. Raises KeyError where an absent key has no place."""

    @abstractmethod
    def prev(self, ident: Ident) -> Any:
        """The key before one in an ordered_set, else as `next`."""

    @abstractmethod
    def entries(self) -> Iterable[tuple[Handle, Row]]:
        """All rows with a handle for `discard`; nothing may change before the last is read."""

    @abstractmethod
    def discard(self, handle: Handle, row: Row) -> None:
        """Remove the row that `entries` gave with the handle."""

    @abstractmethod
    def resume(self, position: Position | None) -> Iterator[tuple[Position, Row]]:
        """The rows after a position (all for None), each with its own."""
