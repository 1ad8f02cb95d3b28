"""Any object with `get`, `add` and `clear` as a conversation store (CS-22)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, overload

from ..actors.context import current_system
from ..actors.errors import InvalidValue, KeepwellError, RequestError
from ..actors.future import Future
from .contract import TOKENS, NewMessage
from .conversation import EPOCH_TIME
from .conversation_id import conversation_key
from .errors import InvalidMessage, StoreError, shown
from .message import Message, batch
from .record import Appended, ConversationInfo, NewRecord, Record, Tail
from .request import check_range
from .token_counter import TokenCounter, default_counter


class LoadedLog:
    """A log that was read as a whole; foreign stores give it (CS-23)."""

    epoch = 0

    def __init__(self, records: Iterable[Record], cursor: int) -> None:
        self._records = tuple(records)
        self.cursor = cursor

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Record, ...]: ...
    def __getitem__(self, index: int | slice, /) -> Record | tuple[Record, ...]:
        return self._records[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __reversed__(self) -> Iterator[Record]:
        records: Iterator[Record] = reversed(self._records)
        return records

    def systems(self) -> tuple[Record, ...]:
        """The records of system messages, in order."""
        return tuple(record for record in self._records
                     if record.message is not None and record.message.role == "system")


class SimpleStore:
    """Makes a conversation store of an object with `get(id)`, `add(id, messages)` and `clear(id)`.

    The methods may be plain (called in a thread) or async. `get` returns messages or mappings in
    order; `add` is given plain dicts. Requests of one conversation are served one after the other.
    Messages are validated as everywhere; what the object raises, or gives that are no messages, is
    a StoreError with its cause. It cannot promise append ids, epochs, cursors, marks, lazy
    reads or a listing: `append_id`, `follows` and `epoch` are accepted and have no effect, marks
    and turn ids are not kept, `cursor` and `conversations` are refused.
    """

    capabilities: frozenset[str] = frozenset({TOKENS})

    def __init__(self, obj: Any, *, counter: TokenCounter | None = None) -> None:
        if isinstance(obj, type):
            raise InvalidValue(f"{shown(obj)} is a class: pass an instance")
        missing = [name for name in ("get", "add", "clear")
                   if not callable(getattr(obj, name, None))]
        if missing:
            raise InvalidValue(f"{shown(obj)} has no method {' and no '.join(missing)}; "
                               "a simple store needs get, add and clear")
        self._object = obj
        self._counter = counter
        self._lanes: dict[str, tuple[asyncio.Lock, int]] = {}

    @property
    def name(self) -> str:
        """The class of the adapted object."""
        return type(self._object).__name__

    def get(self, conversation_id: str, *, last: int | None = None,
            after: int | None = None) -> Future[tuple[Message, ...]]:
        """The messages in log order; their seqs are their places, from 1."""

        async def work() -> tuple[Message, ...]:
            return _cut(await self._messages(conversation_id), last, after)

        return self._serve(conversation_id, work, last, after)

    def read(self, conversation_id: str, *, last: int | None = None, after: int | None = None,
             marks: bool = False) -> Future[LoadedLog]:
        """A loaded log; there are no marks in it."""

        async def work() -> LoadedLog:
            messages = await self._messages(conversation_id)
            kept = _cut(messages, last, after)
            first = len(messages) - len(kept) + 1
            return LoadedLog((self._record(first + i, message) for i, message in enumerate(kept)),
                             len(messages))

        return self._serve(conversation_id, work, last, after)

    def add(self, conversation_id: str, messages: Iterable[NewMessage], *,
            append_id: str | None = None, follows: str | None = None, epoch: int | None = None,
            cursor: int | None = None) -> Future[Appended]:
        """Append a batch; atomic only if the object's own `add` is."""
        try:
            said = [item.message if type(item) is NewRecord else
                    item if type(item) is Message else Message.from_dict(item, index=index)
                    for index, item in enumerate(batch(messages))]
            if cursor is not None:
                raise InvalidValue(f"{self.name} cannot promise cursors: leave cursor= out")
        except InvalidValue as refusal:
            return Future.failed(refusal)
        plain = [message.to_dict() for message in said if message is not None]

        async def work() -> Appended:
            before = len(await self._messages(conversation_id))
            if plain:
                await self._call("add", conversation_id, plain)
            return Appended(before + 1, before + len(plain), 0, len(plain))

        return self._serve(conversation_id, work)

    def clear(self, conversation_id: str) -> Future[None]:
        """Empty a conversation."""

        async def work() -> None:
            await self._call("clear", conversation_id)

        return self._serve(conversation_id, work)

    def tail_within(self, conversation_id: str, max_tokens: int) -> Future[Tail]:
        """The newest records whose tokens fit; counts them at every call."""
        if type(max_tokens) is not int or max_tokens < 0:
            return Future.failed(InvalidValue(
                f"max_tokens must be an int of 0 or more, not {shown(max_tokens)}"))

        async def work() -> Tail:
            messages = await self._messages(conversation_id)
            kept: list[Record] = []
            left = max_tokens
            for seq in range(len(messages), 0, -1):
                record = self._record(seq, messages[seq - 1])
                if record.tokens > left:
                    break
                left -= record.tokens
                kept.append(record)
            return Tail(tuple(reversed(kept)), len(messages) - len(kept), max_tokens - left,
                        len(messages), 0)

        return self._serve(conversation_id, work)

    def info(self, conversation_id: str) -> Future[ConversationInfo]:
        """Counts; reads the whole conversation."""

        async def work() -> ConversationInfo:
            count = len(await self._messages(conversation_id))
            return ConversationInfo(conversation_id, count, 0, count)

        return self._serve(conversation_id, work)

    def conversations(self, *, prefix: str = "", after: str | None = None,
                      limit: int = 100) -> Future[tuple[ConversationInfo, ...]]:
        """Refused: the object has no listing."""
        return Future.failed(RequestError(f"{self.name} cannot list its conversations"))

    # -- the object -------------------------------------------------------------------------------

    def _serve(self, conversation_id: str, work: Callable[[], Coroutine[Any, Any, Any]],
               last: int | None = None, after: int | None = None) -> Future[Any]:
        try:
            conversation_key(conversation_id)
            check_range(last, after)
        except InvalidValue as refusal:
            return Future.failed(refusal)
        return current_system().run(self._in_turn(conversation_id, work))

    async def _in_turn(self, conversation_id: str,
                       work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        lock, waiting = self._lanes.get(conversation_id) or (asyncio.Lock(), 0)
        self._lanes[conversation_id] = (lock, waiting + 1)
        try:
            async with lock:
                return await work()
        finally:
            lock, waiting = self._lanes[conversation_id]
            if waiting == 1:
                del self._lanes[conversation_id]
            else:
                self._lanes[conversation_id] = (lock, waiting - 1)

    async def _call(self, method: str, *args: Any) -> Any:
        function = getattr(self._object, method)
        try:
            if inspect.iscoroutinefunction(function):
                return await function(*args)
            answer = await asyncio.get_running_loop().run_in_executor(None, function, *args)
            return await answer if inspect.isawaitable(answer) else answer
        except KeepwellError:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # whoever asked has gone, or the system ends
            problem = f"raised {type(error).__name__}: {error}"
            raise self._fault(method, args[0], problem) from error

    async def _messages(self, conversation_id: str) -> tuple[Message, ...]:
        found = await self._call("get", conversation_id)
        try:
            return tuple(item if type(item) is Message else Message.from_dict(item, index=index)
                         for index, item in enumerate(batch(() if found is None else found)))
        except InvalidMessage as refusal:
            # What is asked for was not at fault: the object holds what it was never given.
            raise self._fault("get", conversation_id, f"gave no messages: {refusal}") from refusal

    def _fault(self, method: str, conversation_id: str, problem: str) -> StoreError:
        return StoreError(f"{self.name}.{method}({shown(conversation_id)}) {problem}")

    def _record(self, seq: int, message: Message) -> Record:
        counter = self._counter or default_counter()
        return Record(seq, message, None, counter.count_message(message), counter.name, EPOCH_TIME)


def _cut(messages: tuple[Message, ...], last: int | None, after: int | None) -> tuple[Message, ...]:
    start = min(after or 0, len(messages))
    if last is not None:
        start = max(start, len(messages) - last)
    return messages[start:]
