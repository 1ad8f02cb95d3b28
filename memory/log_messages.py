"""A log, and what a turn adds to it, as one lazy sequence of messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

from ..stores.message import Message
from ..stores.record import Log, Record

STEP: Final = 64
"""Records read at once, going backwards."""


class LogBefore:
    """A log as it was before record `seq`: lazily, with `systems()` by the log's index."""

    __slots__ = ("_count", "_log", "cursor", "epoch")

    def __init__(self, log: Log, seq: int) -> None:
        low, high = 0, len(log)
        while low < high:
            middle = (low + high) // 2
            if log[middle].seq < seq:
                low = middle + 1
            else:
                high = middle
        self._log = log
        self._count = low
        self.epoch = log.epoch
        self.cursor = min(log.cursor, seq - 1)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Record, ...]: ...
    def __getitem__(self, index: int | slice, /) -> Record | tuple[Record, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step > 0:
                return tuple(self._log[start:stop:step])
            return tuple(self._log[place] for place in range(start, stop, step))
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(f"record {index} of {self._count}")
        return self._log[place]

    def __iter__(self) -> Iterator[Record]:
        for start in range(0, self._count, STEP):
            yield from self[start : start + STEP]

    def __reversed__(self) -> Iterator[Record]:
        for stop in range(self._count, 0, -STEP):
            yield from reversed(self[max(0, stop - STEP) : stop])

    def systems(self) -> tuple[Record, ...]:
        """The records of system messages, in order."""
        return tuple(record for record in self._log.systems() if record.seq <= self.cursor)


class LogMessages(Sequence[Message]):
    """The messages of a `Log` followed by those of `more`: a read-only, lazy sequence.

    Reads of the log only what is touched; what a touch raises is the log's (StaleEpoch,
    StoreUnavailable, CS-23). `systems()` finds the system messages by the log's index.
    """

    __slots__ = ("_log", "_more")

    def __init__(self, log: Log, more: Sequence[Message] = ()) -> None:
        self._log = log
        self._more = tuple(more)

    @property
    def log(self) -> Log:
        """The log itself, for whoever needs seqs, counts or the cursor."""
        return self._log

    @property
    def more(self) -> tuple[Message, ...]:
        """The messages that are not in the log yet."""
        return self._more

    def __len__(self) -> int:
        return len(self._log) + len(self._more)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        stored = len(self._log)
        if isinstance(index, slice):
            start, stop, step = index.indices(stored + len(self._more))
            if step != 1:
                return tuple(self[i] for i in range(start, stop, step))
            front = self._log[start : min(stop, stored)] if start < stored else ()
            back = self._more[max(start - stored, 0) : max(stop - stored, 0)]
            return (*map(_message, front), *back)
        place = index + stored + len(self._more) if index < 0 else index
        if not 0 <= place < stored + len(self._more):
            raise IndexError(f"message {index} of {stored + len(self._more)}")
        return _message(self._log[place]) if place < stored else self._more[place - stored]

    def __iter__(self) -> Iterator[Message]:
        yield from map(_message, self._log)
        yield from self._more

    def __reversed__(self) -> Iterator[Message]:
        yield from reversed(self._more)
        yield from map(_message, reversed(self._log))

    def systems(self) -> tuple[Message, ...]:
        """The system messages, in order."""
        stored = map(_message, self._log.systems())
        return (*stored, *(message for message in self._more if message.role == "system"))


def _message(record: Record) -> Message:
    if record.message is None:  # a log read without marks has none
        raise TypeError(f"record {record.seq} is a pure mark; read the log without marks=True")
    return record.message
