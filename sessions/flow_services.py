"""What a flow may use of the program around it: stores, counters, agents (E7, D8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..actors.errors import RequestError
from ..actors.future import Future
from ..agent.model import Usage
from ..memory.context import MemorySummaries, SummaryStore
from ..memory.token_counter import approx_token_count
from ..memory.turn import CountTokens, Turn
from ..stores.memory_session_store import MemorySessionStore
from ..stores.record import NewRecord, Record
from ..stores.session_state import DEFAULT_TENANT, LogRecords

if TYPE_CHECKING:
    from ..agent.spec import AgentSpec
    from .node import Node

INLINE_BYTES: Final = 32 << 10
"""Outputs larger than this are kept as blobs in transcripts, and fetched when they are shown."""


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What an agent run as a child gives: its text, its own messages, what it cost."""

    text: str
    transcript: list[Turn]
    usage: Usage


RunAgent = Callable[["AgentSpec", Any, str, Sequence[Turn]], Any]
"""`run_agent(spec, input, turn_id, earlier)` awaits to an AgentAnswer."""

Conversation = Callable[[], Any]
"""Awaits to `(log, epoch)`: the records of the session's conversation so far."""


async def _no_agents(*_: object) -> AgentAnswer:
    raise RequestError(
        "a flow that runs an agent needs a Runtime: open the session in one, or call run_flow "
        "inside `async with Runtime()`"
    )


@dataclass
class FlowServices:
    """The surroundings of a flow: all have a default that lives in memory.

    conversation: reads the log that reading leaves see; None: there is none. count_tokens: counts
    what is not counted already. blobs: a session store, for child transcripts and large outputs.
    acquire and release: the turn gate of the conversation.
    """

    conversation_id: str = ""
    tenant: str = DEFAULT_TENANT
    conversation: Conversation | None = None
    count_tokens: CountTokens = approx_token_count
    blobs: Any = field(default_factory=MemorySessionStore)
    summaries: SummaryStore = field(default_factory=MemorySummaries)
    run_agent: RunAgent = _no_agents
    acquire: Callable[[], Any] | None = None
    release: Callable[[], None] | None = None

    def fetch(self, ref: str) -> Any:
        """The content behind a ref, if it is there at once. Raises what the store raises."""
        found: Future[Any] = self.blobs.get_blob(self.tenant, ref)
        if not found.done():
            raise RequestError(f"{ref} cannot be read now")
        return found.get()


class LocalConversation:
    """The log of a driven session's conversation: kept for as long as it is driven."""

    def __init__(self, count_tokens: CountTokens = approx_token_count) -> None:
        self._records: list[Record] = []
        self._count = count_tokens

    async def read(self) -> tuple[list[Record], int]:
        """The records so far."""
        return list(self._records), 0

    def add(self, log: LogRecords) -> Future[None]:
        """Append what a turn adds."""
        for new in log.records:
            self._records.append(_record(len(self._records) + 1, new))
        return Future.of(None)


def _record(seq: int, new: NewRecord) -> Record:
    from datetime import UTC, datetime  # noqa: PLC0415 - only here

    return Record(seq, new.message, new.turn_id, 0, "none", datetime.now(UTC), new.mark)


default_services: list[Callable[[], FlowServices]] = []
"""How `run_flow` finds its surroundings; the front door puts the current runtime's here."""

_flows: dict[str, Node] = {}


def register(name: str, node: Node) -> None:
    """Make a flow known by name, for `sub(name)`. Raises RequestError if the name is taken."""
    known = _flows.setdefault(name, node)
    if known is not node:
        raise RequestError(f"a flow is registered as {name!r} already: choose another name")


def registered(name: str) -> Node | None:
    """The flow of that name, None if there is none."""
    return _flows.get(name)
