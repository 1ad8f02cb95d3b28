"""The lazy log that `read` gives (CS-23)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import overload

from .conversation import View
from .engine import CHUNK, Engine
from .message import Message
from .record import Record


class LazyLog:
    """A read-only sequence of records, fixed at one (epoch, cursor); reads only what it touches.

    It holds no transaction and no lock: each touch asks `engine()` for the table (which raises
    `StoreUnavailable` while there is none, and never waits), checks that the epoch is still the
    same (`StaleEpoch`), and reads what it needs. Items are those with a message, or with `marks`
    all records.
    """

    __slots__ = ("_count", "_engine", "_start", "conversation_id", "cursor", "epoch", "marks")

    def __init__(self, engine: Callable[[], Engine], conversation_id: str, view: View, start: int,
                 marks: bool) -> None:
        self._engine = engine
        self.conversation_id = conversation_id
        self.epoch, self.cursor = view.epoch, view.cursor
        self.marks = marks
        # Items are numbered like messages (or, with marks, like records) of the whole log.
        self._start = start
        self._count = (view.cursor if marks else view.total)

    @classmethod
    def of(cls, engine: Engine, source: Callable[[], Engine], conversation_id: str,
           last: int | None, after: int | None, marks: bool) -> LazyLog:
        """The log as `engine` has it now; later touches go through `source`."""
        view, start = engine.start_of(conversation_id, last, after, marks)
        return cls(source, conversation_id, view, start, marks)

    def __len__(self) -> int:
        return max(0, self._count - self._start)

    @overload
    def __getitem__(self, index: int, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Record, ...]: ...
    def __getitem__(self, index: int | slice, /) -> Record | tuple[Record, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step > 0:
                return tuple(self._range(start, stop)[::step])
            places = range(start, stop, step)
            return tuple(self._range(places[-1], start + 1)[::step]) if places else ()
        size = len(self)
        place = operator.index(index)
        place += size if place < 0 else 0
        if not 0 <= place < size:
            raise IndexError(f"log index {index} out of range: it has {size} records")
        return self._range(place, place + 1)[0]

    def __iter__(self) -> Iterator[Record]:
        for start in range(0, len(self), CHUNK):
            yield from self._range(start, min(start + CHUNK, len(self)))

    def __reversed__(self) -> Iterator[Record]:
        stop, step = len(self), 16
        while stop > 0:
            start = max(0, stop - step)
            yield from reversed(self._range(start, stop))
            stop, step = start, min(2 * step, CHUNK)

    def __contains__(self, item: object) -> bool:
        return any(record == item for record in self)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of the log; reads all of it."""
        return tuple(record.message for record in self if record.message is not None)

    def systems(self) -> tuple[Record, ...]:
        """The records of system messages of this log, in order, found by an index."""
        found = self._engine().system_records(self.conversation_id, self.epoch, self.cursor)
        if not self._start or not found:
            return found
        first = self[0].seq if len(self) else self.cursor + 1
        return tuple(record for record in found if record.seq >= first)

    def _range(self, start: int, stop: int) -> list[Record]:
        engine = self._engine()
        if start >= stop:
            engine.at(self.conversation_id, self.epoch)
            return []
        low, high = start + self._start, stop + self._start
        if self.marks:
            return engine.span(self.conversation_id, self.epoch, low + 1, high)
        return engine.spoken(self.conversation_id, self.epoch, self.cursor, self._count, low, high)

    def __repr__(self) -> str:
        return (f"<Log of {self.conversation_id!r}: {len(self)} records at cursor {self.cursor}, "
                f"epoch {self.epoch}>")
