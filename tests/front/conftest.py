"""The checkout as these tests see it: its tracked files and its packaging tables."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def without_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks collect garbage before each round, which takes long in a process full of tests."""
    monkeypatch.setattr("keepwell.benchmarks.measure.gc.collect", lambda: 0)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def packages(pyproject: dict[str, Any]) -> dict[str, str]:
    """Package name to folder, as setuptools is told."""
    return dict(pyproject["tool"]["setuptools"]["package-dir"])


@pytest.fixture(scope="session")
def tracked() -> list[str]:
    """Every file of the project that exists, links included, relative to the root."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split("\0")
        return sorted(name for name in listed if name and os.path.lexists(ROOT / name))
    return sorted(_walk())


def _walk() -> list[str]:
    """The files of an unpacked archive, which has no index: all but what building leaves behind."""
    found: list[str] = []
    for folder, folders, files in os.walk(ROOT):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = [
            name for name in folders
            if name not in links and not name.startswith(".") and name not in ("build", "dist")
            and name != "__pycache__" and not name.endswith(".egg-info")
        ]
        found += [str((here / name).relative_to(ROOT)) for name in [*files, *links]]
    return found
