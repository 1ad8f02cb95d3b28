"""The file of a disk table: one LMDB environment in one file, opened with the care LMDB needs.

- Before LMDB maps a file, its header is read in plain Python, and unless it is as an orderly close
  left it, all its pages are checked (`lmdb_pages`): damage ends in an error, never in a dead
  process.
- Every change is one transaction, so that what a kill leaves behind is the last state that was
  committed, and nothing needs repair. With `durability="power"` it is flushed before it returns;
  with "process" it survives the end of the process, but not of the machine.
- Reads are transactions of one call, and nothing of them outlives it. Readers are kept out while
  the
  map grows and while the file is closed.
- A forked child is refused: LMDB's state belongs to the process that opened it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, cast

import lmdb
import msgpack

from ..actors.failpoint import failpoint
from .lmdb_pages import DamagedFile, ForeignFile, LmdbPages
from .table_codec import DamagedRow
from .table_errors import TableError, TableFileError
from .table_lock import TableLock, file_error, is_locked
from .table_rows import TABLE_TYPES, TableType

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
Access = Literal["read_write", "read"]
Durability = Literal["power", "process"]

FORMAT: Final = 1
MAP_SIZE: Final = 1 << 36
"""Bytes of address space to begin with; on disk only what is used counts."""
SMALLEST_MAP: Final = 1 << 20
SPARE_BYTES: Final = 1 << 16
"""A disk with less free is called full."""
CLOSE_SECONDS: Final = 1.0
"""How long a close waits for a write that is going on, in a thread that may have been killed."""

_ROWS, _META, _HEADER = b"rows", b"meta", b"table"


class Header(NamedTuple):
    """What a table file says of itself."""

    format: int
    type: TableType
    keypos: int


class TableFile:
    """An open table file. Raises TableFileError, see its codes; a failed open changes no file."""

    def __init__(
        self,
        path: str,
        type_: TableType,
        keypos: int,
        *,
        access: Access = "read_write",
        durability: Durability = "power",
        map_size: int = MAP_SIZE,
    ) -> None:
        self.path = path
        self.access: Access = access
        self.durability: Durability = durability
        self._pid = os.getpid()
        self._map_size = max(SMALLEST_MAP, map_size)
        self._env: lmdb.Environment | None = None
        self._lock: TableLock | None = None
        # Held by the writer for its whole transaction, map growth included.
        self._writing = threading.Lock()
        # Guards the two fields below it: readers come and go, who excludes them waits for none.
        self._gate = threading.Condition(threading.Lock())
        self._readers = 0
        self._excluders = 0
        wanted = Header(FORMAT, type_, keypos)
        try:
            if access == "read":
                self._open_to_read(wanted)
            else:
                self._open_to_write(wanted)
        except BaseException:
            self._abandon()
            raise

    # -- opening -----------------------------------------------------------------------------------

    def _open_to_read(self, wanted: Header) -> None:
        found = self._inspect_to_read()
        if found is None:
            raise TableFileError("not_a_dets_file", self.path, "it is empty")
        self._agree(found, wanted)
        self._map(lock=os.access(os.path.dirname(self.path) or ".", os.W_OK))
        self.rows = self._table(_ROWS)

    def _inspect_to_read(self) -> Header | None:
        if not is_locked(self.path):
            return inspect(self.path, whole=True)
        for _ in range(4):
            # Another process may be writing to a page just as it is looked at here.
            with suppress(DamagedFile):
                return _look(self.path, whole=False)
        return inspect(self.path, whole=False)

    def _open_to_write(self, wanted: Header) -> None:
        existing = os.path.lexists(self.path)
        if existing and not os.access(self.path, os.W_OK):
            raise TableFileError("file_error", self.path, "it is write-protected", reason="eacces")
        if existing:
            # Nothing is made beside what is somebody else's file. Damage is judged under the lock:
            # another process may be writing to a page just as it is looked at here.
            with suppress(DamagedFile):
                _look(self.path, whole=False)
        self._lock = TableLock(self.path)
        found = inspect(self.path, whole=not self._lock.left_in_order()) if existing else None
        if found is not None:
            self._agree(found, wanted)
        self._lock.opened()
        self._map(lock=True)
        failpoint("table.open.before_header")
        if found is None:
            self._initialise(wanted)
        self.rows = self._table(_ROWS)
        self._environment().reader_check()

    def _agree(self, found: Header, wanted: Header) -> None:
        if found.format > FORMAT:
            raise TableFileError(
                "newer_format", self.path,
                f"it has format {found.format}, formats up to {FORMAT} are known: upgrade keepwell",
            )  # fmt: skip
        if found.type != wanted.type:
            raise TableFileError(
                "type_mismatch", self.path, f"its type is {found.type}, not {wanted.type}"
            )
        if found.keypos != wanted.keypos:
            raise TableFileError(
                "keypos_mismatch", self.path, f"its keypos is {found.keypos}, not {wanted.keypos}"
            )

    def _map(self, *, lock: bool) -> None:
        readonly = self.access == "read"
        while True:
            try:
                self._env = lmdb.open(
                    self.path,
                    subdir=False,
                    map_size=self._map_size,
                    max_dbs=2,
                    max_readers=1024,
                    mode=0o600,
                    sync=self.durability == "power",
                    readonly=readonly,
                    create=not readonly,
                    readahead=False,
                    lock=lock,
                )
                return
            except lmdb.MemoryError:  # no such address space here: a limit, a small machine
                if self._map_size <= 1 << 28:
                    raise
                self._map_size >>= 2
            except lmdb.Error as error:
                raise self._operator_error(error) from error

    def _initialise(self, header: Header) -> None:
        packed = cast("bytes", msgpack.packb(header._asdict()))

        def work(txn: lmdb.Transaction) -> None:
            env = self._environment()
            env.open_db(_ROWS, txn=txn)
            meta = env.open_db(_META, txn=txn)
            txn.put(_HEADER, packed, db=meta)

        self.change(work)
        if self.durability == "power":
            # The file's name is an entry of its directory, and that has to be flushed too.
            directory = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def _table(self, name: bytes) -> Any:
        try:
            return self._environment().open_db(name, create=False)
        except lmdb.Error as error:
            raise self._operator_error(error) from error

    # -- transactions ------------------------------------------------------------------------------

    def _environment(self) -> lmdb.Environment:
        if self._pid != os.getpid():
            raise TableFileError(
                "forked", self.path,
                f"process {self._pid} opened it before a fork: open it after forking",
            )  # fmt: skip
        if self._env is None:
            raise TableError(repr(self.path), "is not open", path=self.path)
        return self._env

    @property
    def is_open(self) -> bool:
        """Whether the file has not been closed."""
        return self._env is not None

    @contextmanager
    def reading(self) -> Iterator[lmdb.Transaction]:
        """A read transaction for the block, which waits for nothing."""
        with self._gate:
            while self._excluders:
                self._gate.wait()
            env = self._environment()
            self._readers += 1
        try:
            with env.begin() as txn:
                yield txn
        except (lmdb.Error, DamagedRow) as error:
            raise self._operator_error(error) from error
        finally:
            with self._gate:
                self._readers -= 1
                self._gate.notify_all()

    def change(self, work: Callable[[lmdb.Transaction], T]) -> T:
        """Run `work` in a write transaction and commit it; if `work` raises, nothing has changed.

        When the map is full it grows, and `work` runs again, from nothing.
        """
        with self._writing:
            while True:
                env = self._environment()
                try:
                    txn = env.begin(write=True)
                    try:
                        result = work(txn)
                        failpoint("table.write.before_commit")
                    except BaseException:
                        txn.abort()
                        raise
                    txn.commit()
                    failpoint("table.write.after_commit")
                    return result
                except lmdb.MapFullError:
                    self._grow(env)
                except (lmdb.Error, DamagedRow) as error:
                    raise self._operator_error(error) from error

    def _grow(self, env: lmdb.Environment) -> None:
        failpoint("table.grow.begin")
        with self._without_readers():
            self._map_size *= 2
            try:
                env.set_mapsize(self._map_size)
            except lmdb.Error as error:
                raise self._operator_error(error) from error
        failpoint("table.grow.end")

    @contextmanager
    def _without_readers(self) -> Iterator[None]:
        with self._gate:
            self._excluders += 1
            while self._readers:
                self._gate.wait()
        try:
            yield
        finally:
            with self._gate:
                self._excluders -= 1
                self._gate.notify_all()

    def sync(self) -> None:
        """Flush what has been committed."""
        if self.access == "read":
            return
        with self._writing:
            try:
                self._environment().sync(True)
            except lmdb.Error as error:
                raise self._operator_error(error) from error

    def check(self) -> None:
        """Check all pages. Raises TableFileError (`damaged`)."""
        self._environment()
        if self.access == "read_write":
            with self._writing:
                inspect(self.path, whole=True)

    def _operator_error(self, error: Exception) -> TableFileError:
        if isinstance(error, DamagedRow):
            return TableFileError("damaged", self.path, str(error))
        if isinstance(error, (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError,
                              lmdb.VersionMismatchError)):  # fmt: skip
            return TableFileError("damaged", self.path, str(error))
        for number, word in _REASONS.items():
            if os.strerror(number) in str(error) and not (word == "eio" and self._is_full(error)):
                return TableFileError("file_error", self.path, str(error), reason=word)
        return TableFileError(
            "file_error", self.path, str(error), reason="enospc" if self._is_full(error) else "eio"
        )

    def _is_full(self, error: Exception) -> bool:
        """Whether the disk is full. LMDB reports the write that filled it as an EIO."""
        if isinstance(error, lmdb.DiskError):
            return True
        with suppress(OSError):
            disk = os.statvfs(os.path.dirname(self.path) or ".")
            return disk.f_bavail * disk.f_frsize < SPARE_BYTES
        return False

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> bool:
        """Close the file and note that it is in order; it may be called again.

        False if a thread is stuck in a write: then the file stays open, and an open after this
        process's end checks it.
        """
        if self._pid != os.getpid():
            return True
        if not self._writing.acquire(timeout=CLOSE_SECONDS):
            return False
        try:
            env = self._env
            if env is None:
                return True
            with self._without_readers():
                self._env = None
                if self.access == "read_write":
                    with suppress(lmdb.Error):
                        env.sync(True)
                env.close()
            failpoint("table.close.before_note")
            if self._lock is not None:
                self._lock.closed()
            return True
        finally:
            self._abandon()
            self._writing.release()

    def _abandon(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


_REASONS: Final = {
    number: errno.errorcode[number].lower()
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM,
                   errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
}  # fmt: skip


def inspect(path: str, *, whole: bool) -> Header | None:
    """Read a table file's header without mapping it; None if it is empty, hence new.

    With `whole` all its pages are checked too. Raises TableFileError: `file_error`,
    `not_a_dets_file`, `damaged`.
    """
    try:
        return _look(path, whole=whole)
    except DamagedFile as error:
        raise TableFileError("damaged", path, str(error)) from error


def _look(path: str, *, whole: bool) -> Header | None:
    """As `inspect`, but damage is a DamagedFile."""
    try:
        if not os.path.getsize(path):
            return None
        pages = LmdbPages(path)
    except OSError as error:
        raise file_error(path, error) from error
    except ForeignFile as error:
        raise TableFileError("not_a_dets_file", path, str(error)) from error
    try:
        if whole:
            pages.check()
        tables = pages.tables()
        if not tables and not pages.state.main.entries:
            return None  # the process that made it was killed before it wrote the header
        packed = b""
        if _META in tables and _ROWS in tables:
            packed = next((v for k, v, _ in pages.records(tables[_META]) if k == _HEADER), b"")
        return _read_header(path, packed)
    finally:
        pages.close()


def _read_header(path: str, packed: bytes) -> Header:
    if not packed:
        raise TableFileError("not_a_dets_file", path, "it is an LMDB file, but no table's")
    try:
        fields = msgpack.unpackb(packed)
        header = Header(int(fields["format"]), fields["type"], int(fields["keypos"]))
    except (ValueError, TypeError, KeyError) as error:
        raise TableFileError("damaged", path, "its header is garbled") from error
    if header.type not in TABLE_TYPES and header.format <= FORMAT:
        raise TableFileError("damaged", path, f"its header names the type {header.type!r}")
    return header
