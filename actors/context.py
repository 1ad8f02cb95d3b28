"""Who is running: the actor and the actor system of the code that asks."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

from .errors import InvalidValue

if TYPE_CHECKING:
    from .ref import AnyRef
    from .system import ActorSystem

running_actor: ContextVar[AnyRef | None] = ContextVar("keepwell.actor", default=None)
entered_system: ContextVar[ActorSystem | None] = ContextVar("keepwell.system", default=None)
starting_system: ContextVar[ActorSystem | None] = ContextVar("keepwell.starting", default=None)
"""The system that the actor being constructed is for, where one was given."""

# All systems that have been started and not closed, in order; the process-wide default system,
# which is started by the first use without any, is kept apart.
running_systems: dict[ActorSystem, None] = {}
open_systems: dict[ActorSystem, None] = {}
"""The same with the default system."""

_default: list[ActorSystem] = []
making = threading.Lock()


def current_actor() -> AnyRef | None:
    """The ref of the actor whose hook or handler is running, None outside of any."""
    return running_actor.get()


def current_system() -> ActorSystem:
    """The system entered in this context, else the only one running, else the process's default.

    Raises InvalidValue if several are running and none is entered (DF-4).
    """
    system = entered_system.get()
    if system is not None and not system.closed:
        return system
    if len(running_systems) == 1:
        return next(iter(running_systems))
    if running_systems:
        raise InvalidValue(
            f"{len(running_systems)} actor systems are running and none is entered here: "
            "use `with system:` or pass system="
        )
    return default_system()


def default_system() -> ActorSystem:
    """The process-wide system for programs that never make one; ends at interpreter exit."""
    if not _default or _default[0].closed:
        from .system import ActorSystem  # the default is made on first use

        with making:
            if not _default or _default[0].closed:
                _default[:] = [ActorSystem(name="default", is_default=True)]
    return _default[0]
