"""SIGKILL of the process, 20 times, under load from 32 conversations (DS-3, RW-1, F32, F40)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from keepwell.agent.tool_result import error_type_of
from keepwell.stores import DiskStore

CHILD = Path(__file__).with_name("kill_child.py")
ROOT = Path(__file__).parents[2]
KILLS = 20


def run_and_kill(data_dir: Path, lines: int) -> list[tuple[str, str]]:
    """Start the child, read so many acknowledgements, kill it; returns all it acknowledged."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(data_dir)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as child:
        assert child.stdout is not None
        out = b""
        while out.count(b"\n") < lines:
            chunk = child.stdout.read1(4096)
            assert chunk, f"the child ended by itself: {child.wait()}"
            out += chunk
        child.send_signal(signal.SIGKILL)
        out += child.stdout.read()
        assert child.wait() == -signal.SIGKILL
    whole = out[: out.rfind(b"\n") + 1].decode().splitlines()
    return [(a, b) for a, b in (line.split() for line in whole)]


@pytest.mark.timeout(120)
def test_nothing_acknowledged_is_lost_doubled_or_left_open(tmp_path: Path) -> None:
    rng = random.Random(7)
    acknowledged: set[tuple[str, str]] = set()
    for kill in range(KILLS):
        # The first lines of a child are those of its newest turns; kill in the midst of the next.
        acknowledged.update(run_and_kill(tmp_path, rng.randint(1, 100) if kill else 40))
    final = run_and_kill(tmp_path, 33)  # lets the last interrupted turns be completed
    acknowledged.update(final)

    with_store = DiskStore(tmp_path / "store")
    with_store.start()
    try:
        doubled = lost = 0
        completed: set[tuple[str, str]] = set()
        interrupted = 0
        for info in with_store.conversations(limit=1000).get():
            log = tuple(with_store.read(info.conversation_id, marks=True).get())
            assert [r.seq for r in log] == list(range(1, len(log) + 1))
            questions = Counter(r.turn_id for r in log if r.message and r.message.role == "user")
            answers = Counter(
                r.turn_id for r in log if r.mark and r.mark.get("ended") == "completed"
            )
            results = Counter(
                (r.turn_id, r.message.tool_call_id)
                for r in log
                if r.message and r.message.role == "tool"
            )
            doubled += sum(n - 1 for c in (questions, answers, results) for n in c.values())
            completed |= {(info.conversation_id, turn) for turn in answers if turn is not None}
            interrupted += sum(1 for r in log if r.mark and "resumed" in r.mark)
            # Turns are 1, 2, 3, …; only the newest may still be open, all before are complete.
            turns = sorted(int(turn) for turn in questions if turn is not None)
            assert turns == list(range(1, len(turns) + 1))
            assert all(answers[str(turn)] == 1 for turn in turns[:-1])
            assert all(results[str(turn), call] == 1 for turn in turns[:-1] for call in "xy")
        lost = len(acknowledged - completed)
        assert (lost, doubled) == (0, 0)
        assert interrupted >= KILLS // 2, "the kills hit no turn: this test showed nothing"
        ran = Counter((tmp_path / "ran.log").read_text().splitlines())
        assert max(ran.values()) == 1, "a tool that is not idempotent ran twice"
        kinds = {
            error_type_of(r.message.content)
            for number in range(32)
            for r in with_store.read(f"c{number}").get()
            if r.message and r.message.role == "tool"
        }
        assert kinds <= {None, "interrupted"}
    finally:
        with_store.stop().get()


POINTS = [
    "turn.question", "turn.append@2", "turn.append@3", "turn.append@4", "turn.append@5",
    "turn.reply", "turn.before_tools", "in_tool", "turn.result", "turn.result@2", "in_model@2",
    "turn.before_answer", "store.acknowledge@2",
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_turn_killed_with_its_process_at_any_point_ends_once(point: str, tmp_path: Path) -> None:
    """The crash matrix's last row: {process} x {step boundaries, inside model, tool and append}."""
    child = Path(__file__).with_name("kill_point_child.py")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    name, _, number = point.partition("@")
    environment = {**os.environ, "PYTHONPATH": path}
    killed = subprocess.run(
        [sys.executable, str(child), str(tmp_path)], capture_output=True, timeout=50, check=False,
        env={**environment, "KEEPWELL_FAILPOINTS": f"{name}=kill@{number or 1}"},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    resumed = subprocess.run(
        [sys.executable, str(child), str(tmp_path)], capture_output=True, timeout=50, check=False,
        env=environment,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr.decode()[-2000:]
    outcome = json.loads(resumed.stdout)
    assert outcome["text"] == "done"
    assert outcome["seqs"] == list(range(1, len(outcome["seqs"]) + 1))
    assert outcome["roles"] == ["assistant", "assistant", "tool", "tool", "user"]
    assert outcome["ended"] == 1
    assert outcome["results"]["x"] in (None, "interrupted")
    assert outcome["results"]["y"] is None
    assert outcome["ran"].count("x") <= 1
