"""Replay scenarios recorded on a real Erlang/OTP against keepwell's actors, supervisors and tables.

    python tests/otp/replay.py FILE... [--mode simulated|real] [--kind light|thread|async]
        [--seed N] [--only ID...]

Prints every difference as a diff and ends with `N passed, M failed`; the exit status is 0 only if
nothing failed. "simulated" (the default) is deterministic and in virtual time; "real" plays on
threads and event loops, without the scenarios that depend on the clock. The format is described in
docs/contracts/supervision.md, sections 6 to 8.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[1]):  # the modules beside this one, and keepwell in a checkout
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from replay_compare import BadTrace, check_shape, differences
from replay_stage import KINDS, stage

FAMILIES = {
    "supervision": "replay_supervision",
    "process": "replay_actors",
    "genserver": "replay_actors",
    "ets": "replay_tables",
    "dets": "replay_tables",
}
"""The module of each family; it has `run_scenario(line, stage)`, which returns a trace."""

MODES = ("simulated", "real")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The scenarios of a file, one a line; blank lines are skipped."""
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            line = {"id": f"{path.name}:{number}", "broken": f"not JSON: {error}"}
        if not isinstance(line, dict):
            line = {"id": f"{path.name}:{number}", "broken": "not an object"}
        yield line


def is_skipped(line: Mapping[str, Any]) -> bool:
    """Whether keepwell differs on purpose in the whole scenario."""
    return bool(line.get("keepwell", {}).get("skip"))


def replay(
    line: Mapping[str, Any], mode: str, seed: int | None = None, kind: str = "light"
) -> list[str]:
    """Play one scenario; the differences from its recorded trace, [] if there are none."""
    if "broken" in line:
        return [line["broken"]]
    try:
        check_shape(line)
        if line["family"] not in FAMILIES:
            return [f"unknown family {line['family']!r}"]
        family = importlib.import_module(FAMILIES[line["family"]])
        with stage(mode, seed, kind) as played:
            seen = family.run_scenario(line, played)
        return differences(line, seen)
    except BadTrace as bad:
        return [str(bad)]
    except Exception:
        return traceback.format_exc().splitlines()


def main(arguments: Iterable[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="replay.py", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON Lines")
    parser.add_argument("--mode", choices=MODES, default="simulated")
    parser.add_argument("--seed", type=int, default=None, help="of the simulated interleaving")
    parser.add_argument("--kind", choices=KINDS, default="light", help="of the actors that play")
    parser.add_argument("--only", nargs="+", metavar="ID", help="ids of scenarios to play")
    options = parser.parse_args(None if arguments is None else list(arguments))
    passed = failed = 0
    for path in options.files:
        try:
            lines = list(read_lines(path))
        except (OSError, UnicodeDecodeError) as error:
            lines = [{"id": str(path), "broken": str(error)}]
        for line in lines:
            name = str(line.get("id"))
            if options.only and name not in options.only:
                continue
            if is_skipped(line):
                print(f"SKIP {name}: {line['keepwell'].get('why')}")
                continue
            if options.mode == "real" and line.get("timing"):
                print(f"SKIP {name}: depends on the clock")
                continue
            found = replay(line, options.mode, options.seed, options.kind)
            if not found:
                passed += 1
                continue
            failed += 1
            print(f"FAIL {name}: {line.get('title', '')}")
            for text in found:
                print(f"    {text}")
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
