"""The client's side of a store: a name that outlives its incarnations (SH-1…3)."""

from __future__ import annotations

import itertools
import os
import secrets
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ..actors.errors import InvalidValue
from ..actors.future import Future
from ..actors.process_bound import ProcessBound
from .contract import ALL, NewMessage
from .conversation_id import conversation_key
from .engine import Engine, LongRead
from .errors import StoreUnavailable, shown
from .log import LazyLog
from .message import Message, settled
from .port import TIMEOUT, Port, port_of
from .record import Appended, ConversationInfo, Log, Tail
from .request import Append, Clear, check_range, is_large

if TYPE_CHECKING:
    from ..actors.system import ActorSystem

LONG_READ = 2000
"""Records that an event loop's thread decodes by itself; longer reads run in a thread."""

_encoders: list[ThreadPoolExecutor] = []


def _encoder() -> ThreadPoolExecutor:
    if not _encoders:
        _encoders.append(ThreadPoolExecutor(2, thread_name_prefix="keepwell-encode"))
    return _encoders[0]


def _run(work: Callable[[], Any]) -> Future[Any]:
    """Run `work` in a thread; the future gets what it returns or raises."""
    future: Future[Any] = Future()

    def task() -> None:
        try:
            answer = work()
        except BaseException as problem:
            future.fail(problem)
        else:
            future.complete(answer)

    _encoder().submit(task)
    return future


def _after_fork() -> None:
    _encoders.clear()  # its threads are the parent's


os.register_at_fork(after_in_child=_after_fork)


class StoreHandle(ProcessBound):
    """A store by name; passes requests on to whichever incarnation is running.

    Operations are those of `ConversationStore`; each returns a Future to await or `.get()`. While
    the store restarts, reads wait and appends are sent again under one append id, made if none was
    given; after `timeout` seconds they end with `StoreUnavailable`, which holds the append id. A
    request that was in flight in two crashes is not sent a third time.

    Bad arguments are refused through the future, before anything is sent. Encoding and token
    counting are done here, in the caller; for large contents, in a thread.
    """

    capabilities: frozenset[str] = ALL
    _instead_of_pickling = (
        "one process owns a store. Another one may read it: DiskStore(path, readonly=True)"
    )

    def __init__(self, store: str | Port, *, timeout: float = TIMEOUT,
                 system: ActorSystem | None = None) -> None:
        if isinstance(store, str):
            store = port_of(store, system)
        self.port = store
        self.timeout = timeout
        # Append ids that are made here: a random name of this handle, and a count.
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        # Appends that wait until one before them in their conversation is encoded (in a thread).
        self._behind: dict[str, deque[Callable[[], None]]] = {}

    @property
    def name(self) -> str:
        """The store's name."""
        return self.port.name

    # -- writing ----------------------------------------------------------------------------------

    def add(self, conversation_id: str, messages: Iterable[NewMessage], *,
            append_id: str | None = None, follows: str | None = None, epoch: int | None = None,
            cursor: int | None = None) -> Future[Appended]:
        """Append a batch of messages (or `NewRecord`s), whole or not at all.

        The future gets `Appended` after the commit. Raises through it `InvalidMessage`,
        `InvalidConversationId`, `InvalidValue`, `StaleEpoch`, `AppendConflict`,
        `PredecessorMissing`, `CursorConflict` (checked in this order; nothing written), `DiskFull`,
        `ReadOnlyStore` (nothing written), `StoreUnavailable` (unknown: add again under its append
        id). Rules: CS-4, CS-10…18.
        """
        if append_id is None:
            append_id = f"{self._prefix}{next(self._numbers):012x}"
        port = self.port
        # A small list with nothing before it, as nearly all are, need not ask for the loop, which
        # is a system call on 3.11.
        ready = port.counting and type(messages) is list and not self._behind
        if not (ready and not is_large(messages)) and (
            _get_running_loop() is not None or self._behind
        ):
            if type(messages) is not list:
                messages = settled(messages)
            if not port.counting or is_large(messages) or self._is_behind(conversation_id):
                return self._add_later(conversation_id, messages, append_id, follows, epoch, cursor)
        try:
            request = Append(conversation_id, messages, append_id=append_id, follows=follows,
                             epoch=epoch, cursor=cursor, counter=port.counter(),
                             max_message_bytes=port.max_message_bytes)
        except InvalidValue as refusal:
            return Future.failed(refusal)
        port.counting = True
        return port.submit(request, self.timeout)

    def _is_behind(self, conversation_id: object) -> bool:
        return isinstance(conversation_id, str) and conversation_id in self._behind

    def _add_later(self, conversation_id: str, messages: Any, append_id: str, follows: str | None,
                   epoch: int | None, cursor: int | None) -> Future[Appended]:
        """Encode and count in a thread; appends to the same conversation stay in order."""
        answer: Future[Appended] = Future()
        port = self.port

        def encode() -> Append:
            return Append(conversation_id, messages, append_id=append_id, follows=follows,
                          epoch=epoch, cursor=cursor, counter=port.counter(),
                          max_message_bytes=port.max_message_bytes)

        def begin() -> None:
            _run(encode).add_done_callback(send)

        def send(encoded: Future[Append]) -> None:
            port.counting = True
            refusal = encoded.error()
            if refusal is not None:
                answer.fail(refusal)
            else:
                port.submit(encoded.get(), self.timeout).add_done_callback(partial(pass_on, answer))
            with port.lock:
                line = self._behind[conversation_id]
                line.popleft()
                following = line[0] if line else None
                if following is None:
                    del self._behind[conversation_id]
            if following is not None:
                following()

        try:
            conversation_key(conversation_id)
        except InvalidValue as problem:
            return Future.failed(problem)
        with port.lock:
            line = self._behind.setdefault(conversation_id, deque())
            line.append(begin)
            first = len(line) == 1
        if first:
            begin()
        return answer

    def clear(self, conversation_id: str) -> Future[None]:
        """Empty a conversation and raise its epoch; instant for any length (CS-6)."""
        try:
            request = Clear(conversation_id)
        except InvalidValue as refusal:
            return Future.failed(refusal)
        return self.port.submit(request, self.timeout)

    def sync(self) -> Future[None]:
        """Flush what was committed; it matters with durability "process" only (DS-4)."""
        return self._aside(Engine.sync)

    # -- reading ----------------------------------------------------------------------------------

    def get(self, conversation_id: str, *, last: int | None = None,
            after: int | None = None) -> Future[tuple[Message, ...]]:
        """The messages in log order: all, the newest `last`, those after seq `after` (CS-1…3)."""
        port = self.port
        most = None if _get_running_loop() is None else LONG_READ
        engine = port.engine
        if engine is not None and port.is_mine():
            try:
                return Future.of(engine.get(conversation_id, last, after, most))
            except LongRead:
                return self._aside(lambda engine: engine.get(conversation_id, last, after))
            except StoreUnavailable:
                pass  # closed under our hands: wait for the next incarnation
            except Exception as problem:
                return Future.failed(problem)
        return port.read(lambda engine: engine.get(conversation_id, last, after), self.timeout)

    def read(self, conversation_id: str, *, last: int | None = None, after: int | None = None,
             marks: bool = False) -> Future[Log]:
        """The log, lazily, fixed at its (epoch, cursor); with `marks` pure marks too (CS-23)."""
        port = self.port
        engine = port.engine
        if engine is not None and port.is_mine():
            try:
                if last is not None or after is not None:
                    check_range(last, after)
                return Future.of(LazyLog.of(engine, port.table, conversation_id, last, after,
                                            marks))
            except StoreUnavailable:
                pass  # closed under our hands: wait for the next incarnation
            except Exception as problem:
                return Future.failed(problem)

        def work(engine: Engine) -> LazyLog:
            check_range(last, after)
            return LazyLog.of(engine, port.table, conversation_id, last, after, marks)

        return port.read(work, self.timeout)

    def position(self, conversation_id: str) -> tuple[int, int] | None:
        """(epoch, cursor) of what is committed, at once; None if there is no table to ask now."""
        port = self.port
        engine = port.engine
        if engine is None or not port.is_mine():
            return None
        try:
            view = engine.view(conversation_id)
        except StoreUnavailable:
            return None  # closed under our hands
        return view.epoch, view.cursor

    def tail_within(self, conversation_id: str, max_tokens: int) -> Future[Tail]:
        """The newest records whose tokens fit, reading only what it returns (CS-20)."""
        return self.port.read(lambda engine: engine.tail_within(conversation_id, max_tokens),
                              self.timeout)

    def info(self, conversation_id: str) -> Future[ConversationInfo]:
        """Cursor, epoch, counts and times; an unknown id gives zeros and `exists` False."""
        return self.port.read(lambda engine: engine.info(conversation_id), self.timeout)

    def conversations(self, *, prefix: str = "", after: str | None = None,
                      limit: int = 100) -> Future[tuple[ConversationInfo, ...]]:
        """A page of the non-empty conversations, in the order of their ids' bytes (CS-19)."""
        return self.port.read(lambda engine: engine.conversations(prefix=prefix, after=after,
                                                                  limit=limit), self.timeout)

    def open_turns(self, *, after: str | None = None,
                   limit: int = 100) -> Future[tuple[str, ...]]:
        """A page of the ids of conversations whose newest turn has not ended, as `conversations`.

        By an index that is kept in the commits of the log: costs in proportion to what it finds.
        Rule: FL-3.
        """
        return self.port.read(lambda engine: engine.open_turns(after, limit), self.timeout)

    def _aside(self, work: Callable[[Engine], Any]) -> Future[Any]:
        """Run long work on the table in a thread; again, if the table is closed meanwhile."""
        answer: Future[Any] = Future()

        def start(found: Future[Engine]) -> None:
            if found.error() is not None:
                pass_on(answer, found)
            else:
                engine = found.get()
                _run(lambda: work(engine)).add_done_callback(end)

        def end(done: Future[Any]) -> None:
            if isinstance(done.error(), StoreUnavailable):
                again()
            else:
                pass_on(answer, done)

        def again() -> None:
            self.port.read(lambda engine: engine.ready(), self.timeout).add_done_callback(start)

        again()
        return answer

    def statistics(self) -> dict[str, Any]:
        """Figures for operators: what waits, how often the store went down, what is in memory."""
        port = self.port
        engine = port.engine
        return {"name": port.name, "running": engine is not None, "waiting": len(port.queue),
                "in_flight": len(port.taken), "crashes": port.crashes,
                **({} if engine is None else engine.statistics())}

    def __repr__(self) -> str:
        return f"<StoreHandle {shown(self.name)}>"


def pass_on(answer: Future[Any], done: Future[Any]) -> None:
    """Complete `answer` as `done` was."""
    error = done.error()
    if error is None:
        answer.complete(done.get())
    else:
        answer.fail(error)
