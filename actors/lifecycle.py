"""How an actor ends: its hooks, what it held, who hears of it, and the report."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

from . import telemetry
from .bonds import remove_member
from .errors import ActorDied
from .exits import KILLED, NOPROC, Down, ExitActor, ExitReason, Monitor, is_orderly
from .life import Life, lock
from .ref import DELIVER, KILL_NOW, SIGNAL, ActorRef, Request

logger = logging.getLogger("keepwell.actors")


def note_message(ref: ActorRef[Any], message: Any) -> None:
    """Remember the type of the message that is being handled, for the report of a crash."""
    if message.__class__ is Request:
        message = message.message
    ref._get_life().last_message = type(message).__name__


def reason_of(error: BaseException) -> ExitReason:
    """The exit reason of an actor whose hook or handler raised `error`."""
    return error.reason if isinstance(error, ExitActor) else error


def run_hook(actor: Any, reason: ExitReason, error: BaseException | None) -> Any:
    """Call `on_stop`, or `on_failure` after a crash, and return what it returns."""
    actor.exit_reason = reason
    if error is not None and not is_orderly(reason):
        return actor.on_failure(type(error), error, error.__traceback__)
    return actor.on_stop()


def was_killed(ref: ActorRef[Any]) -> bool:
    """Whether a kill waits in the control lane: it came while a hook or handler was running."""
    return any(item[0] == KILL_NOW for item in list(ref._control or ()))


def finish(ref: ActorRef[Any], reason: ExitReason) -> None:
    """End an actor whose last hook has returned; a kill meanwhile is the reason then (SHUT-3)."""
    end(ref, KILLED if was_killed(ref) else reason)


def end(ref: ActorRef[Any], reason: ExitReason, *, report: bool = True) -> bool:
    """End an actor, once: close its mailbox, free what it held, tell who is bound to it.

    The order is OTP's: owned resources go first, then names and groups, then links and monitors
    hear of it. Runs in the thread that ran the actor, or in a killer's (fencing). False if it had
    ended. Without `report` whoever calls tells of it: an actor that did not start has a starter.
    """
    finished, ref._finished = ref._finished, True
    if finished:
        return False
    system = ref._system
    life = ref._life
    links: list[ActorRef[Any]] = []
    monitors: list[Monitor] = []
    callbacks: list[Callable[[ExitReason], object]] = []
    if life is None:
        ref._reason = reason
        ref._closed = True
        life = ref._life  # somebody may have made it before we closed
    if life is not None:
        callbacks = _take_callbacks(ref, life, reason)
        for callback in callbacks:
            try:
                callback(reason)
            except Exception:
                logger.exception("an exit callback of %s failed", ref)
        with lock:
            links = list(life.links or ())
            for peer in links:
                if peer._life is not None and peer._life.links is not None:
                    peer._life.links.pop(ref, None)
            life.links = None
            monitors = list(life.monitors or ())
            life.monitors = None
            if life.name is not None and system.names_table.get(life.name) is ref:
                del system.names_table[life.name]
            for group, count in (life.groups or {}).items():
                for _ in range(count):
                    remove_member(ref, group, system.groups_table)
            life.groups = None
    system.actors.pop(ref, None)
    serving, ref._serving = ref._serving, None
    if serving is not None:
        serving.fail(_died(ref, reason))
    if life is not None:
        for request in (*(life.batch or ()), *(life.deferred or ())):
            request.fail(_died(ref, reason))
        life.batch = life.deferred = None
    if report:
        _report(ref, reason, serving)
    ref._drain()
    actor, ref._actor = ref._actor, None
    if actor is not None and isinstance(reason, BaseException):
        # Frames that are done keep their lines for the report, but not what their locals hold.
        traceback.clear_frames(reason.__traceback__)
    for peer in links:
        peer._send_control(SIGNAL, ref, reason, True)
    for watch in monitors:
        watch.watcher._send_control(DELIVER, Down(watch, ref, watch.name, reason))
    if life is not None:
        for future in life.stop_futures or ():
            future.complete(True)
        life.stop_futures = None
        if life.stopped is not None:
            life.stopped.set()
        with lock:
            waiting, life.end_futures = life.end_futures or (), ()
        for waiter in waiting:
            waiter.complete(reason)
    return True


def _take_callbacks(
    ref: ActorRef[Any], life: Life, reason: ExitReason
) -> list[Callable[[ExitReason], object]]:
    with lock:
        ref._reason = reason
        ref._closed = True
        callbacks = life.exit_callbacks or []
        life.exit_callbacks = None
    return callbacks


def _died(ref: ActorRef[Any], reason: ExitReason) -> ActorDied:
    return ActorDied(f"{ref} ended before it replied: {reason!r}", reason=reason)


def _report(ref: ActorRef[Any], reason: ExitReason, serving: Request | None) -> None:
    """One report per crash: who, why, and the type of what it was handling, never its content."""
    if is_orderly(reason) or reason in (KILLED, NOPROC):
        if telemetry.enabled("keepwell.actor.ended"):
            telemetry.emit("keepwell.actor.ended", ref=ref, reason=reason)
        return
    life = ref._life
    message = type(serving.message).__name__ if serving else life.last_message if life else None
    error = reason if isinstance(reason, BaseException) else None
    logger.error(
        "%s crashed%s: %r",
        ref,
        f" handling a {message}" if message else "",
        reason,
        exc_info=error,
    )
    telemetry.emit("keepwell.actor.crashed", ref=ref, reason=reason, message_type=message)
