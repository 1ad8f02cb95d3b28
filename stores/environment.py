"""An LMDB environment with the care it needs (pitfalls of LMDB: see docs/decisions).

Opened by one owner under a lock file, checked before it is mapped, with a map that grows and a
gate that keeps readers out while it grows or closes. Reads are short transactions of one call;
nothing of them (no memoryview, no cursor) outlives it.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import lmdb

from ..actors.errors import InvalidValue
from ..actors.failpoint import failpoint
from .errors import (
    DamagedStore,
    DiskFull,
    ForeignFormat,
    ForkedStore,
    ReadOnlyStore,
    StoreError,
    StoreUnavailable,
    shown,
)
from .integrity import DATA, damage, look
from .lock_file import LockFile, owner_of

Durability = Literal["power", "process"]

Transaction = Any
"""An `lmdb.Transaction`. Its stubs give `bytes | memoryview`; ours have no buffers, only bytes."""

MAP_SIZE = 1 << 40
"""Bytes of address space to start with; on disk only what is used counts."""

SMALLEST_MAP = 1 << 20
PROBE = 1 << 16
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs",
                      "fuse.sshfs", "fuse.glusterfs", "lustre", "ncpfs"})
_FULL: frozenset[int | None] = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Environment:
    """One LMDB environment, owned by the thread that writes; any thread may read.

    `durability="power"` flushes every commit twice (data, then meta page); "process" leaves the
    flush to the operating system: it survives the end of the process, not of the machine.

    Raises `InvalidValue`, `StoreInUse`, `ReadOnlyStore`, `ForeignFormat`, `DamagedStore`,
    `StoreError` (network file system). What was there is never touched by a failed open.
    """

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "power",
                 readonly: bool = False, map_size: int = MAP_SIZE) -> None:
        if durability not in ("power", "process"):
            raise InvalidValue(f'durability must be "power" or "process", not {shown(durability)}')
        try:
            self.path = os.fsdecode(os.path.abspath(os.fspath(path)))
        except (TypeError, ValueError):
            raise InvalidValue(f"path must be a str or PathLike, not {shown(path)}") from None
        if not os.fspath(path) or "\0" in self.path:
            raise InvalidValue(f"path must be a directory, not {shown(path)}")
        self.durability: Durability = durability
        self.readonly = readonly
        self._pid = os.getpid()
        self.gate = threading.Lock()
        self._writing = threading.Lock()
        self._env: lmdb.Environment | None = None
        self._lock: LockFile | None = None
        self._map_size = max(SMALLEST_MAP, map_size)
        self.fenced = False
        if readonly:
            self._open_readonly()
        else:
            self._open_owned()

    # -- opening --------------------------------------------------------------------------------

    def _open_owned(self) -> None:
        make_directory(self.path)
        _refuse_network(self.path)
        self._lock = LockFile(self.path)
        try:
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise ReadOnlyStore(self.path, "its directory is not writable")
            self.fresh = self._check(self._lock.previous)
            self._lock.write(f"{self._pid} open\n")
            failpoint("store.open.map")
            self._map()
        except BaseException:
            self.close()
            raise

    def _check(self, note: str) -> bool:
        """Refuse foreign and damaged files before they are mapped; True if the file is new."""
        kind, why = look(self.path)
        if kind == "empty":
            return True
        if kind == "foreign":
            raise ForeignFormat(self.path, why)
        if kind == "garbled":
            raise DamagedStore(self.path, why)
        if note.split(" ", 1)[-1].strip() != self._fingerprint():
            why = damage(self.path)
            if why:
                raise DamagedStore(self.path, why)
        return False

    def _fingerprint(self) -> str:
        """How a cleanly closed data file looks; changed by whatever touches it afterwards."""
        status = os.stat(os.path.join(self.path, DATA))
        return f"clean {status.st_size} {status.st_mtime_ns}"

    def _open_readonly(self) -> None:
        if not os.path.isdir(self.path):
            raise ForeignFormat(self.path, "there is no such directory")
        kind, why = look(self.path)
        if kind in ("empty", "foreign"):
            raise ForeignFormat(self.path, why)
        if kind == "garbled":
            raise DamagedStore(self.path, why)
        if kind == "short" and owner_of(self.path) is None:
            why = damage(self.path)
            if why:
                raise DamagedStore(self.path, why)
        self.fresh = False
        self._map()

    def _map(self) -> None:
        size = self._map_size
        while True:
            try:
                self._env = lmdb.open(
                    self.path, map_size=size, max_dbs=64, max_readers=1024, mode=0o600,
                    sync=self.durability == "power", metasync=True, readonly=self.readonly,
                    create=not self.readonly, readahead=False, max_spare_txns=8)
                break
            except lmdb.MemoryError:  # no such address space here (a limit, a small machine)
                if size <= 1 << 30:
                    raise
                size >>= 2
            except (lmdb.InvalidError, lmdb.CorruptedError, lmdb.VersionMismatchError) as problem:
                raise DamagedStore(self.path, str(problem)) from problem
            except lmdb.Error as problem:
                if self.readonly or "Permission" in str(problem) or "Read-only" in str(problem):
                    raise ReadOnlyStore(self.path, str(problem)) from problem
                raise StoreError(f"{self.path!r} cannot be opened: {problem}") from problem
        self._map_size = size
        if not self.readonly:
            self._env.reader_check()

    def table(self, name: bytes, *, create: bool = True) -> Any:
        """Open a named table of the environment; once, by the owner, before any reader."""
        return self.env.open_db(name, create=create and not self.readonly)

    # -- transactions -----------------------------------------------------------------------------

    @property
    def env(self) -> lmdb.Environment:
        """The LMDB environment; raises `StoreUnavailable` when closed, `ForkedStore` in a child."""
        env = self._env
        if env is None or self.fenced:
            raise StoreUnavailable(self.path, "it is closed")
        if os.getpid() != self._pid:
            raise ForkedStore(self.path, self._pid)
        return env

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """A read transaction of this block, which must be short and must not wait for anything."""
        with self.gate, self.env.begin() as txn:
            try:
                yield txn
            except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as problem:
                raise DamagedStore(self.path, str(problem)) from problem

    def write(self, work: Callable[[Transaction], bool]) -> bool:
        """Run `work` in a write transaction, and commit if it returns True.

        `work` runs again, from nothing, when the map had to grow. Raises `DiskFull` (nothing is
        written, the environment is fine), `ReadOnlyStore`; any other error means that the
        outcome is unknown and that the environment must be closed.
        """
        if self.readonly:
            raise ReadOnlyStore(self.path)
        with self._writing:  # a fenced owner's environment is closed between its transactions
            return self._write(work)

    def _write(self, work: Callable[[Transaction], bool]) -> bool:
        while True:
            txn = self.env.begin(write=True)
            try:
                if not work(txn):
                    txn.abort()
                    return False
                failpoint("store.commit.before_flush")
                txn.commit()
            except lmdb.MapFullError:
                _abort(txn)
                self._grow()
            except (lmdb.Error, OSError) as problem:
                _abort(txn)
                if _is_full(problem) or (_is_short(problem) and self._has_no_room()):
                    raise DiskFull(self.path) from problem
                raise
            except BaseException:
                _abort(txn)
                raise
            else:
                failpoint("store.commit.after_flush")
                return True

    def _has_no_room(self) -> bool:
        """Whether the disk is full, after a write that LMDB calls an I/O error.

        It calls a short write so, which is how the last write before a full disk ends. Trying the
        commit again would tell, but it would also hide a failed flush.
        """
        size = os.stat(os.path.join(self.path, DATA)).st_size
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY and size + PROBE > limit:
            return True
        probe = os.path.join(self.path, "keepwell.probe")
        try:
            fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                return os.write(fd, bytes(PROBE)) < PROBE
            finally:
                os.close(fd)
                os.unlink(probe)
        except OSError as problem:
            return problem.errno in _FULL

    def _grow(self) -> None:
        failpoint("store.resize.begin")
        with self.gate:  # readers' pages move: none may be inside
            self._map_size *= 2
            self.env.set_mapsize(self._map_size)
        failpoint("store.resize.end")

    def last_txn(self) -> int:
        """The number of the newest commit, of whatever process."""
        with self.gate:
            number: int = self.env.info()["last_txnid"]
            return number

    def sync(self) -> None:
        """Flush everything that was committed (for durability "process")."""
        if not self.readonly:
            self.env.sync(True)

    def replace(self, exchange: Callable[[], object]) -> None:
        """Unmap the file and run `exchange`, which puts another in its place. Then only close."""
        with self._writing, self.gate:
            env, self._env = self._env, None
            if env is not None:
                env.close()
            exchange()
            if self._lock is not None:
                self._lock.write(f"{self._pid} {self._fingerprint()}\n")

    def fence(self) -> None:
        """Refuse the owner's next transaction, and close as soon as its last one has ended.

        For an owner that was killed: its thread may still be inside a transaction, which nothing
        can interrupt. Then a thread waits for it; meanwhile the next open waits a while, too.
        """
        self.fenced = True
        if self._lock is not None:
            self._lock.leave()
        if self._writing.acquire(blocking=False):
            self._writing.release()
            self.close()
        else:
            threading.Thread(target=self.close, name="keepwell-fenced", daemon=True).start()

    def close(self) -> None:
        """Unmap and let the next owner in; idempotent. In a forked child it only forgets."""
        with self._writing, self.gate:
            env, self._env = self._env, None
            if os.getpid() != self._pid:
                return
            if env is not None:
                env.close()
            lock, self._lock = self._lock, None
            if lock is not None:
                if env is not None and not self.fenced:
                    lock.write(f"{self._pid} {self._fingerprint()}\n")
                lock.release()


def page_bytes(environment: Environment) -> dict[str, int]:
    """Bytes of the data file, and those of its pages that hold nothing now."""
    with environment.gate, environment.env.begin() as txn:
        size = txn.stat(environment.env.open_db(None, txn=txn))["psize"]
        pages = environment.env.info()["last_pgno"] + 1
        used = 2 + sum(_pages(txn.stat(environment.env.open_db(name, txn=txn, create=False)))
                       for name in [bytes(key) for key, _ in txn.cursor()])
    file = os.stat(os.path.join(environment.path, DATA)).st_size
    return {"file_bytes": file, "free_bytes": max(0, (pages - used) * size)}


def _pages(stat: Mapping[str, Any]) -> int:
    return int(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"])


def _abort(txn: Transaction) -> None:
    try:
        txn.abort()
    except lmdb.Error:
        pass  # its commit failed, which has ended it


def _says(problem: Exception, codes: Collection[int | None]) -> bool:
    if isinstance(problem, OSError):
        return problem.errno in codes
    return any(os.strerror(code or 0) in str(problem) for code in codes)


def _is_full(problem: Exception) -> bool:
    return isinstance(problem, lmdb.DiskError) or _says(problem, _FULL)


def _is_short(problem: Exception) -> bool:
    return _says(problem, (errno.EIO,))


def make_directory(path: str) -> None:
    """Make the directory and its missing parents, 0700 each (DS-1)."""
    missing = []
    while not os.path.isdir(path):
        if os.path.lexists(path):
            raise ForeignFormat(path, "it is a file, not a directory")
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            continue  # another opener was faster; the lock decides
        except OSError as problem:
            raise ReadOnlyStore(directory, f"it cannot be made: {problem}") from problem


def _refuse_network(path: str) -> None:
    """Refuse file systems whose maps and locks are not those of one machine."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            rows = [line.split(" ") for line in mounts]
    except OSError:
        return
    real = os.path.realpath(path)
    best = ("", "")
    for row in rows:
        if len(row) < 3:
            continue
        point = row[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, row[2])
    if best[1] in _NETWORK:
        raise StoreError(f"{path!r} is on a network file system ({best[1]} at {best[0]}): its "
                         "locks and memory maps cannot be trusted. Give a directory on a local "
                         "disk.")
