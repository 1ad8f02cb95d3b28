"""Groups of actors, as OTP's pg: joining twice is membership twice, death leaves all (PG-1..3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import bonds
from .context import current_system
from .errors import RequestError

if TYPE_CHECKING:
    from .ref import ActorRef
    from .system import ActorSystem


def join(group: str, ref: ActorRef[Any]) -> None:
    """Add one membership. Raises RequestError (`noproc`) if the actor is dead."""
    bonds.join_group(ref, group, ref.system.groups_table)


def leave(group: str, ref: ActorRef[Any]) -> None:
    """Take one membership back. Raises RequestError (`not_joined`) if there is none."""
    if not bonds.leave_group(ref, group, ref.system.groups_table):
        raise RequestError(f"{ref} is no member of {group!r}", code="not_joined")


def members(group: str, *, system: ActorSystem | None = None) -> list[ActorRef[Any]]:
    """Return the members in order of joining, each as often as it joined; empty if unknown."""
    return bonds.members(group, (system or current_system()).groups_table)


def groups(*, system: ActorSystem | None = None) -> list[str]:
    """Return the names of all groups that have members."""
    return list((system or current_system()).groups_table)
