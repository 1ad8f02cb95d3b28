"""`DiskTable`: DETS over LMDB, with ordered_set added and without repair.

A table is opened under a name, and all who open that name in an actor system share it: it is closed
when the last of them has closed it or has ended (DETS-5). Every change is committed before the call
returns, so that a killed process loses nothing that it was told is stored (DETS-9), and no kill
leaves anything to repair (DETS-6).

Calls block for a flush (`durability="power"`) or for a copy into the system's memory: make them in
an `Actor` or a `ThreadActor`, not on an event loop.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from ..actors.context import current_system, running_actor
from ..actors.ref import ActorRef
from .disk_rows import DISK_ROWS, DiskRows, EncodedRow
from .key_codec import encode_key
from .memory_table import MemoryTable
from .table import Table
from .table_codec import encode_row
from .table_errors import KILLED_CALLER, TableError, TableFileError, shown
from .table_file import Access, Durability, TableFile, inspect
from .table_rows import TABLE_TYPES, Row, Rows, TableType
from .term_order import Term

if TYPE_CHECKING:
    from types import TracebackType

    from ..actors.system import ActorSystem

AnyRef: TypeAlias = "ActorRef[Any]"
T = TypeVar("T")

_INFO: Final = (
    "name", "type", "keypos", "access", "durability", "size", "path", "file_size", "safe_fixed",
)  # fmt: skip

_caller = running_actor.get

# Guards the two registers and every table's openers.
_register = threading.RLock()
_by_name: WeakKeyDictionary[ActorSystem, dict[str, DiskTable]] = WeakKeyDictionary()
_by_path: dict[str, DiskTable] = {}
# Files whose close was given up, because a thread was stuck in a write to them.
_stuck: dict[str, TableFile] = {}


class DiskTable(Table):
    """A table in a file. Made by `DiskTable.open`, which also gives an open one to its openers."""

    _file: TableFile | None
    _path: str
    _system: ActorSystem
    _names: dict[str, DiskTable]
    # How often each caller has opened the table, and what takes its exit callback back.
    _openers: dict[AnyRef | None, tuple[int, Callable[[], None]]]
    _fixes: dict[AnyRef | None, int]

    def __init__(self) -> None:
        raise TypeError("open a disk table with DiskTable.open(name, path)")

    @classmethod
    def open(
        cls,
        name: str,
        path: str | os.PathLike[str],
        type: TableType = "set",  # noqa: A002 - DETS's word
        access: Access = "read_write",
        keypos: int = 0,
        *,
        durability: Durability = "power",
    ) -> DiskTable:
        """Open the table file at `path`, which is made if it is missing, or join who has it open.

        `access="read"` refuses writes (TableError `access_mode`) and a missing file. With
        `durability="power"` a change is flushed before it returns; with "process" it survives the
        end of this process, but not of the machine, until `sync` or `close`.

        Raises TableError for bad arguments. Raises TableFileError, a StoreError with `code` and
        `path`: `file_error` (`reason` says what, as `enoent`), `not_a_dets_file`, `type_mismatch`,
        `keypos_mismatch`, `damaged`, `newer_format`, `incompatible_arguments` (the name is open
        with other arguments), `in_use` (the file is open under another name, or for writing in
        another process). A file that cannot be opened is left as it was.
        """
        path = _checked(name, path, type, access, keypos, durability)
        caller = cast("AnyRef | None", _caller())
        system = caller.system if caller is not None else current_system()
        with _register:
            if caller is not None and not caller.is_alive():
                raise TableError(shown(name), KILLED_CALLER)
            names = _by_name.setdefault(system, {})
            table = names.get(name)
            if table is None:
                table = _open_file(cls, system, name, path, type, access, keypos, durability)
                table._names = names
                names[name] = _by_path[path] = table
            else:
                table._agree(path, type, access, keypos)
            table._add_opener(caller)
        return table

    def __repr__(self) -> str:
        return f"<DiskTable {self.name!r} at {self._path!r}>"

    def __enter__(self) -> DiskTable:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self.close()

    # -- openers -----------------------------------------------------------------------------------

    def _agree(self, path: str, type_: TableType, access: Access, keypos: int) -> None:
        file = self._file
        held = (self._path, self.type, self.keypos)
        if (path, type_, keypos) != held or (access == "read_write" and file is not None
                                             and file.access == "read"):  # fmt: skip
            raise TableFileError(
                "incompatible_arguments", path,
                f"the table {shown(self.name)} is open with path {self._path!r}, type {self.type}, "
                f"keypos {self.keypos} and access {file.access if file else '-'}",
            )  # fmt: skip

    def _add_opener(self, caller: AnyRef | None) -> None:
        times, forget = self._openers.get(caller, (0, None))
        if forget is None:
            forget = (
                caller.on_exit(partial(self._opener_ended, caller)) if caller else _nothing
            )
        self._openers[caller] = (times + 1, forget)

    def close(self) -> None:
        """Close the caller's opening; the last one closes the file (DETS-5).

        Raises TableError with code `not_owner` if the caller has not opened the table.
        """
        caller = cast("AnyRef | None", _caller())
        with _register:
            times, forget = self._openers.get(caller, (0, _nothing))
            if not times or self._file is None:
                raise TableError(
                    shown(self.name), "close: the caller has not opened it", code="not_owner",
                    path=self._path,
                )  # fmt: skip
            if times > 1:
                self._openers[caller] = (times - 1, forget)
                return
            forget()
            del self._openers[caller]
            self._close_if_unused()

    def _opener_ended(self, opener: AnyRef, _reason: Any) -> None:
        with _register:
            self._fixes.pop(opener, None)
            if self._openers.pop(opener, None) is not None:
                self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._openers:
            return
        file, self._file = self._file, None
        self._names.pop(self.name, None)
        _by_path.pop(self._path, None)
        self._fixes.clear()
        if file is not None and not file.close():
            _stuck[self._path] = file

    # -- what Table needs --------------------------------------------------------------------------

    def _fail(self, problem: object, *, code: str = "badarg") -> NoReturn:
        raise TableError(shown(self.name), str(problem), code=code, path=self._path) from None

    def _open_one(self) -> TableFile:
        file = self._file
        caller = cast("AnyRef | None", _caller())
        if file is None:
            self._fail("is not open")
        if caller is not None and not caller.is_alive():
            self._fail(KILLED_CALLER)
        return file

    @contextmanager
    def _reading(self) -> Iterator[Rows]:
        file = self._open_one()
        with file.reading() as txn:
            yield self._rows_in(file, txn)

    def _write(self, work: Callable[[Rows], T]) -> T:
        file = self._open_one()
        if file.access == "read":
            self._fail('was opened with access="read"', code="access_mode")
        return file.change(lambda txn: work(self._rows_in(file, txn)))

    def _rows_in(self, file: TableFile, txn: Any) -> DiskRows:
        return DISK_ROWS[self.type](txn, file.rows, self.keypos, fixed=bool(self._fixes))

    def _ident(self, key: Term) -> bytes:
        return encode_key(key, exact=self.type != "ordered_set")

    def _stored(self, row: Row) -> EncodedRow:
        return EncodedRow(encode_row(row), row)

    # -- DETS's own calls --------------------------------------------------------------------------

    def sync(self) -> None:
        """Flush what has been committed; with `durability="power"` that is done already."""
        self._open_one().sync()

    def to_memory(self, table: MemoryTable) -> MemoryTable:
        """Insert all rows into a memory table, which is returned (DETS-8)."""
        if not isinstance(table, MemoryTable):
            self._fail(f"to_memory: {shown(table)} is no MemoryTable")
        table.insert(self.to_list())
        return table

    def from_memory(self, table: MemoryTable) -> None:
        """Replace all rows by those of a memory table, as one change (DETS-8)."""
        if not isinstance(table, MemoryTable):
            self._fail(f"from_memory: {shown(table)} is no MemoryTable")
        prepared = self._prepare_all(table.to_list())

        def work(rows: Rows) -> None:
            rows.clear()
            for ident, stored in prepared:
                rows.put(ident, stored)

        self._write(work)

    def info(self, item: str | None = None) -> Any:
        """Return one fact, or all of them in a dict; None if the table is not open (DETS-4, 10).

        The items: name, type, keypos, access, durability, size (rows), path, file_size (bytes),
        safe_fixed (False, or a list of (ref, times)). Raises TableError for another item.
        """
        if item is not None and item not in _INFO:
            self._fail(f"info: {shown(item)} is none of {', '.join(_INFO)}")
        file = self._file
        if file is None:
            return None
        try:
            with file.reading() as txn:
                size = self._rows_in(file, txn).size()
        except TableError:
            return None  # closed at this moment
        facts = {
            "name": self.name,
            "type": self.type,
            "keypos": self.keypos,
            "access": file.access,
            "durability": file.durability,
            "size": size,
            "path": self._path,
            "file_size": os.path.getsize(self._path),
            "safe_fixed": list(self._fixes.items()) or False,
        }
        return facts if item is None else facts[item]

    @staticmethod
    def is_table_file(path: str | os.PathLike[str]) -> bool:
        """Whether the file at `path` is one of a disk table's.

        Raises TableFileError if there is no such file or if it is damaged.
        """
        try:
            return inspect(os.fspath(path), whole=False) is not None
        except TableFileError as error:
            if error.code == "not_a_dets_file":
                return False
            raise

    def verify(self) -> int:
        """Read everything and check it: pages, checksums, each row under its key. Returns the rows.

        Raises TableFileError (`damaged`) at the first fault. Writes wait while the pages are read.
        """
        file = self._open_one()
        file.check()
        with file.reading() as txn:
            rows = self._rows_in(file, txn)
            checked = 0
            for handle, row in rows.entries():
                if not rows.belongs(handle, self._ident(row[self.keypos])):
                    raise TableFileError(
                        "damaged", self._path, f"a row lies under another key than {shown(row)}'s"
                    )
                checked += 1
            return checked

    # -- traversal under change --------------------------------------------------------------------

    def fix(self) -> FixedDiskTable:
        """Let `next` work from deleted keys until `unfix` (ETS-15); usable as a context manager."""
        self._open_one()
        caller = cast("AnyRef | None", _caller())
        with _register:
            self._fixes[caller] = self._fixes.get(caller, 0) + 1
        return FixedDiskTable(self)

    def unfix(self) -> None:
        """Take back one `fix` of the caller's; without any, nothing happens."""
        self._open_one()
        caller = cast("AnyRef | None", _caller())
        with _register:
            times = self._fixes.pop(caller, 0)
            if times > 1:
                self._fixes[caller] = times - 1


class FixedDiskTable:
    """A fixed table; unfixes it at the end of a `with` block."""

    def __init__(self, table: DiskTable) -> None:
        self.table = table

    def __enter__(self) -> DiskTable:
        return self.table

    def __exit__(self, *_error: object) -> None:
        if self.table.info("size") is not None:
            self.table.unfix()


def _checked(
    name: object, path: object, type_: str, access: str, keypos: object, durability: str
) -> str:
    """Check the arguments of `open`; returns the path, absolute and without links."""

    def refuse(problem: str) -> NoReturn:
        raise TableError(shown(name), f"open: {problem}")

    if not isinstance(name, str):
        refuse("a table's name is a str")
    if type_ not in TABLE_TYPES:
        refuse(f"type {shown(type_)}: use one of {', '.join(TABLE_TYPES)}")
    if access not in ("read_write", "read"):
        refuse(f"access {shown(access)}: use read_write or read")
    if durability not in ("power", "process"):
        refuse(f"durability {shown(durability)}: use power or process")
    if type(keypos) is not int or keypos < 0:
        refuse(f"keypos {shown(keypos)}: positions are ints from 0 up")
    if not isinstance(path, (str, os.PathLike)):
        refuse(f"path {shown(path)}: give a str or PathLike")
    text: object = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        refuse(f"path {shown(path)}: give the name of a file")
    return os.path.realpath(text)


def _open_file(
    cls: type[DiskTable],
    system: ActorSystem,
    name: str,
    path: str,
    type_: TableType,
    access: Access,
    keypos: int,
    durability: Durability,
) -> DiskTable:
    other = _by_path.get(path)
    if other is not None and other._system.closed:
        # Opened outside of any actor, in a system that has ended: nobody is left to close it.
        other._openers.clear()
        other._close_if_unused()
    elif other is not None:
        raise TableFileError(
            "in_use", path, f"it is open as table {shown(other.name)}: use that one"
        )
    stuck = _stuck.get(path)
    if stuck is not None:
        if not stuck.close():
            raise TableFileError(
                "in_use", path, "a killed actor's write to it has not ended: restart the process"
            )
        del _stuck[path]
    table = object.__new__(cls)
    table.name, table.type, table.keypos = name, type_, keypos
    table._path = path
    table._system = system
    table._openers = {}
    table._fixes = {}
    table._file = TableFile(path, type_, keypos, access=access, durability=durability)
    return table


def _nothing() -> None:
    pass


def _close_all() -> None:
    """Leave every file in order at the end of the process, so that its next open need not check."""
    with _register:
        for table in list(_by_path.values()):
            if table._file is not None:
                table._file.close()


def _after_fork_in_child() -> None:
    """The parent's tables stay the parent's; a call on one of them is refused by its file."""
    global _register
    _register = threading.RLock()
    _by_path.clear()
    _by_name.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
