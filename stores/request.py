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
from .codec import encode_body
from .conversation_id import conversation_key
from .errors import InvalidMessage, shown
from .message import Message, batch
from .record import NewRecord
from .token_counter import TokenCounter

MAX_MESSAGE_BYTES = 16 << 20
"""Default of `max_message_bytes`: the largest encoded record (CS-13)."""

LARGE = 64 << 10
"""Batches of more characters than this are encoded and counted in a thread, not on a loop."""


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
        self.future: Any = None
        self.deadline = 0.0
        self.withdrawn = False


class Clear(Request):
    """Empty a conversation and raise its epoch. `expected`: only if the epoch is still this one."""

    __slots__ = ("expected",)

    def __init__(self, conversation_id: str, expected: int | None = None) -> None:
        super().__init__(conversation_id, conversation_key(conversation_id))
        self.expected = expected


class Append(Request):
    """A batch of records for one conversation, ready to be written.

    `bodies` are the encoded records, `checks` their CRC-32, `digest` the 16-byte hash of the
    payload (b"" without append id). The parallel lists have one entry a record.
    """

    __slots__ = ("append_id", "bodies", "checks", "counter", "cursor", "digest", "epoch", "follows",
                 "marks", "messages", "size", "tokens", "turn_ids")

    def __init__(self, conversation_id: str, messages: Iterable[Any], *,
                 append_id: str | None = None, follows: str | None = None,
                 epoch: int | None = None, cursor: int | None = None,
                 counter: TokenCounter | None = None,
                 max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        Request.__init__(self, conversation_id, conversation_key(conversation_id))
        if append_id is not None or follows is not None:
            _check_id(append_id, "append_id")
            _check_id(follows, "follows")
        if epoch is not None or cursor is not None:
            _check_number(epoch, "epoch")
            _check_number(cursor, "cursor")
        self.append_id, self.follows, self.epoch, self.cursor = append_id, follows, epoch, cursor
        said: list[Message | None] = []
        turn_ids: list[str | None] = []
        marks: list[Any] = []
        bodies: list[bytes] = []
        for index, item in enumerate(batch(messages)):
            message: Message | None
            turn_id, mark = None, None
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
            said.append(message)
            turn_ids.append(turn_id)
            marks.append(mark)
            bodies.append(body)
        self.messages, self.turn_ids, self.marks, self.bodies = said, turn_ids, marks, bodies
        self.checks = [crc32(body) for body in bodies]
        self.digest = b"" if append_id is None else blake2b(
            bodies[0] if len(bodies) == 1 else b"\xc1".join(bodies), digest_size=16).digest()
        self.size = sum(map(len, bodies))
        self.count(counter)

    @classmethod
    def restored(cls, conversation_id: str,
                 records: Sequence[tuple[Message | None, str | None, Any]], bodies: Sequence[bytes],
                 tokens: Sequence[int], counter: str, digest: bytes,
                 follows: str | None) -> Append:
        """An append that was committed before, from the batch log."""
        append = cls.__new__(cls)
        Request.__init__(append, conversation_id, conversation_key(conversation_id))
        append.append_id = append.epoch = append.cursor = None
        append.follows, append.digest, append.counter = follows, digest, counter
        append.messages = [message for message, _, _ in records]
        append.turn_ids = [turn_id for _, turn_id, _ in records]
        append.marks = [mark for _, _, mark in records]
        append.bodies, append.tokens = list(bodies), list(tokens)
        append.checks = [crc32(body) for body in bodies]
        append.size = sum(map(len, bodies))
        return append

    def count(self, counter: TokenCounter | None) -> None:
        """Count the tokens of each record once, for ever (`tokens`, `counter`)."""
        if counter is None:
            self.counter, self.tokens = "none", [0] * len(self.bodies)
        else:
            count: Callable[[Message], int] = counter.count_message
            self.counter = counter.name
            self.tokens = [0 if message is None else count(message) for message in self.messages]


def is_large(messages: object) -> bool:
    """Whether a batch is too much work for an event loop's thread; a guess from its sizes."""
    if not isinstance(messages, (list, tuple)):
        return False
    return sum(map(_weight, messages)) > LARGE


def _weight(item: object) -> int:
    if type(item) is NewRecord:
        item = item.message
    if type(item) is Message:
        content = item.content
        if isinstance(content, str) and not item.tool_calls and not item.extra:
            return len(content)
        item = (content, item.extra, tuple(call.arguments for call in item.tool_calls))
    return _size(item, 4)


def _size(value: object, depth: int) -> int:
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if depth and isinstance(value, dict):
        return sum(_size(item, depth - 1) for item in value.values())
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
