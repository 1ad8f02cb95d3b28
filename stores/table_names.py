"""The names of named memory tables, one set of names for each actor system (ETS-12)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..actors.context import current_system

if TYPE_CHECKING:
    from ..actors.system import ActorSystem
    from .memory_table import MemoryTable

_names: WeakKeyDictionary[ActorSystem, dict[str, MemoryTable]] = WeakKeyDictionary()
_lock = threading.Lock()


class TableNames:
    """The names of one system's tables."""

    def __init__(self, system: ActorSystem | None = None) -> None:
        with _lock:
            self._tables = _names.setdefault(system or current_system(), {})

    def register(self, name: str, table: MemoryTable) -> bool:
        """Give `name` to a table; False if another one has it."""
        with _lock:
            return self._tables.setdefault(name, table) is table

    def unregister(self, name: str, table: MemoryTable) -> None:
        """Free `name`, if the table has it."""
        with _lock:
            if self._tables.get(name) is table:
                del self._tables[name]

    def whereis(self, name: str) -> MemoryTable | None:
        """The table with a name, None if there is none."""
        return self._tables.get(name)
