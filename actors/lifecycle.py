"""How an actor ends: its hooks, what it held, who hears of it, and the report."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import bonds, telemetry
from .errors import StartFailed
from .exits import KILLED, Down, ExitActor, ExitReason, Monitor, describe, is_orderly
from .life import Life, lock
from .propagation import type_name
from .ref import DELIVER, KILL_NOW, ActorRef, AnyRef
from .request import Request

logger = logging.getLogger("keepwell.actors")


def note_message(ref: ActorRef[Any], message: Any) -> None:
    """Remember the type of the message that is being handled, for the report of a crash."""
    if message.__class__ is Request:
        message = message.message
    ref._get_life().last_message = type_name(message)


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


def finish(ref: ActorRef[Any], reason: ExitReason, error: BaseException | None = None) -> None:
    """End an actor whose last hook has returned; a kill meanwhile is the reason then (SHUT-3)."""
    end(ref, KILLED if was_killed(ref) else reason, error=error)


def end(
    ref: ActorRef[Any],
    reason: ExitReason,
    *,
    error: BaseException | None = None,
    report: bool = True,
    fenced: bool = False,
) -> bool:
    """End an actor, once: close its mailbox, free what it held, tell who is bound to it.

    The order is OTP's: owned resources go first, then names and groups, then links and monitors
    hear of it. Runs in the thread that ran the actor, or in a killer's (fencing). False if it had
    ended. `error` is what its own code raised, if that is why it ends. Without `report` whoever
    calls tells of it. If it is `fenced`, its handler may still run: its thread or task is left
    behind and counted.
    """
    finished, ref._finished = ref._finished, True
    if finished:
        if ref._life is not None:
            _answer_stops(ref._life)  # one that its runner took up while another ended it
        return False
    if fenced and ref._is_running():
        ref._system.abandoned_threads += 1
        telemetry.emit("keepwell.actor.fenced", ref=ref)
    life = ref._life
    if life is None:
        ref._reason = reason
        ref._closed = True
        life = ref._life  # somebody may have made it before we closed
    if life is not None:
        for callback in _close(ref, life, reason):
            try:
                callback(reason)
            except BaseException:
                logger.exception("an exit callback of %s failed", ref)
    links, monitors = _unbind(ref, life) if life is not None else ((), ())
    ref._system.actors.pop(ref, None)
    serving, ref._serving = ref._serving, None
    if error is not None:
        _begin_with_its_own_code(error)
    if report:  # before those who wait hear of it: they may look for the report next
        _report(ref, reason, error, serving)
    if serving is not None:
        serving.fail(ref._died())
    if life is not None:
        for request in (*(life.batch or ()), *(life.deferred or ())):
            request.fail(ref._died())
        life.batch = life.deferred = None
        if life.idle_timer is not None:
            life.idle_timer.cancel()
        if life.starting is not None:
            life.starting.fail(start_failed(ref, reason))
    ref._drain()
    actor, ref._actor = ref._actor, None
    if error is not None:
        _forget_locals(error, actor)
    if fenced:
        ref._abandon()
    for peer in links:
        bonds.signal_peer(peer, ref, reason)
    for watch in monitors:
        watch.watcher._send_control(DELIVER, Down(watch, ref, watch.name, reason))
    if life is not None:
        _answer_stops(life)
        if life.stopped is not None:
            life.stopped.set()
        with lock:
            waiting, life.end_futures = life.end_futures or (), ()
        for waiter in waiting:
            waiter.complete(reason)
    return True


def start_failed(what: object, reason: ExitReason) -> StartFailed:
    """The error of a start that failed for `reason`."""
    return StartFailed(f"{what} did not start: {describe(reason)}", reason=reason)


def _close(
    ref: ActorRef[Any], life: Life, reason: ExitReason
) -> list[Callable[[ExitReason], object]]:
    """Close the mailbox and return the exit callbacks, so that none is added later and missed."""
    with lock:
        ref._reason = reason
        ref._closed = True
        callbacks = life.exit_callbacks or []
        life.exit_callbacks = None
    return callbacks


def _unbind(
    ref: ActorRef[Any], life: Life
) -> tuple[Sequence[AnyRef], Sequence[Monitor]]:
    """Free name and groups, cut links and monitors; returns who was linked and who watched."""
    system = ref._system
    with lock:
        links = tuple(life.links or ())
        for peer in links:
            bonds.forget_link(peer, ref)
        life.links = None
        monitors = tuple(life.monitors or ())
        for watch in (*monitors, *(life.watches or ())):
            bonds.forget_watch(watch)
        if life.name is not None and system.names_table.get(life.name) is ref:
            del system.names_table[life.name]
        for group in life.groups or ():
            bonds.leave_wholly(ref, group, system.groups_table)
        life.groups = None
    return links, monitors


def _answer_stops(life: Life) -> None:
    waiting = life.stop_futures
    while waiting:
        try:
            waiting.pop().complete(True)
        except IndexError:
            return


def _begin_with_its_own_code(error: BaseException) -> None:
    """Drop our runners' frames from the head of a traceback.

    They are no news to a reader, and run while the actor ends: they could not be emptied of it.
    """
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") in _RUNNERS:
        traceback = traceback.tb_next
    if traceback is not None:
        error.__traceback__ = traceback


_RUNNERS = frozenset(
    f"{__package__}.{name}" for name in ("runner", "async_runner", "eager_task", "lifecycle")
)


def _forget_locals(error: BaseException, actor: Any) -> None:
    """Empty the frames that `error` came through: they hold the actor, its messages, the error.

    Their lines stay for reports. Coroutines are spared, all but the handler itself: an error that
    was handed on may have come through one that caught it and still runs, and clearing a suspended
    frame ends it (Python 3.13 refuses).
    """
    handler = getattr(getattr(actor, "on_receive", None), "__code__", None)
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        may_live = frame.f_code.co_flags & _CAN_BE_SUSPENDED and sys.version_info < (3, 13)
        if not may_live or frame.f_code is handler:
            try:
                frame.clear()
            except RuntimeError:
                pass  # it runs
        if may_live:
            handler = None
        traceback = traceback.tb_next


_CAN_BE_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def log_unhandled(ref: ActorRef[Any], error: BaseException) -> None:
    """Log what an actor's own code has raised, in pykka's words."""
    logger.error("Unhandled exception in %s:", ref, exc_info=error)


def _report(
    ref: ActorRef[Any], reason: ExitReason, error: BaseException | None, serving: Request | None
) -> None:
    """One report an end: who, why, and the type of what it was handling, never its content (F56).

    What the actor's own code raised is logged in pykka's words, with the rest in a note.
    """
    if is_orderly(reason) or (isinstance(reason, str) and reason == KILLED):
        if telemetry.enabled("keepwell.actor.ended"):
            telemetry.emit("keepwell.actor.ended", ref=ref, path=ref.path, reason=reason)
        return
    life = ref._life
    message = type_name(serving.message) if serving else life.last_message if life else None
    handling = f" while it handled a {message}" if message else ""
    if error is not None and error is reason:
        error.add_note(f"{ref} crashed{handling}")
        log_unhandled(ref, error)
    else:
        logger.error(
            "%s ended%s: %s", ref, handling, describe(reason),
            exc_info=reason if isinstance(reason, BaseException) else error,
        )  # fmt: skip
    telemetry.emit(
        "keepwell.actor.crashed", ref=ref, path=ref.path, reason=reason, message_type=message
    )
