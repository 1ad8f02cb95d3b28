"""What every conversation store offers (design §5, contract CS and SH).

`keepwell.testing` has the suite that a store must pass. What a store cannot promise it leaves out
of its `capabilities`, and the suite skips it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from .message import Message
from .record import Appended, ConversationInfo, Log, NewRecord, Tail

APPEND_IDS: Final = "append_ids"
EPOCHS: Final = "epochs"
CURSORS: Final = "cursors"
MARKS: Final = "marks"
LAZY_READS: Final = "lazy_reads"
LISTING: Final = "listing"
TOKENS: Final = "tokens"
DURABLE: Final = "durable"
RESTARTS: Final = "restarts"

ALL: Final = frozenset({APPEND_IDS, EPOCHS, CURSORS, MARKS, LAZY_READS, LISTING, TOKENS, RESTARTS})
"""What our own stores promise; `DURABLE` is the `DiskStore`'s beside it."""

NewMessage = Message | Mapping[str, Any] | NewRecord
"""What `add` takes an iterable of."""


@runtime_checkable
class ConversationStore(Protocol):
    """Conversations by id. Every operation starts at once and returns something to await.

    All raise `InvalidConversationId` for an id that is none, and `StoreUnavailable` if the store
    has not answered by the deadline.
    """

    def read(self, conversation_id: str, *, last: int | None = None, after: int | None = None,
             marks: bool = False) -> Awaitable[Log]:
        """The log as it is now, lazily; pure marks too with `marks` (CS-23)."""
        ...

    def get(self, conversation_id: str, *, last: int | None = None,
            after: int | None = None) -> Awaitable[tuple[Message, ...]]:
        """The messages in log order; the newest `last`, those with seqs over `after` (CS-1…3)."""
        ...

    def add(self, conversation_id: str, messages: Iterable[NewMessage], *,
            append_id: str | None = None, follows: str | None = None, epoch: int | None = None,
            cursor: int | None = None) -> Awaitable[Appended]:
        """Append a batch, whole or not at all; done after its commit (CS-4, CS-15…18)."""
        ...

    def clear(self, conversation_id: str) -> Awaitable[None]:
        """Empty the conversation and raise its epoch (CS-6)."""
        ...

    def tail_within(self, conversation_id: str, max_tokens: int) -> Awaitable[Tail]:
        """The newest records whose tokens fit, and how many messages were left out (CS-20)."""
        ...

    def info(self, conversation_id: str) -> Awaitable[ConversationInfo]:
        """Cursor, epoch, counts and times, without reading the log (CS-1)."""
        ...

    def conversations(self, *, prefix: str = "", after: str | None = None,
                      limit: int = 100) -> Awaitable[Sequence[ConversationInfo]]:
        """A page of the non-empty conversations, in a stable order (CS-19)."""
        ...
