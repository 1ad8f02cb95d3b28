"""A provider by its place, not its incarnation: what agents and kernels hold."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..actors.future import Future
from ..stores.message import Message, checked_messages
from .provider import Append, Clear, History, Position, Prepare
from .turn_gate import TurnGates

if TYPE_CHECKING:
    from ..stores.record import Appended, NewRecord
    from ..stores.session_store import RowsSessionStore
    from .context import SummaryStore
    from .provider_home import ProviderHome
    from .window import Window


class ProviderHandle:
    """A provider by its place, not its incarnation: what agents and kernels hold.

    `journal`: whether durable turns hold on it (PV-9). `gates`: the turn gates of its store.
    `probes`: whether an append may carry a cursor, so that its id can be looked up. `kept_beside`
    gives the session store in which summaries and large contents of the conversations are kept,
    or None; `lasting`: whether that lives as long as the conversations.
    While the actor is restarted, requests are sent again under their append id for 35 s.
    """

    def __init__(
        self,
        home: ProviderHome,
        *,
        journal: bool,
        gates: TurnGates,
        window: Window | None = None,
        custom: bool = False,
        probes: bool = True,
        kept_beside: Callable[[], RowsSessionStore | None] | None = None,
        lasting: bool = False,
    ) -> None:
        self._home = home
        self.journal = journal
        self.gates = gates
        self.window = window
        self.custom = custom
        self.probes = probes
        self._kept_beside = kept_beside
        self._lasting = lasting

    @property
    def home(self) -> ProviderHome:
        """The place of the provider's actor."""
        return self._home

    @property
    def contents(self) -> RowsSessionStore | None:
        """Where large contents of messages are kept; None if they must stay in the messages."""
        return self._kept_beside() if self._lasting and self._kept_beside is not None else None

    @property
    def summaries(self) -> SummaryStore | None:
        """Where summaries of the logs are kept; None if what is shown is not cut from them."""
        if self.custom or self.window is not None:
            return None
        return None if self._kept_beside is None else self._kept_beside()

    def history(
        self, conversation_id: str, *, marks: bool = False, after: int | None = None
    ) -> Future[Any]:
        """The log after this conversation's outstanding appends; of a custom provider its messages.

        Raises (through the future) ProviderError, StoreUnavailable, CallTimeout. Rules: PV-2, RW-1.
        """
        return self._home.send(History(conversation_id, marks, after))

    def position(self, conversation_id: str) -> tuple[int, int] | None:
        """(epoch, cursor) of the log after outstanding appends, if that is known here and now.

        None: only `history` can tell. Whoever has read the log up to there need not read it again.
        """
        return self._home.position(Position(conversation_id))

    def append(
        self,
        conversation_id: str,
        records: Iterable[NewRecord | Message | Mapping[str, Any]],
        *,
        append_id: str | None = None,
        follows: str | None = None,
        epoch: int | None = None,
        cursor: int | None = None,
    ) -> Future[Appended]:
        """Store records; done after the commit. Order of calls is order in the log. Rule: PV-6."""
        if self.custom and not self.journal:
            messages = [getattr(one, "message", one) for one in records]
            records = checked_messages([one for one in messages if one is not None])
            if not records:
                return _NOTHING
        if append_id is None:
            append_id = uuid.uuid4().hex  # so that a re-sent append is stored once
        return self._home.send(
            Append(conversation_id, list(records), append_id, follows, epoch, cursor)
        )

    def prepare(
        self, conversation_id: str, messages: Sequence[Message]
    ) -> Sequence[Message] | Future[Any]:
        """What the model is shown; at once over a store, a future of it from custom code. PV-3."""
        if self.custom:
            return self._home.send(Prepare(conversation_id, messages))
        return messages if self.window is None else self.window.apply(messages)

    def clear(self, conversation_id: str) -> Future[None]:
        """Empty the conversation at once."""
        return self._home.send(Clear(conversation_id))


_NOTHING: Future[Any] = Future.of(None)


class NoMemory:
    """The provider of a stateless agent: remembers nothing (AG-9)."""

    journal = False
    custom = True
    probes = False
    window = None
    summaries = None
    contents = None

    def __init__(self) -> None:
        from .turn_gate import TurnGates

        self.gates = TurnGates()

    def history(self, _conversation_id: str, **_: Any) -> Future[Any]:
        """Nothing."""
        return Future.of(())

    def position(self, _conversation_id: str) -> None:
        """There is no log."""

    def append(self, _conversation_id: str, _records: Any, **_: Any) -> Future[Any]:
        """Forgets them."""
        return _NOTHING

    def prepare(self, _conversation_id: str, messages: Sequence[Message]) -> Sequence[Message]:
        """The identity."""
        return messages

    def clear(self, _conversation_id: str) -> Future[None]:
        """There is nothing to clear."""
        return _NOTHING
