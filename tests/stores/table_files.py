"""What tests of disk tables share: a file to begin with, a child process, the errors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepwell.stores import DiskTable, StoreError, TableError, TableFileError

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("set", "ordered_set", "bag", "duplicate_bag")


def filled(path: Path, rows: int = 300, type_: str = "set") -> Path:
    """A table file that was written in several transactions and closed."""
    with DiskTable.open("t", path, type_, durability="process") as table:
        for start in range(0, rows, 50):
            table.insert([(n, "v" * (n % 90)) for n in range(start, min(start + 50, rows))])
        table.insert((-1, "long" * 3000))
        table.delete(rows // 2)
        table.insert((rows // 2, "again"))
    return path


def child(program: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=50, env=environment, **options,
    )  # fmt: skip


def file_error(code: str, call: Callable[[], Any], path: Path | None = None) -> TableFileError:
    with pytest.raises(TableFileError) as refused:
        call()
    assert refused.value.code == code
    assert isinstance(refused.value, StoreError)
    if path is not None:
        assert refused.value.path == str(path)
    return refused.value


def refused(code: str, call: Callable[[], Any]) -> None:
    with pytest.raises(TableError) as error:
        call()
    assert error.value.code == code
