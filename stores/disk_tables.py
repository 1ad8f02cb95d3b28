"""The LMDB tables of a disk engine, and how accepted entries get into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from .conversation import Conversation
from .environment import Transaction
from .ledger import Cleared, Stage, Written
from .open_turns import is_open_after
from .row import HEADER, ID_VALUE, ROW_KEY, SPOKEN, SYSTEM, IdEntry, pack_head
from .sweep import schedule

Items = list[tuple[bytes, bytes]]

_key = itemgetter(0)


class Tables(NamedTuple):
    """The named LMDB tables of a store, see `disk_engine`."""

    meta: Any
    log: Any
    rows: Any
    heads: Any
    cleared: Any
    ids: Any
    systems: Any
    sweeps: Any
    sessions: Any
    turns: Any


class Packed:
    """The rows that accepted entries become, by table.

    Packed as soon as the entries are accepted and kept until they are moved: as pairs of bytes,
    which the garbage collector need not look at again and again as it does at requests.
    """

    __slots__ = ("clears", "ids", "rows", "systems", "turns")

    def __init__(self) -> None:
        self.rows: Items = []
        self.ids: Items = []
        self.systems: Items = []
        self.clears: list[Cleared] = []
        self.turns: dict[bytes, bool] = {}
        """Whether the newest turn is open, of conversations of which the entries say anything."""

    def add(self, entries: Sequence[Written | Cleared], codes: Mapping[str, int]) -> None:
        """Pack entries behind those that are here; `codes` are those of the token counters."""
        add_row, add_id = self.rows.append, self.ids.append
        pack_key, pack_header, pack_id = ROW_KEY.pack, HEADER.pack, ID_VALUE.pack
        for entry in entries:
            if type(entry) is not Written:
                assert type(entry) is Cleared
                self.clears.append(entry)
                self.turns[entry.conversation.key] = False
                continue
            request, number, epoch = entry.request, entry.conversation.number, entry.epoch
            messages, tokens = entry.count_before, entry.tokens_before
            seq, micros, code = entry.first_seq, entry.micros, codes[request.counter]
            for message, turn_id, mark, body, check, count in request.parts:
                flags = 0
                if turn_id is not None:
                    self.turns[entry.conversation.key] = is_open_after(mark)
                key = pack_key(number, epoch, seq)
                tokens += count
                if message is not None:
                    messages += 1
                    flags = SPOKEN
                    if message.role == "system":
                        flags = SPOKEN | SYSTEM
                        self.systems.append((key, b"\1"))
                add_row((key, pack_header(check, flags, code, count, messages, tokens, micros)
                         + body))
                seq += 1
            if entry.id_key is not None:
                add_id((entry.id_key,
                        pack_id(epoch, entry.first_seq, entry.size, micros) + entry.digest))

    def extend(self, other: Packed) -> None:
        """Take over what is in `other`."""
        self.rows += other.rows
        self.ids += other.ids
        self.systems += other.systems
        self.clears += other.clears
        self.turns.update(other.turns)


def move(txn: Transaction, tables: Tables, batches: Sequence[Packed],
         touched: Mapping[bytes, Conversation], stages: Mapping[bytes, Stage]) -> None:
    """Write packed entries to the conversations' own rows, each table in the order of its keys.

    `touched` are their conversations by key. `stages` has the state that the commit under way
    leaves; a conversation that is not in it is as it is in memory.
    """
    turns: dict[bytes, bool] = {}
    for batch in batches:
        turns.update(batch.turns)
        for entry in batch.clears:
            schedule(txn, tables.sweeps, entry)
    for table, lists in ((tables.rows, [batch.rows for batch in batches]),
                         (tables.ids, [batch.ids for batch in batches]),
                         (tables.systems, [batch.systems for batch in batches])):
        items = sorted(chain.from_iterable(lists), key=_key)
        if items:
            with txn.cursor(db=table) as cursor:
                cursor.putmulti(items)
    for key in sorted(touched):
        conversation = touched[key]
        state = stages.get(key) or Stage(conversation)
        value = pack_head(conversation.conversation_id, conversation.number, state)
        if state.cursor:
            txn.put(key, value, db=tables.heads)
            if state.epoch:  # else it was never cleared
                txn.delete(key, db=tables.cleared)
        else:
            txn.put(key, value, db=tables.cleared)
            txn.delete(key, db=tables.heads)
    for key in sorted(turns):
        if turns[key]:
            txn.put(key, touched[key].conversation_id.encode(), db=tables.turns)
        else:
            txn.delete(key, db=tables.turns)


def stored_id(value: bytes) -> IdEntry:
    """What the table `ids` says of an append id."""
    epoch, first, count, _ = ID_VALUE.unpack_from(value)
    return IdEntry(epoch, first, count, value[ID_VALUE.size:])
