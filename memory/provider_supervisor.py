"""The supervisor of a runtime's providers: one that comes too often is given up alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..supervision import ChildSpec, DynamicSupervisor
from .provider_actor import ProviderActor, StoreProviderActor
from .provider_home import ProviderHome

if TYPE_CHECKING:
    from ..actors.system import ActorSystem
    from ..supervision.children import ChildRecord


class ProviderSupervisor(DynamicSupervisor):
    """One child per store or custom provider, each with a restart budget of its own (5 in 10 s).

    `start_child(ref, home, target, custom, system)`: `target` is the store, or with `custom` the
    provider. Whoever waits for one that is given up gets ActorDied.
    """

    def __init__(self) -> None:
        super().__init__(ChildSpec("provider", _start), per_child=True)

    def _give_child_up(self, record: ChildRecord) -> None:
        super()._give_child_up(record)
        home: ProviderHome = record.args[0]
        home.close(record.last_reason)


def _start(home: ProviderHome, target: Any, custom: bool, system: ActorSystem) -> Any:
    kind: Any = ProviderActor if custom else StoreProviderActor
    return kind.options(system=system).spawn(home, target)
