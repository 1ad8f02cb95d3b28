"""The provider: the policy in front of a store, and what its actor can be asked.

Custom providers are foreign code; whatever they do, requests of one conversation are served one
after another in arrival order, different conversations in parallel, and a hung or raising provider
costs only the one who asked (PV-6, PV-7).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from ..actors.errors import InvalidValue, KeepwellError

if TYPE_CHECKING:
    from ..stores.message import Message
    from ..stores.record import Log

PROVIDER_METHODS: Final = ("history", "append", "prepare", "clear")
CALL_SECONDS: Final = 30.0
"""How long one call of a custom provider may take before its lane goes on (PV-6)."""
REQUEST_SECONDS: Final = 35.0
"""How long a request waits for a provider that is being restarted."""


class ProviderError(KeepwellError):
    """A custom provider raised, or returned what cannot be used; the cause is its own exception.

    Only the one who asked gets it; the provider actor lives. Rules: PV-4, PV-7.
    """

    def __init__(self, method: str, conversation_id: str, problem: str) -> None:
        super().__init__(
            f"the memory provider's {method}({conversation_id!r}) {problem}: mend the provider"
        )
        self.method, self.conversation_id = method, conversation_id


@runtime_checkable
class MemoryProvider(Protocol):
    """The policy in front of a store. Every method may be sync (run off the loop) or async. PV-1.

    A provider whose `history` returns a `Log` and that says `journal = True` (its `append` takes
    `NewRecord`s, `append_id` and `epoch` and keeps them) carries durable turns; others are given
    and return messages only (PV-9).
    """

    def history(self, conversation_id: str) -> Log | Sequence[Message] | Awaitable[Any]:
        """The log of the conversation, or its messages; empty for an unknown one."""
        ...

    def append(
        self,
        conversation_id: str,
        messages: Sequence[Any],
        *,
        append_id: str | None = None,
        epoch: int | None = None,
    ) -> object:
        """Store messages in order; return (or be awaited) after they are safe."""
        ...

    def prepare(
        self, conversation_id: str, messages: Sequence[Message]
    ) -> Sequence[Message] | Awaitable[Any]:
        """What the model is shown of `messages`. Stores nothing; may look things up."""
        ...

    def clear(self, conversation_id: str) -> object:
        """Empty the conversation."""
        ...


def check_provider(provider: object) -> None:
    """Raise InvalidValue naming the methods that `provider` lacks. Rule: PV-1."""
    missing = [name for name in PROVIDER_METHODS if not callable(getattr(provider, name, None))]
    if missing:
        raise InvalidValue(
            f"{provider!r} is no memory provider: it lacks {', '.join(missing)}; a provider has "
            "history, append, prepare and clear"
        )


# -- messages of the actor -----------------------------------------------------------------------
# Named tuples: one is made for each append, and a frozen dataclass takes four times as long.


class History(NamedTuple):
    """Ask for the log, or the messages, of a conversation."""

    conversation_id: str
    marks: bool = False
    after: int | None = None


class Position(NamedTuple):
    """Ask where a conversation's log stands: (epoch, cursor), or None if only a read can tell."""

    conversation_id: str


class Append(NamedTuple):
    """Store messages."""

    conversation_id: str
    records: Sequence[Any]
    append_id: str | None = None
    follows: str | None = None
    epoch: int | None = None
    cursor: int | None = None


class Prepare(NamedTuple):
    """Ask a custom provider what the model is shown."""

    conversation_id: str
    messages: Sequence[Message]


class Clear(NamedTuple):
    """Empty the conversation."""

    conversation_id: str
