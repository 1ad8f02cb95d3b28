"""The checkout as these tests see it: its tracked files and its packaging tables."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """A program that serves HTTP with uvicorn on a free port of the loopback.

    `url`: where it does, once it does; raises what it wrote if it ended instead.
    """

    def __init__(self, program: Path, environ: dict[str, str]) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-W", "error", str(program)], cwd=environ["DATA_DIR"],
            env={**os.environ, "PYTHONPATH": path, "PORT": "0", **environ}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.lines: list[str] = []
        self._url: Future[str] = Future()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"running on (http://[\d.:]+)", line)
            if found and not self._url.done():
                self._url.set_result(found[1])
        if not self._url.done():
            self._url.set_exception(RuntimeError("".join(self.lines)))

    @property
    def url(self) -> str:
        return self._url.result(30)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        """The exit code."""
        code = self.process.wait(timeout)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture
def serve() -> Iterator[Callable[..., ServerProcess]]:
    """Starts server processes; what still runs at the end is killed."""
    started: list[ServerProcess] = []

    def start(program: Path, data_dir: Path, **environ: str) -> ServerProcess:
        started.append(ServerProcess(program, {"DATA_DIR": str(data_dir), **environ}))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.wait()


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
