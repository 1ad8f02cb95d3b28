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
from typing import Any

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
    ("turn.question", 1),
    ("turn.append", 1), ("turn.append", 2), ("turn.append", 3), ("turn.append", 4),
    ("turn.append", 5),
    ("turn.reply", 1), ("turn.reply", 2),
    ("turn.settled", 1), ("turn.settled", 2),
    ("turn.before_tools", 1),
    ("turn.result", 1), ("turn.result", 2),
    ("turn.before_answer", 1),
    ("provider.append", 2), ("provider.history", 1),
    ("in_model", 1), ("in_model", 2), ("in_tool", 1), ("in_tool", 2),
    ("store.commit.begin", 2), ("store.commit.planned", 2), ("store.commit.before_flush", 2),
    ("store.commit.after_flush", 2), ("store.publish", 2), ("store.commit.published", 2),
    ("store.acknowledge", 1), ("store.acknowledge", 2),
]  # fmt: skip


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "once"])
def test_a_turn_killed_with_its_process_at_any_point_ends_once(
    idempotent: bool, tmp_path: Path, record_property: Any
) -> None:
    """The crash matrix's last row: {process} x {step boundaries, inside model, tool and append}."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    child = Path(__file__).with_name("kill_point_child.py")
    cases = json.dumps([(point, hit, idempotent) for point, hit in POINTS])
    done = subprocess.run(
        [sys.executable, str(child), str(tmp_path), cases], capture_output=True, timeout=55,
        check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    lines = done.stdout.decode().splitlines()
    assert len(lines) == len(POINTS), done.stderr.decode()[-2000:]
    counts: Counter[str] = Counter()
    for (point, hit), line in zip(POINTS, lines, strict=True):
        outcome, where = json.loads(line), f"{point} {hit}"
        assert outcome["first"] == -signal.SIGKILL, f"{where}: never reached"
        assert outcome["second"] == 0, (where, done.stderr.decode()[-2000:])
        assert (outcome["text"], outcome["again"]) == ("done", True), where
        assert outcome["seqs"] == list(range(1, len(outcome["seqs"]) + 1)), where
        assert outcome["roles"] == ["user", "assistant", "tool", "tool", "assistant"], where
        assert outcome["ended"] == 1, where
        kinds = outcome["results"]
        assert set(kinds) == {"x", "y"}, where
        ran = Counter(outcome["ran"])
        if idempotent:
            assert set(kinds.values()) == {None}, where
            assert min(ran.values()) >= 1 and len(ran) == 2, where
        else:
            assert set(kinds.values()) <= {None, "interrupted"}, where
            assert max(ran.values(), default=0) <= 1, where
            assert all(kind is not None or ran[call] == 1 for call, kind in kinds.items()), where
        counts["killed"] += 1
        counts["calls run again"] += sum(n - 1 for n in ran.values())
        counts["calls interrupted"] += list(kinds.values()).count("interrupted")
    record_property(
        "counts",
        f"crash matrix: process x {'idempotent' if idempotent else 'once'}: "
        + ", ".join(f"{n} {what}" for what, n in counts.items())
        + f", {len(lines)} turns ended once",
    )
