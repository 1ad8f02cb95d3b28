"""How long until a store that is opened again gives its first answer, and what does it hold then?

How: a store with 1,000 and one with 1,000,000 messages (100,000 on a quick run) of 100 characters
in conversations of 1,000, closed in order or left by a killed process; then opened in this process
up to the answer of `get(last=50)`. Memory is that of a fresh process that has opened the store and
read nothing, above one that has only imported keepwell, and above a bare interpreter. That process
fails if it has loaded a tokeniser.

What it does not say: what reading the file from a cold disk takes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.lock_file import NAME
from keepwell.stores.request import Append

from .benchmark import Contender, Question, Scale, Stopwatch, figure, growth
from .child import in_child
from .disk import parent

Run = Callable[[Stopwatch, int], Mapping[str, float] | None]

_TEXT = ("What is the weather like in Lisbon today, and what will it be like tomorrow? " * 2)[:100]


def questions(scale: Scale) -> Sequence[Question]:
    """Return the questions."""
    many = scale.pick(1_000_000, 100_000)
    at = f"with {many:,}"
    return [
        Question(
            "reopen", "Does the size of a store matter when it is opened again?", "opening",
            [Contender("with 1,000", _opened(1_000), scale.pick(10, 4)),
             Contender(at, _opened(many), scale.pick(10, 4))],
            [growth("reopen_1m_vs_1k", "with 1,000", at, ceiling=2)]),
        Question(
            "reopen_killed", "And after the process was killed?", "opening",
            [Contender("with 1,000", _opened(1_000, killed=True), 2),
             Contender(at, _opened(many, killed=True), 2)],
            [growth("reopen_killed_1m_vs_1k", "with 1,000", at)], rounds=3),
        Question(
            "idle", "What does an idle reopened store hold in memory?", "opening",
            [Contender(at, _idle(many), 1, fresh=True)],
            [figure("reopened_rss_anon_mib", at, "rss_anon_mib",
                    "A store that was opened and not read yet holds {value} MiB.", ceiling=64),
             figure("reopened_over_python_mib", at, "over_python_mib",
                    "With keepwell itself that is {value} MiB more than a bare interpreter.",
                    ceiling=64)], rounds=3),
    ]


@cache
def _table(messages: int) -> tuple[Path, TemporaryDirectory[str]]:
    folder = TemporaryDirectory(prefix="keepwell-bench-", dir=parent())
    path = Path(folder.name) / "data"
    engine = DiskEngine(path, durability="process")
    for number in range(messages // 1_000):
        engine.commit([Append(f"c{number}", [{"role": "user", "content": _TEXT}] * 1_000)])
    for number in range(40):  # batches that wait in the log
        engine.commit([Append(f"c{number % 7}", [{"role": "user", "content": _TEXT}])])
    engine.settle()  # as a store's actor does when it stops in order
    engine.close()
    return path, folder


def _opened(messages: int, *, killed: bool = False) -> Run:
    def contend(watch: Stopwatch, operations: int) -> None:
        path, _ = _table(messages)
        for _ in range(operations):
            if killed:
                (path / NAME).write_text("1 open\n")
            with watch:
                engine = DiskEngine(path)
                assert len(engine.get("c0", last=50)) == 50
            engine.close()

    return contend


def _idle(messages: int) -> Run:
    def contend(watch: Stopwatch, operations: int) -> Mapping[str, float]:
        path, _ = _table(messages)
        with watch:
            empty = in_child(anonymous_mib, "")["mib"]
            opened = in_child(anonymous_mib, str(path))["mib"]
            bare = float(subprocess.run([sys.executable, "-c", _BARE], capture_output=True,
                                        text=True, check=True).stdout)
            # A few pages either way are the processes' own.
            return {"rss_anon_mib": max(0.0, opened - empty),
                    "over_python_mib": max(0.0, opened - bare)}

    return contend


_BARE = """
for line in open("/proc/self/status"):
    if line.startswith("RssAnon:"):
        print(int(line.split()[1]) / 1024)
"""


def anonymous_mib(path: str) -> dict[str, float]:
    """Anonymous memory of this process in MiB, with the store of `path` open if there is one.

    Raises RuntimeError if opening it has loaded a tokeniser, which takes 80 MB.
    """
    engine = DiskEngine(path) if path else None
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    if engine is not None:
        engine.close()
    if "tiktoken" in sys.modules:
        raise RuntimeError("a tokeniser was loaded to open a store")
    return {"mib": kib / 1024}


__all__ = ["anonymous_mib", "questions"]
