"""Addresses that are good in their own process only."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self, SupportsIndex

from .errors import RequestError


class NotPicklable(RequestError, TypeError):
    """An address was to be pickled, say for another process, where it would lead nowhere."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what} cannot be pickled: {instead}", code="not_picklable")


class ProcessBound:
    """Copies of it are itself; pickling it raises NotPicklable, which names the way instead."""

    __slots__ = ()
    _instead_of_pickling: ClassVar[str] = "it belongs to this process"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: Any) -> Self:
        return self

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        raise NotPicklable(repr(self), self._instead_of_pickling)
