"""The recorded scenarios of a real OTP, played on keepwell; and the command that plays them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import replay

HERE = Path(__file__).resolve().parent
FILES = {path.stem: path for path in sorted((HERE / "traces").glob("*.jsonl"))}


def playable() -> list[dict[str, Any]]:
    lines = []
    for path in FILES.values():
        for line in replay.read_lines(path):
            module = replay.FAMILIES[line["family"]]
            if not replay.is_skipped(line) and importlib.util.find_spec(module):
                lines.append(line)
    return lines


LINES = playable()


def by_id(scenario: str) -> dict[str, Any]:
    (line,) = (line for line in LINES if line["id"] == scenario)
    return json.loads(json.dumps(line))


def play_file(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "traces.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n", "utf-8")
    return path


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["id"])
def test_simulated(line: dict[str, Any]) -> None:
    assert replay.replay(line, "simulated") == []


@pytest.mark.parametrize(
    "line", [line for line in LINES if not line["timing"]], ids=lambda line: line["id"]
)
def test_on_real_threads_and_loops(line: dict[str, Any]) -> None:
    assert replay.replay(line, "real") == []


@pytest.mark.parametrize("kind", ["thread", "async"])
@pytest.mark.parametrize("mode", replay.MODES)
def test_each_kind_of_actor_keeps_all_rules(mode: str, kind: str) -> None:
    played = 0
    for line in LINES:
        if mode == "simulated" or not line["timing"]:
            assert replay.replay(line, mode, kind=kind) == [], line["id"]
            played += 1
    assert played > 150


@pytest.mark.parametrize("seed", range(3))
def test_supervision_in_any_interleaving(seed: int) -> None:
    for line in LINES:
        if line["family"] == "supervision":
            assert replay.replay(line, "simulated", seed) == [], line["id"]


def test_the_files_hold_what_was_recorded() -> None:
    counts = {name: len(list(replay.read_lines(path))) for name, path in FILES.items()}
    assert counts == {"supervision": 123, "process": 25, "genserver": 20, "ets": 23, "dets": 14}


def test_command_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = play_file(tmp_path, by_id("S03-nested-order"), by_id("process-L04"))
    assert replay.main([str(path)]) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed\n"


def test_command_fails_with_a_readable_diff(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = by_id("R-permanent-boom")
    line["trace"]["steps"][1]["events"].pop()
    assert replay.main([str(play_file(tmp_path, line, by_id("S02-empty")))]) == 1
    out = capsys.readouterr().out
    assert 'step 1 {"child": "b", "how": "stop", "op": "crash", "reason": "boom"}: events' in out
    assert '+{"ev": "init", "id": "b", "n": 2, "outcome": "ok"}' in out
    assert out.endswith("1 passed, 1 failed\n")


def test_deliberate_differences_are_printed_and_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (thrown,) = (x for x in replay.read_lines(FILES["process"]) if x["id"] == "process-L12")
    assert replay.main([str(play_file(tmp_path, thrown))]) == 0
    assert capsys.readouterr().out == (
        "SKIP process-L12: Python has no throw\n0 passed, 0 failed\n"
    )


def test_command_as_a_program(tmp_path: Path) -> None:
    program = [sys.executable, str(HERE / "replay.py")]
    good = play_file(tmp_path, by_id("S02-empty"))
    done = subprocess.run([*program, str(good)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 passed, 0 failed\n"), done.stderr
    bad = play_file(tmp_path, {"id": "x", "v": 2})
    done = subprocess.run([*program, str(bad)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.endswith("0 passed, 1 failed\n")


def changed(scenario: str, *path: Any, value: Any) -> dict[str, Any]:
    line = by_id(scenario)
    place = line
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return line


CHILD = ("scenario", "supervisor", "children", 0)
UNKNOWN = {
    "op": changed("S02-empty", "scenario", "steps", 1, "op", value="count_chickens"),
    "field": changed("S02-empty", "scenario", "steps", 1, "loud", value=True),
    "key": changed("S02-empty", "extra", value=1),
    "version": changed("S02-empty", "v", value=2),
    "family": changed("S02-empty", "family", value="gen_statem"),
    "supervisor key": changed("S02-empty", "scenario", "supervisor", "hibernate", value=1),
    "child key": changed("S04-init-rollback", *CHILD, "modules", value=[]),
    "behaviour": changed("S04-init-rollback", *CHILD, "behaviour", value={"sing": 1}),
    "outcome": changed("S04-init-rollback", *CHILD, "behaviour", value={"init": ["fly"]}),
    "how": changed("R-permanent-boom", "scenario", "steps", 1, "how", value="throw"),
    "sender": changed("H12-stranger-exit", "scenario", "steps", 1, "from", value="aunt"),
    "term": changed("process-N03", "scenario", "steps", 4, "msg", value={"z": 1}),
    "request": changed("genserver-C01", "scenario", "steps", 2, "req", value="sing"),
    "init": changed("genserver-C01", "scenario", "steps", 1, "init", value="sing"),
    "exit": changed("process-L03", "scenario", "steps", 3, "how", value="throw"),
    "actor": changed("process-L03", "scenario", "steps", 3, "id", value="nobody"),
    "keepwell": changed("S02-empty", "keepwell", value={"maybe": True}),
    "event": changed("S02-empty", "trace", "steps", 0, "events", 0, "n", value=2),
    "1 for true": changed("process-L02", "trace", "steps", 4, "result", value=1),
    "1.0 for 1": changed("genserver-C01", "trace", "steps", 3, "result", value=[1.0]),
    "final": changed("R-permanent-boom", "trace", "final", "tree", 1, "child", value="b#1"),
    "reason": changed("S02-empty", "trace", "final", "reason", value="normal"),
}


@pytest.mark.parametrize("line", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_unknown_or_different_fails(line: dict[str, Any]) -> None:
    assert replay.replay(line, "simulated")
