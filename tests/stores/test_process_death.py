"""SIGKILL of the owning process, at random and at every point (DS-2, DS-3, F06)."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.verify import verify

WRITER = Path(__file__).parent / "killed_writer.py"
ROOT = Path(__file__).parents[2]

Log = dict[str, list[str]]


class Writers:
    """Starts writers by fork, so that none pays for the imports again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipes = 0
        self._server = subprocess.Popen(
            [sys.executable, str(WRITER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)})

    def start(self, path: Path, conversations: int, seed: int, durability: str = "power",
              points: str = "") -> tuple[int, IO[bytes]]:
        """The pid of a new writer, and what it prints."""
        self._pipes += 1
        pipe = self._folder / f"pipe{self._pipes}"
        os.mkfifo(pipe)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(
            f"{pipe}\t{path}\t{conversations}\t{seed}\t{durability}\t{points}\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline()), pipe.open("rb")

    def status(self) -> int:
        """Wait for the last writer's end; its signal if it was killed, else its exit code."""
        assert self._server.stdout is not None
        return os.waitstatus_to_exitcode(int(self._server.stdout.readline()))

    def close(self) -> None:
        for stream in (self._server.stdin, self._server.stdout):
            assert stream is not None
            stream.close()
        self._server.wait(20)


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writers]:
    started = Writers(tmp_path_factory.mktemp("pipes"))
    yield started
    started.close()


def acknowledged(lines: Iterator[bytes]) -> Log:
    log: Log = {}
    for line in lines:
        if line.startswith(b"ack ") and line.endswith(b"\n"):
            _, name, seq, text = line.decode().split()
            mine = log.setdefault(name, [])
            mine.append(f"{seq} {text}")
    return log


def check(path: Path, logs: list[Log], conversations: int) -> tuple[int, int]:
    """Nothing acknowledged is lost or doubled, no gap, no torn batch; (stored, acknowledged)."""
    engine = DiskEngine(path)
    try:
        stored = said = 0
        for number in range(conversations):
            name = f"c{number}"
            got = [message.content for message in engine.get(name)]
            assert len(got) == engine.info(name).cursor
            assert len(set(got)) == len(got), "a record is there twice"
            for log in logs:
                for entry in log.get(name, ()):
                    seq, text = entry.split()
                    assert got[int(seq) - 1] == text, f"{name}: record {seq} was acknowledged"
                    said += 1
            stored += len(got)
        report = verify(engine)
        assert not report.problems, report.problems
    finally:
        engine.close()
    return stored, said


@pytest.mark.parametrize(("durability", "kills"), [("power", 12), ("process", 8)])
def test_killed_at_random_under_load_ds3(
    tmp_path: Path, writers: Writers, durability: str, kills: int
) -> None:
    logs = kill_at_random(writers, tmp_path, kills, 32, durability, seed=1)
    stored, said = check(tmp_path, logs, 32)
    assert said > 100
    assert said <= stored


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", ["power", "process"])
def test_killed_two_hundred_times_ds3(
    tmp_path: Path, writers: Writers, durability: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = kill_at_random(writers, tmp_path, 200, 64, durability, seed=2)
    stored, said = check(tmp_path, logs, 64)
    with capsys.disabled():
        sys.stdout.write(f"\n{durability}: 200 kills, {said} records acknowledged, {stored} "
                         "stored, 0 lost, 0 doubled, 0 gaps\n")


def kill_at_random(writers: Writers, path: Path, kills: int, conversations: int, durability: str,
                   seed: int) -> list[Log]:
    """Each time another process goes on where the last one was killed."""
    dice = random.Random(seed)
    logs = []
    for number in range(kills):
        pid, output = writers.start(path, conversations, number, durability)
        left = dice.randrange(1, 400)  # lines to wait for, so that each kill hits a working store
        lines = []
        with output:
            for line in output:
                lines.append(line)
                left -= 1
                if left <= 0:
                    break
            os.kill(pid, signal.SIGKILL)
            lines += output.readlines()
        assert writers.status() == -signal.SIGKILL
        logs.append(acknowledged(iter(lines)))
    return logs


POINTS = ["store.commit.begin", "store.commit.planned", "store.commit.before_flush",
          "store.commit.after_flush", "store.publish", "store.commit.published",
          "store.acknowledge", "store.move.begin", "store.move.end", "store.resize.begin",
          "store.resize.end", "store.open.begin", "store.open.map", "store.open.batch",
          "store.open.end", "store.start", "store.attach"]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_point_ds3(tmp_path: Path, writers: Writers, point: str) -> None:
    """Fault F06."""
    logs = []
    early = point.startswith(("store.open", "store.start", "store.attach"))
    if early:  # there is something on disk already, and batches that were not moved
        logs.append(run_to_death(writers, tmp_path, "store.acknowledge=kill@9"))
    hit = 1 if early or "resize" in point or "move" in point else 7
    logs.append(run_to_death(writers, tmp_path, f"{point}=kill@{hit}"))
    check(tmp_path, logs, 8)
    logs.append(run_to_death(writers, tmp_path, "store.acknowledge=kill@5"))  # and it goes on
    stored, said = check(tmp_path, logs, 8)
    assert 0 < said <= stored


def run_to_death(writers: Writers, path: Path, points: str) -> Log:
    _, output = writers.start(path, 8, len(points), points=points)
    with output:
        lines = output.readlines()
    assert writers.status() == -signal.SIGKILL
    return acknowledged(iter(lines))
