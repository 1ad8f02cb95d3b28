"""What callers put into a store's queue: checked, encoded and counted in the caller (design §5).

The owner's thread then only decides, writes and publishes. A request is settled once: with an
answer, an error, or withdrawn at its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any
from zlib import crc32

from ..actors.errors import InvalidValue
from ..actors.future import Future
from .codec import encode_body
from .conversation_id import conversation_key
from .errors import InvalidMessage, shown
from .message import Message, batch
from .record import NewRecord
from .token_counter import NO_COUNTER, TokenCounter

MAX_MESSAGE_BYTES = 16 << 20
"""Default of `max_message_bytes`: the largest encoded record (CS-13)."""

LARGE = 64 << 10
"""Batches of more characters than this are encoded and counted in a thread, not on a loop."""


SETTLED: Future[Any] = Future.of(None)
"""The future of every request that has been answered."""


class Request:
    """One request to the owner of a table.

    `attempts` counts the incarnations that took it up (SH-3), `future` is what the caller waits
    for, `withdrawn` is set at the deadline: nobody takes it up after that.
    """

    __slots__ = ("attempts", "conversation_id", "deadline", "future", "key", "withdrawn")

    def __init__(self, conversation_id: str, key: bytes) -> None:
        self.conversation_id = conversation_id
        self.key = key
        self.attempts = 0
        self.future: Future[Any] = SETTLED  # until it is queued
        self.deadline = 0.0
        self.withdrawn = False


class Clear(Request):
    """Empty a conversation, raise its epoch; with `epoch`, `cursor` only if it still has them.

    `to` is an import's: raise the epoch of an empty conversation to that, if it is lower.
    """

    __slots__ = ("cursor", "epoch", "to")

    def __init__(self, conversation_id: str, *, epoch: int | None = None,
                 cursor: int | None = None, to: int | None = None) -> None:
        super().__init__(conversation_id, conversation_key(conversation_id))
        self.epoch, self.cursor, self.to = epoch, 0 if to is not None else cursor, to


Part = tuple[Message | None, str | None, Any, bytes, int, int]
"""One record of an append: message, turn id, mark, encoded body, its CRC-32, token count.

A plain tuple: there is one for each record, and making a named one costs seven times as much."""


class Append(Request):
    """A batch of records for one conversation, ready to be written.

    `parts` are its records, `size` the bytes of their bodies, `spoken` how many have a message,
    `digest` the 16-byte hash of the payload (b"" without append id). Few objects, and tuples rather
    than lists: whatever is held here the garbage collector looks at again and again.
    """

    __slots__ = ("append_id", "counter", "cursor", "digest", "epoch", "follows", "micros", "parts",
                 "size", "spoken", "tokens")

    def __init__(self, conversation_id: str, messages: Iterable[Any], *,
                 append_id: str | None = None, follows: str | None = None,
                 epoch: int | None = None, cursor: int | None = None,
                 counter: TokenCounter = NO_COUNTER,
                 max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.conversation_id = conversation_id
        self.key = conversation_key(conversation_id)
        self.attempts = 0
        self.withdrawn = False
        self.micros: int | None = None  # an import's: when it was first stored
        if append_id is not None and (type(append_id) is not str or not append_id):
            _check_id(append_id, "append_id")
        if follows is not None:
            _check_id(follows, "follows")
        if epoch is not None or cursor is not None:
            _check_number(epoch, "epoch")
            _check_number(cursor, "cursor")
        # An import's is bytes if it is known by its hash only, see `id_key`.
        self.append_id: str | bytes | None = append_id
        self.follows, self.epoch, self.cursor = follows, epoch, cursor
        count: Callable[[Message], int] = counter.count_message
        parts: list[Part] = []
        size = spoken = total = 0
        for index, item in enumerate(batch(messages)):
            message: Message | None
            turn_id = mark = None
            if type(item) is Message:
                message = item
            elif type(item) is NewRecord:
                message, turn_id, mark = item.message, item.turn_id, item.mark
            else:
                message = Message.from_dict(item, index=index)
            body = encode_body(message, turn_id, mark)
            if len(body) > max_message_bytes:
                raise InvalidMessage(f"takes {len(body)} bytes, the limit is {max_message_bytes} "
                                     "(max_message_bytes); store a reference to it instead",
                                     index=index)
            tokens = 0
            if message is not None:
                tokens = count(message)
                total += tokens
                spoken += 1
            size += len(body)
            parts.append((message, turn_id, mark, body, crc32(body), tokens))
        self.parts = tuple(parts)
        self.counter = counter.name
        self.size, self.spoken, self.tokens = size, spoken, total
        self.digest = b"" if append_id is None else payload_digest(self.parts)

    @classmethod
    def restored(cls, conversation_id: str, parts: tuple[Part, ...], counter: str, digest: bytes,
                 follows: str | None) -> Append:
        """An append that was committed before, from the batch log."""
        append = cls.__new__(cls)
        Request.__init__(append, conversation_id, conversation_key(conversation_id))
        append.append_id = append.epoch = append.cursor = append.micros = None
        append.follows, append.digest, append.counter = follows, digest, counter
        append.parts = parts
        append.size = sum(len(body) for _, _, _, body, _, _ in parts)
        append.spoken = sum(message is not None for message, *_ in parts)
        append.tokens = sum(tokens for *_, tokens in parts)
        return append


def shown_id(append_id: str | bytes) -> str:
    """An append id in an error: as it was given, or what is known of it."""
    return append_id if isinstance(append_id, str) else append_id.hex()


def payload_digest(parts: tuple[Part, ...]) -> bytes:
    """What two appends under one append id are compared by (CS-15): 16 bytes of BLAKE2b."""
    if len(parts) == 1:
        return blake2b(parts[0][3]).digest()[:16]
    # 0xC1 is the one byte that msgpack never begins a value with.
    return blake2b(b"\xc1".join([part[3] for part in parts])).digest()[:16]


def is_large(messages: object) -> bool:
    """Whether a batch is too much work for an event loop's thread; a guess from its sizes."""
    if not isinstance(messages, (list, tuple)):
        return False
    weight = 0
    for item in messages:
        if type(item) is dict:
            for value in item.values():
                weight += len(value) if type(value) is str else _size(value, 3)
        else:
            weight += _weight(item)
    return weight > LARGE


def _weight(item: object) -> int:
    if type(item) is NewRecord:
        item = item.message
    if type(item) is not Message:
        return _size(item, 4)
    content = item.content
    weight = len(content) if type(content) is str else _size(content, 3)
    for call in item.tool_calls:
        weight += _size(call.arguments, 3)
    return weight + _size(item.extra, 3) if item.extra else weight


def _size(value: object, depth: int) -> int:
    kind = type(value)
    if kind is str:
        return len(value)  # type: ignore[arg-type]  # mypy does not narrow by `kind`
    if value is None or isinstance(value, (int, float)):
        return 8  # asking whether it is a Sequence would cost more than all the rest
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if depth and isinstance(value, dict):
        weight = 0
        for item in value.values():
            weight += _size(item, depth - 1)
        return weight
    if isinstance(value, Sequence):
        if depth and len(value) < 1000:
            return sum(_size(item, depth - 1) for item in value)
        return 64 * len(value)
    return 8


def _check_id(value: object, name: str) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidValue(f"{name} must be a non-empty str or None, not {shown(value)}")


def _check_number(value: object, name: str) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise InvalidValue(f"{name} must be an int of 0 or more, or None, not {shown(value)}")


def check_range(last: object, after: object) -> None:
    """Check `last=` and `after=` of a read (CS-2, CS-3). Raises `InvalidValue`."""
    _check_number(last, "last")
    _check_number(after, "after")
