"""The command `keepwell`: the demo, a conversation, the benchmarks.

Exit codes: 0 it worked; 1 it did not (a claim of the demo failed, a store is owned by another
process, the run was interrupted); 2 the command line asks for something that cannot be.

Each subcommand is a module with `run(args) -> int`, imported only when it is asked for, so that
`keepwell --help` costs nothing and a missing extra only hurts who needs it.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import store_commands
from .actors.errors import KeepwellError, RequestError
from .terminal import style_for

OK, FAILED, USAGE = 0, 1, 2

_MODEL_HELP = (
    "local (in-process, from wheels), scripted (no model at all), or the name of a model at an "
    "OpenAI-compatible endpoint; default: the local model if it is installed, else the scripted one"
)


def _version() -> str:
    try:
        return version("keepwell")
    except PackageNotFoundError:
        return "of a checkout that is not installed"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; `args.module` names the subcommand's module."""
    top = argparse.ArgumentParser(
        prog="keepwell", description="Agents may crash; conversations may not."
    )
    top.add_argument("--version", action="version", version=f"keepwell {_version()}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = commands.add_parser(
        "demo",
        help="see an agent lose its store, then its process, and go on",
        description="An agent holds a conversation and calls tools; its store is crashed in the "
        "middle of an append, then the whole process is killed in the middle of a turn. Every "
        "claim is checked against the log; one that fails ends the demo with exit code 1.",
    )
    demo.add_argument("--model", metavar="MODEL", help=_MODEL_HELP)
    demo.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="keep the data here (default: a temporary directory, then removed)",
    )
    demo.add_argument("--json", action="store_true", help="print the closing figures as JSON only")
    demo.set_defaults(module=".demo")

    chat = commands.add_parser(
        "chat",
        help="hold a conversation whose history survives exit and kill",
        description="An interactive conversation, streamed. Commands: /history, /tree, "
        "/crash store, /quit. Standard input may be a pipe.",
    )
    chat.add_argument("--model", metavar="MODEL", help=_MODEL_HELP)
    chat.add_argument("--base-url", metavar="URL", help="the OpenAI-compatible endpoint of --model")
    chat.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help=f"where conversations are kept (default: as configured, else {default_data_dir()})",
    )
    chat.add_argument(
        "--conversation",
        type=store_commands.id_text,
        metavar="ID",
        default="default",
        help="the conversation to go on with (default: %(default)s)",
    )
    chat.set_defaults(module=".chat")

    bench = commands.add_parser(
        "bench",
        help="measure this machine, beside the alternatives that are installed",
        description="Runs benchmarks, all of them or those named, and prints a table for each.",
    )
    bench.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    bench.add_argument("--list", action="store_true", help="list the benchmarks and what they ask")
    bench.add_argument("--quick", action="store_true", help="small sizes, under a minute in all")
    bench.add_argument(
        "--soak-seconds",
        type=float,
        metavar="N",
        help="how long the benchmark soak runs (default: 30, with --quick 3)",
    )
    bench.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the results here: one object, or a list for several benchmarks",
    )
    bench.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="set this run beside an earlier one, from what its --json wrote",
    )
    bench.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="write a page with charts, DIR/index.html, and each chart as SVG",
    )
    bench.set_defaults(module=".benchmarks.runner")
    store_commands.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return its exit code."""
    args = parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal of another locale shows an escape; it does not end the command (F43).
            stream.reconfigure(errors="backslashreplace")
    try:
        return int(importlib.import_module(args.module, __package__).run(args))
    except KeepwellError as error:
        print(f"{style_for(sys.stderr).red('keepwell:')} {error}", file=sys.stderr)
        return USAGE if isinstance(error, RequestError) else FAILED
    except KeyboardInterrupt:
        print("keepwell: interrupted", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        # Whoever read our output has enough. Point stdout elsewhere, or the interpreter's last
        # flush reports the same error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def default_data_dir() -> Path:
    """Where conversations are kept unless something else is configured."""
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(base) / "keepwell"
