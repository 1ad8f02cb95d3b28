"""Runs actors on an event loop: one message at a time each, never blocking the loop.

A handler that is a coroutine is started at once, in place (`eager_task`); if it ends without
suspending, no trip through the loop is made.

A call from a coroutine on the same loop runs an idle actor in place too, up to a depth: the reply
is then there when the caller awaits it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
from asyncio import _get_running_loop
from collections.abc import AsyncGenerator, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from . import control, lifecycle, runner
from .context import entered_system, running_actor, running_systems
from .control import END, RUN
from .eager_task import guard, start_now, unwrap
from .errors import RequestError
from .exits import KILLED, NORMAL, SHUTDOWN, Reply
from .ref import KILL_NOW, SIGNAL, A, ActorRef
from .request import Request

if TYPE_CHECKING:
    from .system import ActorSystem

logger = logging.getLogger("keepwell.actors")

STOP_SECONDS: Final = 5.0
"""How long a loop that is about to close waits for its actors to end."""

MAX_DEPTH: Final = 8
"""How deep calls may run each other's actors in place before they go through the loop."""


LATER: Final = object()
"""What `AsyncRef.answer_now` gives where the actor cannot be run at once."""


class LoopRunner:
    """Runs the actors that live on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, system: ActorSystem) -> None:
        self.loop = loop
        self.system = system
        self.depth = 0
        # Of nobody's: whose message wakes the loop must not lend its context to all handlers.
        self._context = contextvars.Context()
        self._ready: list[AsyncRef[Any]] = []
        self._scheduled = False
        self._sentinel: AsyncGenerator[None, None] | None = None

    def put(self, ref: AsyncRef[Any]) -> None:
        """Run `ref` soon; from any thread. The loop is woken once for all that come before."""
        self._ready.append(ref)
        scheduled, self._scheduled = self._scheduled, True
        if scheduled and not self.loop.is_closed():
            return
        if _get_running_loop() is self.loop:
            self.loop.call_soon(self._run, context=self._context)
            return
        try:
            self.loop.call_soon_threadsafe(self._run, context=self._context)
        except RuntimeError:  # the loop is closed: its actors can never run again
            while self._ready:
                try:
                    lifecycle.end(self._ready.pop(), KILLED)
                except IndexError:
                    return

    def _run(self) -> None:
        self._scheduled = False
        ready = self._ready
        batch = ready[:]
        del ready[: len(batch)]
        for ref in batch:
            pump(ref)

    def watch_closing(self) -> None:
        """Stop this runner's actors when the loop, which runs here, is about to close.

        An async generator that is left suspended is told then (`loop.shutdown_asyncgens`, which
        `asyncio.run` calls). A loop that is just closed tells nobody: whoever sends to one of its
        actors next finds it dead.
        """
        if self._sentinel is None and _get_running_loop() is self.loop:
            self._sentinel = self._stop_at_closing()
            try:
                self._sentinel.__anext__().send(None)
            except StopIteration:
                pass  # it has come to its yield

    async def _stop_at_closing(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    while left := self._actors():
                        for stopping in [ref.stop(block=False, reason=SHUTDOWN) for ref in left]:
                            await stopping
            except TimeoutError:
                for ref in self._actors():
                    lifecycle.end(ref, KILLED)

    def _actors(self) -> list[AsyncRef[Any]]:
        refs = list(self.system.actors)
        return [ref for ref in refs if isinstance(ref, AsyncRef) and ref._home is self]

    def call(self, function: Any, *args: Any) -> None:
        """Call `function(*args)` on the loop: now if this is its thread, else soon."""
        if _get_running_loop() is self.loop:
            function(*args)
        else:
            self.loop.call_soon_threadsafe(function, *args)


class AsyncRef(ActorRef[A]):
    """The ref of an actor that lives on an event loop."""

    __slots__ = ("_context", "_ending", "_home", "_interrupted", "_loop", "_stepping", "_task")

    def __init__(self, actor: Any, system: ActorSystem) -> None:
        super().__init__(actor, system)
        self._home: LoopRunner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._context: contextvars.Context | None = None
        self._interrupted = False
        self._ending = False  # its last hook runs
        self._stepping = False  # the actor's own code runs right now, on the loop's thread

    def _send(self, request: Request) -> None:
        if self._closed:
            request.fail(self._noproc())
            return
        home = self._home
        if (
            self._idle
            and home is not None
            and home.depth < MAX_DEPTH
            and _get_running_loop() is home.loop
        ):
            idle, self._idle = self._idle, False
            if idle:
                home.depth += 1
                try:
                    pump(self, request=request)
                finally:
                    home.depth -= 1
                if self._closed:
                    self._drain()
                return
        self._queue.append(request)
        if self._idle:
            idle, self._idle = self._idle, False
            if idle:
                self._put(self)
        elif self._loop is not None and self._loop.is_closed():
            lifecycle.end(self, KILLED)  # a handler that was suspended there never goes on
        if self._closed:
            self._drain()

    def answer_now(self, message: Any) -> Any:
        """What the handler returns for `message`, if the actor can be run here and now; else LATER.

        A call made in place without a request, for handlers that are plain functions and do not
        `defer`. If the handler raises, that is dealt with as ever, and the answer is the request
        that failed with it. LATER: nothing has happened, `ask` then.
        """
        home, life = self._home, self._life
        if (
            not self._idle
            or home is None
            or home.depth >= MAX_DEPTH
            or self._queue
            or self._batch
            or self._control
            or (life is not None and life.suspended)
            or _get_running_loop() is not home.loop
        ):
            return LATER
        idle, self._idle = self._idle, False
        actor = self._actor
        if not idle or actor is None:
            return LATER  # one that has ended belongs to nobody
        token = entered = None
        if not actor._context_free:
            token = running_actor.set(self)
            # As in `pump`: it must not find its caller's system.
            if entered_system.get() is not self._system:
                entered = entered_system.set(self._system)
        self._stepping = True
        home.depth += 1
        self._handled += 1
        try:
            answer = actor.on_receive(message)
        except BaseException as error:
            answer = self._serving = Request()
            answer.message = message
            crash = _failed_later if token is None else _failed
            if not crash(self, actor, answer, error):
                return answer
            self._serving = None
        finally:
            home.depth -= 1
            self._stepping = False
            if token is not None:
                running_actor.reset(token)
            if entered is not None:
                entered_system.reset(entered)
        if not self._finished and not runner.go_idle(self):
            pump(self)
        return answer

    def _in_handler(self) -> bool:
        # A task or thread that the handler has started may ask: only the handler itself may not.
        if _get_running_loop() is not self._loop or self._loop is None:
            return False
        return self._stepping or (self._task is not None and asyncio.current_task() is self._task)

    def _attention(self) -> None:
        home = self._home
        if home is not None and self._control:
            try:
                home.call(self._interrupt)
            except RuntimeError:
                lifecycle.end(self, KILLED)

    def _interrupt(self) -> None:
        """Cancel a suspended handler if what waits in the control lane ends the actor anyway.

        The last hook is spared by all but a kill.
        """
        task, actor = self._task, self._actor
        if task is None or actor is None or task.done():
            return
        if self.doom() is not None:
            self._interrupted = True
            task.cancel()

    def doom(self) -> tuple[Any, ...] | None:
        """The item in the control lane that ends the actor without waiting for its handler."""
        actor = self._actor
        for item in self._control or ():
            if item[0] == KILL_NOW:
                return item
            if item[0] == SIGNAL and not self._ending and actor is not None:
                ignored = isinstance(item[2], str) and item[2] == NORMAL and item[1] is not self
                if not actor.trap_exit and not ignored:
                    return item
        return None

    def _is_running(self) -> bool:
        return self._task is not None or self._stepping

    def _abandon(self) -> None:
        task, home = self._task, self._home
        if task is not None and home is not None:
            try:
                home.call(task.cancel)
            except RuntimeError:
                pass  # the loop is closed

    def context(self) -> contextvars.Context:
        """The context in which this actor's coroutines run."""
        context = self._context
        if context is None:
            context = self._context = contextvars.Context()
            context.run(running_actor.set, self)
            context.run(entered_system.set, self._system)
        return context


def pump(
    ref: AsyncRef[Any], budget: int = runner.BUDGET, request: Request | None = None
) -> None:
    """Handle what waits for `ref` until a handler suspends, or nothing is left.

    Runs in the loop's thread, which owns the actor. A handler that suspends keeps it owned; its end
    pumps again. `request` has come last; if nothing waits before it, it does not pass the mailbox.
    """
    actor = ref._actor
    if actor is None:
        if request is not None:
            ref._queue.append(request)  # for the caller to drain: the actor has just ended
        return
    token = running_actor.set(ref)
    system, entered = ref._system, None
    around = entered_system.get()
    # Called in place, it must not find its caller's system (nor, for nothing, enter its own).
    if around is not system and (around is not None or running_systems):
        entered = entered_system.set(system)
    ref._stepping = True
    try:
        left = budget
        if request is not None:
            life = ref._life
            if ref._queue or ref._batch or ref._control or (life is not None and life.suspended):
                ref._queue.append(request)
            else:
                left -= 1
                if not _handle(ref, actor, request):
                    actor = request = None  # see below
                    return
                if runner.go_idle(ref):
                    return
        while left > 0:
            life = ref._life
            if ref._control or (life is not None and life.suspended):
                todo = control.attend(ref, actor)
                if todo is None:
                    if control.is_suspended(ref):
                        if runner.go_idle(ref):
                            return
                        continue
                elif todo[0] == RUN:
                    left -= 1
                    if not _handle(ref, actor, todo[1]):
                        actor = todo = None
                        return
                    continue
                elif todo[0] == END:
                    _stop(ref, actor, todo[1], todo[2])
                    return
                else:
                    continue
            batch, queue = ref._batch, ref._queue
            if not batch:
                if not queue:
                    if runner.go_idle(ref):
                        return
                    continue
                if len(queue) > 1:
                    batch = runner.take(ref)
            try:
                # One that came alone needs no batch. A kill from another thread empties both.
                message = batch.pop() if batch else queue.pop(0)
            except IndexError:
                continue
            left -= 1
            if not _handle(ref, actor, message):
                actor = message = None  # the frames of an error lead back to this one
                return
    except BaseException as error:
        logger.exception("the loop met an error of its own while it ran %s", ref)
        lifecycle.end(ref, error)  # nobody would run it again
        return
    finally:
        ref._stepping = False
        running_actor.reset(token)
        if entered is not None:
            entered_system.reset(entered)
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
            task = start(ref, value)
            if not task.done():
                ref._task = task
                task.add_done_callback(functools.partial(_completed, ref, message))
                return False
            value = task.result()
    except BaseException as error:
        lives = _failed(ref, actor, message, error)
        actor = message = payload = request = value = None
        return lives
    if request is not None:
        if ref._serving is request:
            request.complete(value)
        ref._serving = None
    return not ref._finished


def start(ref: AsyncRef[Any], coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a coroutine of the actor's, its first step now if the loop allows it."""
    loop, context, guarded = ref._loop, ref._context, guard(coroutine)
    assert loop is not None
    if context is None:
        context = ref.context()
    return start_now(loop, guarded, context)


def _completed(ref: AsyncRef[Any], message: Any, task: asyncio.Task[Any]) -> None:
    """A handler that had suspended has ended: answer, and go on with the next message."""
    ref._task = None
    actor = ref._actor
    interrupted, ref._interrupted = ref._interrupted, False
    error: BaseException | None
    try:
        value = task.result()
        error = None
    except BaseException as raised:
        value, error = None, raised
    if actor is None:
        return  # fenced meanwhile
    if error is not None:
        # Cancelled for what waits in the control lane, which now says how the actor ends?
        if not (interrupted and isinstance(error, asyncio.CancelledError)):
            if not _failed_later(ref, actor, message, error):
                actor = message = None
                return
    elif message.__class__ is Request:
        if ref._serving is message:
            message.complete(value)
        ref._serving = None
    pump(ref)


def _failed_later(ref: AsyncRef[Any], actor: Any, message: Any, error: BaseException) -> bool:
    """As `_failed`, outside of `pump`: the hook is the actor's own code too."""
    token = running_actor.set(ref)
    ref._stepping = True
    try:
        return _failed(ref, actor, message, error)
    finally:
        ref._stepping = False
        running_actor.reset(token)


def _failed(ref: AsyncRef[Any], actor: Any, message: Any, error: BaseException) -> bool:
    """Answer with an error, or crash; True if the actor lives."""
    error = unwrap(error)
    if isinstance(error, (RequestError, Reply)):
        runner.refuse(ref, message, error)
        ref._serving = None
        return not ref._finished
    if ref._finished:
        return False  # it was fenced: what its abandoned handler does is nobody's any more
    if message.__class__ is not Request:
        ref._serving = None
    lifecycle.note_message(ref, message)
    _run_hook(ref, actor, lifecycle.reason_of(error), error)
    return False


def _stop(ref: AsyncRef[Any], actor: Any, reason: Any, hook: bool) -> None:
    if hook and not ref._finished:
        _run_hook(ref, actor, reason, None)
    else:
        lifecycle.finish(ref, reason)


def _run_hook(ref: AsyncRef[Any], actor: Any, reason: Any, error: BaseException | None) -> None:
    """Run the hook of an ending actor, a coroutine too, then end it."""
    if lifecycle.was_killed(ref):
        lifecycle.end(ref, KILLED)
        return
    ref._ending = True
    try:
        value = lifecycle.run_hook(actor, reason, error)
        if value.__class__ is CoroutineType:
            task = start(ref, value)
            if not task.done():
                ref._task = task
                task.add_done_callback(functools.partial(_hook_done, ref, reason, error))
                return
            task.result()
    except BaseException as late:
        reason, error = _hook_failed(ref, error, unwrap(late))
    lifecycle.finish(ref, reason, error)


def _hook_done(
    ref: AsyncRef[Any], reason: Any, error: BaseException | None, task: asyncio.Task[Any]
) -> None:
    ref._task = None
    try:
        task.result()
    except BaseException as late:
        if ref._interrupted:
            reason, error = KILLED, None
        else:
            reason, error = _hook_failed(ref, error, unwrap(late))
    lifecycle.finish(ref, reason, error)


def _hook_failed(
    ref: AsyncRef[Any], error: BaseException | None, late: BaseException
) -> tuple[Any, BaseException]:
    """What a hook raises becomes the reason (SHUT-6); what it hides is logged."""
    if error is not None:
        lifecycle.log_unhandled(ref, error)
    return lifecycle.reason_of(late), late
