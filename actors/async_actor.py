"""An actor on an event loop, for whatever awaits the network."""

from __future__ import annotations

import asyncio
import functools
from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any, ClassVar

from .actor import Actor
from .async_runner import AsyncRef, start_eagerly
from .future import Future
from .ref import Bounded
from .starting import fail_start, finish_start, open_mailbox, start_here

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
        ref._home.call(self._start_on_loop, ref, future)

    def _start_on_loop(self, ref: AsyncRef[Any], future: Future[Any]) -> None:
        if not asyncio.iscoroutinefunction(self.on_start):
            if start_here(ref, self, future):
                open_mailbox(ref)
            return
        coroutine = self.on_start()
        assert ref._loop is not None
        task = start_eagerly(ref._loop, coroutine, ref.context())
        if task.done():
            self._started(ref, future, task)
        else:
            ref._task = task
            task.add_done_callback(functools.partial(self._started, ref, future))

    def _started(self, ref: AsyncRef[Any], future: Future[Any], task: asyncio.Task[Any]) -> None:
        ref._task = None
        try:
            result = task.result()
        except BaseException as error:
            if not ref._finished:
                future.fail(fail_start(ref, error))
            return
        if finish_start(ref, result, future):
            open_mailbox(ref)


class BoundedAsyncRef(Bounded[Any], AsyncRef[Any]):
    """The ref of an async actor with a bounded mailbox."""

    __slots__ = ()
