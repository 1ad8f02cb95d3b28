"""From a constructed actor to one that handles messages, or to a failed start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import bonds, control, lifecycle
from .context import current_system, entered_system, running_actor, starting_system
from .errors import InvalidValue, RequestError, StartFailed
from .exits import NOPROC, NORMAL, Ignore

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


def fail_init(cls: type, error: BaseException) -> StartFailed:
    """Return the error of a start whose `__init__` raised (F68).

    Raises InvalidValue itself if the reason is that nobody has said which system to use.
    """
    if starting_system.get() is None:
        current_system()
    if isinstance(error, AttributeError) and error.name == "_actor_ref":
        error = InvalidValue(f"{cls.__name__}.__init__ must call super().__init__() first")
    return lifecycle.start_failed(cls.__name__, lifecycle.reason_of(error))


def refuse_closed(ref: ActorRef[Any]) -> StartFailed:
    """End an actor that was to be started in a closed system, and return the error."""
    lifecycle.end(ref, NOPROC, report=False)
    return StartFailed(f"{ref._system} is closed: it starts no actors", reason=NOPROC)


def on_start(ref: ActorRef[Any], actor: Any) -> Any:
    """Run the hook in this thread as the actor. Returns what it returns, raises what it raises."""
    token = running_actor.set(ref)
    system = ref._system
    entered = None if entered_system.get() is system else entered_system.set(system)
    try:
        return actor.on_start()
    finally:
        running_actor.reset(token)
        if entered is not None:
            entered_system.reset(entered)


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
    if ref._life is not None:
        ref._life.starting = None
    if ref._finished:
        future.fail(lifecycle.start_failed(ref, ref._reason))
    elif result is Ignore:
        ignore_start(ref)
        future.complete(Ignore)
    else:
        # False if it came too late: the starter has given up and ends it.
        return future.complete(ref)
    return False


def ignore_start(ref: ActorRef[Any]) -> None:
    """End an actor that said in `on_start` that it is not needed (INIT-3)."""
    unbind_starter(ref)
    lifecycle.end(ref, NORMAL)


def fail_start(ref: ActorRef[Any], error: BaseException) -> StartFailed:
    """End an actor whose `on_start` raised, and return the error for its starter.

    A supervisor reports the failed start of its child itself; any other is reported here.
    """
    if ref._finished:
        return lifecycle.start_failed(ref, ref._reason)
    reason = lifecycle.reason_of(error)
    unbind_starter(ref)
    failure = lifecycle.start_failed(ref, reason)
    supervised = ref._life is not None and ref._life.parent is not None
    lifecycle.end(ref, reason, error=error, report=not supervised)
    return failure


def unbind_starter(ref: ActorRef[Any]) -> None:
    """Remove the link with the starter of an actor that did not start: it learns of it directly."""
    life = ref._life
    if life is not None:
        for starter in life.starters or ():
            bonds.unlink(starter, ref)
