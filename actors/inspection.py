"""What is known of an actor from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ref import ActorRef


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
