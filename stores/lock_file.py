"""One owner a directory (DS-5): a POSIX record lock on a file that also names the owner's pid.

The kernel drops the lock when its process ends, however it ends, so a dead owner never blocks; a
forked child does not inherit it. POSIX locks do not exclude a second opener in the same process,
and closing *any* descriptor of the file drops them: a table of this process's locks, keyed by
device and inode, covers both (and symlinks and relative paths with it).
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from struct import Struct

from .errors import ReadOnlyStore, StoreInUse

NAME = "keepwell.lock"

_FLOCK = Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, len, pid
LEAVING = 5.0
"""Seconds for which an open waits for a fenced owner in this process to leave."""


class _Held:
    """A lock of this process; `leaving`: its owner was killed and goes as soon as it can."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.leaving = False


_held: dict[tuple[int, int], _Held] = {}
_guard = threading.Condition()


class LockFile:
    """The lock of a directory, held until `release`. Raises `StoreInUse` at once if it is taken."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, NAME)
        self._directory = directory
        status = os.stat(directory)
        self._key = (status.st_dev, status.st_ino)
        with _guard:
            mine = self._mine()
            if mine is not None and mine.leaving:
                _guard.wait_for(lambda: self._mine() is not mine, LEAVING)
                mine = self._mine()
            if mine is not None:
                raise StoreInUse(directory, os.getpid())
            self._fd = self._acquire()
            _held[self._key] = _Held()
        self.previous = self._read()

    def _acquire(self) -> int:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (PermissionError, OSError) as problem:
            raise ReadOnlyStore(self._directory, str(problem)) from problem
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = holder(fd)
            os.close(fd)
            raise StoreInUse(self._directory, pid) from None
        return fd

    def _mine(self) -> _Held | None:
        held = _held.get(self._key)
        return held if held is not None and held.pid == os.getpid() else None

    def _read(self) -> str:
        return os.pread(self._fd, 4096, 0).decode("utf-8", "replace")

    def write(self, note: str) -> None:
        """Replace the text of the file: `pid state`, for people and for the next open."""
        text = note.encode()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))

    def leave(self) -> None:
        """Tell the next opener in this process to wait: this owner is about to release."""
        with _guard:
            held = self._mine()
            if held is not None and self._fd >= 0:
                held.leaving = True

    def release(self) -> None:
        """Let the next owner in; idempotent."""
        with _guard:
            if self._fd < 0:
                return
            if self._mine() is not None:
                del _held[self._key]
            os.close(self._fd)
            self._fd = -1
            _guard.notify_all()


def holder(fd: int) -> int | None:
    """The pid that holds the lock; None if nobody does or it cannot be told."""
    if sys.platform != "linux":  # other systems lay out struct flock differently
        words = os.pread(fd, 64, 0).split()
        return int(words[0]) if words and words[0].isdigit() else None
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
        kind, _, _, _, pid = _FLOCK.unpack(answer)
    except (OSError, ValueError):
        return None
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def owner_of(directory: str) -> int | None:
    """The pid of the live owner of a directory, None if there is none."""
    status = os.stat(directory)
    with _guard:
        # Looked up first: closing a descriptor below would drop this process's own lock.
        held = _held.get((status.st_dev, status.st_ino))
        if held is not None and held.pid == os.getpid():
            return os.getpid()
        try:
            fd = os.open(os.path.join(directory, NAME), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return holder(fd)
        finally:
            os.close(fd)
