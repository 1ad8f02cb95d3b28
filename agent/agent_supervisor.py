"""The supervisor of a runtime's agents: one that comes too often is given up alone (FL-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..actors.exits import is_orderly
from ..supervision import ChildSpec, DynamicSupervisor
from .agent_actor import AgentActor
from .turn_queue import TurnQueue

if TYPE_CHECKING:
    from ..supervision.children import ChildRecord


class AgentSupervisor(DynamicSupervisor):
    """Agents as `transient` children, each with a restart budget of its own (5 in 10 s).

    Whoever waits for an agent that will not come back gets ActorDied: its queue is closed when it
    is given up, when it ended in order, and when the supervisor itself ends.
    """

    def __init__(self) -> None:
        super().__init__(ChildSpec("agent", AgentActor, restart="transient"), per_child=True)
        self._queues: set[TurnQueue] = set()

    def on_start(self) -> Any:
        """Close all queues with the supervisor."""
        started = super().on_start()
        self._own_ref.on_exit(self._close_all)
        return started

    def _on_start_child(self, request: Any) -> Any:
        queue = _queue_of(request.args)
        self._queues.add(queue)
        try:
            ref = super()._on_start_child(request)
        except BaseException:
            self._queues.discard(queue)
            raise
        queue.on_close.append(lambda: self._queues.discard(queue))
        return ref

    def _give_child_up(self, record: ChildRecord) -> None:
        reason = record.last_reason
        super()._give_child_up(record)
        _queue_of(record.args).close(reason)

    def _close_all(self, reason: Any) -> None:
        for queue in list(self._queues):
            queue.close(reason if is_orderly(reason) else "shutdown")


def _queue_of(args: tuple[Any, ...]) -> TurnQueue:
    return next(arg for arg in args if isinstance(arg, TurnQueue))
