"""How actors are bound to each other: links, monitors, names, groups."""

from __future__ import annotations

from typing import Any, TypeAlias

import pykka

from . import pykka_bridge
from .errors import RequestError
from .exits import NOPROC, Down, ExitReason, Monitor
from .life import lock
from .ref import DELIVER, SIGNAL, ActorRef, AnyRef

Members: TypeAlias = dict[ActorRef[Any], int]
"""The members of a group in order of joining, and how often each has joined."""


class NoSuchActor(RequestError):
    """The actor that was to be linked is dead, and the caller does not trap exits (LINK-4)."""

    def __init__(self, target: object) -> None:
        super().__init__(f"{target} is dead: it cannot be linked", code=NOPROC)


# -- links and monitors ------------------------------------------------------------------------


def link(ref: ActorRef[Any], peer: AnyRef, *, traps: bool) -> None:
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


def _bind(ref: ActorRef[Any], peer: AnyRef) -> bool:
    """Note the link of two actors if both live; whether `peer` does."""
    if not isinstance(peer, ActorRef):
        return pykka_bridge.bind(ref, peer)
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


def unlink(ref: ActorRef[Any], peer: AnyRef) -> None:
    """Remove the link of two actors, and an Exit of it that has not been delivered yet."""
    with lock:
        life = ref._life
        if life is not None and life.links is not None:
            life.links.pop(peer, None)
        forget_link(peer, ref)
    control = ref._control
    for item in list(control or ()):
        if item[0] == SIGNAL and len(item) > 3 and item[1] is peer and control is not None:
            try:
                control.remove(item)
            except ValueError:
                pass  # it was taken meanwhile


def forget_link(peer: AnyRef, ref: ActorRef[Any]) -> None:
    """Remove `ref` from the links of `peer`, under the lock."""
    if isinstance(peer, ActorRef):
        if peer._life is not None and peer._life.links is not None:
            peer._life.links.pop(ref, None)
    elif (watch := pykka_bridge.known_watch(peer)) is not None:
        watch.links.pop(ref, None)


def signal_peer(peer: AnyRef, ref: ActorRef[Any], reason: ExitReason) -> None:
    """Tell a linked peer that `ref` has ended."""
    if isinstance(peer, ActorRef):
        peer._send_control(SIGNAL, ref, reason, True)
    elif (watch := pykka_bridge.known_watch(peer)) is not None:
        watch.signal(reason)


def monitor(watcher: ActorRef[Any], ref: AnyRef | None, name: str | None = None) -> Monitor:
    """Watch `ref`; its Down goes to the watcher's control lane, at once if it is dead (MON-3)."""
    watch = Monitor(watcher, ref, name)
    if isinstance(ref, ActorRef):
        mine, theirs = watcher._get_life(), ref._get_life()
        with lock:
            if not ref._closed and not watcher._closed:
                if theirs.monitors is None:
                    theirs.monitors = {}
                if mine.watches is None:
                    mine.watches = {}
                theirs.monitors[watch] = mine.watches[watch] = None
                return watch
    elif ref is not None and pykka_bridge.observe(watch, ref):
        return watch
    watcher._send_control(DELIVER, Down(watch, ref, name, NOPROC))
    return watch


def demonitor(watch: Monitor) -> bool:
    """End a watch; no Down comes from it any more. False if it had ended."""
    active, watch.active = watch.active, False
    with lock:
        forget_watch(watch)
    return active


def forget_watch(watch: Monitor) -> None:
    """Remove a watch from both its ends, under the lock."""
    life = watch.watcher._life
    if life is not None and life.watches is not None:
        life.watches.pop(watch, None)
    if isinstance(watch.ref, ActorRef):
        life = watch.ref._life
        if life is not None and life.monitors is not None:
            life.monitors.pop(watch, None)
    elif watch.ref is not None and (plain := pykka_bridge.known_watch(watch.ref)) is not None:
        plain.monitors.pop(watch, None)


# -- names and groups --------------------------------------------------------------------------


def register(ref: ActorRef[Any], name: str, table: dict[str, Any]) -> ActorRef[Any] | None:
    """Register `ref`; returns who has the name already, or None. Raises if `ref` cannot have it."""
    life = ref._get_life()
    with lock:
        taken: ActorRef[Any] | None = table.get(name)
        if taken is not None:
            return taken
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


def join_group(ref: ActorRef[Any], group: str, table: dict[str, Members]) -> None:
    """Add one membership of a living actor."""
    life = ref._get_life()
    with lock:
        if ref._closed:
            raise NoSuchActor(ref)
        refs = table.setdefault(group, {})
        refs[ref] = refs.get(ref, 0) + 1
        if life.groups is None:
            life.groups = set()
        life.groups.add(group)


def leave_group(ref: ActorRef[Any], group: str, table: dict[str, Members]) -> bool:
    """Take one membership back; False if there is none."""
    with lock:
        refs = table.get(group, {})
        count = refs.get(ref, 0)
        if not count:
            return False
        if count > 1:
            refs[ref] = count - 1
        else:
            leave_wholly(ref, group, table)
            groups = ref._get_life().groups
            if groups is not None:
                groups.discard(group)
    return True


def members(group: str, table: dict[str, Members]) -> list[ActorRef[Any]]:
    """Return the members, each as often as it has joined."""
    with lock:
        return [ref for ref, count in table.get(group, {}).items() for _ in range(count)]


def leave_wholly(ref: ActorRef[Any], group: str, table: dict[str, Members]) -> None:
    """Take all memberships in one group back, under the lock."""
    refs = table[group]
    del refs[ref]
    if not refs:
        del table[group]


def as_ref(target: Any, system: Any) -> tuple[AnyRef | None, str | None]:
    """Resolve a ref or a registered name to (ref, name)."""
    if isinstance(target, str):
        return system.names_table.get(target), target
    if isinstance(target, pykka.ActorRef):
        return target, None
    raise RequestError(f"{target!r} is neither a ref nor a name", code="badarg")
