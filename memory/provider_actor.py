"""The provider actor: a lane per conversation.

Over one of our stores the lane is a light thing. An append has left it as soon as the store has it
in its queue, because stores commit in mailbox order; the actor is called in place, and answers with
the store's own future. Only `history` waits, for the lane's last outstanding append: with the
stores' commit before acknowledgement this is read-your-writes (RW-1).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ..actors.async_actor import AsyncActor
from ..actors.errors import CallTimeout, KeepwellError, RequestError, Unavailable
from ..actors.failpoint import failpoint
from ..actors.future import Future
from ..stores.store import Store
from .call_threads import call_threads
from .foreign_store import ForeignStore
from .given_messages import given_history
from .provider import CALL_SECONDS, Append, Clear, History, Position, Prepare, ProviderError
from .provider_home import ProviderHome, chain

logger = logging.getLogger("keepwell.memory")

MOST_OUTSTANDING: Final = 1024
"""Conversations whose last append is remembered before those are looked for that are committed."""


class StoreProviderActor(AsyncActor):
    """The provider actor over one of our stores; answers with the store's own futures."""

    def __init__(self, home: ProviderHome, store: Any) -> None:
        super().__init__()
        self._home = home
        self._store: Any = store if isinstance(store, Store) else ForeignStore(store)
        # Our stores do not ask who calls them; foreign code may.
        self._context_free = isinstance(store, Store)
        # A foreign store has none: its log must be read.
        self._position_of: Callable[[str], tuple[int, int] | None] | None = getattr(
            self._store, "position", None
        )
        # The last append of each conversation that may not be committed yet. Those that are go out
        # when there are many: a callback for each append would cost more than all else here.
        self._outstanding: dict[str, Future[Any]] = {}
        self._most = MOST_OUTSTANDING

    def on_start(self) -> None:
        self._home.moved_in(self.actor_ref, in_place=True)

    def on_receive(self, message: Any) -> Any:
        kind = message.__class__
        try:
            if kind is Append:
                return self._append(message)
            if kind is Position:
                return self._position(message.conversation_id)
            if kind is History:
                return self._history(message)
            if kind is Clear:
                return self._store.clear(message.conversation_id)
        except KeepwellError as error:  # a refusal is the asker's; anything else is a crash
            return Future.failed(error)
        return super().on_receive(message)

    def _append(self, message: Append) -> Future[Any]:
        failpoint("provider.append")
        conversation_id = message.conversation_id
        future: Future[Any] = self._store.add(
            conversation_id, message.records, append_id=message.append_id,
            follows=message.follows, epoch=message.epoch, cursor=message.cursor,
        )  # fmt: skip
        if not future.done():
            outstanding = self._outstanding
            outstanding[conversation_id] = future
            if len(outstanding) > self._most:
                self._drop_committed()
        return future

    def _position(self, conversation_id: str) -> tuple[int, int] | None:
        last = self._outstanding.get(conversation_id)
        if self._position_of is None or not (last is None or last.done()):
            return None
        return self._position_of(conversation_id)

    def _history(self, message: History) -> Future[Any]:
        failpoint("provider.history")
        last = self._outstanding.get(message.conversation_id)
        if last is None or last.done():
            return self._read(message)
        read: Future[Any] = Future()
        last.add_done_callback(lambda _: self._read_into(message, read))
        return read

    def _read(self, message: History) -> Future[Any]:
        log: Future[Any] = self._store.read(
            message.conversation_id, after=message.after, marks=message.marks
        )
        return log

    def _read_into(self, message: History, read: Future[Any]) -> None:
        try:
            chain(self._read(message), read)
        except Exception as error:
            read.fail(error)

    def _drop_committed(self) -> None:
        left = {name: last for name, last in self._outstanding.items() if not last.done()}
        self._outstanding, self._most = left, 2 * len(left) + MOST_OUTSTANDING


class ProviderActor(AsyncActor):
    """The provider actor over custom code: one lane per conversation, each call awaited."""

    def __init__(self, home: ProviderHome, provider: Any) -> None:
        super().__init__()
        self._home = home
        self._provider = provider
        self._journal = bool(getattr(provider, "journal", False))
        self._lanes: dict[str, deque[tuple[Any, Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepts = {
            name: accepts(provider.append, name)
            for name in ("append_id", "follows", "epoch", "cursor")
        }
        self._history_options = [
            name for name in ("marks", "after") if accepts(provider.history, name)
        ]
        missing = [name for name in ("append_id", "epoch") if not self._accepts[name]]
        if missing:
            logger.warning(
                "memory provider %r: append() takes no %s; replayed appends may be stored twice, "
                "late writes may pass a clear", provider, " and no ".join(missing),
            )  # fmt: skip

    def on_start(self) -> None:
        ref: Any = self.actor_ref
        ref.on_exit(self._ended)
        self._home.moved_in(self.actor_ref)

    def _ended(self, _reason: object) -> None:
        for task in list(self._tasks):
            task.get_loop().call_soon_threadsafe(task.cancel)

    def on_receive(self, message: Any) -> Any:
        if not isinstance(message, History | Append | Prepare | Clear):
            return super().on_receive(message)
        request = self.defer()
        lane = self._lanes.get(message.conversation_id)
        if lane is not None:
            lane.append((message, request))
            return None
        lane = self._lanes[message.conversation_id] = deque([(message, request)])
        task = asyncio.get_running_loop().create_task(self._serve(message.conversation_id, lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _serve(self, conversation_id: str, lane: deque[tuple[Any, Any]]) -> None:
        while lane:
            message, request = lane.popleft()
            scope = asyncio.timeout(CALL_SECONDS)
            try:
                async with scope:
                    request.reply(await self._call(message))
            except BaseException as error:  # noqa: BLE001 - PV-7: foreign code, that asker only
                task = asyncio.current_task()
                if scope.expired():
                    late = f"the memory provider did not answer within {CALL_SECONDS:g} s"
                    request.fail(CallTimeout(late))
                elif task is not None and task.cancelling():
                    raise  # the actor has ended
                else:
                    request.fail(_provider_error(message, error))
        del self._lanes[conversation_id]

    async def _call(self, message: Any) -> Any:
        provider = self._provider
        match message:
            case History(conversation_id):
                wanted = {name: getattr(message, name) for name in self._history_options}
                given = await _run(provider.history, conversation_id, **wanted)
                return given_history(given, conversation_id, journal=self._journal)
            case Prepare(conversation_id, messages):
                return await _run(provider.prepare, conversation_id, messages)
            case Clear(conversation_id):
                return await _run(provider.clear, conversation_id)
        options = {
            name: getattr(message, name)
            for name, accepted in self._accepts.items()
            if accepted and getattr(message, name) is not None
        }
        return await _run(provider.append, message.conversation_id, message.records, **options)


async def _run(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if inspect.iscoroutinefunction(method):
        return await method(*args, **kwargs)
    value = await call_threads().run(partial(method, *args, **kwargs))
    return await value if inspect.isawaitable(value) else value


def accepts(method: Callable[..., Any], name: str) -> bool:
    """Whether a provider's method takes the keyword `name`."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _provider_error(message: Any, error: BaseException) -> BaseException:
    if isinstance(error, RequestError | Unavailable | ProviderError):
        return error
    wrapped = ProviderError(
        type(message).__name__.lower(), message.conversation_id,
        f"raised {type(error).__name__}: {error}",
    )  # fmt: skip
    wrapped.__cause__ = error
    return wrapped
