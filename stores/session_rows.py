"""Rows of session and blob tables: keys, values, and the table that they live in.

Both stores run the same operations (`session_ledger`, `session_inbox`, `blob_ledger`) over `Rows`,
so they cannot differ in what they accept: the memory store over sorted lists, the disk store over
an LMDB transaction. A key begins with the kind of the row; rows of one session lie side by side.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, Protocol, cast

import msgpack

# Kinds of rows. Lower case: rows of one session, kind + number + place.
HEAD_ROW: Final = b"S"  # + key of the session id -> head
NUMBERS: Final = b"M"  # -> the last number given to a session
PENDING_ROW: Final = b"P"  # + number -> id of a session with untaken messages
REVISION: Final = b"r"  # + cursor -> fingerprint, state
INBOX: Final = b"i"  # + order -> an accepted message
EVENTS: Final = b"e"  # + first position -> the events of one commit
LETTER: Final = b"d"  # + id -> a dead letter
KEY: Final = b"k"  # + hash of channel and key -> outcome
KEY_ORDER: Final = b"o"  # + hash of channel, seq -> hash of channel and key
BLOB: Final = b"B"  # + tenant, digest -> what is known of a blob
BLOB_DATA: Final = b"D"  # + tenant, digest -> its bytes
HOLD: Final = b"H"  # + holder, tenant, digest -> nothing
RECORD_HOLDS: Final = b"C"  # + holder -> conversation and epoch whose records hold blobs
SUMMARY: Final = b"Y"  # + hash of conversation and summarizer -> epoch, watermark, text

OWN_KINDS: Final = (REVISION, INBOX, EVENTS, LETTER, KEY, KEY_ORDER)

_PLACE = Struct(">cQQ")
_NUMBER = Struct(">cQ")
_PREFIX_SIZE = _NUMBER.size


class Rows(Protocol):
    """A sorted table inside one transaction. Keys have at most 511 bytes."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None if it is not there."""
        ...

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        ...

    def delete(self, key: bytes) -> None:
        """Remove a key; nothing happens if it is not there."""
        ...

    def scan(
        self, first: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `first` up to but without `end` (same kind), ascending or from the end.

        Rows must not be changed while a scan goes on.
        """
        ...


def place_key(kind: bytes, number: int, place: int) -> bytes:
    """The key of a session's row."""
    return _PLACE.pack(kind, number, place)


def place_of(key: bytes) -> int:
    """The place in a key made by `place_key`."""
    place: int = _PLACE.unpack(key)[2]
    return place


def prefix(kind: bytes, number: int) -> bytes:
    """What all keys of this kind begin with in a session."""
    return _NUMBER.pack(kind, number)


def span(kind: bytes, number: int) -> tuple[bytes, bytes]:
    """The range of a session's rows of a kind, for `scan`."""
    return _NUMBER.pack(kind, number), _NUMBER.pack(kind, number + 1)


def short_hash(*parts: bytes) -> bytes:
    """16 bytes that stand for the parts."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return digest.digest()


def pack(value: Any) -> bytes:
    """Plain data (and bytes, tuples) as msgpack."""
    return cast("bytes", msgpack.packb(value))


def unpack(value: bytes) -> Any:
    """What was packed, as fresh lists and dicts. Raises ValueError if the bytes are damaged."""
    try:
        return msgpack.unpackb(value, strict_map_key=True)
    except (msgpack.UnpackException, TypeError, RecursionError) as problem:
        raise ValueError(f"damaged row: {problem}") from problem


class MemoryRows:
    """Rows in memory. Hold `lock` to use it; changes inside `transaction()` are undone on an error.

    Keys of one session and kind form a list of their own: new ones come at its end and old ones go
    from its beginning, both cheap however many sessions there are.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._values: dict[bytes, bytes] = {}
        self._sorted: dict[bytes, list[bytes]] = {}
        self._undo: list[tuple[bytes, bytes | None]] | None = None

    @contextmanager
    def transaction(self) -> Iterator[MemoryRows]:
        """Hold the lock; leave nothing behind if the block raises."""
        with self.lock:
            self._undo = []
            try:
                yield self
            except BaseException:
                undo, self._undo = self._undo, None
                for key, value in reversed(undo):
                    if value is None:
                        self.delete(key)
                    else:
                        self.put(key, value)
                raise
            finally:
                self._undo = None

    def get(self, key: bytes) -> bytes | None:
        """See Rows."""
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """See Rows."""
        before = self._values.get(key)
        if self._undo is not None:
            self._undo.append((key, before))
        if before is None:
            keys = self._sorted.setdefault(_bucket(key), [])
            if not keys or keys[-1] < key:
                keys.append(key)
            else:
                insort(keys, key)
        self._values[key] = value

    def delete(self, key: bytes) -> None:
        """See Rows."""
        before = self._values.pop(key, None)
        if before is None:
            return
        if self._undo is not None:
            self._undo.append((key, before))
        bucket = _bucket(key)
        keys = self._sorted[bucket]
        del keys[bisect_left(keys, key)]
        if not keys:
            del self._sorted[bucket]

    def scan(
        self, first: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """See Rows."""
        keys = self._sorted.get(_bucket(first), [])
        low, high = bisect_left(keys, first), bisect_left(keys, end)
        values = self._values
        places = range(high - 1, low - 1, -1) if reverse else range(low, high)
        for place in places:
            key = keys[place]
            yield key, values[key]


def _bucket(key: bytes) -> bytes:
    return key[:1] if key[:1].isupper() else key[:_PREFIX_SIZE]
