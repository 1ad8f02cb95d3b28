"""Rows in memory: a dict by key, for ordered_set with a sorted index, for bags a list a key."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from .sorted_keys import SortedKeys
from .table_rows import END_OF_TABLE, Ident, Position, Row, Rows, TableType
from .term_order import exact_key, exactly_equal

Snapshot = tuple[list[Any], int]


class MemoryRows(Rows):
    """What the kinds of memory rows have in common: the traversal of keys in the dict's order.

    A dict has no "key after this one", so a traversal walks a list of the keys, the *walk*, and
    remembers where it was. Keys that are gone are passed over; at the walk's end, keys that were
    inserted meanwhile are added to it. While the table is fixed nothing is added, so that a
    traversal ends whatever is inserted, and `next` works from a key that was deleted (ETS-15).
    """

    __slots__ = ("_at", "_front", "_places", "_walk", "fixed", "index", "keypos")

    def __init__(self, keypos: int) -> None:
        self.keypos = keypos
        # By ident: a row, or for bags several.
        self.index: dict[Ident, Any] = {}
        self.fixed = False
        self._walk: list[Ident] | None = None
        # Where the walk begins: before this place all keys were gone. A key that was inserted again
        # since has another place behind it, and only that one counts, so that none is met twice.
        self._front = 0
        # Where the walk was last, and where it has each key (made when it is asked for).
        self._at = 0
        self._places: dict[Ident, int] | None = None

    def has(self, ident: Ident) -> bool:
        return ident in self.index

    def first(self) -> Any:
        walk = self._begin() if self._walk is None else self._walk
        found = self._from(walk, self._front)
        if not self.fixed:
            if found is END_OF_TABLE:
                self._walk = None
            else:
                self._front = self._at
        return found

    def last(self) -> Any:
        return self.first()

    def next(self, ident: Ident) -> Any:
        present = ident in self.index
        if not present and not self.fixed:
            raise KeyError(ident)
        walk = self._begin() if self._walk is None else self._walk
        place = self._place(walk, ident)
        if place is None and present and not self.fixed:
            self._add_fresh(walk)
            place = self._place(walk, ident)
        if place is None:
            if present:
                return END_OF_TABLE
            raise KeyError(ident)
        return self._from(walk, place + 1)

    def prev(self, ident: Ident) -> Any:
        return self.next(ident)

    def _begin(self) -> list[Ident]:
        self._walk = walk = list(self.index)
        self._places = None
        self._at = self._front = 0
        return walk

    def _place(self, walk: list[Ident], ident: Ident) -> int | None:
        at = self._at
        if self._front <= at < len(walk) and walk[at] == ident:
            return at
        if self._places is None:
            front = self._front
            self._places = {other: place for place, other in enumerate(walk[front:], front)}
        place = self._places.get(ident)
        return None if place is None or place < self._front else place

    def _from(self, walk: list[Ident], start: int) -> Any:
        """The first key at or behind a place of the walk that is still in the table."""
        # The owner of a set may write while others read, so each look at the dict is one step.
        for at in range(start, len(walk)):
            found = self.index.get(walk[at])
            if found is not None:
                self._at = at
                return self._key_in(found)
        if not self.fixed:
            end = len(walk)
            if self._add_fresh(walk):
                return self._from(walk, end)
            if len(walk) > 2 * len(self.index) + 16:
                self._walk = self._places = None
                self._at = self._front = 0
        return END_OF_TABLE

    def _add_fresh(self, walk: list[Ident]) -> bool:
        known = set(walk[self._front :])
        fresh = [ident for ident in list(self.index) if ident not in known]
        walk += fresh
        self._places = None
        return bool(fresh)

    def _key_in(self, found: Any) -> Any:
        """The key in what the index holds."""
        return found[self.keypos]

    def fix(self, fixed: bool) -> None:
        """Keep the walk as it is from now on, or no longer."""
        self.fixed = fixed
        self._walk = self._places = None
        self._at = self._front = 0

    def before_removal(self) -> None:
        """Take the list of keys before the first of them goes, if the table is fixed."""
        if self.fixed and self._walk is None:
            self._begin()


class SetRows(MemoryRows):
    """Rows of a set."""

    __slots__ = ()

    def get(self, ident: Ident) -> list[Row]:
        row = self.index.get(ident)
        return [] if row is None else [row]

    def put(self, ident: Ident, stored: Row) -> None:
        self.index[ident] = stored

    def remove(self, ident: Ident) -> None:
        if self.fixed:
            self.before_removal()
        self.index.pop(ident, None)

    def remove_row(self, ident: Ident, row: Row) -> None:
        found = self.index.get(ident)
        if found is not None and same_row(found, row):
            self.remove(ident)

    def clear(self) -> None:
        self.before_removal()
        self.index.clear()

    def size(self) -> int:
        return len(self.index)

    def entries(self) -> Iterable[tuple[Ident, Row]]:
        return list(self.index.items())

    def discard(self, handle: Ident, row: Row) -> None:
        self.remove(handle)

    def resume(self, position: Snapshot | None) -> Iterator[tuple[Snapshot, Row]]:
        idents, start = position or (list(self.index), 0)
        for at in range(start, len(idents)):
            row = self.index.get(idents[at])
            if row is not None:
                yield (idents, at + 1), row


class OrderedRows(SetRows):
    """Rows of an ordered_set. Its idents are order keys, so that the dict has 1 and 1.0 as one."""

    __slots__ = ("order",)

    def __init__(self, keypos: int) -> None:
        super().__init__(keypos)
        self.order = SortedKeys()

    def put(self, ident: Ident, stored: Row) -> None:
        if ident not in self.index:
            self.order.add(ident)
        self.index[ident] = stored

    def remove(self, ident: Ident) -> None:
        if self.index.pop(ident, None) is not None:
            self.order.remove(ident)

    def clear(self) -> None:
        self.index.clear()
        self.order.clear()

    def _key_of(self, ident: Ident | None) -> Any:
        return END_OF_TABLE if ident is None else self.index[ident][self.keypos]

    def first(self) -> Any:
        return self._key_of(self.order.first())

    def last(self) -> Any:
        return self._key_of(self.order.last())

    def next(self, ident: Ident) -> Any:
        return self._key_of(self.order.after(ident))

    def prev(self, ident: Ident) -> Any:
        return self._key_of(self.order.before(ident))

    def entries(self) -> Iterable[tuple[Ident, Row]]:
        return [(ident, self.index[ident]) for ident in self.order]

    def resume(self, position: Position | None) -> Iterator[tuple[Position, Row]]:
        for ident in self.order.from_(position):
            yield ident, self.index[ident]


class DuplicateBagRows(MemoryRows):
    """Rows of a duplicate_bag: a list a key, in order of insertion."""

    __slots__ = ("count",)

    def __init__(self, keypos: int) -> None:
        super().__init__(keypos)
        self.count = 0

    def get(self, ident: Ident) -> list[Row]:
        return list(self.index.get(ident, ()))

    def put(self, ident: Ident, stored: Row) -> None:
        rows = self.index.get(ident)
        if rows is None:
            self.index[ident] = [stored]
        else:
            rows.append(stored)
        self.count += 1

    def remove(self, ident: Ident) -> None:
        if self.fixed:
            self.before_removal()
        self.count -= len(self.index.pop(ident, ()))

    def remove_row(self, ident: Ident, row: Row) -> None:
        rows = self.index.get(ident, ())
        self._keep(ident, [other for other in rows if not same_row(other, row)])

    def _keep(self, ident: Ident, kept: list[Row]) -> None:
        rows = self.index.get(ident, ())
        if kept:
            self.count -= len(rows) - len(kept)
            rows[:] = kept
        else:
            self.remove(ident)

    def clear(self) -> None:
        self.before_removal()
        self.index.clear()
        self.count = 0

    def size(self) -> int:
        return self.count

    def _key_in(self, found: Any) -> Any:
        return found[0][self.keypos]

    def entries(self) -> Iterable[tuple[Ident, Row]]:
        return [(ident, row) for ident, rows in self.index.items() for row in rows]

    def discard(self, handle: Ident, row: Row) -> None:
        self._keep(handle, [other for other in self.index.get(handle, ()) if other is not row])

    def resume(self, position: Snapshot | None) -> Iterator[tuple[Snapshot, Row]]:
        pairs, start = position or (list(self.entries()), 0)
        for at in range(start, len(pairs)):
            ident, row = pairs[at]
            if any(other is row for other in self.index.get(ident, ())):
                yield (pairs, at + 1), row


class BagRows(MemoryRows):
    """Rows of a bag: a dict a key, from what tells rows apart to the row, in order of insertion.

    What is stored is a pair of these.
    """

    __slots__ = ("count",)

    def __init__(self, keypos: int) -> None:
        super().__init__(keypos)
        self.count = 0

    def get(self, ident: Ident) -> list[Row]:
        return list(self.index.get(ident, {}).values())

    def put(self, ident: Ident, stored: tuple[Hashable, Row]) -> None:
        key, row = stored
        rows = self.index.setdefault(ident, {})
        if key not in rows:
            rows[key] = row
            self.count += 1

    def remove(self, ident: Ident) -> None:
        if self.fixed:
            self.before_removal()
        self.count -= len(self.index.pop(ident, ()))

    def remove_row(self, ident: Ident, row: Row) -> None:
        rows = self.index.get(ident)
        if rows is None:
            return
        key = row_key(row)
        if key in rows:
            if len(rows) == 1:
                self.remove(ident)
            else:
                del rows[key]
                self.count -= 1

    def clear(self) -> None:
        self.before_removal()
        self.index.clear()
        self.count = 0

    def size(self) -> int:
        return self.count

    def _key_in(self, found: Any) -> Any:
        return next(iter(found.values()))[self.keypos]

    def entries(self) -> Iterable[tuple[Ident, Row]]:
        return [(ident, row) for ident, rows in self.index.items() for row in rows.values()]

    def discard(self, handle: Ident, row: Row) -> None:
        self.remove_row(handle, row)

    def resume(self, position: Snapshot | None) -> Iterator[tuple[Snapshot, Row]]:
        pairs, start = position or (list(self.entries()), 0)
        for at in range(start, len(pairs)):
            ident, row = pairs[at]
            if self.index.get(ident, {}).get(row_key(row)) is row:
                yield (pairs, at + 1), row


def row_key(row: Row) -> Hashable:
    """What tells two rows of a bag apart. Raises UnusableKey for what cannot be compared."""
    return tuple([exact_key(value) for value in row])


def same_row(stored: Row, row: Row) -> bool:
    """Whether a stored row equals another exactly."""
    return len(stored) == len(row) and all(map(exactly_equal, stored, row))


ROWS: dict[TableType, type[MemoryRows]] = {
    "set": SetRows,
    "ordered_set": OrderedRows,
    "bag": BagRows,
    "duplicate_bag": DuplicateBagRows,
}
