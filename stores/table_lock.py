"""One writer a table file: a lock beside the file, which also says how the file was left.

The lock is a POSIX record lock: the kernel drops it when its process ends, however that ends, and a
forked child does not inherit it. It does not keep the same process out; that is the business of the
register of open tables (`disk_table`). The lock file's text is the owner's pid while the table is
open, and after an orderly close the size and time of change of the table file: a file that still
looks so needs no check.
"""

from __future__ import annotations

import fcntl
import os

from .table_errors import TableFileError

SUFFIX = "-owner"


class TableLock:
    """The right to write to the table file at `path`. Raises TableFileError (`in_use`)."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._fd = os.open(path + SUFFIX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise file_error(path, error) from error
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._fd, 64, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise TableFileError(
                "in_use",
                path,
                f"process {owner or '?'} has it open for writing: use it there, or only read",
            ) from error

    def left_in_order(self) -> bool:
        """Whether the file still is as it was closed."""
        return os.pread(self._fd, 128, 0) == _looks(self._path)

    def opened(self) -> None:
        """Note that the file is open: until `closed`, it counts as not left in order."""
        self._write(str(os.getpid()).encode())

    def closed(self) -> None:
        """Note how the file looks now that it has been closed."""
        self._write(_looks(self._path))

    def _write(self, text: bytes) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text, 0)

    def release(self) -> None:
        """Let another process write."""
        os.close(self._fd)


def is_locked(path: str) -> bool:
    """Whether a living process has the table file open for writing."""
    try:
        fd = os.open(path + SUFFIX, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _looks(path: str) -> bytes:
    status = os.stat(path)
    return f"closed {status.st_ino} {status.st_size} {status.st_mtime_ns}".encode()


def file_error(path: str, error: OSError) -> TableFileError:
    """Return the error for what the system said about a file, with its word as reason."""
    import errno  # noqa: PLC0415 - only on the way to an error

    word = errno.errorcode.get(error.errno or 0, "eio").lower()
    return TableFileError("file_error", path, error.strerror or str(error), reason=word)
