"""Starting and stopping the actor of one child, of whatever kind it is.

A child may be one of our actors (by class, by `functools.partial`, or returned by a callable), a
plain `pykka.ThreadingActor` (see `pykka_bridge`), or another supervisor, which is one of ours.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pykka

from ..actors import Actor, ActorRef, CallTimeout, Exit, ExitActor, Future, Ignore, StartFailed
from ..actors.actor import takes_name
from ..actors.bonds import adopt
from ..actors.errors import InvalidValue
from ..actors.exits import KILLED, NOPROC, SHUTDOWN, ExitReason
from ..actors.inspection import statistics
from ..actors.pykka_bridge import Watch, start_watched, watch_running
from ..actors.ref import AnyRef
from .child_spec import WORKER_SHUTDOWN, ChildSpec, ShutdownTime

if TYPE_CHECKING:
    from .supervisor import Supervisor


def start_actor(
    supervisor: Supervisor, spec: ChildSpec, args: tuple[Any, ...], kwargs: dict[str, Any] | None
) -> tuple[AnyRef | None, Watch | None]:
    """Start the child's actor, bound to its supervisor from the start where that is possible.

    Returns its ref, with a Watch for a plain pykka actor; no ref if it said `Ignore` (INIT-3).
    Raises StartFailed, also for whatever else the start raises (INIT-2).
    """
    if not supervisor.actor_ref.is_alive():  # it was killed while it was busy with something else
        raise StartFailed(f"{supervisor.actor_ref} is dead: it starts no children", reason=NOPROC)
    start, given, named = _unwrapped(spec.start)
    args, kwargs = (*given, *args), {**named, **(kwargs or {})}
    if isinstance(start, type) and issubclass(start, Actor):
        name = None if takes_name(start) else kwargs.pop("name", None)  # as `Actor.start` has it
        parent = _ours(supervisor.actor_ref)
        options = start.options(name=name, parent=parent, system=supervisor.system)
        ref = options.start(*args, **kwargs)
        return (None if ref is Ignore else ref), None
    if isinstance(start, type) and issubclass(start, pykka.ThreadingActor):
        watch = start_watched(start, args, kwargs)
        return _watched(supervisor, watch)
    try:
        result = start(*args, **kwargs)
        if isinstance(result, Future):
            result = result.get()
    except StartFailed:
        raise
    except ExitActor as left:
        raise StartFailed(reason=left.reason) from left
    except BaseException as error:
        raise StartFailed(reason=error) from error
    if result is None or result is Ignore:
        return None, None
    if isinstance(result, ActorRef):
        adopt(result, _ours(supervisor.actor_ref))
        return result, None
    if isinstance(result, pykka.ActorRef):
        return _watched(supervisor, watch_running(result))
    raise StartFailed(
        reason=InvalidValue(
            f"the start of child {spec.id!r} returned {result!r}: it must return the ref of the "
            "actor it has started, or None for no actor"
        )
    )


def stop_actor(ref: AnyRef, watch: Watch | None, shutdown: ShutdownTime | object) -> ExitReason:
    """Stop a child as its shutdown time says, wait for its end, return its reason (SHUT-1 to 6)."""
    return _await_end(ref, watch, request_stop(ref, watch, shutdown), shutdown)


def request_stop(
    ref: AnyRef, watch: Watch | None, shutdown: ShutdownTime | object
) -> Future[ExitReason]:
    """Send the exit signal that a child's shutdown time asks for; the future gets its reason."""
    ended = _end_of(ref, watch)
    if shutdown == "brutal_kill":
        kill(ref, watch)
    elif watch is not None:
        watch.stop(SHUTDOWN)
    else:
        _ours(ref).exit(SHUTDOWN)
    return ended


def kill(ref: AnyRef, watch: Watch | None) -> None:
    """Kill a child that is late, or that is to be killed at once."""
    if watch is not None:
        watch.kill()
    else:
        _ours(ref).kill()


def end_orphans(ref: AnyRef | None) -> None:
    """Wait for the end of what a killed supervisor has left, so that nothing lives twice (F69).

    They have been told by their link and run their hooks, whatever their specs say of a shutdown
    (SHUT-7). Who is later than its shutdown time allows is killed.
    """
    for orphan in getattr(ref, "orphans", ()):
        limit = WORKER_SHUTDOWN if orphan.shutdown == "brutal_kill" else orphan.shutdown
        _await_end(orphan.ref, orphan.watch, _end_of(orphan.ref, orphan.watch), limit)
        end_orphans(orphan.ref)


def last_message_type(ref: AnyRef | None) -> str | None:
    """The type of the message that a crashed actor was handling, never the message itself."""
    if not isinstance(ref, ActorRef):
        return None
    kind: str | None = statistics(ref)["last_message"]
    return kind


def _end_of(ref: AnyRef, watch: Watch | None) -> Future[ExitReason]:
    return watch.ended if watch is not None else _ours(ref).ended()


def _await_end(
    ref: AnyRef, watch: Watch | None, ended: Future[ExitReason], limit: ShutdownTime | object
) -> ExitReason:
    """Wait for an end, `limit` seconds if it is a number, and kill who is late."""
    if not isinstance(limit, (int, float)):
        return ended.get()
    try:
        return ended.get(timeout=limit)
    except CallTimeout:
        kill(ref, watch)
        return ended.get()


def _ours(ref: AnyRef) -> ActorRef[Any]:
    assert isinstance(ref, ActorRef)
    return ref


def _unwrapped(start: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(start, functools.partial):
        args, kwargs = (*start.args, *args), {**start.keywords, **kwargs}
        start = start.func
    return start, args, kwargs


def _watched(supervisor: Supervisor, watch: Watch) -> tuple[AnyRef, Watch]:
    """Bind a plain actor to its supervisor: its end comes as an Exit, ours stops it (SHUT-7)."""
    parent = _ours(supervisor.actor_ref)
    forget = parent.on_exit(lambda reason: watch.kill() if reason == KILLED else watch.stop(reason))

    def tell(ended: Future[ExitReason]) -> None:
        forget()
        parent.tell(Exit(watch.ref, ended.get()))

    watch.ended.add_done_callback(tell)
    return watch.ref, watch
