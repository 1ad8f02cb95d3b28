"""The provider that everyone gets: a store, and at most a window in front of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..actors.errors import InvalidValue
from .window import Window

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from ..stores.contract import ConversationStore
    from ..stores.message import Message
    from ..stores.record import Appended, Log, NewRecord


class DefaultProvider:
    """Stores everything in `store`; `prepare` is the identity, or cuts by `window`.

    `window`: a `Window`, an int of messages (>= 1), or None. Raises InvalidValue for anything
    else, bool and float too, and for what is no store. Its log is a journal: turns on it survive
    crashes. Rule: PV-5.
    """

    journal = True

    def __init__(self, store: ConversationStore, window: Window | int | None = None) -> None:
        if isinstance(window, bool) or not isinstance(window, Window | int | None):
            raise InvalidValue(f"window={window!r}: pass Window(n), an int >= 1, or None")
        if not all(callable(getattr(store, name, None)) for name in ("read", "add", "clear")):
            raise InvalidValue(
                f"{store!r} is no conversation store: pass one, a handle, or SimpleStore(…)"
            )
        self.store = store
        self.window = Window(window) if isinstance(window, int) else window

    def __repr__(self) -> str:
        return f"DefaultProvider({self.store!r}, window={self.window!r})"

    def history(
        self, conversation_id: str, *, marks: bool = False, after: int | None = None
    ) -> Awaitable[Log]:
        """The log of the conversation, lazily. An unknown one is empty. Rule: PV-2."""
        return self.store.read(conversation_id, marks=marks, after=after)

    def append(
        self,
        conversation_id: str,
        messages: Iterable[Message | NewRecord],
        *,
        append_id: str | None = None,
        follows: str | None = None,
        epoch: int | None = None,
        cursor: int | None = None,
    ) -> Awaitable[Appended]:
        """Store messages; done after the commit. Raises as the store's `add` (CS-4…18)."""
        return self.store.add(
            conversation_id, messages, append_id=append_id, follows=follows, epoch=epoch,
            cursor=cursor,
        )  # fmt: skip

    def prepare(self, conversation_id: str, messages: Sequence[Message]) -> Sequence[Message]:
        """What the model is shown of `messages`. Stores nothing. Rule: PV-3."""
        return messages if self.window is None else self.window.apply(messages)

    def clear(self, conversation_id: str) -> Awaitable[None]:
        """Empty the conversation. Rule: CS-6."""
        return self.store.clear(conversation_id)


def stores_as_default(provider: object) -> bool:
    """Whether a provider's records are in its `store`: it overrides neither history nor append."""
    if not isinstance(provider, DefaultProvider):
        return False
    kind = type(provider)
    return kind.history is DefaultProvider.history and kind.append is DefaultProvider.append
