"""The agent actor: serves its queue, one turn at a time, and resumes what it finds unfinished."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Any

from ..actors import telemetry
from ..actors.async_actor import AsyncActor
from ..actors.eager_task import start_now
from ..actors.errors import ActorDied, KeepwellError
from ..actors.exits import KILLED, describe, is_orderly
from ..actors.failpoint import failpoint
from .delegation import Place, running_place
from .tool_loop import running_turn
from .turn_errors import Superseded
from .turn_queue import WAKE, Attend, TurnQueue, TurnRequest, Wake
from .turn_runner import TurnRunner

if TYPE_CHECKING:
    from ..memory.call_threads import CallThreads
    from ..memory.provider_handle import NoMemory, ProviderHandle
    from .spec import AgentSpec

logger = logging.getLogger("keepwell.agent")


class AgentActor(AsyncActor):
    """One incarnation of an agent. What it was asked is in its queue, which outlives it.

    A turn runs in a task of its own, so that the actor stays responsive. What the task does not
    expect (a bug, SystemExit from a model, a journal that holds another step) ends the actor with
    that reason; its supervisor starts the next one, which finds the turn in the log.
    """

    def __init__(
        self,
        spec: AgentSpec,
        conversation_id: str,
        memory: ProviderHandle | NoMemory,
        queue: TurnQueue,
        threads: CallThreads,
        place: Place | None = None,
    ) -> None:
        super().__init__()
        self._place = place
        self._spec = spec
        self._queue = queue
        self._durable = memory.journal
        self._runner = TurnRunner(spec, conversation_id, memory, queue, threads, place)
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def on_start(self) -> None:
        failpoint("agent.start")
        self._loop = asyncio.get_running_loop()
        ref: Any = self.actor_ref
        ref.on_exit(self._ended)
        interrupted = self._queue.running
        self._queue.moved_in(self.actor_ref)
        if not self._durable:
            if interrupted is not None:
                death = self._queue.last_death or KILLED
                self._queue.take()
                self._queue.done(interrupted)
                interrupted.fail(
                    ActorDied("the agent died in this turn, and it has no memory to resume from: "
                              + describe(death), reason=death)
                )  # fmt: skip
        elif interrupted is None or interrupted.kind not in ("run", "resume", "recover"):
            self._queue.recover_first(TurnRequest("recover"))
        if self._queue.busy:
            ref.tell(WAKE)  # to be served once it has started

    def on_receive(self, message: Any) -> Any:
        kind = message.__class__
        if kind is Wake:
            self._work()
            return None
        if kind is Attend:
            request = self._queue.running
            if (
                request is not None and request.stop is not None and self._task is not None
                and self._runner.stoppable and self._runner.request is request
            ):  # fmt: skip
                self._task.cancel()
            self._runner.show_late()
            self._work()
            return None
        return super().on_receive(message)

    def get_state(self) -> dict[str, Any]:
        """What the agent does now."""
        running = self._queue.running
        return {
            "conversation_id": self._queue.conversation_id,
            "agent": self._spec.name,
            "turn_id": running.turn_id if running is not None else None,
            "busy": self._queue.busy,
        }

    def _work(self) -> None:
        """Serve what waits, unless it is being served.

        Whoever submits sends Wake afterwards, so what comes after the last look is not missed.
        """
        if self._task is not None or not self._queue.busy:
            return
        assert self._loop is not None
        # In place up to where it first waits: to the model, as a rule.
        task = start_now(self._loop, self._serve(), contextvars.copy_context())
        if not task.done():
            self._task = task
            if not self.actor_ref.is_alive():
                task.cancel()  # ended meanwhile by another thread, which found no task

    async def _serve(self) -> None:
        try:
            await self._serve_queue()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit must not end the loop
            ref: Any = self.actor_ref
            ref.exit(error)
        finally:
            self._task = None

    async def _serve_queue(self) -> None:
        queue, runner = self._queue, self._runner
        running_turn.set(queue)
        running_place.set(self._place)
        while (request := queue.take()) is not None:
            try:
                result = await runner.serve(request)
            except KeepwellError as error:
                queue.done(request)
                request.fail(error)
                sought = request.stop is not None and not request.turn_id  # found nothing yet
                if request.kind == "recover" and not sought and not isinstance(error, Superseded):
                    # Nobody may be waiting for a turn that was found in the log.
                    logger.warning(
                        "the unfinished turn %r of %r: %s", request.turn_id,
                        queue.conversation_id, error,
                    )  # fmt: skip
                    telemetry.emit(
                        "keepwell.agent.recovery_failed", conversation_id=queue.conversation_id,
                        turn_id=request.turn_id, error=error,
                    )  # fmt: skip
            else:
                queue.done(request)
                request.complete(result)

    def _ended(self, reason: Any) -> None:
        if not is_orderly(reason):
            self._queue.last_death = reason
        else:
            self._queue.close(reason)  # a transient child that ended so is not started again
        # In whatever thread ends the actor: the turn must not go on under a dead actor.
        task, loop = self._task, self._loop
        if task is not None and loop is not None:
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # the loop is closed: the task will never run again
