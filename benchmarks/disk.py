"""Where benchmarks put their files, and what a flush costs there."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import lmdb

SLOW_ENOUGH = 0.3e-3
"""Seconds of a one-row commit: on faster disks ratios to raw LMDB measure asyncio, not storage."""


@contextmanager
def directory() -> Iterator[Path]:
    """An empty directory on a real disk, gone afterwards. KEEPWELL_BENCH_DIR says where."""
    path = Path(tempfile.mkdtemp(prefix="keepwell-bench-", dir=parent()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def parent() -> str:
    """The directory for files that are measured: KEEPWELL_BENCH_DIR, or one on a real disk."""
    chosen = os.environ.get("KEEPWELL_BENCH_DIR")
    if chosen:
        return chosen
    temporary = tempfile.gettempdir()
    return os.getcwd() if _mount(temporary)[1] in ("tmpfs", "ramfs") else temporary


def _mount(path: str) -> tuple[str, str]:
    """Device and type of the file system that holds `path`, "?" where that cannot be told."""
    best = ("?", "?", "")
    try:
        rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return best[:2]
    real = os.path.realpath(path)
    for device, point, kind, *_ in rows:
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[2]):
            best = (device, kind, point)
    return best[:2]


@cache
def commit_seconds() -> float:
    """Median seconds of a power-safe LMDB commit of one row."""
    with directory() as path, lmdb.open(str(path), map_size=1 << 26) as env:
        times = []
        for number in range(30):
            start = time.perf_counter()
            with env.begin(write=True) as txn:
                txn.put(b"%08d" % number, b"x" * 200)
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


@cache
def described() -> str:
    """The disk, for a reader: device, file system, what a one-row commit takes."""
    device, kind = _mount(parent())
    return f"{kind} on {device}, a one-row commit takes {commit_seconds() * 1e3:.2f} ms"
