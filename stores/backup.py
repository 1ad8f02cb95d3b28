"""Copies of a store: online backup, restore, and compacting in place."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass

import lmdb

from ..actors.failpoint import failpoint
from .disk_engine import DiskEngine
from .environment import Environment, make_directory
from .errors import DiskFull, ForeignFormat, OlderFormat, StoreError
from .integrity import DATA, look

_COPY = "keepwell.copy"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the data file before and after."""

    before: int
    after: int


def backup(engine: DiskEngine, target: str | os.PathLike[str]) -> int:
    """Copy the store, as it is at one moment, into a new directory; returns the bytes written.

    Writers go on meanwhile. The copy has no free pages, is flushed, and appears whole or not at
    all. Raises `StoreError` if `target` exists and is not empty, `DiskFull`.
    """
    return _copied(engine.environment, target)


def _copied(environment: Environment, target: str | os.PathLike[str]) -> int:
    directory = _empty(target)
    unfinished = os.path.join(directory, _COPY)
    os.mkdir(unfinished, 0o700)
    try:
        # `copy` reads one snapshot; commits meanwhile cannot reuse its pages, the file grows.
        environment.env.copy(unfinished, compact=True)
        _finish(os.path.join(unfinished, DATA), directory)
    except (lmdb.Error, OSError) as problem:
        raise _failed(directory, problem) from problem
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return os.stat(os.path.join(directory, DATA)).st_size


def restore(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Copy a backup (or any store) into a new directory; returns the bytes written.

    An older format stays what it is, in both: it is brought up when the copy is opened for writing.
    Raises `ForeignFormat`, `NewerFormat` or `DamagedStore` if the backup is no store,
    `StoreError` if `target` exists and is not empty, `DiskFull`.
    """
    must_exist(source)
    try:
        opened: DiskEngine | Environment = DiskEngine(source, readonly=True)
    except OlderFormat:
        opened = Environment(source, readonly=True)
    with closing(opened):
        return _copied(opened if isinstance(opened, Environment) else opened.environment, target)


def compact(path: str | os.PathLike[str]) -> Sizes:
    """Rewrite a store's file without free pages and put it in the old one's place.

    The store must not be running (`StoreInUse`). It needs room for the second file. A crash leaves
    the old file or the new one, never half of one.
    """
    must_exist(path)
    engine = DiskEngine(path)
    try:
        engine.settle()
        environment = engine.environment
        data = os.path.join(environment.path, DATA)
        before = os.stat(data).st_size
        unfinished = os.path.join(environment.path, _COPY)
        shutil.rmtree(unfinished, ignore_errors=True)
        os.mkdir(unfinished, 0o700)
        try:
            environment.env.copy(unfinished, compact=True)
            failpoint("store.compact.copied")
            environment.replace(lambda: _finish(os.path.join(unfinished, DATA), environment.path))
        except (lmdb.Error, OSError) as problem:
            raise _failed(environment.path, problem) from problem
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return Sizes(before, os.stat(data).st_size)
    finally:
        engine.close()


def must_exist(path: str | os.PathLike[str]) -> None:
    """Raise `ForeignFormat` if there is no store at `path`, where opening would make one."""
    if look(os.fspath(path))[0] == "empty":
        raise ForeignFormat(path, "there is no store")


def _empty(target: str | os.PathLike[str]) -> str:
    directory = os.path.abspath(os.fspath(target))
    make_directory(directory)
    if os.listdir(directory):
        raise StoreError(f"{directory!r} is not empty: give a directory that does not exist yet")
    return directory


def _finish(file: str, directory: str) -> None:
    """Flush a finished file and give it its name; the directory entry is flushed, too."""
    os.chmod(file, 0o600)
    for path, flags in ((file, os.O_RDONLY), (directory, os.O_RDONLY | os.O_DIRECTORY)):
        if path is directory:
            os.replace(file, os.path.join(directory, DATA))
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _failed(directory: str, problem: Exception) -> StoreError:
    if isinstance(problem, lmdb.DiskError) or "No space" in str(problem):
        return DiskFull(directory)
    return StoreError(f"{directory!r}: the copy failed: {problem}")
