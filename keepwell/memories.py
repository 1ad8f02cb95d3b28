"""Which provider serves an agent's `memory=`: one actor per store or custom provider."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from .memory.default_provider import stores_as_default
from .memory.provider_actor import accepts
from .memory.provider_handle import NoMemory, ProviderHandle
from .memory.provider_home import ProviderHome
from .memory.turn_gate import turn_gates
from .stores import DiskStore, Store
from .stores.disk_engine import DiskEngine
from .stores.disk_session_store import DiskSessionStore, still_holds
from .stores.memory_session_store import MemorySessionStore
from .stores.store_handle import StoreHandle

if TYPE_CHECKING:
    from .actors import Future
    from .agent.spec import AgentSpec
    from .runtime import Runtime
    from .stores.session_store import RowsSessionStore

logger = logging.getLogger("keepwell")


class Memories:
    """The providers of one runtime, started when they are first needed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._homes: dict[int, ProviderHome] = {}
        self._starting: dict[ProviderHome, Future[Any]] = {}
        # By the id of the store's port, which its provider's home keeps alive.
        self._beside: dict[int, RowsSessionStore] = {}

    async def of(self, spec: AgentSpec) -> ProviderHandle | NoMemory:
        """The memory of a spec, started: the store too, if nobody has started it."""
        memory = self.now(spec)
        target = self._target(spec)
        if isinstance(target, Store) and self._runtime.is_unknown(target):
            await self._runtime.start_store(target)
        if isinstance(memory, ProviderHandle) and memory.home.ref is None:
            await self._start(memory.home, target, memory.custom)
        return memory

    def now(self, spec: AgentSpec) -> ProviderHandle | NoMemory:
        """The memory of a spec; what is asked of it waits until its provider has been started."""
        form = spec.memory_form
        if form.kind == "none":
            return NoMemory()
        target = self._target(spec)
        custom = form.kind == "provider"
        key = getattr(target, "port", target)
        home = self._homes.get(id(key))
        if home is None or home.closed is not None:
            home = self._homes[id(key)] = ProviderHome(key)
            if custom and not getattr(target, "journal", False):
                logger.warning(
                    "memory provider %r is no journal: unfinished turns are not resumed, and "
                    "turn_id and pauses do not hold across restarts", target,
                )  # fmt: skip
        # Where the records are: a recall's or another's that stores as the default provider does.
        beside = target.store if custom and stores_as_default(target) else target
        return ProviderHandle(
            home, journal=bool(getattr(target, "journal", not custom)), gates=turn_gates(target),
            window=form.window, custom=custom,
            probes=not custom or accepts(target.append, "cursor"),
            kept_beside=partial(self._kept_beside, beside), lasting=isinstance(beside, StoreHandle),
        )  # fmt: skip

    def _kept_beside(self, target: Any) -> RowsSessionStore | None:
        """Where summaries and large contents of a store's conversations are kept.

        In the store's own environment if it has one, so that they go and are saved with it.
        """
        runtime = self._runtime
        port = getattr(target, "port", None)
        if port is runtime.store.port:
            return runtime.session_store
        key = id(target if port is None else port)
        kept = self._beside.get(key)
        if kept is None:
            on_disk = isinstance(target, DiskStore) or (
                isinstance(target, StoreHandle) and isinstance(target.port.engine, DiskEngine)
            )
            if on_disk:
                kept = DiskSessionStore(target)
            elif isinstance(target, StoreHandle):
                if target.port.engine is None and not isinstance(target, Store):
                    return None  # it is away, and nobody knows what it is
                kept = MemorySessionStore(holds=partial(still_holds, target))
            else:
                kept = MemorySessionStore()
            self._beside[key] = kept
        return kept

    def close(self, reason: Any) -> None:
        """The runtime ends: fail whoever waits for a provider."""
        for home in self._homes.values():
            home.close(reason)

    def homes(self) -> list[ProviderHome]:
        """The places of all providers."""
        return list(self._homes.values())

    def _target(self, spec: AgentSpec) -> Any:
        target = spec.memory_form.target
        return self._runtime.store if target is None else target

    async def _start(self, home: ProviderHome, target: Any, custom: bool) -> None:
        starting = self._starting.get(home)
        if starting is None:
            runtime = self._runtime
            starting = self._starting[home] = runtime.providers.start_child(
                home, target, custom, runtime.system
            )
        try:
            await starting
        finally:
            self._starting.pop(home, None)
