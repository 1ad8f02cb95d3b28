"""The control lane: stop, exit signals, Down, suspend and the like, which go ahead of data."""

from __future__ import annotations

from typing import Any

from .exits import KILLED, NORMAL, Down, Exit, ExitReason, is_orderly
from .inspection import Statistics, set_trace, statistics
from .ref import (
    CONTINUE,
    DELIVER,
    GET_STATE,
    IDLE,
    IDLE_ARM,
    KILL_NOW,
    RESUME,
    SIGNAL,
    START,
    STATISTICS,
    STOP,
    SUSPEND,
    TRACE,
    ActorRef,
)

GO_ON, RUN, END, BEGIN = "go_on", "run", "end", "begin"


def attend(ref: ActorRef[Any], actor: Any) -> tuple[Any, ...] | None:
    """Take one item from the control lane and say what the actor's runner must do.

    Returns None when nothing (more) can be done now; `(GO_ON,)` when it was dealt with here;
    `(RUN, message)` for a message to handle now; `(END, reason, hook)` when the actor must end,
    after its hook if `hook`; `(BEGIN, future)` when `on_start` is to run here.
    """
    item = _next_item(ref)
    if item is None:
        return None
    kind = item[0]
    if kind == SIGNAL:
        return _signal(ref, actor, item[1], item[2])
    if kind == DELIVER:
        message = item[1]
        if message.__class__ is Down:
            active, message.monitor.active = message.monitor.active, False
            if not active:
                return (GO_ON,)
        return (RUN, message)
    if kind == CONTINUE:
        return (RUN, item[1])
    if kind == STOP:
        if item[2] is not None:
            life = ref._get_life()
            if life.stop_futures is None:
                life.stop_futures = []
            life.stop_futures.append(item[2])
        return (END, item[1], True)
    if kind == KILL_NOW:
        return (END, KILLED, False)
    if kind == START:
        return (BEGIN, item[1])
    if kind in (IDLE_ARM, IDLE):
        return _idle(ref, item)
    life = ref._get_life()
    if kind == SUSPEND:
        life.suspended = True
        item[1].complete(None)
    elif kind == RESUME:
        life.suspended = False
        item[1].complete(None)
    elif kind == STATISTICS:
        item[1].complete(_seen_by_itself(statistics(ref)))
    elif kind == TRACE:
        set_trace(ref, actor, item[1])
        item[2].complete(None)
    elif kind == GET_STATE:
        try:
            state = actor.get_state()
        except BaseException as error:
            item[1].fail(error)
        else:
            item[1].complete(state)
    return (GO_ON,)


def _seen_by_itself(seen: Statistics) -> Statistics:
    if seen["state"] == "busy" and not seen["mailbox"]:
        seen["state"] = "idle"  # but for this question
    return seen


def _next_item(ref: ActorRef[Any]) -> tuple[Any, ...] | None:
    control = ref._control
    if not control:
        return None
    life = ref._life
    index = 0 if life is None or not life.suspended else _first_served_suspended(ref, control)
    try:
        return None if index is None else control.pop(index)
    except IndexError:
        return None  # the actor was fenced, and its lane drained


def _first_served_suspended(ref: ActorRef[Any], control: list[tuple[Any, ...]]) -> int | None:
    # System calls, kills and exit signals that are no messages are served, the rest waits.
    actor = ref._actor
    for index, item in enumerate(control):
        if item[0] in _SERVED_SUSPENDED:
            return index
        if item[0] != SIGNAL:
            continue
        if actor is None or not actor.trap_exit or _is_from_parent(ref, item):
            return index
    return None


def _is_from_parent(ref: ActorRef[Any], signal: tuple[Any, ...]) -> bool:
    # Its own supervisor may end a suspended actor too, as in OTP's sys.
    life = ref._life
    return signal[1] is not None and life is not None and signal[1] is life.parent


_SERVED_SUSPENDED = frozenset({SUSPEND, RESUME, GET_STATE, STATISTICS, TRACE, KILL_NOW, STOP})


def has_work(ref: ActorRef[Any]) -> bool:
    """Whether something waits that the actor may handle now."""
    life = ref._life
    if life is not None and life.suspended:
        control = ref._control
        return control is not None and _first_served_suspended(ref, control) is not None
    return bool(ref._queue or ref._control or ref._batch)


def is_suspended(ref: ActorRef[Any]) -> bool:
    """Whether messages must wait."""
    life = ref._life
    return life is not None and life.suspended


def _signal(ref: ActorRef[Any], actor: Any, sender: Any, reason: ExitReason) -> tuple[Any, ...]:
    life = ref._get_life()
    if actor.trap_exit:
        if sender is not None and sender is life.parent:
            return (END, reason, True)
        return (RUN, Exit(sender, reason))
    if reason == NORMAL and isinstance(reason, str) and sender is not ref:
        return (GO_ON,)
    # OTP runs no hook in an actor that does not trap exits; we do on an orderly end (design §3).
    return (END, reason, is_orderly(reason) and not actor.otp_shutdown)


def _idle(ref: ActorRef[Any], item: tuple[Any, ...]) -> tuple[Any, ...]:
    life = ref._get_life()
    if item[0] == IDLE:
        if life.idle_number == item[1] and ref._handled == item[2]:
            return (RUN, life.idle_message)
        return (GO_ON,)
    if life.idle_timer is not None:
        life.idle_timer.cancel()
    life.idle_number += 1
    if not ref.mailbox_size and life.idle_seconds is not None:
        life.idle_timer = ref._system.clock.call_later(
            life.idle_seconds, _idle_over, ref, life.idle_number, ref._handled
        )
    return (GO_ON,)


def _idle_over(ref: ActorRef[Any], number: int, handled: int) -> None:
    # What counts is whether anything waits now: a message that comes later comes after it.
    if ref._handled == handled and not ref.mailbox_size:
        ref._send_control(IDLE, number, handled)
