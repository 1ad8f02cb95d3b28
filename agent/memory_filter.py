"""The filter that gives a kernel a memory (KF-3, KF-5, KF-6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..actors.errors import InvalidValue
from ..memory.forms import STORE_METHODS
from ..memory.repair import in_call_order, repair
from ..memory.turn_gate import TurnGates, turn_gates
from ..stores.contract import CURSORS
from ..stores.errors import AppendConflict, CursorConflict
from .filters import MEMORY_ORDER, ChatRequest, Filter, NextChat
from .model import ModelReply

if TYPE_CHECKING:
    from ..stores.contract import ConversationStore


class MemoryFilter(Filter):
    """Stores what is new, shows the model the whole history, stores the reply on its way back.

    Append ids are `invocation_id/round/in` and `…/out/attempt`: an invocation that is sent again,
    or a filter further out that retries, never stores the same delta twice; each completed reply
    is stored once. Retries belong inside (a larger order), where nothing has been stored yet.
    """

    name = "memory"
    order = MEMORY_ORDER

    def __init__(self, store: ConversationStore) -> None:
        missing = [m for m in STORE_METHODS if not callable(getattr(store, m, None))]
        if missing or isinstance(store, type):
            raise InvalidValue(
                f"memory_filter({store!r}): pass a started store or a StoreHandle, for example "
                "runtime.store"
            )
        self.store = store

    @property
    def gates(self) -> TurnGates:
        """The turn gates of the store, shared with the agents that use it (KF-9)."""
        return turn_gates(self.store)

    async def around_chat(self, request: ChatRequest, next: NextChat) -> ModelReply:  # noqa: A002 - the contract's word
        """Delta to the store, history to the model, reply to the store."""
        prefix = f"{request.invocation_id}/{request.round}"
        epoch = request.state.get("memory.epoch")
        # A transcript that comes again would be stored a second time. An input that only looks like
        # one, as this invocation was sent before, is answered as a replay whatever the cursor.
        again = epoch is None and await self._holds(request)
        if again and CURSORS not in getattr(self.store, "capabilities", (CURSORS,)):
            raise _repeated(request.conversation_id)
        try:
            appended = await self.store.add(
                request.conversation_id, request.messages, append_id=f"{prefix}/in", epoch=epoch,
                cursor=0 if again else None,
            )  # fmt: skip
        except CursorConflict:
            raise _repeated(request.conversation_id) from None
        request.state["memory.epoch"] = appended.epoch
        history = await self.store.get(request.conversation_id)
        reply = await next(request.replace(messages=in_call_order(repair(history))))
        if reply.message.content or reply.message.tool_calls:
            await self._store(request, prefix, reply)
        return reply

    async def _holds(self, request: ChatRequest) -> bool:
        """Whether the log has a reply that stands in the input (F31)."""
        replies = [m for m in request.messages if m.role == "assistant"]
        if not replies:
            return False
        history = await self.store.get(request.conversation_id)
        return any(reply in history for reply in replies)

    async def _store(self, request: ChatRequest, prefix: str, reply: ModelReply) -> None:
        attempts: Any = request.state.setdefault("memory.attempts", {})
        attempt = attempts[request.round] = attempts.get(request.round, -1) + 1
        try:
            await self.store.add(
                request.conversation_id, [reply.message], append_id=f"{prefix}/out/{attempt}",
                epoch=request.state["memory.epoch"],
            )  # fmt: skip
        except AppendConflict:
            # The invocation was sent again after it had got as far as this: the log keeps the
            # reply that was stored first, and so do those who read it.
            request.state["memory.replayed"] = True


def _repeated(conversation_id: str) -> InvalidValue:
    return InvalidValue(
        f"the input repeats what the log of {conversation_id!r} holds: pass the new messages only, "
        "the memory filter shows the model the whole history"
    )


def memory_filter(store: ConversationStore) -> MemoryFilter:
    """A memory filter over a store: `Kernel(model, filters=[memory_filter(runtime.store)])`."""
    return MemoryFilter(store)
