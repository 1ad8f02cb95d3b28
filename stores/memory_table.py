"""`MemoryTable`: ETS. Rows in memory, shared between actors, owned by one of them.

Who may do what is judged by the actor that calls, at each call: a `private` table is its owner's
alone, a `protected` one is read by all and written by its owner, a `public` one is everybody's
(ETS-10). Code outside of any actor is one more caller; a table that it makes has no owner but it,
and lives until it is dropped. A table ends with its owner at once, whatever the reason, before
links and monitors are told, unless a living heir takes it over (ETS-11, 13). The code of an actor
that was killed while it runs is refused from its next call on.

Calls are atomic and isolated. A lock guards the compound ones; a plain insert into a set that only
its owner writes, and a plain lookup, are one step on a dict and take none. Rows go in and out as
copies, except for what can never change (ETS-16, `value_copy`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast
from weakref import WeakSet

from ..actors.context import running_actor
from ..actors.exits import TableTransfer
from ..actors.ref import ActorRef
from .memory_rows import ROWS, MemoryRows, row_key
from .table import Table
from .table_errors import KILLED_CALLER, shown
from .table_names import TableNames
from .table_rows import TABLE_TYPES, Ident, Row, Rows, Stored, TableType
from .term_order import PLAIN, Term, exact_key, order_key
from .value_copy import SCALARS, copy_value, read_row, stored_row

AnyRef: TypeAlias = "ActorRef[Any]"
T = TypeVar("T")
Protection: TypeAlias = Literal["private", "protected", "public"]
Heir: TypeAlias = "tuple[AnyRef, Any]"

PROTECTIONS: Final = ("private", "protected", "public")

_caller = running_actor.get
_NOBODY: Final = cast("AnyRef", object())
"""Owner of a table that is gone: no caller is it, so that every call takes the slow path."""

_INFO: Final = (
    "name", "type", "protection", "keypos", "named_table", "owner", "heir", "size", "safe_fixed",
)  # fmt: skip

_tables: WeakSet[MemoryTable] = WeakSet()


class MemoryTable(Table):
    """A table in memory, owned by the actor that makes it (see the module for who may use it).

    Raises TableError for an unknown type or protection, a `keypos` that is no int from 0 up, a name
    that is no str, an heir that is no `(ref, data)`, and for a taken name if `named`.
    """

    def __init__(
        self,
        name: str,
        type: TableType = "set",
        protection: Protection = "protected",
        keypos: int = 0,
        named: bool = False,
        heir: Heir | None = None,
    ) -> None:
        self.name = name
        if not isinstance(name, str):
            self._fail("a table's name is a str")
        if type not in TABLE_TYPES:
            self._fail(f"type {shown(type)}: use one of {', '.join(TABLE_TYPES)}")
        if protection not in PROTECTIONS:
            self._fail(f"protection {shown(protection)}: use one of {', '.join(PROTECTIONS)}")
        if keypos.__class__ is not int or keypos < 0:
            self._fail(f"keypos {shown(keypos)}: positions are ints from 0 up")
        self.type: TableType = type
        self.keypos = keypos
        self._protection: Protection = protection
        self._heir = self._checked_heir(heir)
        self._lock = threading.RLock()
        self._rows: MemoryRows = ROWS[type](keypos)
        self._index: dict[Any, Any] = self._rows.index
        self._plain = type == "set"
        owner = _our_caller()
        self._owner: AnyRef | None = owner
        # A set that one actor writes needs no lock for a plain insert.
        self._alone = self._plain and protection != "public" and owner is not None
        self._read_access = _Access(self, write=False)
        self._write_access = _Access(self, write=True)
        self._gone = ""
        self._names: TableNames | None = None
        self._fixers: dict[AnyRef | None, tuple[int, Callable[[], None]]] = {}
        self._forget_owner: Callable[[], None] = _nothing
        if owner is not None and not owner.is_alive():
            self._fail(KILLED_CALLER)
        if named:
            self._names = TableNames(owner.system if owner is not None else None)
            if not self._names.register(name, self):
                self._names = None
                self._fail("the name is taken by another table")
        _tables.add(self)
        self._follow(owner)

    def __repr__(self) -> str:
        return f"<MemoryTable {self.name!r}>"

    # -- the two calls that must be fast ---------------------------------------------------------

    def insert(self, rows: Row | list[Row]) -> None:
        if self._plain and type(rows) is tuple:
            keypos = self.keypos
            if keypos < len(rows) and type(key := rows[keypos]) in PLAIN:
                if _caller() is not self._owner:
                    self._admit(write=True)
                for value in rows:
                    if type(value) not in SCALARS:
                        break
                else:
                    if self._alone:
                        self._index[key] = rows
                    else:
                        with self._lock:
                            self._index[key] = rows
                    return
        super().insert(rows)

    def lookup(self, key: Term) -> list[Row]:
        if self._plain and type(key) in PLAIN:
            if _caller() is not self._owner:
                self._admit(write=False)
            row = self._index.get(key)
            if row is None:
                return []
            return [row] if type(row) is tuple else [read_row(row)]
        return super().lookup(key)

    def member(self, key: Term) -> bool:
        if self._plain and type(key) in PLAIN:
            if _caller() is not self._owner:
                self._admit(write=False)
            return key in self._index
        return super().member(key)

    # -- what Table needs ------------------------------------------------------------------------

    def _reading(self) -> _Access:
        return self._read_access

    def _write(self, work: Callable[[Rows], T]) -> T:
        # Whatever a work can find wrong, it finds before it changes anything.
        with self._write_access as rows:
            return work(rows)

    def _ident(self, key: Term) -> Ident:
        return order_key(key) if self.type == "ordered_set" else exact_key(key)

    def _stored(self, row: Row) -> Stored:
        stored = stored_row(row)
        return (row_key(row), stored) if self.type == "bag" else stored

    def _copy(self, value: Any, row: Row) -> Any:
        return value if type(row) is tuple else copy_value(value)

    def _copy_key(self, key: Term) -> Any:
        return copy_value(key)

    # -- who may -----------------------------------------------------------------------------------

    def _admit(self, *, write: bool) -> None:
        """Raise TableError unless the caller, who is not known to be the owner, may go on."""
        caller = _our_caller()
        if self._owner is _NOBODY:
            self._fail(self._gone)
        if caller is not None and not caller.is_alive():
            self._fail(KILLED_CALLER)
        if caller is self._owner or self._protection == "public":
            return
        if self._protection == "private":
            self._fail("is private: only its owner may use it")
        if write:
            self._fail("is protected: only its owner may write to it")

    def _only_owner(self, call: str) -> AnyRef | None:
        """The caller, who is the owner; anybody else is refused."""
        caller = _our_caller()
        if self._owner is _NOBODY:
            self._fail(self._gone)
        if caller is not self._owner:
            self._fail(f"{call}: only the owner may")
        return caller

    def _checked_heir(self, heir: object) -> Heir | None:
        if heir is None:
            return None
        if not isinstance(heir, tuple) or len(heir) != 2 or not isinstance(heir[0], ActorRef):
            self._fail(f"heir {shown(heir)}: give (ref of a keepwell actor, data), or None")
        return heir[0], heir[1]

    # -- ownership ---------------------------------------------------------------------------------

    def give_away(self, ref: AnyRef, data: Any = None) -> None:
        """Make another actor the owner; it gets `TableTransfer(table, old_owner, data)` (ETS-14).

        Raises TableError if the caller is not the owner, for itself, and for a dead actor.
        """
        old = self._only_owner("give_away")
        if not isinstance(ref, ActorRef):
            self._fail(f"give_away: {shown(ref)} is no ref of a keepwell actor")
        if ref is old:
            self._fail("give_away: the actor has the table already")
        if not ref.is_alive():
            self._fail(f"give_away: {ref} is dead")
        with self._lock:
            self._only_owner("give_away")
            self._forget_owner()
            self._owner = ref
        ref.tell(TableTransfer(self, cast("AnyRef", old), data))
        self._follow(ref)

    def set_heir(self, ref: AnyRef | None, data: Any = None) -> None:
        """Name who takes the table over at the owner's end, None for nobody (ETS-13)."""
        self._only_owner("set_heir")
        heir = self._checked_heir(None if ref is None else (ref, data))
        with self._lock:
            self._only_owner("set_heir")
            self._heir = heir

    def _follow(self, owner: AnyRef | None) -> None:
        """End with an owner; at once if it has ended already."""
        if owner is not None:
            self._forget_owner = owner.on_exit(partial(self._owner_ended, owner))

    def _owner_ended(self, owner: AnyRef, _reason: Any) -> None:
        with self._lock:
            if self._owner is not owner:
                return
            heir = self._heir
            if heir is None or heir[0] is owner or not heir[0].is_alive():
                self._end("its owner has ended")
                return
            self._owner = heir[0]
        heir[0].tell(TableTransfer(self, owner, heir[1]))
        self._follow(heir[0])

    def drop(self) -> None:
        """Delete the table; later calls raise, `info` gives None (ETS-7).

        Only the owner may, anybody if the table is public.
        """
        with self._lock:
            if _our_caller() is not self._owner:
                self._admit(write=True)
            self._forget_owner()
            self._end("it was dropped")

    def _end(self, why: str) -> None:
        self._owner = _NOBODY
        self._gone = f"there is no such table: {why}"
        self._alone = False
        self._heir = None
        # Who is in the middle of a plain insert writes into what nobody sees any more.
        self._rows = ROWS[self.type](self.keypos)
        self._index = self._rows.index
        if self._names is not None:
            self._names.unregister(self.name, self)
        for _, forget in self._fixers.values():
            forget()
        self._fixers.clear()

    # -- names and facts ---------------------------------------------------------------------------

    @staticmethod
    def whereis(name: str) -> MemoryTable | None:
        """The named table of the current actor system with this name, else None (ETS-12)."""
        caller = _our_caller()
        return TableNames(caller.system if caller is not None else None).whereis(name)

    def rename(self, name: str) -> None:
        """Give the table another name. Raises TableError if it is `named` and the name is taken."""
        if not isinstance(name, str):
            self._fail(f"rename: a table's name is a str, not {shown(name)}")
        with self._write_access:
            if self._names is not None and name != self.name:
                if not self._names.register(name, self):
                    self._fail(f"rename: the name {shown(name)} is taken by another table")
                self._names.unregister(self.name, self)
            self.name = name

    def info(self, item: str | None = None) -> Any:
        """Return one fact, or all of them in a dict; None if the table is gone (ETS-17).

        The items: name, type, protection, keypos, named_table (bool), owner (ref or None), heir
        (ref or None), size (rows), safe_fixed (False, or a list of (ref, times)). Everybody may
        ask, about private tables too. Raises TableError for another item.
        """
        if item is not None and item not in _INFO:
            self._fail(f"info: {shown(item)} is none of {', '.join(_INFO)}")
        with self._lock:
            if self._owner is _NOBODY:
                return None
            facts = {
                "name": self.name,
                "type": self.type,
                "protection": self._protection,
                "keypos": self.keypos,
                "named_table": self._names is not None,
                "owner": self._owner,
                "heir": self._heir[0] if self._heir else None,
                "size": self._rows.size(),
                "safe_fixed": [(ref, times) for ref, (times, _) in self._fixers.items()] or False,
            }
        return facts if item is None else facts[item]

    # -- traversal under change ------------------------------------------------------------------

    def fix(self) -> FixedTable:
        """Until `unfix`, `next` works from deleted keys, and a traversal ends (ETS-15).

        As a context manager it unfixes at the end of the block. Fixes count; an actor's end takes
        back its own.
        """
        with self._reading():
            caller = _our_caller()
            times, forget = self._fixers.get(caller, (0, None))
            if forget is None:
                forget = caller.on_exit(partial(self._fixer_ended, caller)) if caller else _nothing
            self._fixers[caller] = (times + 1, forget)
            if not self._rows.fixed:
                self._rows.fix(True)
        return FixedTable(self)

    def unfix(self) -> None:
        """Take back one `fix` of the caller's; without any, nothing happens."""
        with self._reading():
            caller = _our_caller()
            times, forget = self._fixers.get(caller, (0, _nothing))
            if times > 1:
                self._fixers[caller] = (times - 1, forget)
            elif times:
                forget()
                self._unfix(caller)

    def _fixer_ended(self, fixer: AnyRef, _reason: Any) -> None:
        with self._lock:
            self._unfix(fixer)

    def _unfix(self, fixer: AnyRef | None) -> None:
        if self._fixers.pop(fixer, None) is not None and not self._fixers:
            self._rows.fix(False)


class _Access:
    """Opens a table's rows under its lock, once the caller's right has been judged."""

    __slots__ = ("_table", "_write")

    def __init__(self, table: MemoryTable, *, write: bool) -> None:
        self._table = table
        self._write = write

    def __enter__(self) -> Rows:
        table = self._table
        table._lock.acquire()
        try:
            if _caller() is not table._owner:
                table._admit(write=self._write)
            return table._rows
        except BaseException:
            table._lock.release()
            raise

    def __exit__(self, *_error: object) -> None:
        self._table._lock.release()


class FixedTable:
    """A fixed table; unfixes it at the end of a `with` block."""

    def __init__(self, table: MemoryTable) -> None:
        self.table = table

    def __enter__(self) -> MemoryTable:
        return self.table

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self.table.info("size") is not None:
            self.table.unfix()


def _our_caller() -> AnyRef | None:
    return cast("AnyRef | None", _caller())


def _nothing() -> None:
    pass


def _after_fork_in_child() -> None:
    """A child of a fork has a copy that would drift apart from the original: refuse it there."""
    for table in list(_tables):
        table._lock = threading.RLock()
        table._owner = _NOBODY
        table._alone = False
        table._gone = f"it belongs to process {os.getppid()}; make the table after forking"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
