"""SIGKILL at every point of the session loop, and at random (C2…C5, B4, E7)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from keepwell import DiskStore, NoCounter
from keepwell.stores.disk_session_store import DiskSessionStore

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 6
KILLED = -9

POINTS = [
    "session.claim.before", "session.claim.after", "session.accept.before", "session.accept.after",
    "session.turn.before", "session.turn.after", "session.commit.before", "session.commit.after",
    "store.open.begin", "store.start", "store.commit.begin", "store.commit.before_flush",
    "store.commit.after_flush", "store.acknowledge",
]  # fmt: skip


class Processes:
    """The server that runs a session in processes, one after another."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("killed_session.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def run(self, data_dir: Path, **job: Any) -> tuple[int, list[int]]:
        """How a process ended, and which messages it saw acknowledged."""
        assert self._server.stdin is not None and self._server.stdout is not None
        given = {"data_dir": str(data_dir), "failpoints": "", "messages": MESSAGES,
                 "kill_after": 0, "style": "scan", **job}  # fmt: skip
        self._server.stdin.write(json.dumps(given) + "\n")
        self._server.stdin.flush()
        acknowledged: list[int] = []
        for line in self._server.stdout:
            word, _, rest = line.partition(" ")
            if word == "ack":
                acknowledged.append(int(rest))
            elif word == "end":
                return int(rest), acknowledged
            else:
                raise AssertionError(line)
        raise AssertionError("the server has ended")

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(20)
        assert self._server.stdout is not None
        self._server.stdout.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    server = Processes()
    yield server
    server.close()


def check(data_dir: Path, *, closed: bool, acknowledged: set[int], style: str) -> int:
    """Check what is on disk against what was acknowledged; the number of finished turns."""
    disk = DiskStore(data_dir, counter=NoCounter()).start()
    try:
        store = DiskSessionStore(disk)
        info = store.info("s").get()
        state = store.load("s").get()
        events: Any = store.read("s", "events", limit=10_000).get()
        inbox: Any = store.read("s", "inbox", limit=10_000).get()
        log = list(disk.read("s").get())
    finally:
        disk.stop().get()
    carrier = state.carrier or []
    waiting = [message.payload for message in inbox]
    # Nothing acknowledged is lost, nothing is there twice, and the order is kept.
    assert carrier + waiting == list(range(len(carrier) + len(waiting)))
    assert acknowledged <= set(carrier + waiting)
    assert state.turn == info.cursor == info.taken == len(carrier)
    # Positions without gap, and each output exactly once.
    assert [event.position for event in events] == list(range(1, info.position + 1))
    emits = [event for event in events if event.is_emit()]
    for channel in ("out", "log"):
        mine = [event for event in emits if event.channel == channel]
        assert [event.seq for event in mine] == list(range(1, len(carrier) + 1))
        assert [event.turn for event in mine] == list(range(1, len(carrier) + 1))
    assert [event.payload for event in emits if event.channel == "out"] == carrier
    assert sum(event.is_closed() for event in events) == (1 if info.closed else 0)
    assert not any(event.is_error() for event in events)
    if style == "flow":
        texts = [record.message.text for record in log if record.message.role == "user"]
        assert texts == [str(n) for n in carrier], "the conversation moves with the carrier"
    if closed:
        assert info.closed and len(carrier) == MESSAGES and not waiting
        assert events[-1].is_closed() and events[-1].reason == "all sent"
    return len(carrier)


@pytest.mark.parametrize("style", ["scan", "coroutine", "flow"])
def test_c3_c4_c5_killed_at_every_point(
    processes: Processes, tmp_path: Path, style: str
) -> None:
    killed = 0
    for number, point in enumerate(POINTS):
        data_dir = tmp_path / str(number)
        hit = 1 + number % 3 if "claim" not in point and "start" not in point else 1
        hit = 1 if "open" in point else hit
        job = {"failpoints": f"{point}=kill@{hit}", "style": style}
        status, acknowledged = processes.run(data_dir, **job)
        assert status == KILLED, (point, status)
        killed += 1
        if data_dir.exists() and "open" not in point:
            check(data_dir, closed=False, acknowledged=set(acknowledged), style=style)
        status, again = processes.run(data_dir, style=style)
        assert (status, again) == (0, list(range(MESSAGES))), point
        check(data_dir, closed=True, acknowledged=set(again), style=style)
    assert killed == len(POINTS)


def random_kills(processes: Processes, tmp_path: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill at random points and times until a session is through, and begin another."""
    chance = random.Random(seed)
    figures = {"kills": 0, "sessions": 0, "turns": 0, "points": 0}
    reached: set[str] = set()
    points = cycle(chance.sample(POINTS, len(POINTS)))
    style = "scan"
    acknowledged: set[int] = set()
    data_dir = tmp_path / "0"
    while figures["kills"] < kills:
        point = next(points) if chance.random() < 0.5 else ""
        if not point:
            job: dict[str, Any] = {"kill_after": chance.uniform(0.005, 0.08)}
        else:
            once = any(word in point for word in ("claim", "open", "start"))
            job = {"failpoints": f"{point}=kill@{1 if once else chance.randint(1, MESSAGES)}"}
        status, seen = processes.run(data_dir, style=style, **job)
        acknowledged |= set(seen)
        assert status in (0, KILLED), status
        figures["kills"] += status == KILLED
        if status == KILLED and point:
            reached.add(point)
            figures["points"] = len(reached)
        if status == 0:
            turns = check(data_dir, closed=True, acknowledged=acknowledged, style=style)
            figures["sessions"] += 1
            figures["turns"] += turns
            style = chance.choice(["scan", "coroutine", "flow"])
            acknowledged = set()
            data_dir = tmp_path / str(figures["sessions"])
        elif figures["kills"] % 5 == 0 and (data_dir / "data.mdb").exists():
            check(data_dir, closed=False, acknowledged=acknowledged, style=style)
    return figures


def test_c4_killed_at_random(processes: Processes, tmp_path: Path) -> None:
    assert random_kills(processes, tmp_path, 15, seed=7)["kills"] == 15


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_c4_killed_two_hundred_times(
    processes: Processes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = random_kills(processes, tmp_path, 200, seed=2026)
    assert figures["kills"] == 200 and figures["points"] == len(POINTS)
    with capsys.disabled():
        sys.stdout.write(
            f"\n200 kills of {figures['sessions']} sessions, {figures['turns']} turns: each "
            "message and each output exactly once, none lost\n"
        )
