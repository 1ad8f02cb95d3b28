"""A sequence of turns in two parts, each turn made when it is touched, and only then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, overload

from .turn import Turn

T = TypeVar("T")


class LazyTurns(Sequence[Turn], Generic[T]):
    """What `_of_first` makes of the items of `first`, then what `_of_more` makes of `more`.

    Nothing is kept: a turn that is touched twice is made twice.
    """

    def __init__(self, first: Sequence[T], more: Sequence[Turn] = ()) -> None:
        self._first = first
        self._more = list(more)

    def _of_first(self, item: T) -> Turn:
        raise NotImplementedError

    def _of_more(self, turn: Turn) -> Turn:
        return turn

    def __len__(self) -> int:
        return len(self._first) + len(self._more)

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> list[Turn]: ...
    def __getitem__(self, index: int | slice) -> Turn | list[Turn]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"turn {index} of {len(self)}")
        size = len(self._first)
        if place < size:
            return self._of_first(self._first[place])
        return self._of_more(self._more[place - size])

    def __iter__(self) -> Iterator[Turn]:
        yield from map(self._of_first, self._first)
        yield from map(self._of_more, self._more)

    def __reversed__(self) -> Iterator[Turn]:
        yield from map(self._of_more, reversed(self._more))
        yield from map(self._of_first, reversed(self._first))
