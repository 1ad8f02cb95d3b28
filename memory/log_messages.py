"""A log, and what a turn adds to it, as one lazy sequence of messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from ..stores.message import Message
from ..stores.record import Log, Record


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
