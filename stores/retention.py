"""Removing old conversations: whole ones, by age or count, in bounded steps (F10)."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..actors.errors import InvalidValue
from .errors import CursorConflict, StaleEpoch, shown
from .record import ConversationInfo
from .request import Clear
from .store_handle import StoreHandle

PAGE = 100
"""Conversations listed, and at most cleared, in one step."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What to keep: conversations used within `max_age`, at most the `max_conversations` newest.

    Age is that of the last record. None: no limit. Raises `InvalidValue` if both are None.
    """

    max_age: timedelta | None = None
    max_conversations: int | None = None

    def __post_init__(self) -> None:
        age, most = self.max_age, self.max_conversations
        if age is None and most is None:
            raise InvalidValue("a retention needs max_age, max_conversations, or both")
        if age is not None and age < timedelta(0):
            raise InvalidValue(f"max_age must not be negative, it is {shown(age)}")
        if most is not None and (type(most) is not int or most < 0):
            raise InvalidValue(f"max_conversations must be an int of 0 or more, not {shown(most)}")

    def cutoff(self, now: datetime, newest: list[datetime]) -> datetime:
        """The time before which a last use is too long ago; `newest` as `newest_uses` gives it."""
        cutoff = datetime.min.replace(tzinfo=UTC)
        if self.max_age is not None:
            cutoff = max(cutoff, now - self.max_age)
        if self.max_conversations == 0:
            return datetime.max.replace(tzinfo=UTC)
        if self.max_conversations is not None and len(newest) == self.max_conversations:
            cutoff = max(cutoff, min(newest))
        return cutoff


async def apply_retention(store: StoreHandle, retention: Retention, *, prefix: str = "",
                          now: datetime | None = None) -> int:
    """Clear what the retention does not keep; returns how many conversations went.

    Each goes whole, in one commit, and only if nobody has used it since it was looked at; what
    is written meanwhile stays. Between two steps of 100 other requests are served. Conversations
    that were used last at the very same time are kept together.
    """
    now = now or datetime.now(UTC)
    newest: list[datetime] = []
    if retention.max_conversations:
        async for info in _all(store, prefix):
            if info.updated is None:
                continue
            if len(newest) < retention.max_conversations:
                heapq.heappush(newest, info.updated)
            else:
                heapq.heappushpop(newest, info.updated)
    cutoff = retention.cutoff(now, newest)
    removed = 0
    async for info in _all(store, prefix):
        if info.updated is not None and info.updated < cutoff:
            removed += await _remove(store, info)
    return removed


async def _remove(store: StoreHandle, info: ConversationInfo) -> int:
    request = Clear(info.conversation_id, epoch=info.epoch, cursor=info.cursor)
    try:
        await store.port.submit(request, store.timeout)
    except (CursorConflict, StaleEpoch):
        return 0  # it was used meanwhile
    return 1


async def _all(store: StoreHandle, prefix: str) -> AsyncIterator[ConversationInfo]:
    after: str | None = None
    while True:
        page: Any = await store.conversations(prefix=prefix, after=after, limit=PAGE)
        for info in page:
            yield info
        if len(page) < PAGE:
            return
        after = page[-1].conversation_id
