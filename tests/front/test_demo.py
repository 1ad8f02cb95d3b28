"""`keepwell demo` and `keepwell chat`, run as a user runs them: as processes."""

from __future__ import annotations

import argparse
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keepwell import demo
from keepwell.agent.local_model import LocalModel

REPO = Path(__file__).resolve().parents[2]


def keepwell(*args: str, text: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keepwell", *args], cwd=REPO, input=text, text=True,
        capture_output=True, timeout=timeout, check=False,
    )  # fmt: skip


def test_the_demo_tells_its_story_and_every_claim_holds(tmp_path: Path) -> None:
    ran = keepwell("demo", "--model", "scripted", "--data-dir", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    for part in ("crashes in the middle of an append", "got SIGKILL in its tool",
                 "restarts 1", "StoreActor", "interrupted, outcome unknown"):  # fmt: skip
        assert part in ran.stdout
    assert "FAIL" not in ran.stdout
    assert "records lost 0, records doubled 0" in ran.stdout.splitlines()[-1]


def test_the_demo_may_be_run_twice_in_a_directory_and_speaks_json(tmp_path: Path) -> None:
    for _ in range(2):
        ran = keepwell("demo", "--model", "scripted", "--json", "--data-dir", str(tmp_path))
        assert ran.returncode == 0, ran.stderr
        figures = json.loads(ran.stdout)
        assert figures["process_kills"] == figures["store_crashes"] == 1
        assert figures["records_lost"] == figures["records_doubled"] == 0
        assert figures["claims_failed"] == 0


def test_a_claim_that_does_not_hold_ends_the_demo_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = demo._log

    async def loses_a_record(*args: Any) -> list[Any]:
        return (await real(*args))[:-1]

    monkeypatch.setattr(demo, "_log", loses_a_record)
    args = argparse.Namespace(model="scripted", data_dir=tmp_path, json=False)
    assert demo.run(args) == 1
    assert "failed:" in capsys.readouterr().err


@pytest.mark.local_model
@pytest.mark.skipif(LocalModel.missing() is not None, reason="the local model is not installed")
@pytest.mark.timeout(180)
def test_the_demo_with_the_real_model(tmp_path: Path) -> None:
    ran = keepwell("demo", "--model", "local", "--data-dir", str(tmp_path), timeout=170)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_chat_reads_a_pipe_and_keeps_its_history(tmp_path: Path) -> None:
    chat = ("chat", "--model", "scripted", "--data-dir", str(tmp_path), "--conversation", "tea")
    first = keepwell(*chat, text="hello\n/crash store\nstill there?\n/nope\n/tree\n/quit\nunread\n")
    assert first.returncode == 0, first.stderr
    assert "You said 'hello', after 0 earlier messages." in first.stdout
    assert "You said 'still there?', after 1 earlier messages." in first.stdout
    assert "restarts 1" in first.stdout
    assert "/nope is no command here" in first.stdout
    second = keepwell(*chat, text="/history\n")
    lines = second.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["user", "assistant", "user", "assistant"]
    assert "unread" not in second.stdout


def test_a_chat_whose_model_fails_tells_whoever_wrote_the_pipe(tmp_path: Path) -> None:
    ran = keepwell("chat", "--model", "none-such", "--base-url", "http://127.0.0.1:9/v1",
                   "--data-dir", str(tmp_path), text="hello\n/history\n")  # fmt: skip
    assert ran.returncode == 1
    assert "the model failed" in ran.stderr
    assert "hello" in ran.stdout  # what was asked is kept


@pytest.mark.parametrize("end", ["ctrl-c", "ctrl-d", "quit"])
def test_a_chat_on_a_terminal_ends_at_its_prompt(tmp_path: Path, end: str) -> None:
    """Nobody has to press Enter after Ctrl+C."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "keepwell", "chat", "--model", "scripted",
         "--data-dir", str(tmp_path)], cwd=REPO, stdin=theirs, stdout=theirs,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    while b"> " not in seen:
        seen += os.read(ours, 1024)
    os.write(ours, b"hello\n")
    while seen.count(b"> ") < 2:
        seen += os.read(ours, 1024)
    assert b"You said 'hello'" in seen
    if end == "ctrl-c":
        process.send_signal(signal.SIGINT)
    else:
        os.write(ours, b"\x04" if end == "ctrl-d" else b"/quit\n")
    assert process.wait(30) == 0
    os.close(ours)


def test_a_chat_that_is_killed_keeps_what_it_has_shown(tmp_path: Path) -> None:
    chat = ["chat", "--model", "scripted", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "keepwell", *chat], cwd=REPO, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    with process, process.stdin, process.stdout:
        process.stdin.write("remember me\n")
        process.stdin.flush()
        while "no model" not in process.stdout.readline():
            pass
        # The directory is this process's as long as it lives.
        other = keepwell(*chat, text="/history\n")
        assert other.returncode == 1
        assert str(process.pid) in other.stderr
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=30) == -signal.SIGKILL
    again = keepwell(*chat, text="/history\n")
    assert again.returncode == 0, again.stderr
    assert "remember me" in again.stdout
