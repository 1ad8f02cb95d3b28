"""The index of open turns: which conversations have a turn that has not ended (FL-3).

It is derived from the records as they are appended, in the same commit, so it says what the log
says after any crash: the newest record that is of a turn decides, and it ends its turn if its mark
has `ended`. What a turn is besides is the agents' matter. Only open ones are kept, so that finding
them costs in proportion to their number, however many conversations there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .codec import decode_body
from .ledger import Cleared, Written
from .row import HEADER, ROW_KEY, head_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .disk_engine import DiskEngine
    from .disk_tables import Tables
    from .environment import Transaction


def is_open_after(mark: Mapping[str, Any] | None) -> bool:
    """Whether a turn is open after a record of it with this mark."""
    return mark is None or "ended" not in mark


def note_turn(entry: Written | Cleared, turns: dict[bytes, bool]) -> None:
    """Note in `turns`, by conversation key, what an accepted entry says of the newest turn."""
    if type(entry) is Written:
        for _, turn_id, mark, _, _, _ in reversed(entry.request.parts):
            if turn_id is not None:
                turns[entry.conversation.key] = mark is None or "ended" not in mark
                return
    else:
        turns[entry.conversation.key] = False


def index_open_turns(txn: Transaction, tables: Tables) -> None:
    """Build the index of a store that has none: format 1 becomes 2.

    Looks at the newest record of each conversation, and further back only where that is of no turn.
    What waits in the batch log is indexed when it is moved, as ever.
    """
    with txn.cursor(db=tables.heads) as heads, txn.cursor(db=tables.rows) as rows:
        for key, value in heads:
            head = head_of(value, "")
            first = ROW_KEY.pack(head.number, head.epoch, 0)
            found = rows.set_key(ROW_KEY.pack(head.number, head.epoch, head.cursor))
            while found and rows.key() > first:
                try:
                    _, turn_id, mark = decode_body(rows.value()[HEADER.size :])
                except ValueError:  # damaged: `verify` says so, and it can be set aside
                    turn_id, mark = None, None
                if turn_id is not None:
                    if is_open_after(mark):
                        txn.put(key, head.conversation_id.encode(), db=tables.turns)
                    break
                found = rows.prev()


def open_ids(engine: DiskEngine, after: bytes | None, limit: int) -> list[str]:
    """Ids of the next `limit` conversations with an open turn, in key order."""
    if engine.environment.readonly:
        engine._refresh()
    # First what waits in memory, then the table: what is moved in between is seen twice, not never.
    with engine._lock:
        pending = engine.pending
        waiting = dict(pending.packed.turns)
        found = {
            key: pending.conversations[key].conversation_id
            for key, is_open in waiting.items()
            if is_open and (after is None or key > after)
        }
    stored = 0
    with engine.environment.read() as txn, txn.cursor(db=engine.tables.turns) as cursor:
        if cursor.first() if after is None else cursor.set_range(after):
            for key, value in cursor:
                if stored >= limit:
                    break
                if key != after and key not in waiting:
                    found[key] = value.decode()
                    stored += 1
    return [found[key] for key in sorted(found)[:limit]]


def is_indexed(engine: DiskEngine, key: bytes) -> bool:
    """Whether the index says that a conversation has an open turn."""
    with engine._lock:
        waiting = engine.pending.packed.turns.get(key)
    if waiting is not None:
        return waiting
    with engine.environment.read() as txn:
        return txn.get(key, db=engine.tables.turns) is not None


def strays(engine: DiskEngine) -> list[str]:
    """Ids in the table that no conversation with records has; for `verify`."""
    found = []
    with engine.environment.read() as txn, txn.cursor(db=engine.tables.turns) as cursor:
        for key, value in cursor:
            if txn.get(key, db=engine.tables.heads) is None:
                found.append(value.decode("utf-8", "replace"))
    return found
