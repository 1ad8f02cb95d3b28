"""A page of a disk engine's listed conversations (CS-19)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .row import head_of, info_of_head

if TYPE_CHECKING:
    from .disk_engine import DiskEngine
    from .record import ConversationInfo


def page(engine: DiskEngine, prefix: bytes, after: bytes | None,
         limit: int) -> list[ConversationInfo]:
    """The next `limit` conversations that have records, in key order."""
    if engine.environment.readonly:
        engine._refresh()
    # First what waits in memory, then the table: what is moved in between is seen twice, not never.
    with engine._lock:
        fresh = {key: conversation.info()
                 for key, conversation in engine.pending.conversations.items()
                 if key.startswith(prefix) and (after is None or key > after)}
    stored: dict[bytes, ConversationInfo] = {}
    start = prefix if after is None or after < prefix else after
    with engine.environment.read() as txn, txn.cursor(db=engine.tables.heads) as cursor:
        if cursor.set_range(start) if start else cursor.first():
            for key, value in cursor:
                if not key.startswith(prefix) or len(stored) >= limit:
                    break
                if key == after or key in fresh:
                    continue
                stored[key] = info_of_head(head_of(value, engine.path))
    merged = {**stored, **{key: info for key, info in fresh.items() if info.exists}}
    return [merged[key] for key in sorted(merged)[:limit]]
