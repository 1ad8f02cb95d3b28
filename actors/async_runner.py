"""Runs actors on an event loop: one message at a time each, never blocking the loop.

A handler that is a coroutine is started at once, in place, as a task of its own; if it ends without
suspending, no trip through the loop is made. On Python 3.12 asyncio does this by itself
(`eager_start`). On 3.11 the same is done by hand: the task's first step is taken out of the loop's
ready queue and run now, with the caller's task put aside; a loop without such a queue (uvloop) runs
the step in its next round.

A call from a coroutine on the same loop runs an idle actor in place too, up to a depth: the reply
is then there when the caller awaits it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
from asyncio import _get_running_loop
from collections.abc import Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from . import control, lifecycle, runner
from .context import entered_system, running_actor
from .control import END, RUN
from .errors import RequestError
from .exits import KILLED, Reply
from .ref import KILL_NOW, SIGNAL, A, ActorRef, Request

if TYPE_CHECKING:
    from .system import ActorSystem

MAX_DEPTH: Final = 8
"""How deep calls may run each other's actors in place before they go through the loop."""


class LoopRunner:
    """Runs the actors that live on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, system: ActorSystem) -> None:
        self.loop = loop
        self.system = system
        self.depth = 0
        self._ready: list[AsyncRef[Any]] = []
        self._scheduled = False

    def put(self, ref: AsyncRef[Any]) -> None:
        """Run `ref` soon; from any thread. The loop is woken once for all that come before."""
        self._ready.append(ref)
        scheduled, self._scheduled = self._scheduled, True
        if scheduled:
            return
        if _get_running_loop() is self.loop:
            self.loop.call_soon(self._run)
            return
        try:
            self.loop.call_soon_threadsafe(self._run)
        except RuntimeError:  # the loop is closed: its actors can never run again
            self._scheduled = False
            for stranded in self._ready[:]:
                self._ready.remove(stranded)
                lifecycle.end(stranded, KILLED)

    def _run(self) -> None:
        self._scheduled = False
        ready = self._ready
        batch = ready[:]
        del ready[: len(batch)]
        for ref in batch:
            pump(ref)

    def call(self, function: Any, *args: Any) -> None:
        """Call `function(*args)` on the loop: now if this is its thread, else soon."""
        if _get_running_loop() is self.loop:
            function(*args)
        else:
            self.loop.call_soon_threadsafe(function, *args)


class AsyncRef(ActorRef[A]):
    """The ref of an actor that lives on an event loop."""

    __slots__ = ("_context", "_home", "_interrupted", "_loop", "_stepping", "_task")

    def __init__(self, actor: Any, system: ActorSystem) -> None:
        super().__init__(actor, system)
        self._home: LoopRunner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._context: contextvars.Context | None = None
        self._interrupted = False
        self._stepping = False  # the actor's own code runs right now, on the loop's thread

    def _send(self, request: Request) -> None:
        if self._closed:
            request.fail(self._noproc())
            return
        self._queue.append(request)
        if self._idle:
            idle, self._idle = self._idle, False
            if idle:
                home = self._home
                if (
                    home is not None
                    and home.depth < MAX_DEPTH
                    and _get_running_loop() is home.loop
                ):
                    home.depth += 1
                    try:
                        pump(self)
                    finally:
                        home.depth -= 1
                else:
                    self._put(self)
        if self._closed:
            self._drain()

    def _in_handler(self) -> bool:
        # A task that the handler has started may ask the actor: only the handler itself may not.
        if self._stepping:
            return True
        task = self._task
        if task is None or _get_running_loop() is None:
            return False
        return asyncio.current_task() is task

    def _attention(self) -> None:
        home = self._home
        if home is not None and self._control:
            try:
                home.call(self._interrupt)
            except RuntimeError:
                lifecycle.end(self, KILLED)

    def _interrupt(self) -> None:
        """Cancel a suspended handler if what waits in the control lane ends the actor anyway."""
        task, actor = self._task, self._actor
        if task is None or actor is None or task.done():
            return
        for item in self._control or ():
            fatal = item[0] == KILL_NOW or (
                item[0] == SIGNAL and not actor.trap_exit and item[2] != "normal"
            )
            if fatal:
                self._interrupted = True
                task.cancel()
                return

    def context(self) -> contextvars.Context:
        """The context in which this actor's coroutines run."""
        context = self._context
        if context is None:
            context = self._context = contextvars.Context()
            context.run(running_actor.set, self)
            context.run(entered_system.set, self._system)
        return context


def start_eagerly(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    context: contextvars.Context,
) -> asyncio.Task[Any]:
    """Make a task of `coroutine` and take its first step now, if the loop allows it."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, context=context, eager_start=True)
    task = asyncio.Task(coroutine, loop=loop, context=context)
    ready = getattr(loop, "_ready", None)
    if ready is None:
        return task
    handle = ready.pop()
    current = asyncio.current_task(loop)
    if current is None:
        handle._run()
        return task
    asyncio._leave_task(loop, current)
    try:
        handle._run()
    finally:
        asyncio._enter_task(loop, current)
    return task


def pump(ref: AsyncRef[Any], budget: int = runner.BUDGET) -> None:
    """Handle what waits for `ref` until a handler suspends, or nothing is left.

    Runs in the loop's thread, which owns the actor. A handler that suspends keeps it owned; its end
    pumps again.
    """
    actor = ref._actor
    if actor is None:
        return
    token = running_actor.set(ref)
    ref._stepping = True
    try:
        left = budget
        while left > 0:
            message: Any = None
            if ref._control or control.is_suspended(ref):
                todo = control.attend(ref, actor)
                if todo is None:
                    if control.is_suspended(ref):
                        if runner.go_idle(ref):
                            return
                        continue
                elif todo[0] == RUN:
                    message = todo[1]
                elif todo[0] == END:
                    _stop(ref, actor, todo[1], todo[2])
                    return
                else:
                    continue
            if message is None:
                batch = ref._batch or runner.take(ref)
                if not batch:
                    if runner.go_idle(ref):
                        return
                    continue
                message = batch.pop()
            left -= 1
            if not _handle(ref, actor, message):
                return
    finally:
        ref._stepping = False
        running_actor.reset(token)
    ref._put(ref)


def _handle(ref: AsyncRef[Any], actor: Any, message: Any) -> bool:
    """Handle one message; False if the handler has suspended or the actor has ended."""
    request: Request | None = None
    payload = message
    if message.__class__ is Request:
        request = ref._serving = message
        payload = message.message
    ref._handled += 1
    try:
        if payload.__class__ in runner.SPECIAL:
            value = actor._handle_receive(payload)
        else:
            value = actor.on_receive(payload)
        if value.__class__ is CoroutineType:
            loop = ref._loop
            assert loop is not None
            task = start_eagerly(loop, value, ref.context())
            if not task.done():
                ref._task = task
                task.add_done_callback(functools.partial(_completed, ref, message))
                return False
            value = task.result()
    except BaseException as error:
        return _failed(ref, actor, message, error)
    if request is not None:
        if ref._serving is request:
            request.complete(value)
        ref._serving = None
    return not ref._finished


def _completed(ref: AsyncRef[Any], message: Any, task: asyncio.Task[Any]) -> None:
    """A handler that had suspended has ended: answer, and go on with the next message."""
    ref._task = None
    actor = ref._actor
    error: BaseException | None
    try:
        value = task.result()
        error = None
    except BaseException as raised:
        value, error = None, raised
    if actor is None:
        return  # fenced meanwhile
    if error is not None:
        if ref._interrupted and isinstance(error, asyncio.CancelledError):
            ref._interrupted = False  # it was cancelled for what waits in the control lane
        elif not _failed(ref, actor, message, error):
            return
    elif message.__class__ is Request:
        if ref._serving is message:
            message.complete(value)
        ref._serving = None
    pump(ref)


def _failed(ref: AsyncRef[Any], actor: Any, message: Any, error: BaseException) -> bool:
    """Answer with an error, or crash; True if the actor lives."""
    if isinstance(error, (RequestError, Reply)):
        runner.refuse(message, error)
        ref._serving = None
        return True
    reason = lifecycle.reason_of(error)
    lifecycle.note_message(ref, message)
    _run_hook(ref, actor, reason, error)
    return False


def _stop(ref: AsyncRef[Any], actor: Any, reason: Any, hook: bool) -> None:
    if hook:
        _run_hook(ref, actor, reason, None)
    else:
        lifecycle.finish(ref, reason)


def _run_hook(ref: AsyncRef[Any], actor: Any, reason: Any, error: BaseException | None) -> None:
    """Run the hook of an ending actor, a coroutine too, then end it."""
    if lifecycle.was_killed(ref):
        lifecycle.end(ref, KILLED)
        return
    try:
        value = lifecycle.run_hook(actor, reason, error)
        if value.__class__ is CoroutineType:
            loop = ref._loop
            assert loop is not None
            task = start_eagerly(loop, value, ref.context())
            ref._task = task
            task.add_done_callback(functools.partial(_hook_done, ref, reason))
            return
    except BaseException as late:
        reason = lifecycle.reason_of(late)
    lifecycle.finish(ref, reason)


def _hook_done(ref: AsyncRef[Any], reason: Any, task: asyncio.Task[Any]) -> None:
    ref._task = None
    try:
        task.result()
    except BaseException as late:
        reason = KILLED if ref._interrupted else lifecycle.reason_of(late)
    lifecycle.finish(ref, reason)
