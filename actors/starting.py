"""From a constructed actor to one that handles messages, or to a failed start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import bonds, control, lifecycle
from .context import running_actor
from .errors import RequestError, StartFailed
from .exits import NORMAL, ExitReason, Ignore

if TYPE_CHECKING:
    from .future import Future
    from .ref import ActorRef


class AlreadyStarted(StartFailed, RequestError):
    """An actor was to be started under a name that another one has (`ref`; REG-5)."""

    def __init__(self, name: str, ref: ActorRef[Any]) -> None:
        StartFailed.__init__(
            self,
            f"the name {name!r} is taken by {ref}: stop that one, or use another name",
            reason=("already_started", ref),
        )
        self.code = "already_started"
        self.name, self.ref = name, ref


def start_failed(what: object, reason: ExitReason) -> StartFailed:
    """The error of a start that failed for `reason`."""
    return StartFailed(f"{what} did not start: {reason!r}", reason=reason)


def on_start(ref: ActorRef[Any], actor: Any) -> Any:
    """Run the hook in this thread as the actor. Returns what it returns, raises what it raises."""
    token = running_actor.set(ref)
    try:
        return actor.on_start()
    finally:
        running_actor.reset(token)


def open_mailbox(ref: ActorRef[Any]) -> None:
    """Let a started actor handle messages, those that came before included."""
    ref._idle = True
    if control.has_work(ref):
        idle, ref._idle = ref._idle, False
        if idle:
            ref._put(ref)


def start_here(ref: ActorRef[Any], actor: Any, future: Future[Any]) -> bool:
    """Run `on_start` in this thread and complete `future`; True if the actor lives.

    Its mailbox is still to be opened.
    """
    try:
        result = on_start(ref, actor)
    except BaseException as error:
        future.fail(fail_start(ref, error))
        return False
    return finish_start(ref, result, future)


def finish_start(ref: ActorRef[Any], result: Any, future: Future[Any]) -> bool:
    """`on_start` has returned `result`: complete `future`; True if the actor lives."""
    if ref._finished:
        future.fail(start_failed(ref, ref._reason))
    elif result is Ignore:
        unbind(ref)
        lifecycle.end(ref, NORMAL)
        future.complete(Ignore)
    else:
        # False if it came too late: the starter has given up and ends it.
        return future.complete(ref)
    return False


def fail_start(ref: ActorRef[Any], error: BaseException) -> StartFailed:
    """End an actor whose `on_start` raised, and return the error for its starter."""
    reason = lifecycle.reason_of(error)
    unbind(ref)
    failure = start_failed(ref, reason)
    lifecycle.end(ref, reason, report=False)
    return failure


def unbind(ref: ActorRef[Any]) -> None:
    """Remove the links of an actor that did not start: its peers learn of it from the start."""
    life = ref._life
    for peer in list(life.links or ()) if life is not None else ():
        bonds.unlink(peer, ref)
