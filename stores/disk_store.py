"""Conversations on disk (DS-1…7)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..actors.errors import InvalidValue
from .contract import ALL, DURABLE
from .disk_engine import CACHE_BYTES, DiskEngine
from .engine import Engine
from .environment import MAP_SIZE, Durability
from .errors import shown
from .store import MAX_MESSAGE_BYTES, TIMEOUT, Store, TableOwner
from .token_counter import TokenCounter

if TYPE_CHECKING:
    from ..actors.ref import ActorRef


class DiskStore(Store):
    """A conversation store in one directory, made with its parents if it is missing (0700).

    `durability="power"` (default): acknowledged means flushed. `"process"`: an acknowledged append
    survives kill -9 of the process, not a power cut, until `sync()`. `cache_bytes` bounds the
    decoded tails kept in memory. `readonly`: reads what another process's store has acknowledged.

    Started, it owns the directory. Starting fails (`StartFailed`) with the cause `StoreInUse`,
    `ForeignFormat`, `NewerFormat`, `DamagedStore` or `ReadOnlyStore`; what was there is untouched.
    """

    capabilities = ALL | {DURABLE}

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "power",
                 readonly: bool = False, counter: TokenCounter | None = None,
                 max_message_bytes: int = MAX_MESSAGE_BYTES, cache_bytes: int = CACHE_BYTES,
                 map_size: int = MAP_SIZE, timeout: float = TIMEOUT) -> None:
        if durability not in ("power", "process"):
            raise InvalidValue(f'durability must be "power" or "process", not {shown(durability)}')
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):  # type: ignore[redundant-expr]  # callers without types
            raise InvalidValue(f"path must be a directory, as str or PathLike, not {shown(path)}")
        self.path = os.fsdecode(path)
        if "\0" in self.path:
            raise InvalidValue(f"path {shown(path)} has a NUL character: no file system takes it")
        super().__init__(self.path, counter=counter, max_message_bytes=max_message_bytes,
                         timeout=timeout)
        self.durability: Durability = durability
        self.readonly = readonly
        self._cache_bytes, self._map_size = cache_bytes, map_size

    def _open(self, owner: TableOwner, ref: ActorRef[Any]) -> Engine:
        return DiskEngine(self.path, durability=self.durability, readonly=self.readonly,
                          cache_bytes=self._cache_bytes, map_size=self._map_size,
                          wall=ref.system.clock.time)

    def _close(self, owner: TableOwner, engine: Engine) -> None:
        engine.close()
