"""Conversations in memory: the table of a `MemoryStore`."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import Any

from ..actors.failpoint import failpoint
from .conversation import Conversation
from .conversation_id import is_temporary
from .engine import ID_LIFE, Engine
from .errors import StoreUnavailable
from .ledger import Cleared, Plan, Written
from .open_turns import note_turn
from .record import ConversationInfo, Record
from .request import Request
from .row import NUMBER_KEY, IdEntry


class MemoryEngine(Engine):
    """A table that lives as long as the object. Tails are whole logs; nothing is evicted."""

    path = "memory"

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        super().__init__(wall=wall)
        self.owner: object = None
        """The incarnation that may write; taking the table over replaces it (MS-3)."""
        self._numbers = 0
        self._ids: dict[int, dict[bytes, IdEntry]] = {}
        self._listed: list[bytes] = []
        self._turns: dict[bytes, bool] = {}
        # Clears whose append ids may go once they are old enough: (time, conversation, epoch).
        self._sweeps: list[tuple[float, Conversation, int]] = []

    def commit(self, requests: Sequence[Request], owner: object = None) -> list[Any]:
        """Decide and publish requests in order; one answer each."""
        failpoint("store.commit.begin")
        plan = Plan(int(self._wall() * 1e6), self._find, self._number, self._find_id)
        for request in requests:
            plan.take(request)
        failpoint("store.commit.planned")
        with self._lock:
            if owner is not self.owner:
                raise StoreUnavailable(self.path, "its owner was replaced")
            self._publish(plan)
            for entry in plan.entries:
                self._index(entry)
        failpoint("store.commit.published")
        return plan.answers

    def _index(self, entry: Written | Cleared) -> None:
        conversation = entry.conversation
        note_turn(entry, self._turns)
        if self._turns.get(conversation.key) is False:
            del self._turns[conversation.key]
        if type(entry) is Written:
            if entry.id_key is not None:
                self._ids.setdefault(conversation.number, {})[entry.id_key] = IdEntry(
                    entry.epoch, entry.first_seq, entry.size, entry.digest)
            if entry.first_seq == 1:
                insort(self._listed, conversation.key)
        elif type(entry) is Cleared:
            if entry.had_records:
                del self._listed[bisect_left(self._listed, conversation.key)]
            if conversation.number in self._ids or is_temporary(conversation.conversation_id):
                self._sweeps.append((self._wall() + ID_LIFE, conversation, entry.epoch))

    def maintain(self) -> bool:
        """Drop append ids an hour after the clear, and temporary conversations altogether."""
        if not self._sweeps or self._sweeps[0][0] > self._wall():
            return False
        _, conversation, epoch = self._sweeps.pop(0)
        ids = self._ids.get(conversation.number, {})
        for key in [key for key, entry in ids.items() if entry.epoch < epoch]:
            del ids[key]
        if not ids:
            self._ids.pop(conversation.number, None)
        view = conversation.view
        if is_temporary(conversation.conversation_id) and (view.epoch, view.cursor) == (epoch, 0):
            with self._lock:
                self._known.pop(conversation.key, None)
        return True

    def adopt(self, owner: object) -> None:
        """Give the table to a new owner; what the old one has not published never shows."""
        with self._lock:
            self.owner = owner

    def fence(self) -> None:
        """Leave the table without an owner."""
        self.adopt(object())

    def settle(self) -> None:
        """Nothing waits anywhere."""

    def sync(self) -> None:
        """There is no disk."""

    def close(self) -> None:
        """Nothing to let go of: the table goes with the object."""

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _find_id(self, key: bytes) -> IdEntry | None:
        ids = self._ids.get(NUMBER_KEY.unpack_from(key)[0])
        return None if ids is None else ids.get(key)

    def _load(self, key: bytes) -> Conversation | None:
        return None

    def _rows(self, conversation: Conversation, epoch: int, first: int,
              last: int) -> tuple[list[Record], int]:
        return [], 0

    def _count_at(self, conversation: Conversation, epoch: int, seq: int) -> int | None:
        return None

    def _system_seqs(self, conversation: Conversation, epoch: int, upto: int) -> list[int]:
        return []

    def _page(self, prefix: bytes, after: bytes | None, limit: int) -> list[ConversationInfo]:
        with self._lock:
            place = bisect_left(self._listed, prefix) if after is None or after < prefix \
                else bisect_right(self._listed, after)
            page = []
            for key in self._listed[place:place + limit]:
                if not key.startswith(prefix):
                    break
                page.append(self._known[key].info())
            return page

    def _open_turns(self, after: bytes | None, limit: int) -> list[str]:
        with self._lock:
            keys = sorted(key for key in self._turns if after is None or key > after)
            return [self._known[key].conversation_id for key in keys[:limit]]
