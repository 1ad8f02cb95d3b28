"""What a log is made of, and what the operations of a store answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, overload

from .errors import InvalidMessage, shown
from .frozen import Frozen, FrozenDict, Unstorable, freeze_mapping
from .message import Message


class Record(NamedTuple):
    """One entry of a conversation's log. Immutable; shared between readers.

    `seq` counts 1, 2, 3… within an epoch. `message` is None for a pure mark. `tokens` is the count
    made at append by the counter named `counter` (0 for a pure mark). `time` is aware UTC, the
    moment of the commit; order is by seq, never by time. `mark` is a mapping or None.
    """

    seq: int
    message: Message | None
    turn_id: str | None
    tokens: int
    counter: str
    time: datetime
    mark: Mapping[str, Any] | None = None


class NewRecord:
    """A message (or mark) on its way into a log, with the turn it belongs to.

    `message` is a `Message`, a mapping, or None for a pure mark, which then needs a `mark` (a
    mapping of plain values). Raises `InvalidMessage`.
    """

    __slots__ = ("mark", "message", "turn_id")

    def __init__(
        self,
        message: Message | Mapping[str, Any] | None,
        turn_id: str | None = None,
        mark: Mapping[str, Any] | None = None,
    ) -> None:
        if message is not None and not isinstance(message, Message):
            message = Message.from_dict(message)
        self.message = message
        if turn_id is not None and not isinstance(turn_id, str):
            raise InvalidMessage(
                f"turn_id must be a str or None, not {shown(turn_id)}", path="turn_id"
            )
        self.turn_id = turn_id
        self.mark: FrozenDict | None = None
        if mark is not None:
            try:
                self.mark = freeze_mapping(mark)
            except Unstorable as problem:
                path = problem.path
                raise InvalidMessage(
                    problem.problem,
                    path="mark" + (path if path.startswith("[") or not path else "." + path),
                ) from None
        elif message is None:
            raise InvalidMessage("a record needs a message or a mark", path="message")

    def __repr__(self) -> str:
        return f"NewRecord({self.message!r}, turn_id={self.turn_id!r}, mark={self.mark!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NewRecord):
            return NotImplemented
        return (self.message, self.turn_id, self.mark) == (other.message, other.turn_id, other.mark)

    __hash__ = None  # type: ignore[assignment]  # compared in tests only; never a key


class Appended(Frozen):
    """What an `add` did: `count` records from `first_seq` on; the head is now `cursor`.

    With `replayed` nothing was written: this is the result of the first time (CS-15). An empty
    add has count 0 and `first_seq` = `cursor` + 1.
    """

    # By hand: one is made for each append, and a frozen dataclass takes four times as long.
    __slots__ = ("count", "cursor", "epoch", "first_seq", "replayed")
    __match_args__ = ("first_seq", "cursor", "epoch", "count", "replayed")

    first_seq: int
    cursor: int
    epoch: int
    count: int
    replayed: bool

    def __init__(self, first_seq: int, cursor: int, epoch: int, count: int,
                 replayed: bool = False) -> None:
        _set_first_seq(self, first_seq)
        _set_cursor(self, cursor)
        _set_epoch(self, epoch)
        _set_count(self, count)
        _set_replayed(self, replayed)

    def _values(self) -> tuple[int, int, int, int, bool]:
        return self.first_seq, self.cursor, self.epoch, self.count, self.replayed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Appended):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __reduce__(self) -> tuple[Any, ...]:
        return Appended, self._values()

    def __repr__(self) -> str:
        return (f"Appended(first_seq={self.first_seq}, cursor={self.cursor}, epoch={self.epoch}, "
                f"count={self.count}, replayed={self.replayed})")


_set_first_seq, _set_cursor, _set_epoch, _set_count, _set_replayed = (
    Appended.__dict__[name].__set__ for name in Appended.__match_args__)


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest records that fit a token budget, oldest first (CS-20).

    `elided` is the number of messages before them that did not fit, `tokens` the sum over
    `records`. Pure marks are not among the records.
    """

    records: tuple[Record, ...]
    elided: int
    tokens: int
    cursor: int
    epoch: int

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the records."""
        return tuple(record.message for record in self.records if record.message is not None)


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """What a store knows of a conversation without reading it.

    `count` is of messages, `cursor` the seq of the last record (marks included), `tokens` the sum
    of the stored counts. `created` and `updated` are the times of the first and last record of
    this epoch, aware UTC, None if there is none.
    """

    conversation_id: str
    cursor: int = 0
    epoch: int = 0
    count: int = 0
    tokens: int = 0
    created: datetime | None = None
    updated: datetime | None = None

    @property
    def exists(self) -> bool:
        """Whether anything is in the log."""
        return self.cursor > 0


class Log(Protocol):
    """A lazy, read-only sequence of records, fixed at one (epoch, cursor) (CS-23).

    Length, indexing, slices and `reversed()` read only what they touch; later appends do not
    appear. After a clear the next touch raises `StaleEpoch`; while the store is down it raises
    `StoreUnavailable`, and works again once the store is back.
    """

    @property
    def cursor(self) -> int:
        """The seq of the conversation's last record when this was read, 0 if it has none."""
        ...

    @property
    def epoch(self) -> int:
        """The conversation's epoch when this was read."""
        ...

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> Record: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Record, ...]: ...
    def __iter__(self) -> Iterator[Record]: ...
    def __reversed__(self) -> Iterator[Record]: ...
    def systems(self) -> tuple[Record, ...]:
        """The records of system messages, in order, found by an index."""
        ...
