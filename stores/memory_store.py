"""Conversations in memory, kept through crashes of their actor (MS-1…3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .engine import Engine
from .memory_engine import MemoryEngine
from .store import MAX_MESSAGE_BYTES, TIMEOUT, Store, TableOwner
from .token_counter import TokenCounter

if TYPE_CHECKING:
    from ..actors.ref import ActorRef


class MemoryStore(Store):
    """A conversation store in memory.

    Its supervisor is heir: when the actor crashes or is killed, the next incarnation finds records,
    epochs and append ids as they were. The table ends with the supervisor, or, unsupervised, with
    the actor. It survives no end of the process.
    """

    def __init__(self, *, counter: TokenCounter | None = None,
                 max_message_bytes: int = MAX_MESSAGE_BYTES, timeout: float = TIMEOUT) -> None:
        super().__init__("memory", counter=counter, max_message_bytes=max_message_bytes,
                         timeout=timeout)

    def _open(self, owner: TableOwner, ref: ActorRef[Any]) -> Engine:
        engine = owner.engine
        if not isinstance(engine, MemoryEngine):
            engine = owner.engine = MemoryEngine(wall=ref.system.clock.time)
        engine.adopt(ref)
        owner.watch(ref)
        return engine

    def _close(self, owner: TableOwner, engine: Engine) -> None:
        engine.fence()  # the table stays with its owner; this incarnation writes no more
