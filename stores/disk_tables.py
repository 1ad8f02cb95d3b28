"""The LMDB tables of a disk engine, and how accepted entries get into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .conversation import Conversation
from .environment import Transaction
from .ledger import Cleared, Stage, Written
from .row import HEADER, ID_VALUE, ROW_KEY, SPOKEN, SYSTEM, IdEntry, pack_head
from .sweep import schedule

Items = list[tuple[bytes, bytes]]


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


def move(txn: Transaction, tables: Tables, entries: Sequence[Written | Cleared],
         stages: Mapping[bytes, Stage], codes: Mapping[str, int],
         turns: Mapping[bytes, bool]) -> None:
    """Write entries to the conversations' own rows, each table in the order of its keys.

    `stages` has the state that the commit under way leaves; a conversation that is not in it is as
    it is in memory. `codes` are those of the token counters, `turns` what the entries say of the
    newest turns (`open_turns`).
    """
    rows: Items = []
    ids: Items = []
    systems: Items = []
    touched: dict[bytes, Conversation] = {}
    for entry in entries:
        touched[entry.conversation.key] = entry.conversation
        if type(entry) is Written:
            _pack(entry, codes[entry.request.counter], rows, ids, systems)
        elif type(entry) is Cleared:
            schedule(txn, tables.sweeps, entry)
    for table, items in ((tables.rows, rows), (tables.ids, ids), (tables.systems, systems)):
        if items:
            items.sort()
            with txn.cursor(db=table) as cursor:
                cursor.putmulti(items)
    for key in sorted(touched):
        conversation = touched[key]
        state = stages.get(key) or Stage(conversation)
        value = pack_head(conversation.conversation_id, conversation.number, state)
        if state.cursor:
            txn.put(key, value, db=tables.heads)
            txn.delete(key, db=tables.cleared)
        else:
            txn.put(key, value, db=tables.cleared)
            txn.delete(key, db=tables.heads)
    for key in sorted(turns):
        if turns[key]:
            txn.put(key, touched[key].conversation_id.encode(), db=tables.turns)
        else:
            txn.delete(key, db=tables.turns)


def _pack(entry: Written, code: int, rows: Items, ids: Items, systems: Items) -> None:
    request, number, epoch = entry.request, entry.conversation.number, entry.epoch
    messages, tokens = entry.count_before, entry.tokens_before
    seq, micros = entry.first_seq, entry.micros
    for message, _, _, body, check, count in request.parts:
        flags = 0
        key = ROW_KEY.pack(number, epoch, seq)
        tokens += count
        if message is not None:
            messages += 1
            flags = SPOKEN
            if message.role == "system":
                flags = SPOKEN | SYSTEM
                systems.append((key, b"\1"))
        rows.append((key, HEADER.pack(check, flags, code, count, messages, tokens, micros) + body))
        seq += 1
    if entry.id_key is not None:
        ids.append((entry.id_key, ID_VALUE.pack(epoch, entry.first_seq, entry.size, micros)
                    + entry.digest))


def stored_id(value: bytes) -> IdEntry:
    """What the table `ids` says of an append id."""
    epoch, first, count, _ = ID_VALUE.unpack_from(value)
    return IdEntry(epoch, first, count, value[ID_VALUE.size:])
