"""A conversation in memory: its head, and the hot tail of its log.

The owner's thread publishes; readers in any thread look. What a reader needs stands in one
immutable `View`, replaced as a whole, so a reader takes no lock. The lists inside a view only ever
grow at their end: an older view looks at a shorter part of the same lists. A tail that is cut or
filled up from disk gets new lists.

Invariant: the tail always ends at the head. Records beyond `stored` exist in memory and in the
batch log only, and are never evicted.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from .message import Message
from .record import ConversationInfo, Record

if TYPE_CHECKING:
    from .request import Append

# The way past the named tuples' own constructors, which take twice as long.
_tuple: Any = tuple.__new__

RECORD_OVERHEAD = 600
"""Bytes that a decoded record takes beside its text; an estimate for the cache's bound."""

EPOCH_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def moment(micros: int) -> datetime:
    """Microseconds since 1970 as an aware UTC datetime; exact."""
    return EPOCH_TIME + timedelta(microseconds=micros)


class View(NamedTuple):
    """One state of a conversation, for readers; `total` counts its messages.

    `records` are those with seqs `base`…`cursor`, `spoken` those of them with a message, and
    `unseen` messages are older than the tail; `messages` are those of `spoken`, `systems` the
    records of system messages among them. The lists may be longer than the view: cut them.
    """

    epoch: int
    cursor: int
    total: int
    tokens: int
    base: int
    unseen: int
    records: list[Record]
    spoken: list[Record]
    messages: list[Message]
    systems: list[Record]
    created: int
    updated: int


def empty_view(epoch: int = 0) -> View:
    """The view of a conversation without records."""
    return View(epoch, 0, 0, 0, 1, 0, [], [], [], [], 0, 0)


UNKNOWN = empty_view()


class Conversation:
    """The owner's side: the view and what only the owner needs.

    `number` is the short name of the conversation in row keys, `stored` the seq up to which rows
    are in the table, `size` the estimated bytes of the tail, `used` the cache's reference bit.
    """

    __slots__ = ("conversation_id", "dirty", "key", "number", "size", "stored", "used", "view")

    def __init__(self, conversation_id: str, key: bytes, number: int, view: View) -> None:
        self.conversation_id = conversation_id
        self.key = key
        self.number = number
        self.view = view
        self.stored = view.cursor
        self.size = 0
        self.used = True
        self.dirty = False

    def extend(self, request: Append, seq: int, at: datetime, micros: int) -> int:
        """Publish an append's records, which follow the head, from `seq` on; `at` is `micros`.

        Returns by how many bytes the tail has grown.
        """
        (epoch, _, total, tokens, base, unseen, records, spoken, messages, systems,
         created, _) = self.view
        counter = request.counter
        for message, turn_id, mark, _, _, count in request.parts:
            record = _tuple(Record, (seq, message, turn_id, count, counter, at, mark))
            seq += 1
            records.append(record)
            if message is not None:
                spoken.append(record)
                messages.append(message)
                total += 1
                if message.role == "system":
                    systems.append(record)
        self.view = _tuple(View, (epoch, seq - 1, total, tokens + request.tokens, base, unseen,
                                  records, spoken, messages, systems, created or micros, micros))
        grown = request.size + RECORD_OVERHEAD * len(request.parts)
        self.size += grown
        return grown

    def reset(self, epoch: int) -> None:
        """Publish a clear."""
        self.view = empty_view(epoch)
        self.stored = 0
        self.size = 0

    def cut(self, keep: int) -> None:
        """Drop the tail down to its newest `keep` records, or to what is not in the table yet."""
        view = self.view
        have = view.cursor - view.base + 1
        keep = max(keep, view.cursor - self.stored)
        if keep >= have:
            return
        records = view.records[have - keep:have]
        self.size = self.size * keep // have
        self._replace(view.cursor - keep + 1, records)

    def fill(self, first: int, records: list[Record], size: int) -> None:
        """Put records `first`… that end where the tail begins in front of it."""
        view = self.view
        if first + len(records) != view.base:
            return
        self.size += size + RECORD_OVERHEAD * len(records)
        self._replace(first, records + view.records[:view.cursor - view.base + 1])

    def _replace(self, base: int, records: list[Record]) -> None:
        view = self.view
        spoken = [record for record in records if record.message is not None]
        messages = [record.message for record in spoken if record.message is not None]
        self.view = view._replace(base=base, unseen=view.total - len(spoken), records=records,
                                  spoken=spoken, messages=messages,
                                  systems=[record for record in spoken
                                           if record.message is not None
                                           and record.message.role == "system"])

    def info(self) -> ConversationInfo:
        """What `info` and `conversations` show."""
        return info_of(self.conversation_id, self.view)


def info_of(conversation_id: str, view: View) -> ConversationInfo:
    """A view as `ConversationInfo`."""
    return ConversationInfo(conversation_id, view.cursor, view.epoch, view.total, view.tokens,
                            moment(view.created) if view.cursor else None,
                            moment(view.updated) if view.cursor else None)

