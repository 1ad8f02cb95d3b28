"""The ref of a supervisor: an actor's ref with the requests as methods."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..actors import ActorRef, Future
from ..actors.ref import AnyRef
from . import requests
from .child_spec import ChildSpec, ShutdownTime
from .requests import ChildCount, ChildInfo

if TYPE_CHECKING:
    from ..actors.pykka_bridge import Watch


@dataclass(frozen=True, slots=True)
class Orphan:
    """A child that outlived its supervisor, and how its spec wants it to be stopped."""

    ref: AnyRef
    watch: Watch | None
    shutdown: ShutdownTime | object


class SupervisorRef(ActorRef[Any]):
    """What `Supervisor.start` returns: each method is the function of that name in `requests`."""

    __slots__ = ("orphans",)

    orphans: tuple[Orphan, ...]
    """Children that were alive when a killed supervisor had ended; set at its end (F69)."""

    def start_child(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `requests.start_child`."""
        return requests.start_child(self, *args, **kwargs)

    def terminate_child(self, child: Hashable) -> Future[None]:
        """See `requests.terminate_child`."""
        return requests.terminate_child(self, child)

    def restart_child(self, child_id: Hashable) -> Future[AnyRef | None]:
        """See `requests.restart_child`."""
        return requests.restart_child(self, child_id)

    def delete_child(self, child_id: Hashable) -> Future[None]:
        """See `requests.delete_child`."""
        return requests.delete_child(self, child_id)

    def get_childspec(self, child: Hashable) -> Future[ChildSpec]:
        """See `requests.get_childspec`."""
        return requests.get_childspec(self, child)

    def which_children(self) -> Future[list[ChildInfo]]:
        """See `requests.which_children`."""
        return requests.which_children(self)

    def count_children(self) -> Future[ChildCount]:
        """See `requests.count_children`."""
        return requests.count_children(self)
