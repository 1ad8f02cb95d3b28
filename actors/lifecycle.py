"""How actors are bound to each other, and how one ends.

Links, monitors and names of all actors are guarded by one lock, held for a few statements only;
nothing is sent and no user code runs under it.
"""

from __future__ import annotations

import logging
import threading
import traceback
import uuid
from collections.abc import Callable
from typing import Any

import pykka

from . import telemetry
from .errors import ActorDied, RequestError
from .exits import (
    KILLED,
    NOPROC,
    NORMAL,
    Down,
    Exit,
    ExitActor,
    ExitReason,
    Monitor,
    is_orderly,
)
from .future import Future
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
    ActorRef,
    Request,
)

logger = logging.getLogger("keepwell.actors")

_lock = threading.Lock()
_stopped_lock = threading.Lock()


class NoSuchActor(RequestError):
    """The actor that was to be linked is dead, and the caller does not trap exits (LINK-4)."""

    def __init__(self, target: object) -> None:
        super().__init__(f"{target} is dead: it cannot be linked", code=NOPROC)


class Life:
    """The part of an actor's state that most actors never need."""

    __slots__ = (
        "__weakref__", "batch", "child_id", "deferred", "end_futures", "exit_callbacks", "groups",
        "idle_message", "idle_seconds", "idle_timer", "last_message", "links", "monitors", "name",
        "parent", "stop_futures", "stopped", "suspended", "urn",
    )  # fmt: skip

    def __init__(self) -> None:
        self.name: str | None = None
        self.groups: dict[str, int] | None = None
        self.links: dict[ActorRef[Any], None] | None = None
        self.monitors: dict[Monitor, None] | None = None
        self.parent: ActorRef[Any] | None = None
        # What its supervisor calls it: an item of its path.
        self.child_id: Any = None
        self.exit_callbacks: list[Callable[[ExitReason], object]] | None = None
        self.stop_futures: list[Any] | None = None
        # Who waits for the end; a tuple once everything of it is over.
        self.end_futures: list[Future[ExitReason]] | tuple[()] | None = None
        # Requests that the actor has taken and will answer later, and those of a running batch.
        self.deferred: dict[Request, None] | None = None
        self.batch: list[Request] | None = None
        self.suspended = False
        self.idle_seconds: float | None = None
        self.idle_message: Any = None
        self.idle_timer: Any = None
        self.last_message: str | None = None
        self.urn: str | None = None
        self.stopped: threading.Event | None = None

    def get_urn(self) -> str:
        """The actor's urn, made now if nobody has asked before."""
        urn = self.urn
        if urn is None:
            with _stopped_lock:
                urn = self.urn
                if urn is None:
                    urn = self.urn = uuid.uuid4().urn
        return urn

    def get_stopped(self, ref: ActorRef[Any]) -> threading.Event:
        """An event that is set once the actor has ended."""
        with _stopped_lock:
            if self.stopped is None:
                self.stopped = threading.Event()
        if ref._closed:
            self.stopped.set()
        return self.stopped

    def add_exit_callback(
        self, ref: ActorRef[Any], callback: Callable[[ExitReason], object]
    ) -> Callable[[], None]:
        """See ActorRef.on_exit."""
        with _lock:
            alive = not ref._closed
            if alive:
                if self.exit_callbacks is None:
                    self.exit_callbacks = []
                self.exit_callbacks.append(callback)
        if not alive:
            callback(NOPROC)

        def forget() -> None:
            with _lock:
                if self.exit_callbacks is not None and callback in self.exit_callbacks:
                    self.exit_callbacks.remove(callback)

        return forget


    def add_end_future(self, ref: ActorRef[Any], future: Future[ExitReason]) -> None:
        """See ActorRef.ended."""
        with _lock:
            over = isinstance(self.end_futures, tuple)
            if not over:
                if self.end_futures is None:
                    self.end_futures = []
                self.end_futures.append(future)  # type: ignore[union-attr]
        if over:
            future.complete(ref._reason)


# -- links and monitors ------------------------------------------------------------------------


def link(ref: ActorRef[Any], peer: ActorRef[Any], *, traps: bool) -> None:
    """Link two actors. A dead peer gives an Exit to who traps, else raises NoSuchActor."""
    if ref is peer or _bind(ref, peer):
        return
    if not traps:
        raise NoSuchActor(peer)
    ref._send_control(SIGNAL, peer, NOPROC, True)


def adopt(child: ActorRef[Any], parent: ActorRef[Any]) -> None:
    """Make `parent`, which traps exits, the linked parent of an actor that somebody else started.

    From a dead child the parent gets an Exit with the reason it ended with; a dead parent ends the
    child.
    """
    child._get_life().parent = parent
    if not _bind(parent, child):
        parent._send_control(SIGNAL, child, child._reason, True)
    elif parent._closed:
        child._send_control(SIGNAL, parent, parent._reason, True)


def _bind(ref: ActorRef[Any], peer: ActorRef[Any]) -> bool:
    """Note the link of two actors if both live; whether `peer` does."""
    mine, theirs = ref._get_life(), peer._get_life()
    with _lock:
        alive = not peer._closed
        if alive and not ref._closed:
            if mine.links is None:
                mine.links = {}
            if theirs.links is None:
                theirs.links = {}
            mine.links[peer] = None
            theirs.links[ref] = None
    return alive


def unlink(ref: ActorRef[Any], peer: ActorRef[Any]) -> None:
    """Remove the link of two actors, and an Exit of it that has not been delivered yet."""
    with _lock:
        for one, other in ((ref, peer), (peer, ref)):
            life = one._life
            if life is not None and life.links is not None:
                life.links.pop(other, None)
        for item in list(ref._control or ()):
            if item[0] == SIGNAL and len(item) > 3 and item[1] is peer and ref._control:
                ref._control.remove(item)


def monitor(watcher: ActorRef[Any], ref: ActorRef[Any] | None, name: str | None = None) -> Monitor:
    """Watch `ref`; its Down goes to the watcher's control lane, at once if it is dead (MON-3)."""
    watch = Monitor(watcher, ref, name)
    if ref is not None:
        life = ref._get_life()
        with _lock:
            if not ref._closed:
                if life.monitors is None:
                    life.monitors = {}
                life.monitors[watch] = None
                return watch
    watcher._send_control(DELIVER, Down(watch, ref, name, NOPROC))
    return watch


def demonitor(watch: Monitor) -> bool:
    """End a watch; no Down comes from it any more. False if it had ended."""
    active, watch.active = watch.active, False
    if isinstance(watch.ref, ActorRef):
        life = watch.ref._life
        with _lock:
            if life is not None and life.monitors is not None:
                life.monitors.pop(watch, None)
    return active


# -- names and groups --------------------------------------------------------------------------


def register(ref: ActorRef[Any], name: str, table: dict[str, Any]) -> ActorRef[Any] | None:
    """Register `ref`; returns who has the name already, or None. Raises if `ref` cannot have it."""
    life = ref._get_life()
    with _lock:
        taken = table.get(name)
        if taken is not None:
            return taken  # type: ignore[no-any-return]
        if ref._closed:
            raise NoSuchActor(ref)
        if life.name is not None:
            raise RequestError(f"{ref} is registered as {life.name!r} already", code="badarg")
        table[name] = ref
        life.name = name
    return None


def unregister(name: str, table: dict[str, Any]) -> bool:
    """Free a name; False if nobody had it."""
    with _lock:
        ref = table.pop(name, None)
        if ref is not None:
            ref._life.name = None
    return ref is not None


def join_group(ref: ActorRef[Any], group: str, table: dict[str, list[Any]]) -> None:
    """Add one membership of a living actor."""
    life = ref._get_life()
    with _lock:
        if ref._closed:
            raise NoSuchActor(ref)
        table.setdefault(group, []).append(ref)
        if life.groups is None:
            life.groups = {}
        life.groups[group] = life.groups.get(group, 0) + 1


def leave_group(ref: ActorRef[Any], group: str, table: dict[str, list[Any]]) -> bool:
    """Take one membership back; False if there is none."""
    life = ref._life
    with _lock:
        if life is None or life.groups is None or not life.groups.get(group):
            return False
        life.groups[group] -= 1
        _remove_member(ref, group, table)
    return True


def _remove_member(ref: ActorRef[Any], group: str, table: dict[str, list[Any]]) -> None:
    members = table[group]
    members.remove(ref)
    if not members:
        del table[group]


# -- the control lane --------------------------------------------------------------------------

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
        item[1].complete(statistics(ref))
    elif kind == GET_STATE:
        try:
            state = actor.get_state()
        except Exception as error:
            item[1].fail(error)
        else:
            item[1].complete(state)
    return (GO_ON,)


def _next_item(ref: ActorRef[Any]) -> tuple[Any, ...] | None:
    control = ref._control
    if not control:
        return None
    life = ref._life
    if life is None or not life.suspended:
        return control.pop(0)
    index = _first_served_suspended(ref, control)
    return None if index is None else control.pop(index)


def _first_served_suspended(ref: ActorRef[Any], control: list[tuple[Any, ...]]) -> int | None:
    # System calls, kills and exit signals that are no messages are served, the rest waits.
    actor = ref._actor
    for index, item in enumerate(control):
        if item[0] in _SERVED_SUSPENDED:
            return index
        if item[0] == SIGNAL and (actor is None or not actor.trap_exit):
            return index
    return None


_SERVED_SUSPENDED = frozenset({SUSPEND, RESUME, GET_STATE, STATISTICS, KILL_NOW, STOP})


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
        if life.idle_timer is item[1] and ref._handled == item[2] and not ref.mailbox_size:
            life.idle_timer = None
            return (RUN, life.idle_message)
        return (GO_ON,)
    if not ref.mailbox_size and life.idle_seconds is not None:
        token = object()
        life.idle_timer = token
        ref._system.clock.call_later(
            life.idle_seconds, ref._send_control, IDLE, token, ref._handled
        )
    return (GO_ON,)


def statistics(ref: ActorRef[Any]) -> dict[str, Any]:
    """What is known of an actor from outside; seconds and counts."""
    life = ref._life
    return {
        "name": life.name if life else None,
        "class": ref.actor_class.__name__,
        "handled": ref._handled,
        "mailbox": ref.mailbox_size,
        "uptime": ref._system.clock.monotonic() - ref._started,
        "suspended": bool(life and life.suspended),
        "links": list(life.links or ()) if life else [],
        "monitors": len(life.monitors or ()) if life else 0,
        "last_message": life.last_message if life else None,
    }


# -- the end -----------------------------------------------------------------------------------


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
        with _lock:
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
                    _remove_member(ref, group, system.groups_table)
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
        with _lock:
            waiting, life.end_futures = life.end_futures or (), ()
        for waiter in waiting:
            waiter.complete(reason)
    return True


def _take_callbacks(
    ref: ActorRef[Any], life: Life, reason: ExitReason
) -> list[Callable[[ExitReason], object]]:
    with _lock:
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


def as_ref(target: Any, system: Any) -> tuple[ActorRef[Any] | None, str | None]:
    """Resolve a ref or a registered name to (ref, name)."""
    if isinstance(target, str):
        return system.names_table.get(target), target
    if isinstance(target, pykka.ActorRef):
        return target, None  # type: ignore[return-value]
    raise RequestError(f"{target!r} is neither a ref nor a name", code="badarg")
