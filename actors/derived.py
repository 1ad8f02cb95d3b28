"""Futures of what is made from the values of other futures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import pykka

from .future import Future, making

T = TypeVar("T")
M = TypeVar("M")


def then(future: Future[Any], make: Callable[[Any], T]) -> Future[T]:
    """Return a future of `make(value)`, made in the thread that completes `future`, or now.

    It fails with the error of `future`, or with what `make` raises.
    """
    result: Future[T] = Future()

    def arrived(done: Future[Any]) -> None:
        error = done.error()
        if error is not None:
            result.fail(error)
            return
        try:
            value = make(done.get())
        except BaseException as problem:
            result.fail(problem)
        else:
            result.complete(value)

    future.add_done_callback(arrived)
    return result


class Derived(Future[T]):
    """The result of a function of other futures' values, computed when it is first asked for.

    Asked for is: got, awaited, or given a done callback. A callback has it computed in the thread
    that completes the last of the other futures.
    """

    _sources: list[pykka.Future[Any]]
    _compute: Callable[[list[Any]], T]
    _pushed = False
    _fetched: frozenset[int] = frozenset()

    @classmethod
    def make(
        cls, sources: list[pykka.Future[Any]], compute: Callable[[list[Any]], M]
    ) -> Derived[M]:
        future: Derived[M] = Derived()
        future._sources, future._compute = sources, compute
        future._get_hook = future._from_sources
        return future

    def _from_sources(self, timeout: float | None) -> T:
        return self._compute([source.get(timeout=timeout) for source in self._sources])

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            values = []
            for source in self._sources:
                if isinstance(source, Future):
                    value = yield from source.__await__()
                else:  # a plain one of pykka's blocks whoever awaits it
                    loop = asyncio.get_running_loop()
                    value = yield from loop.run_in_executor(None, source.get)
                values.append(value)
            if not self.done():
                self.complete(self._compute(values))
        return (yield from super().__await__())

    __iter__ = __await__

    def _add_waiter(self, waiter: Any) -> None:
        super()._add_waiter(waiter)
        pushed, self._pushed = self._pushed, True
        if pushed or self.done():
            return
        for source in self._sources:
            if isinstance(source, Future):
                source._add_waiter(self._arrived)
            else:
                name = "keepwell-future"
                threading.Thread(target=self._fetch, args=(source,), name=name, daemon=True).start()

    def _fetch(self, source: pykka.Future[Any]) -> None:
        try:
            source.get()
        except BaseException:
            pass  # found again where the result is computed
        with making:
            self._fetched |= {id(source)}
        self._arrived(source)

    def _arrived(self, _: object) -> None:
        for source in self._sources:
            if not (source.done() if isinstance(source, Future) else id(source) in self._fetched):
                return
        try:
            value = self._from_sources(None)
        except BaseException as error:
            self.fail(error)
        else:
            self.complete(value)
