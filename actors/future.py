"""A value that comes later, to await on any event loop or to get in any thread.

No lock is taken to complete a future or to wait for one: under CPython's GIL a statement such as
`claimed, self._claimed = self._claimed, True` is an atomic exchange (the interpreter switches
threads at calls, loops and function entries only), and appending to a list is atomic. Whoever adds
a waiter looks at the state again afterwards, whoever completes looks at the waiters afterwards; at
least one of the two sees the other, and `pop` makes it exactly one that acts.

A loop is woken once for all results that become ready before it runs again: one
`call_soon_threadsafe` per result allows 79,000 a second at most, one per batch several times that.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import queue
import sys
import threading
import time
from _thread import allocate_lock, get_ident
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import pykka

from .clock import limit_of
from .errors import CallTimeout, KeepwellError

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")
M = TypeVar("M")

_PENDING, _VALUE, _ERROR = 0, 1, 2  # false while pending

logger = logging.getLogger("keepwell.actors")


class BlockingOnLoop(KeepwellError, RuntimeError):
    """A blocking call was made on an event-loop thread: every task of that loop would stop."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what} blocks, and this thread runs an event loop: {instead}")


class Waiter(Protocol):
    """How a thread that belongs to a scheduler waits, so that others can go on meanwhile."""

    def wait(self, future: Future[Any], timeout: float | None) -> None: ...


class _Thread(threading.local):
    waiter: Waiter | None = None
    waker: _LoopWaker | None = None
    held: set[_LoopWaker] | None = None


_thread = _Thread()


def set_waiter(waiter: Waiter | None) -> None:
    """Make this thread wait for futures through `waiter` from now on."""
    _thread.waiter = waiter


def refuse_on_loop(what: str, instead: str) -> None:
    """Raise BlockingOnLoop if this thread runs an event loop."""
    if _get_running_loop() is not None:
        raise BlockingOnLoop(what, instead)


class _LoopWaker:
    """Completes asyncio futures of one loop from any thread, waking the loop once a batch."""

    __slots__ = ("_ready", "_scheduled", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: list[asyncio.Future[None]] = []
        self._scheduled = False

    def wake(self, waiter: asyncio.Future[None]) -> None:
        held = _thread.held
        if held is not None:
            self._ready.append(waiter)
            held.add(self)
            return
        if _get_running_loop() is self.loop:
            if not waiter.done():
                waiter.set_result(None)
            return
        self._ready.append(waiter)
        self.schedule()

    def schedule(self) -> None:
        """Have the loop complete what is ready, if that is not on its way already."""
        scheduled, self._scheduled = self._scheduled, True
        if not scheduled:
            try:
                self.loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                self._ready.clear()  # the loop is closed: nobody waits there any more

    def _drain(self) -> None:
        self._scheduled = False  # first, so that whoever appends from here on schedules again
        ready = self._ready
        batch = ready[:]
        del ready[: len(batch)]
        for waiter in batch:
            if not waiter.done():
                waiter.set_result(None)


@contextmanager
def wakes_held() -> Iterator[None]:
    """Wake each event loop once, at the end of the block, for all futures completed in it.

    Waking a loop lets its thread run at once and this one wait for it: a thread that completes many
    futures would be stopped again and again. The block must be short and must not wait.
    """
    if _thread.held is not None:  # the outer block's end is soon enough
        yield
        return
    held = _thread.held = set()
    try:
        yield
    finally:
        _thread.held = None
        for waker in held:
            waker.schedule()


def _waker(loop: asyncio.AbstractEventLoop) -> _LoopWaker:
    waker = _thread.waker
    if waker is None or waker.loop is not loop:
        waker = _thread.waker = _LoopWaker(loop)
    return waker


class Future(pykka.Future[T], Coroutine[Any, Any, T]):
    """A result that is there now or later: `await` it on any loop, or `.get()` it in a thread.

    Works in `gather`, `wait_for`, `shield`, `create_task` and task groups. Cancelling a task that
    awaits it does not withdraw the request, nor does `.get(timeout=…)` running out; a late result
    is then dropped. Also a `pykka.Future`: `map`, `filter`, `join`, `reduce`, `set`,
    `set_get_hook`.
    """

    # Defaults of the class, set in an instance when it needs them: making a future takes half the
    # time that way, and there is one a request.
    _claimed: bool = False
    _state: int = _PENDING
    _value: Any = None
    _waiters: list[Any] | None = None
    _bucket: dict[Future[Any], Any] | None = None
    _get_hook: Callable[[float | None], T] | None = None
    _drivers: dict[object, Generator[Any, None, T]] | None = None
    _abandoned: Callable[[], object] | None = None
    # Called before anybody waits; raises if who waits must not.
    _guard: Callable[[], None] | None = None

    if TYPE_CHECKING:

        def __init__(self) -> None: ...

    else:
        __init__ = object.__init__  # pykka's would fill the instance's dict for nothing

    def __repr__(self) -> str:
        if self._state == _PENDING:
            return f"<{type(self).__name__} pending>"
        value = self._value if self._state == _VALUE else self._value[0]
        return f"<{type(self).__name__} {value!r}>"

    # -- completing ------------------------------------------------------------------------------

    @staticmethod
    def of(value: M) -> Future[M]:
        """Return a future that is done with `value`."""
        future: Future[M] = Future()
        future._claimed = True
        future._value = value
        future._state = _VALUE
        return future

    @staticmethod
    def failed(error: BaseException) -> Future[Any]:
        """Return a future that is done with `error`."""
        future: Future[Any] = Future()
        future.fail(error)
        return future

    def complete(self, value: T) -> bool:
        """Set the value; False (and nothing happens) if the future was done already."""
        claimed, self._claimed = self._claimed, True
        if claimed:
            return False
        self._value = value
        self._state = _VALUE
        if self._bucket is not None:
            self._bucket.pop(self, None)
        if self._waiters is not None:
            self._wake()
        return True

    def fail(self, error: BaseException) -> bool:
        """Set the error; False (and nothing happens) if the future was done already."""
        claimed, self._claimed = self._claimed, True
        if claimed:
            return False
        # The traceback is kept beside it: each raise would otherwise lengthen the error's own.
        self._value = (error, error.__traceback__)
        self._state = _ERROR
        if self._bucket is not None:
            self._bucket.pop(self, None)
        if self._waiters is not None:
            self._wake()
        return True

    def set(self, value: T | None = None) -> None:
        """Set the value. Raises `queue.Full` if the future is done, as pykka's does."""
        if self._get_hook is not None or not self.complete(cast("T", value)):
            raise queue.Full

    def set_exception(
        self,
        exc_info: tuple[type[BaseException] | None, BaseException | None, TracebackType | None]
        | BaseException
        | None = None,
    ) -> None:
        """Set an exception: one given, a pykka `exc_info` triple, or the one being handled.

        Raises `queue.Full` if the future is done.
        """
        if isinstance(exc_info, BaseException):
            error = exc_info
        else:
            kind, given, traceback = sys.exc_info() if exc_info is None else exc_info
            if given is None:
                if kind is None:
                    raise ValueError("set_exception() outside an except block needs an exception")
                given = kind()
            error = given
            if error.__traceback__ is not traceback:
                error = error.with_traceback(traceback)
        if self._get_hook is not None or not self.fail(error):
            raise queue.Full

    def _wake(self) -> None:
        waiters = self._waiters
        while waiters:
            try:
                waiter = waiters.pop(0)
            except IndexError:  # whoever added it saw that the future is done, and took it
                return
            if waiter.__class__ is tuple:
                waiter[0].wake(waiter[1])
                continue
            try:
                waiter(self)
            except Exception:
                logger.exception("a done callback of %r failed", self)

    # -- looking ---------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether the value or the error is there."""
        return self._state != _PENDING

    def error(self) -> BaseException | None:
        """The error of a future that is done and failed, else None. Never waits."""
        return self._value[0] if self._state == _ERROR else None

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Call `callback(self)` once it is done: now, or in the thread that completes it.

        The callback must be quick. What it raises is logged.
        """
        self._add_waiter(callback)

    def on_abandoned(self, callback: Callable[[], object]) -> None:
        """Call `callback()` if the last task that awaits this future is cancelled (CN-2)."""
        self._abandoned = callback

    def _add_waiter(self, waiter: Any) -> None:
        waiters = self._waiters
        if waiters is None:
            with making:
                waiters = self._waiters
                if waiters is None:
                    waiters = self._waiters = []
        waiters.append(waiter)
        if self._state != _PENDING:
            self._wake()

    def _remove_waiter(self, waiter: Any) -> None:
        try:
            (self._waiters or []).remove(waiter)
        except ValueError:
            pass

    # -- waiting ---------------------------------------------------------------------------------

    def get(self, *, timeout: float | None = None) -> T:
        """Wait in this thread for the value. Raises the error if there is one.

        Raises CallTimeout (a `pykka.Timeout`) after `timeout` seconds, which leaves the request
        alone; BlockingOnLoop at once, on an event-loop thread, if it would have to wait.
        """
        if not self._state:
            timeout = limit_of(timeout)
            if self._guard is not None:
                self._guard()
            if self._get_hook is not None:
                return self._get_by_hook(timeout)
            if _get_running_loop() is not None:
                raise BlockingOnLoop("Future.get()", "await the future instead")
            waiter = _thread.waiter
            if waiter is None:
                wait_in_thread(self, timeout)
            else:
                waiter.wait(self, timeout)
            if self._state == _PENDING:
                raise CallTimeout(f"no result within {timeout} seconds")
        if self._state == _VALUE:
            value: T = self._value
            return value
        error, traceback = self._value
        raise error.with_traceback(traceback)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._state:
            if self._guard is not None:
                self._guard()
            loop = asyncio.get_running_loop()
            if self._get_hook is not None:
                yield from loop.run_in_executor(None, self._get_by_hook, None)
            else:
                inner: asyncio.Future[None] = loop.create_future()
                waiter = (_waker(loop), inner)
                self._add_waiter(waiter)
                try:
                    yield from inner
                except asyncio.CancelledError:
                    self._remove_waiter(waiter)
                    self._given_up()
                    raise
        if self._state == _VALUE:
            value: T = self._value
            return value
        error, traceback = self._value
        raise error.with_traceback(traceback)

    __iter__ = __await__

    def _given_up(self) -> None:
        """A task that waited, or was about to, has been cancelled."""
        if self._abandoned is not None and self._state == _PENDING:
            if not any(waiter.__class__ is tuple for waiter in self._waiters or ()):
                self._abandoned()

    # `asyncio.create_task`, task groups and `wait_for` take coroutines only, so a future is one
    # too. Each task that drives it has an iterator of its own.

    def send(self, value: Any, /) -> Any:
        """Drive it one step, as a task does. Part of the coroutine protocol."""
        return self._driver().send(None)

    def throw(self, *error: Any) -> Any:
        """Raise `error` where a task waits for it. Part of the coroutine protocol."""
        task = asyncio.current_task()
        if self._drivers is None or task not in self._drivers:
            # Cancelled before its first step: there is nothing yet that could clean up.
            self._given_up()
            raise error[0] if len(error) == 1 else error[1] or error[0]
        return self._driver().throw(*error)

    def close(self) -> None:
        """Forget the task that drives it. Part of the coroutine protocol."""
        if self._drivers is not None:
            self._drivers.pop(asyncio.current_task() if _get_running_loop() else None, None)

    def _driver(self) -> Generator[Any, None, T]:
        drivers = self._drivers
        if drivers is None:
            drivers = self._drivers = {}
        task = asyncio.current_task()
        driver = drivers.get(task)
        if driver is None:
            driver = drivers[task] = self._drive(task)
        return driver

    def _drive(self, task: object) -> Generator[Any, None, T]:
        try:
            return (yield from self.__await__())
        finally:
            if self._drivers is not None:
                self._drivers.pop(task, None)

    # -- pykka's combinators: computed when first asked for --------------------------------------

    def set_get_hook(self, func: Callable[[float | None], T]) -> None:
        """Compute the value by `func(timeout)` at the first get or await.

        Raises `queue.Full` if the future is done.
        """
        if self._state != _PENDING:
            raise queue.Full
        self._get_hook = func

    def _get_by_hook(self, timeout: float | None) -> T:
        hook = self._get_hook
        assert hook is not None
        value = hook(timeout)
        # Of two threads that compute it at once one sets it, and both return that.
        return value if self.complete(value) else self.get(timeout=timeout)

    def map(self, func: Callable[[T], M]) -> Future[M]:
        """Return a future of `func(value)`."""
        return _derived([self], lambda values: func(values[0]))

    def filter(
        self: Future[Iterable[Any]], func: Callable[[Any], bool]
    ) -> Future[Iterable[Any]]:
        """Return a future of the list of those items for which `func(item)` is true."""
        return _derived([self], lambda values: list(filter(func, values[0])))

    def join(self, *futures: pykka.Future[Any]) -> Future[Iterable[Any]]:
        """Return a future of the list of the values of this one and `futures`, in this order."""
        return _derived([self, *futures], list)

    def reduce(
        self: Future[Iterable[Any]], func: Callable[[Any, Any], Any], *args: Any
    ) -> Future[Any]:
        """Return a future of the items folded by `func`, from `args[0]` if it is given."""
        return _derived([self], lambda values: functools.reduce(func, values[0], *args))


def _derived(
    sources: list[pykka.Future[Any]], compute: Callable[[list[Any]], M]
) -> Future[M]:
    from .derived import Derived  # its base is here

    return Derived.make(sources, compute)


making = allocate_lock()


def _wait_in_main_thread(lock: Any, timeout: float | None) -> None:
    """Wait in slices: a Ctrl+C that comes just before a wait begins does not interrupt it (F59).

    CPython notes the signal and acts on it when the wait is over; a wait without a limit is not.
    """
    if timeout is None:
        while not lock.acquire(True, _SLICE):
            pass
        return
    end = time.monotonic() + max(timeout, 0.0)
    while not lock.acquire(True, min(max(end - time.monotonic(), 0.0), _SLICE)):
        if time.monotonic() >= end:
            return


_SLICE: Final = 0.5


def wait_in_thread(future: Future[Any], timeout: float | None) -> None:
    """Block this thread until the future is done or `timeout` seconds have passed."""
    lock = allocate_lock()
    lock.acquire()

    def release(_: object) -> None:
        lock.release()

    future._add_waiter(release)
    try:
        if get_ident() == threading.main_thread().ident:
            _wait_in_main_thread(lock, timeout)
        else:
            limit = -1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
            lock.acquire(True, limit)
    finally:
        if not future.done():
            future._remove_waiter(release)
