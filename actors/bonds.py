"""How actors are bound to each other: links, monitors, names, groups."""

from __future__ import annotations

from typing import Any

import pykka

from .errors import RequestError
from .exits import NOPROC, Down, Monitor
from .life import lock
from .ref import DELIVER, SIGNAL, ActorRef


class NoSuchActor(RequestError):
    """The actor that was to be linked is dead, and the caller does not trap exits (LINK-4)."""

    def __init__(self, target: object) -> None:
        super().__init__(f"{target} is dead: it cannot be linked", code=NOPROC)


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
    with lock:
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
    with lock:
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
        with lock:
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
        with lock:
            if life is not None and life.monitors is not None:
                life.monitors.pop(watch, None)
    return active


# -- names and groups --------------------------------------------------------------------------


def register(ref: ActorRef[Any], name: str, table: dict[str, Any]) -> ActorRef[Any] | None:
    """Register `ref`; returns who has the name already, or None. Raises if `ref` cannot have it."""
    life = ref._get_life()
    with lock:
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
    with lock:
        ref = table.pop(name, None)
        if ref is not None:
            ref._life.name = None
    return ref is not None


def join_group(ref: ActorRef[Any], group: str, table: dict[str, list[Any]]) -> None:
    """Add one membership of a living actor."""
    life = ref._get_life()
    with lock:
        if ref._closed:
            raise NoSuchActor(ref)
        table.setdefault(group, []).append(ref)
        if life.groups is None:
            life.groups = {}
        life.groups[group] = life.groups.get(group, 0) + 1


def leave_group(ref: ActorRef[Any], group: str, table: dict[str, list[Any]]) -> bool:
    """Take one membership back; False if there is none."""
    life = ref._life
    with lock:
        if life is None or life.groups is None or not life.groups.get(group):
            return False
        life.groups[group] -= 1
        remove_member(ref, group, table)
    return True


def remove_member(ref: ActorRef[Any], group: str, table: dict[str, list[Any]]) -> None:
    members = table[group]
    members.remove(ref)
    if not members:
        del table[group]


def as_ref(target: Any, system: Any) -> tuple[ActorRef[Any] | None, str | None]:
    """Resolve a ref or a registered name to (ref, name)."""
    if isinstance(target, str):
        return system.names_table.get(target), target
    if isinstance(target, pykka.ActorRef):
        return target, None  # type: ignore[return-value]
    raise RequestError(f"{target!r} is neither a ref nor a name", code="badarg")
