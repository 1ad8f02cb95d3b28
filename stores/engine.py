"""A table of conversations: what both engines share. No actor, no mailbox.

One thread, the owner's, calls `commit` and `maintain`. Any thread reads. An acknowledged write is
published before `commit` returns, so whoever learns of it finds it in every later read (RW-1).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from ..actors.errors import InvalidValue
from ..actors.failpoint import failpoint
from .conversation import UNKNOWN, Conversation, View, empty_view, info_of, moment
from .conversation_id import conversation_key
from .errors import DamagedStore, StaleEpoch, shown
from .ledger import Plan, Written
from .message import Message
from .record import ConversationInfo, Record, Tail
from .request import Request, check_range

ID_LIFE = 3600.0
"""Seconds for which append ids are kept after a clear (CS-16)."""

CHUNK = 256
"""Most records read in one go: bounds how long a read transaction lives."""

_seq = attrgetter("seq")


class LongRead(Exception):
    """The read would take too long for an event loop's thread."""


class Engine(ABC):
    """Reads and the publishing side; subclasses add the table."""

    path = "memory"

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._known: dict[bytes, Conversation] = {}
        # Guards the dict's growth, loading, eviction and the views that readers may replace
        # (filling a tail). Held for microseconds; never while waiting for anything but the disk.
        self._lock = threading.RLock()
        self._clock: deque[Conversation] = deque()
        self._hot = 0
        self.cache_bytes: int | None = None

    # -- the table, by subclasses -----------------------------------------------------------

    gathers = False
    """Whether a commit costs so much that waiting a little for more requests pays."""

    sweep_due: float | None = None
    """When `maintain` has something to do, in seconds since 1970; None: nothing."""

    @abstractmethod
    def commit(self, requests: Sequence[Request], owner: object = None) -> list[Any]:
        """Decide and write requests in order, all in one transaction; one answer each.

        An answer is a result or an exception for that caller alone. Raises if the table itself
        failed, or if `owner` is no longer its owner (MS-3); then nothing was published.
        """

    @abstractmethod
    def fence(self) -> None:
        """Keep the present owner, which was killed, from changing the table any more."""

    def ready(self) -> Engine:
        """This engine; raises `StoreUnavailable` if it is closed."""
        return self

    @abstractmethod
    def sync(self) -> None:
        """Flush what was committed, where that is not done anyway."""

    def statistics(self) -> dict[str, Any]:
        """Figures for operators."""
        return {"conversations_in_memory": len(self._known), "cached_bytes": self._hot}

    @abstractmethod
    def maintain(self) -> bool:
        """Do one bounded step of sweeping; True if there is more to do now."""

    @abstractmethod
    def settle(self) -> None:
        """Bring the table into the form that opens fastest."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the table; idempotent."""

    @abstractmethod
    def _load(self, key: bytes) -> Conversation | None:
        """A conversation from the table, with an empty tail."""

    @abstractmethod
    def _rows(self, conversation: Conversation, epoch: int, first: int,
              last: int) -> tuple[list[Record], int]:
        """Records `first`…`last` from the table and their encoded size; fewer if they are gone."""

    @abstractmethod
    def _count_at(self, conversation: Conversation, epoch: int, seq: int) -> int | None:
        """How many messages the log has up to record `seq`; None if it is gone."""

    @abstractmethod
    def _system_seqs(self, conversation: Conversation, epoch: int, upto: int) -> list[int]:
        """Seqs of the system messages up to `upto`, ascending."""

    @abstractmethod
    def _page(self, prefix: bytes, after: bytes | None, limit: int) -> list[ConversationInfo]:
        """The next `limit` listed conversations in key order."""

    @abstractmethod
    def _open_turns(self, after: bytes | None, limit: int) -> list[str]:
        """Ids of the next `limit` conversations with an open turn, in key order."""

    # -- the owner's side --------------------------------------------------------------------

    def _find(self, request: Request) -> Conversation:
        conversation = self._known.get(request.key)
        if conversation is None:
            conversation = self._lookup(request.key)
            if conversation is None:
                # Known from now on, though empty: a reader never loads it beside the owner.
                conversation = Conversation(request.conversation_id, request.key, 0, empty_view())
                with self._lock:
                    self._admit(conversation)
        if conversation.conversation_id != request.conversation_id:
            raise DamagedStore(self.path, "two ids share one key",
                               conversation_id=request.conversation_id)
        return conversation

    def _publish(self, plan: Plan) -> None:
        """Show the effects of a plan to readers; after its commit, before its answers."""
        failpoint("store.publish")
        micros, grown = plan.micros, 0
        at = moment(micros)
        with self._lock:
            for entry in plan.entries:
                conversation = entry.conversation
                conversation.used = True
                if type(entry) is Written:
                    grown += conversation.extend(
                        entry.request, entry.first_seq,
                        at if entry.micros == micros else moment(entry.micros), entry.micros)
                else:
                    grown -= conversation.size
                    conversation.reset(entry.epoch)
            self._hot += grown
        if self.cache_bytes is not None and self._hot > self.cache_bytes:
            self._evict()

    def _admit(self, conversation: Conversation) -> None:
        self._known[conversation.key] = conversation
        self._clock.append(conversation)
        self._hot += 512

    def _evict(self) -> None:
        """Second-chance eviction down to nine tenths of the bound; what is not stored stays."""
        limit = (self.cache_bytes or 0) * 9 // 10
        with self._lock:
            for _ in range(2 * len(self._clock)):
                if self._hot <= limit:
                    return
                conversation = self._clock.popleft()
                if conversation.used:
                    conversation.used = False
                    self._clock.append(conversation)
                    continue
                before = conversation.size
                conversation.cut(0)
                self._hot -= before - conversation.size
                if conversation.dirty or conversation.stored < conversation.view.cursor:
                    self._clock.append(conversation)
                else:
                    del self._known[conversation.key]
                    self._hot -= 512

    # -- readers ------------------------------------------------------------------------------

    def _lookup(self, key: bytes) -> Conversation | None:
        conversation = self._known.get(key)
        if conversation is not None:
            conversation.used = True
            return conversation
        with self._lock:
            conversation = self._known.get(key)
            if conversation is None:
                conversation = self._load(key)
                if conversation is not None:
                    self._admit(conversation)
            return conversation

    def view(self, conversation_id: str) -> View:
        """The newest state of a conversation; an empty view of an unknown one."""
        conversation = self._lookup(conversation_key(conversation_id))
        return UNKNOWN if conversation is None else conversation.view

    def get(self, conversation_id: str, last: int | None = None, after: int | None = None,
            most: int | None = None) -> tuple[Message, ...]:
        """Messages in log order (CS-1…3). Unknown ids give ().

        Raises `LongRead` if more than `most` of them would have to be decoded.
        """
        if last is not None or after is not None:
            check_range(last, after)
        conversation = self._lookup(conversation_key(conversation_id))
        if conversation is None:
            return ()
        view = conversation.view
        start = 0 if not after else self._index_after(conversation, view, after)
        if last is not None and view.total - last > start:
            start = view.total - last
        if start >= view.total:
            return ()
        unseen = view.unseen
        if start < unseen:
            if most is not None and unseen - start > most:
                raise LongRead
            records = self._spoken(conversation, view, start, view.total)
            return tuple([record.message for record in records if record.message is not None])
        return tuple(view.messages[start - unseen:view.total - unseen])

    def tail_within(self, conversation_id: str, max_tokens: int) -> Tail:
        """The longest suffix of messages whose tokens fit (CS-20); reads only what it returns."""
        if type(max_tokens) is not int or max_tokens < 0:
            raise InvalidValue(f"max_tokens must be an int of 0 or more, not {shown(max_tokens)}")
        conversation = self._lookup(conversation_key(conversation_id))
        if conversation is None:
            return Tail((), 0, 0, 0, 0)
        view = conversation.view
        kept: list[Record] = []
        left = max_tokens
        for record in self.backwards(conversation, view, 0, view.total):
            left -= record.tokens
            if left < 0:
                left += record.tokens
                break
            kept.append(record)
        kept.reverse()
        return Tail(tuple(kept), view.total - len(kept), max_tokens - left, view.cursor, view.epoch)

    def info(self, conversation_id: str) -> ConversationInfo:
        """Counts and times without reading the log (CS-1)."""
        return info_of(conversation_id, self.view(conversation_id))

    def conversations(self, *, prefix: str = "", after: str | None = None,
                      limit: int = 100) -> tuple[ConversationInfo, ...]:
        """A page of the non-empty conversations in key order (CS-19)."""
        if type(limit) is not int or not 1 <= limit <= 1000:
            raise InvalidValue(f"limit must be an int from 1 to 1000, not {shown(limit)}")
        start = None if after is None else conversation_key(after)
        if not isinstance(prefix, str):
            raise InvalidValue(f"prefix must be a str, not {shown(prefix)}")
        page = self._page(prefix.encode("utf-8", "surrogatepass")[:200], start, limit)
        if len(prefix) > 50:  # only the first 200 bytes are in the keys
            page = [info for info in page if info.conversation_id.startswith(prefix)]
        return tuple(page)

    def open_turns(self, after: str | None = None, limit: int = 100) -> tuple[str, ...]:
        """Ids of the next `limit` conversations whose newest turn has not ended, by an index."""
        if type(limit) is not int or not 1 <= limit <= 1000:
            raise InvalidValue(f"limit must be an int from 1 to 1000, not {shown(limit)}")
        start = None if after is None else conversation_key(after)
        return tuple(self._open_turns(start, limit))

    def system_records(self, conversation_id: str, epoch: int, cursor: int) -> tuple[Record, ...]:
        """The records of system messages up to `cursor`, in order, by an index."""
        conversation, view = self.at(conversation_id, epoch)
        if conversation is None:
            return ()
        seqs = self._system_seqs(conversation, epoch, min(cursor, view.base - 1))
        found = [record for seq in seqs for record in self.records(conversation, view, seq, seq)]
        return tuple(found + view.systems[:bisect_right(view.systems, cursor, key=_seq)])

    # -- ranges -------------------------------------------------------------------------------

    def at(self, conversation_id: str, epoch: int) -> tuple[Conversation | None, View]:
        """The conversation if it still has this epoch, else `StaleEpoch`."""
        conversation = self._lookup(conversation_key(conversation_id))
        view = UNKNOWN if conversation is None else conversation.view
        if view.epoch != epoch:
            raise StaleEpoch(conversation_id, epoch, view.epoch)
        return conversation, view

    def records(self, conversation: Conversation, view: View, first: int,
                last: int) -> list[Record]:
        """Records with seqs `first`…`last` of a view (marks too), from memory or the table."""
        if first > last:
            return []
        base = view.base
        if first >= base:
            return view.records[first - base:last - base + 1]
        found: list[Record] = []
        size = 0
        stop = min(last, base - 1)
        for start in range(first, stop + 1, CHUNK):
            rows, weight = self._rows(conversation, view.epoch, start,
                                      min(start + CHUNK - 1, stop))
            found += rows
            size += weight
        if len(found) != stop - first + 1:
            self._gone(conversation, view, first, stop)
        if stop == base - 1 and self._worth_keeping(size):
            with self._lock:
                if conversation.view.base == base and conversation.view.epoch == view.epoch:
                    before = conversation.size
                    conversation.fill(first, found, size)
                    self._hot += conversation.size - before
        return found if last < base else found + view.records[:last - base + 1]

    def _worth_keeping(self, size: int) -> bool:
        return self.cache_bytes is not None and size < self.cache_bytes // 4

    def _gone(self, conversation: Conversation, view: View, first: int, last: int) -> None:
        now = self._lookup(conversation.key)  # that object may have been evicted meanwhile
        current = view.epoch + 1 if now is None else now.view.epoch
        if current != view.epoch:
            raise StaleEpoch(conversation.conversation_id, view.epoch, current)
        raise DamagedStore(self.path, f"records {first} to {last} are not all there",
                           conversation_id=conversation.conversation_id, seq=first)

    def _index_after(self, conversation: Conversation, view: View, seq: int) -> int:
        """How many messages have seqs up to `seq`: the index of the first one after it."""
        if seq >= view.cursor:
            return view.total
        if view.total == view.cursor:
            return seq
        if seq >= view.base - 1:
            return view.unseen + bisect_right(view.spoken, seq, 0, view.total - view.unseen,
                                              key=_seq)
        count = self._count_at(conversation, view.epoch, seq)
        if count is None:
            self._gone(conversation, view, seq, seq)
            raise AssertionError
        return count

    def seq_of(self, conversation: Conversation, view: View, index: int) -> int:
        """The seq of message `index` (0 is the first)."""
        if view.total == view.cursor:
            return index + 1
        if index >= view.unseen:
            return view.spoken[index - view.unseen].seq
        low, high = index + 1, min(view.base - 1, view.cursor)
        while low < high:
            middle = (low + high) // 2
            if self._index_after(conversation, view, middle) > index:
                high = middle
            else:
                low = middle + 1
        return low

    def _spoken(self, conversation: Conversation, view: View, start: int,
                stop: int) -> list[Record]:
        """The records of messages `start`…`stop`-1 of a view."""
        if start >= stop:
            return []
        unseen = view.unseen
        if start >= unseen:
            return view.spoken[start - unseen:stop - unseen]
        first = self.seq_of(conversation, view, start)
        last = self.seq_of(conversation, view, stop - 1)
        records = self.records(conversation, view, first, last)
        if view.total == view.cursor:
            return records
        return [record for record in records if record.message is not None]

    def backwards(self, conversation: Conversation, view: View, start: int,
                  stop: int) -> Iterator[Record]:
        """The records of messages `stop`-1 down to `start`, in steps that grow from 16."""
        step = 16
        while stop > start:
            if stop > view.unseen:
                low = max(start, view.unseen)
                yield from reversed(view.spoken[low - view.unseen:stop - view.unseen])
            else:
                low = max(start, stop - step)
                step = min(step * 2, CHUNK)
                yield from reversed(self._spoken(conversation, view, low, stop))
            stop = low

    def start_of(self, conversation_id: str, last: int | None, after: int | None,
                 marks: bool) -> tuple[View, int]:
        """A view, and the index of the first item of a read: a message, or with marks a record."""
        conversation = self._lookup(conversation_key(conversation_id))
        if conversation is None:
            return UNKNOWN, 0
        view = conversation.view
        start = 0
        if marks:
            start = min(after or 0, view.cursor)
            if last is not None and view.total > last:
                # As many records as hold the newest `last` messages, and the marks among them.
                first = view.cursor + 1 if last == 0 else \
                    self.seq_of(conversation, view, view.total - last)
                start = max(start, first - 1)
            return view, start
        if after:
            start = self._index_after(conversation, view, after)
        return view, start if last is None else max(start, view.total - last)

    def spoken(self, conversation_id: str, epoch: int, cursor: int, count: int, start: int,
               stop: int) -> list[Record]:
        """Messages `start`…`stop`-1 of the log as it was at `cursor`; `StaleEpoch` if cleared."""
        conversation, view = self.at(conversation_id, epoch)
        if conversation is None or start >= stop:
            return []
        return self._spoken(conversation, view, start, stop)

    def span(self, conversation_id: str, epoch: int, first: int, last: int) -> list[Record]:
        """Records `first`…`last`, marks too; `StaleEpoch` if cleared."""
        conversation, view = self.at(conversation_id, epoch)
        return [] if conversation is None else self.records(conversation, view, first, last)
