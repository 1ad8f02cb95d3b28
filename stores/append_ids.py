"""The append ids of a disk engine's conversations, for an export and an import (CS-15, CS-16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ..actors.errors import InvalidValue
from .conversation_id import conversation_key
from .disk_tables import stored_id
from .engine import CHUNK
from .errors import shown
from .row import ID_VALUE, NUMBER_KEY, IdEntry, id_key

if TYPE_CHECKING:
    from .conversation import Conversation
    from .disk_engine import DiskEngine
    from .environment import Transaction


def append_ids(engine: DiskEngine, conversation: Conversation) -> Iterator[tuple[bytes, IdEntry]]:
    """The append ids of a conversation, of all its epochs, as they are in keys; none twice.

    Reads in short steps, beside the owner.
    """
    prefix = NUMBER_KEY.pack(conversation.number)
    with engine._lock:
        waiting = {key: value for key, value in engine.pending.ids.items()
                   if key.startswith(prefix)}
    for key, value in waiting.items():
        yield key[len(prefix):], stored_id(value)
    after = prefix
    while True:
        with engine.environment.read() as txn, txn.cursor(db=engine.tables.ids) as cursor:
            found = list(islice(cursor, CHUNK)) if cursor.set_range(after) else []
        for key, value in found:
            if not key.startswith(prefix):
                return
            if key not in waiting:
                yield key[len(prefix):], stored_id(value)
        if len(found) < CHUNK:
            return
        after = found[-1][0] + b"\0"


def remember(engine: DiskEngine, conversation_id: str,
             ids: Sequence[tuple[bytes, IdEntry]]) -> None:
    """Take over append ids of a conversation's earlier epochs. For the owner only.

    They go an hour after the conversation got its epoch here.
    """
    conversation = engine._lookup(conversation_key(conversation_id))
    if conversation is None or not conversation.number:
        raise InvalidValue(f"{shown(conversation_id)} was never cleared: it has no earlier epochs")
    number, micros = conversation.number, int(engine._wall() * 1e6)

    def work(txn: Transaction) -> bool:
        for name, entry in ids:
            value = ID_VALUE.pack(entry.epoch, entry.first_seq, entry.size, micros)
            txn.put(id_key(number, name), value + entry.digest, db=engine.tables.ids)
        return True

    engine.environment.write(work)
