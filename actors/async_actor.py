"""An actor on an event loop, for whatever awaits the network."""

from __future__ import annotations

import asyncio
import functools
from asyncio import _get_running_loop
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar

from . import lifecycle
from .actor import Actor
from .async_runner import AsyncRef, start
from .eager_task import unwrap
from .exits import KILLED
from .future import Future
from .ref import KILL_NOW, Bounded
from .starting import fail_start, finish_start, on_start, open_mailbox

if TYPE_CHECKING:
    from .ref import ActorRef
    from .system import ActorSystem


class AsyncActor(Actor):
    """An actor whose handler may be a coroutine: `async def on_receive(self, message)`.

    It handles one message at a time; while the handler awaits, other actors and tasks of the loop
    run. Lives on the loop that runs where it is started, else on the system's own. Its hooks may
    be coroutines too.
    """

    __slots__ = ()

    _starts_in_caller: ClassVar[bool] = False

    _context_free: bool = False
    """Whether `on_receive` never asks which actor or system runs. `AsyncRef.answer_now` then leaves
    both context variables as they are: to set one copies the context, and to reset it again."""

    def _make_ref(self, system: ActorSystem) -> ActorRef[Any]:
        if self.max_mailbox is not None:
            return BoundedAsyncRef(self, system)
        return AsyncRef(self, system)

    def _launch(self, ref: ActorRef[Any], future: Future[Any], *, blocking: bool) -> None:
        assert isinstance(ref, AsyncRef)
        ref._system.scheduler.add_async(ref, _get_running_loop())
        if not self.has_on_start:
            open_mailbox(ref)
            future.complete(ref)
            return
        assert ref._home is not None
        ref._get_life().starting = future
        ref._home.call(self._start_on_loop, ref, future)

    def _start_on_loop(self, ref: AsyncRef[Any], future: Future[Any]) -> None:
        if ref._finished:
            return  # ended before it could begin: its starter has been told
        ref._stepping = True
        try:
            result = on_start(ref, self)
            if result.__class__ is CoroutineType:
                task = start(ref, result)
                if not task.done():
                    ref._task = task
                    task.add_done_callback(functools.partial(self._started, ref, future))
                    ref._attention()  # somebody may have ended it before there was a task
                    return
                result = task.result()
        except BaseException as error:
            future.fail(fail_start(ref, unwrap(error)))
            return
        finally:
            ref._stepping = False
        if finish_start(ref, result, future):
            open_mailbox(ref)

    def _started(self, ref: AsyncRef[Any], future: Future[Any], task: asyncio.Task[Any]) -> None:
        ref._task = None
        interrupted, ref._interrupted = ref._interrupted, False
        try:
            result = task.result()
        except BaseException as error:
            doom = ref.doom() if interrupted else None
            if doom is not None and isinstance(error, asyncio.CancelledError):
                # Cancelled for what waits in the control lane; it has not started, so no hook runs.
                lifecycle.end(ref, KILLED if doom[0] == KILL_NOW else doom[2])
            else:
                future.fail(fail_start(ref, unwrap(error)))
            return
        if finish_start(ref, result, future):
            open_mailbox(ref)


class BoundedAsyncRef(Bounded[Any], AsyncRef[Any]):
    """The ref of an async actor with a bounded mailbox."""

    __slots__ = ()
