"""Rows in an LMDB table, seen through one transaction.

The place of a row is its key's encoding (`key_codec`), which sorts as the keys do. In bags a number
of eight bytes follows, that counts the rows of one key in order of insertion; since no encoding is
the beginning of another, the rows of a key lie together.

LMDB allows 511 bytes a key. An encoding over `SHORT` bytes is cut there and followed by a digest of
the whole, so that it is still found directly and lies where it belongs among the others; only the
order of long keys among those with the same first `SHORT` bytes has to be made by sorting, which an
ordered_set does as it comes to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import lmdb

from .key_codec import encode_key
from .memory_rows import same_row
from .table_codec import decode_row
from .table_rows import END_OF_TABLE, Row, Rows, TableType

SHORT: Final = 480
_DIGEST: Final = 16
_COUNTER: Final = 8
_LAST: Final = b"\xff" * (_DIGEST + _COUNTER + 1)


class EncodedRow(NamedTuple):
    """A row as it is stored, beside the row itself."""

    packed: bytes
    row: Row


def place(ident: bytes) -> bytes:
    """Where the rows of an encoded key lie (without the number that follows in bags)."""
    if len(ident) <= SHORT:
        return ident
    return ident[:SHORT] + blake2b(ident, digest_size=_DIGEST).digest()


class DiskRows(Rows):
    """Rows of a set on disk, through one transaction."""

    __slots__ = ("_cursor", "_db", "_fixed", "_keypos", "_txn")

    def __init__(self, txn: lmdb.Transaction, db: Any, keypos: int, *, fixed: bool) -> None:
        # Any, because their types allow for memoryviews, which only `buffers=True` gives.
        self._txn: Any = txn
        self._cursor: Any = txn.cursor(db=db)
        self._db = db
        self._keypos = keypos
        self._fixed = fixed

    def get(self, ident: bytes) -> list[Row]:
        packed = self._txn.get(place(ident), db=self._db)
        return [] if packed is None else [decode_row(packed)]

    def has(self, ident: bytes) -> bool:
        return bool(self._cursor.set_key(place(ident)))

    def put(self, ident: bytes, stored: EncodedRow) -> None:
        self._txn.put(place(ident), stored.packed, db=self._db)

    def remove(self, ident: bytes) -> None:
        self._txn.delete(place(ident), db=self._db)

    def remove_row(self, ident: bytes, row: Row) -> None:
        if any(same_row(found, row) for found in self.get(ident)):
            self.remove(ident)

    def clear(self) -> None:
        self._txn.drop(self._db, delete=False)

    def size(self) -> int:
        return int(self._txn.stat(self._db)["entries"])

    def first(self) -> Any:
        return self._key() if self._cursor.first() else END_OF_TABLE

    def last(self) -> Any:
        return self.first()

    def next(self, ident: bytes) -> Any:
        if not self._fixed and not self.has(ident):
            raise KeyError(ident)
        return self._key() if self._behind(place(ident)) else END_OF_TABLE

    def prev(self, ident: bytes) -> Any:
        return self.next(ident)

    def _behind(self, at: bytes) -> bool:
        """Move the cursor to the first row behind a place; False if there is none."""
        cursor = self._cursor
        if not cursor.set_range(at):
            return False
        return bool(cursor.next()) if cursor.key() == at else True

    def _row(self) -> Row:
        return decode_row(self._cursor.value())

    def _key(self) -> Any:
        return self._row()[self._keypos]

    def entries(self) -> Iterator[tuple[bytes, Row]]:
        for at, packed in self._cursor.iternext() if self._cursor.first() else ():
            yield at, decode_row(packed)

    def discard(self, handle: bytes, row: Row) -> None:
        self._txn.delete(handle, db=self._db)

    def belongs(self, handle: bytes, ident: bytes) -> bool:
        """Whether a row with this key lies where it is found."""
        return handle == place(ident)

    def resume(self, position: bytes | None) -> Iterator[tuple[bytes, Row]]:
        if self._cursor.first() if position is None else self._behind(position):
            for at, packed in self._cursor.iternext():
                yield at, decode_row(packed)


class OrderedDiskRows(DiskRows):
    """Rows of an ordered_set on disk."""

    __slots__ = ()

    def first(self) -> Any:
        return self._nearest(0) if self._cursor.first() else END_OF_TABLE

    def last(self) -> Any:
        return self._nearest(-1) if self._cursor.last() else END_OF_TABLE

    def next(self, ident: bytes) -> Any:
        if len(ident) > SHORT:
            for other, _, row in self._group(ident[:SHORT]):
                if other > ident:
                    return row[self._keypos]
            found = self._cursor.set_range(ident[:SHORT] + _LAST)
        else:
            found = self._behind(ident)
        return self._nearest(0) if found else END_OF_TABLE

    def prev(self, ident: bytes) -> Any:
        if len(ident) > SHORT:
            for other, _, row in reversed(self._group(ident[:SHORT])):
                if other < ident:
                    return row[self._keypos]
        cursor = self._cursor
        found = cursor.prev() if cursor.set_range(ident[:SHORT]) else cursor.last()
        return self._nearest(-1) if found else END_OF_TABLE

    def _nearest(self, end: int) -> Any:
        """The key at the cursor, among long ones with the same beginning the first or last."""
        at = self._cursor.key()
        if len(at) <= SHORT:
            return self._key()
        return self._group(at[:SHORT])[end][2][self._keypos]

    def _group(self, beginning: bytes) -> list[tuple[bytes, bytes, Row]]:
        """The long keys with the same beginning, in order: encoding, place, row."""
        found: list[tuple[bytes, bytes, Row]] = []
        if self._cursor.set_range(beginning):
            for at, packed in self._cursor.iternext():
                if len(at) <= SHORT or not at.startswith(beginning):
                    break
                row = decode_row(packed)
                found.append((encode_key(row[self._keypos], exact=False), at, row))
        found.sort(key=lambda entry: entry[0])
        return found

    def _from(self, found: bool) -> Iterator[tuple[bytes, bytes, Row]]:
        """All rows from the cursor on, in order: encoding, place, row."""
        while found:
            at = self._cursor.key()
            if len(at) <= SHORT:
                yield at, at, self._row()
                found = self._behind(at)
            else:
                yield from self._group(at[:SHORT])
                found = self._cursor.set_range(at[:SHORT] + _LAST)

    def entries(self) -> Iterator[tuple[bytes, Row]]:
        for _, at, row in self._from(self._cursor.first()):
            yield at, row

    def resume(self, position: bytes | None) -> Iterator[tuple[bytes, Row]]:
        if position is None:
            found = self._cursor.first()
        elif len(position) <= SHORT:
            found = self._behind(position)
        else:
            found = self._cursor.set_range(position[:SHORT])
        for ident, _, row in self._from(found):
            if position is None or ident > position:
                yield ident, row


class DuplicateBagDiskRows(DiskRows):
    """Rows of a duplicate_bag on disk."""

    __slots__ = ()

    def _places(self, ident: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The places of a key's rows and what is stored there, in order of insertion."""
        beginning = place(ident)
        if self._cursor.set_range(beginning):
            for at, packed in self._cursor.iternext():
                if len(at) != len(beginning) + _COUNTER or not at.startswith(beginning):
                    break
                yield at, packed

    def get(self, ident: bytes) -> list[Row]:
        return [decode_row(packed) for _, packed in self._places(ident)]

    def has(self, ident: bytes) -> bool:
        return any(True for _ in self._places(ident))

    def put(self, ident: bytes, stored: EncodedRow) -> None:
        beginning = place(ident)
        cursor = self._cursor
        number = 0
        if cursor.prev() if cursor.set_range(beginning + _LAST[:_COUNTER]) else cursor.last():
            at = cursor.key()
            if len(at) == len(beginning) + _COUNTER and at.startswith(beginning):
                number = int.from_bytes(at[-_COUNTER:], "big") + 1
        at = beginning + number.to_bytes(_COUNTER, "big")
        self._txn.put(at, stored.packed, db=self._db)

    def remove(self, ident: bytes) -> None:
        for at, _ in list(self._places(ident)):
            self._txn.delete(at, db=self._db)

    def remove_row(self, ident: bytes, row: Row) -> None:
        for at, packed in list(self._places(ident)):
            if same_row(decode_row(packed), row):
                self._txn.delete(at, db=self._db)

    def belongs(self, handle: bytes, ident: bytes) -> bool:
        return handle[:-_COUNTER] == place(ident)

    def next(self, ident: bytes) -> Any:
        if not self._fixed and not self.has(ident):
            raise KeyError(ident)
        behind = place(ident) + _LAST[: _COUNTER + 1]
        return self._key() if self._cursor.set_range(behind) else END_OF_TABLE


class BagDiskRows(DuplicateBagDiskRows):
    """Rows of a bag on disk."""

    __slots__ = ()

    def put(self, ident: bytes, stored: EncodedRow) -> None:
        # Equal bytes are equal rows. The other way round it fails for what can be encoded in more
        # than one way: a dict, whose items may come in another order, and 0.0 and -0.0.
        decode = _is_ambiguous(stored.row)
        for _, packed in self._places(ident):
            if packed == stored.packed or (decode and same_row(decode_row(packed), stored.row)):
                return
        super().put(ident, stored)


def _is_ambiguous(value: Any) -> bool:
    kind = type(value)
    if kind is tuple or kind is list:
        return any(map(_is_ambiguous, value))
    return kind is dict or (kind is float and not value)


DISK_ROWS: dict[TableType, type[DiskRows]] = {
    "set": DiskRows,
    "ordered_set": OrderedDiskRows,
    "bag": BagDiskRows,
    "duplicate_bag": DuplicateBagDiskRows,
}
