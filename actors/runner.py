"""Runs an actor in the current thread: takes its messages, calls its handler, ends it.

`run` is for actors whose handlers are plain functions (`Actor`, `ThreadActor`); `async_runner` does
the same on an event loop. Both leave the meaning of control items to `control.attend`.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, Final

from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr, _ActorStop

from . import control, lifecycle, starting
from .context import running_actor
from .control import BEGIN, END, RUN
from .errors import RequestError
from .exits import Reply, describe
from .propagation import Carried
from .ref import ActorRef
from .request import Request

BUDGET: Final = 300
"""Messages that one actor may handle before others get their turn."""

SPECIAL: Final = frozenset({Request, _ActorStop, ProxyCall, ProxyGetAttr, ProxySetAttr, Carried})
"""Classes of messages that are not simply handed to `on_receive`."""


def run(ref: ActorRef[Any], budget: int = BUDGET) -> bool:
    """Handle what waits for `ref`, `budget` messages at most; True if something is left.

    The caller owns the actor (it has exchanged `_idle`), and still does if the result is True.
    """
    actor = ref._actor
    if actor is None:
        return False
    running_actor.set(ref)
    receive = actor.on_receive
    batches = actor.has_on_batch
    left = budget
    special = SPECIAL
    message: Any = None
    while left > 0:
        life = ref._life
        if ref._control or (life is not None and life.suspended):
            left = _attend(ref, actor, left)
            if left <= 0:
                actor = receive = None
                return left == 0
            receive = actor.on_receive  # a trace may have begun or ended
        batch: Any = ref._batch
        if not batch:
            batch = take(ref)
            if not batch:
                if go_idle(ref):
                    return False
                continue
        if batches:
            left -= len(batch)
            if not _run_batch(ref, actor):
                actor = receive = batch = None
                return False
            continue
        waiting = len(batch)
        pop = batch.pop
        try:
            for _ in repeat(None, left if left < waiting else waiting):
                message = pop()
                if message.__class__ not in special:
                    receive(message)
                elif message.__class__ is Request:
                    ref._serving = message
                    payload = message.message
                    if payload.__class__ in special:
                        value = actor._handle_receive(payload)
                    else:
                        value = receive(payload)
                    if ref._serving is message:
                        message.complete(value)
                else:
                    actor._handle_receive(message)
                if ref._control:
                    break
        except (RequestError, Reply) as error:
            refuse(ref, message, error)
        except BaseException as error:
            ref._handled += waiting - len(batch)
            crash(ref, actor, error, message)
            # The frames of the error lead back to this one, and would keep what it still holds.
            actor = receive = message = payload = value = batch = pop = None
            return False
        ref._serving = None
        done = waiting - len(batch)
        ref._handled += done
        left -= done
        if ref._finished:
            return False  # it was fenced while its handler ran
        message = None
    return True


def take(ref: ActorRef[Any]) -> list[Any]:
    """Move everything from the queue into the batch (newest first) and return the batch."""
    queue = ref._queue
    batch = queue[:]
    count = len(batch)
    if count:
        if count > 1:
            batch.reverse()
        # Only what was copied is removed: a message may have come since, even within a statement
        # (an allocation may collect garbage, and a finaliser let another thread run). Both stores
        # are one statement, so that whoever counts what waits misses nothing.
        ref._batch, queue[:count] = batch, ()
    return batch


def go_idle(ref: ActorRef[Any]) -> bool:
    """Give the actor up; False if there is new work and it is still ours."""
    ref._idle = True
    life = ref._life
    if life is not None and life.suspended:
        work: Any = control.has_work(ref)
    else:
        work = ref._queue or ref._control or ref._batch
    if work:
        idle, ref._idle = ref._idle, False
        return not idle
    return True


def refuse(ref: ActorRef[Any], message: Any, error: RequestError | Reply) -> None:
    """Answer with an error, where anybody waits for an answer."""
    answer = error.error if isinstance(error, Reply) else error
    ref._get_life().last_error = describe(answer)
    if message.__class__ is Request:
        message.fail(answer)


def _run_batch(ref: ActorRef[Any], actor: Any) -> bool:
    """Hand everything that waits to `on_batch`; False if the actor has ended."""
    waiting, ref._batch = ref._batch, []
    waiting.reverse()
    requests: list[Request] = []
    life = ref._get_life()
    life.batch = requests
    message: Any = None
    try:
        for message in waiting:
            carried = message.message if message.__class__ is Request else message
            if carried.__class__ is Carried:
                if message is carried:
                    message = Request()
                message.message, message.context = carried.message, carried.context
            if message.__class__ is Request:
                if message.message.__class__ in SPECIAL:
                    _answer_special(ref, actor, message)
                else:
                    requests.append(message)
            elif message.__class__ in SPECIAL:
                actor._handle_receive(message)
            else:
                request = Request()
                request.message = message
                requests.append(request)
        actor.on_batch(requests)
    except BaseException as error:
        ref._handled += len(waiting)
        crash(ref, actor, error, message)
        actor = message = waiting = requests = None  # type: ignore[assignment]  # see `run`
        return False
    for request in requests:
        if not request.done():
            defer(ref, request)
    life.batch = None
    ref._handled += len(waiting)
    return not ref._finished


def _answer_special(ref: ActorRef[Any], actor: Any, request: Request) -> None:
    """Serve one of pykka's own requests to an actor that takes batches."""
    ref._serving = request
    try:
        request.complete(actor._handle_receive(request.message))
    except (RequestError, Reply) as error:
        refuse(ref, request, error)
    ref._serving = None


def defer(ref: ActorRef[Any], request: Request) -> None:
    """Keep a request that is answered later, so that it fails if the actor ends before."""
    life = ref._get_life()
    if life.deferred is None:
        life.deferred = {}
    deferred = life.deferred
    deferred[request] = None
    request.add_done_callback(lambda _: deferred.pop(request, None))


def _attend(ref: ActorRef[Any], actor: Any, left: int) -> int:
    """Work off the control lane; returns how many messages may still be handled.

    Below zero: the actor has ended, or is suspended and was given up.
    """
    while left > 0:
        todo = control.attend(ref, actor)
        if todo is None:
            if not control.is_suspended(ref):
                return left
            if go_idle(ref):
                return -1
        elif todo[0] == RUN:
            left -= 1
            ref._handled += 1
            try:
                actor._handle_receive(todo[1])
            except (RequestError, Reply) as error:
                refuse(ref, None, error)
            except BaseException as error:
                crash(ref, actor, error, todo[1])
                actor = todo = None
                return -1
        elif todo[0] == BEGIN:
            if not starting.start_here(ref, actor, todo[1]):
                return -1
        elif todo[0] == END:
            stop(ref, actor, todo[1], hook=todo[2])
            return -1
    return 0


def stop(ref: ActorRef[Any], actor: Any, reason: Any, *, hook: bool) -> None:
    """End the actor orderly; what its hook, if it is to run, raises is the reason (SHUT-6)."""
    failed = None
    if hook and not ref._finished and not lifecycle.was_killed(ref):
        try:
            lifecycle.run_hook(actor, reason, None)
        except BaseException as error:
            reason, failed = lifecycle.reason_of(error), error
    lifecycle.finish(ref, reason, failed)


def crash(ref: ActorRef[Any], actor: Any, error: BaseException, message: Any) -> None:
    """End the actor because `error` was raised while it handled `message`."""
    if ref._finished:
        return  # it was fenced: what its abandoned handler does is nobody's any more
    if message.__class__ is not Request:
        ref._serving = None  # an earlier request, answered
    reason = lifecycle.reason_of(error)
    lifecycle.note_message(ref, message)
    if not lifecycle.was_killed(ref):
        try:
            lifecycle.run_hook(actor, reason, error)
        except BaseException as late:
            lifecycle.log_unhandled(ref, error)
            reason, error = lifecycle.reason_of(late), late
    lifecycle.finish(ref, reason, error)
