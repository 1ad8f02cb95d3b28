"""Deleting what a clear left behind, in bounded steps (CS-6, CS-16).

A clear only raises the epoch. It schedules its old epochs here: their rows at once, their append
ids an hour later, because a late retry must still find them. A key of the table `sweeps` begins
with the phase; ids are ordered by the time at which they may go.
"""

from __future__ import annotations

from typing import Any

from .codec import decode, encode
from .conversation_id import TEMPORARY_PREFIX
from .engine import ID_LIFE
from .environment import Transaction
from .ledger import Cleared
from .row import EPOCH_KEY, ID_VALUE, NUMBER_KEY, ROW_KEY, head_of

_ROWS, _IDS = b"\0", b"\1"


def schedule(txn: Transaction, sweeps: Any, entry: Cleared) -> None:
    """Leave everything before `entry.epoch` to the sweeper."""
    conversation = entry.conversation
    due = entry.micros + int(ID_LIFE * 1e6)
    txn.put(_ROWS + EPOCH_KEY.pack(conversation.number, entry.epoch),
            encode((due, conversation.key)), db=sweeps)


def sweep(txn: Transaction, tables: Any, micros: int, limit: int) -> tuple[int, int | None]:
    """Delete up to about `limit` rows. Returns how much was done, and when there is more to do.

    The time is in µs since 1970: not after `micros` if there is more to do now, None if nothing
    is scheduled.
    """
    done = 0
    while done < limit:
        with txn.cursor(db=tables.sweeps) as cursor:
            if not cursor.first():
                return done, None
            key, value = cursor.item()
        due, name = decode(value)[:2]
        number, epoch = EPOCH_KEY.unpack(key[-EPOCH_KEY.size:])
        if key[:1] == _ROWS:
            count, finished = _delete_rows(txn, tables, number, epoch, limit - done)
            if finished:
                txn.delete(key, db=tables.sweeps)
                txn.put(_IDS + NUMBER_KEY.pack(due) + key[1:], encode((due, name)),
                        db=tables.sweeps)
        else:
            if due > micros:
                return done, due
            start = (*decode(value), NUMBER_KEY.pack(number))[2]
            count, after = _delete_ids(txn, tables, number, epoch, start, limit - done)
            if after is None:
                txn.delete(key, db=tables.sweeps)
                _forget_temporary(txn, tables, name, epoch)
            else:
                txn.put(key, encode((due, name, after)), db=tables.sweeps)
        done += count + 1
    return done, micros


def _delete_rows(txn: Transaction, tables: Any, number: int, epoch: int,
                 limit: int) -> tuple[int, bool]:
    """Delete rows of epochs before `epoch`: how many, and whether that was all."""
    done = 0
    start, stop = ROW_KEY.pack(number, 0, 0), ROW_KEY.pack(number, epoch, 0)
    for table in (tables.rows, tables.systems):
        with txn.cursor(db=table) as cursor:
            more = cursor.set_range(start)
            while more and cursor.key() < stop:
                if done >= limit:
                    return done, False
                more = cursor.delete() and bool(cursor.key())
                done += 1
    return done, True


def _delete_ids(txn: Transaction, tables: Any, number: int, epoch: int, start: bytes,
                limit: int) -> tuple[int, bytes | None]:
    """Delete append ids of epochs before `epoch`; the count, and where to go on (None: done)."""
    seen = 0
    prefix = NUMBER_KEY.pack(number)
    with txn.cursor(db=tables.ids) as cursor:
        more = cursor.set_range(start)
        while more and cursor.key().startswith(prefix):
            if seen >= limit:
                return seen, cursor.key()
            seen += 1
            if ID_VALUE.unpack_from(cursor.value())[0] < epoch:
                more = cursor.delete() and bool(cursor.key())
            else:
                more = cursor.next()
    return seen, None


def _forget_temporary(txn: Transaction, tables: Any, key: bytes, epoch: int) -> None:
    """A temporary conversation leaves not even its epoch behind."""
    if key.startswith(TEMPORARY_PREFIX.encode()):
        value = txn.get(key, db=tables.cleared)
        if value is not None and head_of(value, "").epoch == epoch:
            txn.delete(key, db=tables.cleared)
