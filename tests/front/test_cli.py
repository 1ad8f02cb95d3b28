"""The command line: exit codes, NO_COLOR, tables."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keepwell import cli, terminal
from keepwell.actors.errors import InvalidValue, KeepwellError
from keepwell.stores.disk_engine import DiskEngine

ROOT = Path(__file__).parents[2]


def keepwell(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "keepwell", *argv], cwd=ROOT, capture_output=True, text=True,
        timeout=50, check=False, env={**os.environ, **environment})


def test_help_names_the_commands_and_loads_none_of_them() -> None:
    done = keepwell("--help")
    assert done.returncode == cli.OK
    for command in ("demo", "chat", "bench"):
        assert command in done.stdout


@pytest.mark.parametrize("argv", [[], ["no-such-command"], ["bench", "--no-such-option"]])
def test_a_wrong_command_line_exits_with_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        cli.main(argv)
    assert exited.value.code == cli.USAGE


def test_an_unknown_benchmark_exits_with_2_and_names_its_neighbour(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["bench", "mesaging"]) == cli.USAGE
    assert "did you mean 'messaging'?" in capsys.readouterr().err


class _Module:
    """Stands where a subcommand's module would be imported."""

    def __init__(self, outcome: int | BaseException) -> None:
        self.outcome = outcome

    def run(self, args: object) -> int:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(0, cli.OK), (1, cli.FAILED), (KeyboardInterrupt(), cli.FAILED),
     (KeepwellError("no"), cli.FAILED), (InvalidValue("no"), cli.USAGE)])
def test_exit_codes(
    outcome: int | BaseException, code: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli.importlib, "import_module", lambda *_: _Module(outcome))
    assert cli.main(["demo"]) == code
    if code:
        assert isinstance(outcome, int) or capsys.readouterr().err.startswith("keepwell:")


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    script = f"{sys.executable} -m keepwell bench --list | true"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True,
                          timeout=50, check=False)
    assert "Traceback" not in done.stderr


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [(_Terminal(), {}, True),
     (_Terminal(), {"NO_COLOR": "1"}, False),
     (_Terminal(), {"NO_COLOR": ""}, True),
     (_Terminal(), {"TERM": "dumb"}, False),
     (io.StringIO(), {}, False)])
def test_colour_is_for_terminals_that_want_it(
    stream: io.StringIO, environment: dict[str, str], coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    style = terminal.style_for(stream)
    assert (style.red("x") != "x") is coloured
    assert style.bold("") == ""


def test_tables_align_and_refuse_ragged_rows() -> None:
    text = terminal.table(["name", "n"], [["a", "1"], ["long name", "1,000"]], numbers=[1])
    assert text.splitlines() == [
        "name           n", "---------  -----", "a              1", "long name  1,000"]
    with pytest.raises(ValueError, match="1 cells, the header 2"):
        terminal.table(["a", "b"], [["x"]])


LOCALE_FREE = """
import sys
from keepwell.cli import main
from keepwell.stores import DiskStore, NoCounter

store = DiskStore(sys.argv[1], counter=NoCounter())
store.start()
store.add("user:1/\\u4e2d", [{"role": "user", "content": "na\\xefve \\u4e2d"}]).get()
assert store.get("user:1/\\u4e2d").get()[0].content == "na\\xefve \\u4e2d"
store.stop().get()
assert main(["store", "list", sys.argv[1]]) == 0
assert main(["store", "show", sys.argv[1], sys.argv[2]]) == 0
assert main(["store", "export", sys.argv[1], "--output", sys.argv[1] + ".jsonl"]) == 0
assert main(["store", "import", sys.argv[1] + " 2", sys.argv[1] + ".jsonl"]) == 0
"""


def test_fault_f43_text_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    plain = {
        **os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }  # fmt: skip
    name = "user:1/\u4e2d"
    done = subprocess.run(
        [sys.executable, "-c", LOCALE_FREE, str(tmp_path / "d"), name.encode()],
        env=plain, capture_output=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert rb"na\xefve \u4e2d" in done.stdout  # what an ASCII terminal can show
    for directory in (tmp_path / "d", tmp_path / "d 2"):
        engine = DiskEngine(directory)
        assert [m.content for m in engine.get(name)] == ["na\xefve \u4e2d"]
        engine.close()
    for path in tmp_path.rglob("*"):
        assert path.name.isascii() and not set(path.name) & set(':/\\?*"<>|')
