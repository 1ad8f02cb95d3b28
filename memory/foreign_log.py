"""A log that foreign code reads lazily: whatever its touches raise is a typed error (PV-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, overload

from ..actors.errors import KeepwellError
from ..stores.log import LazyLog
from ..stores.record import Record
from ..stores.simple_store import LoadedLog

_FIELDS = ("seq", "message", "turn_id", "mark")

Fault = Callable[[str], KeepwellError]
"""The error for what went wrong, in words."""


def guarded(log: Any, fault: Fault) -> Any:
    """The log itself if it is one of ours, else one whose touches raise `fault(…)`.

    Whoever reads it, an agent say, is then told whose code is to be mended, and does not crash.
    KeepwellErrors pass as they are.
    """
    return log if isinstance(log, LazyLog | LoadedLog | ForeignLog) else ForeignLog(log, fault)


class ForeignLog:
    """A `Log` in front of one that is not ours; what that lacks of a log is a fault, too."""

    def __init__(self, log: Any, fault: Fault) -> None:
        self._log = log
        self._fault = fault

    @property
    def cursor(self) -> int:
        """See Log."""
        cursor: int = self._try(lambda log: log.cursor)
        return cursor

    @property
    def epoch(self) -> int:
        """See Log."""
        epoch: int = self._try(lambda log: log.epoch)
        return epoch

    def __len__(self) -> int:
        return int(self._try(len))

    @overload
    def __getitem__(self, index: int, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Record, ...]: ...
    def __getitem__(self, index: int | slice, /) -> Record | tuple[Record, ...]:
        if isinstance(index, slice):
            return tuple(map(self._record, self._try(lambda log: tuple(log[index]))))
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"record {index} of {size}")
        return self._record(self._try(lambda log: log[index]))

    def __iter__(self) -> Iterator[Record]:
        return self._each(iter)

    def __reversed__(self) -> Iterator[Record]:
        return self._each(reversed)

    def systems(self) -> tuple[Record, ...]:
        """See Log."""
        return tuple(map(self._record, self._try(lambda log: tuple(log.systems()))))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)  # what it has beside

    def _each(self, walk: Callable[[Any], Iterator[Any]]) -> Iterator[Record]:
        records = self._try(walk)
        end = object()
        while (record := self._try(lambda _: next(records, end))) is not end:
            yield self._record(record)

    def _try(self, touch: Callable[[Any], Any]) -> Any:
        try:
            return touch(self._log)
        except KeepwellError:
            raise
        except BaseException as error:  # a touch awaits nothing: whatever it raises is the log's
            raise self._fault(f"raised {type(error).__name__}: {error}") from error

    def _record(self, record: Any) -> Record:
        if type(record) is not Record:
            missing = [name for name in _FIELDS if not hasattr(record, name)]
            if missing:
                what = type(record).__name__
                raise self._fault(f"gave {what}, no record: it has no {missing[0]}")
        found: Record = record
        return found
