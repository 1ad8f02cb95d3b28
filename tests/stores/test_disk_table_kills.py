"""DiskTable: what a kill leaves, and other processes beside the owner (DETS-6, 9)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from keepwell.stores import DiskTable, TableFileError

from .table_files import ROOT, TYPES, child

WRITER = """
    import sys
    from keepwell.stores import DiskTable
    table = DiskTable.open("t", sys.argv[1], sys.argv[2], durability=sys.argv[3])
    print("open", flush=True)
    start = 1 + max((key for key, _ in table.to_list()), default=-1)
    for n in range(start, start + int(sys.argv[4])):
        table.insert([(n, "a" * (n % 500)), (n + 0.5, n)])
        print(n, flush=True)
        if n % 7 == 3:
            table.delete(n)
            print("deleted", n, flush=True)
    table.close()
    print("closed", flush=True)
"""


def check_after_kill(path: Path, type_: str, output: str) -> None:
    """What was acknowledged is there, each insert is there whole or not at all."""
    acknowledged = [int(line) for line in output.splitlines() if line.isdigit()]
    deleted = {int(line.split()[1]) for line in output.splitlines() if line.startswith("deleted")}
    with DiskTable.open("t", path, type_) as table:
        table.verify()
        keys = {key for key, _ in table.to_list()}
        for n in acknowledged:
            assert n + 0.5 in keys
            assert n in keys or n in deleted or n == acknowledged[-1]
        assert not deleted & {key for key in keys if type(key) is int}
        halves = {int(key - 0.5) for key in keys if type(key) is float}
        whole = {key for key in keys if type(key) is int}
        assert whole <= halves
        assert all(n % 7 == 3 for n in halves - whole)
        assert len(halves) <= len(acknowledged) + 1
        table.insert((10**6, "goes on"))


@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize(
    "point",
    [
        "table.open.before_header", "table.write.before_commit", "table.write.before_commit@5",
        "table.write.after_commit", "table.write.after_commit@8", "table.close.before_note",
    ],
)  # fmt: skip
def test_killed_at_a_failpoint(path: Path, point: str, durability: str) -> None:
    name, _, count = point.partition("@")
    what = f"{name}=kill" + (f"@{count}" if count else "")
    done = child(WRITER, path, "set", durability, 9, env={"KEEPWELL_FAILPOINTS": what})
    assert done.returncode == -signal.SIGKILL, done.stderr
    check_after_kill(path, "set", done.stdout)


@pytest.mark.parametrize("type_", TYPES)
def test_killed_at_any_moment(path: Path, type_: str) -> None:
    chance = random.Random(type_)
    output = ""
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(path), type_, "process", "100000"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 120)):
                output += process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            output += process.stdout.read()
        output = output[: output.rfind("\n") + 1]
    with DiskTable.open("t", path, type_) as table:
        table.verify()
        keys = {key for key, _ in table.to_list()}
    acknowledged = [int(line) for line in output.splitlines() if line.isdigit()]
    assert acknowledged
    assert {n + 0.5 for n in acknowledged} <= keys


def test_one_process_writes(path: Path) -> None:
    """Another process may read meanwhile, and write when the owner has ended, however."""
    program = """
        import sys
        from keepwell.stores import DiskTable, TableFileError
        try:
            DiskTable.open("t", sys.argv[1])
        except TableFileError as error:
            print(error.code, sys.argv[2] in error.problem)
        with DiskTable.open("t", sys.argv[1], access="read") as table:
            print(table.to_list())
    """
    with DiskTable.open("t", path) as table:
        table.insert((1, "a"))
        done = child(program, path, os.getpid())
        assert done.stdout.splitlines() == ["in_use True", "[(1, 'a')]"], done.stderr
        table.insert((2, "b"))
        assert len(table) == table.verify() == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(path: Path) -> None:
    with DiskTable.open("t", path) as table:
        pid = os.fork()
        if pid == 0:
            codes = []
            for call in (lambda: table.insert((1, 1)), lambda: table.lookup(1)):
                try:
                    call()
                except TableFileError as error:
                    codes.append(error.code)
            try:
                DiskTable.open("t", path)
            except TableFileError as error:
                codes.append(error.code)
            os._exit(0 if codes == ["forked", "forked", "in_use"] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        table.insert((2, 2))
        assert table.to_list() == [(2, 2)]
