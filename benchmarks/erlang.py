"""Erlang as a contender: runs a function of an escript beside this file and reads its figures."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from .benchmark import Contender, Stopwatch
from .disk import directory


def erlang(
    script: str, function: str, operations: int, *, rounds: int | None = None,
    name: str = "erlang", note: str = "",
) -> Contender:
    """Return the contender that runs `function(Operations)` of `script` on Erlang/OTP.

    The script prints `wall_s cpu_s` of the timed region, then `name value` lines of further
    figures. It runs in a directory of its own that is gone afterwards. Where no `escript` is on the
    PATH the contender is missing, and says so.
    """
    reason = "" if shutil.which("escript") else "erl is not installed (Debian: erlang-base)"
    said = [f"OTP {_release()}", note] if not reason else []
    return Contender(name, _runner(script, function), operations, missing=reason,
                     note=", ".join(filter(None, said)), rounds=rounds, opponent=True, fresh=True)


def _runner(script: str, function: str) -> Callable[[Stopwatch, int], dict[str, float]]:
    def run(watch: Stopwatch, operations: int) -> dict[str, float]:
        path = Path(__file__).with_name(script).absolute()
        with directory() as folder:
            done = subprocess.run(["escript", str(path), function, str(operations)],
                                  capture_output=True, text=True, timeout=300, check=False,
                                  cwd=folder, env={**os.environ, "ERL_CRASH_DUMP_BYTES": "0"})
        if done.returncode:
            raise RuntimeError(f"{script} {function}: {(done.stdout + done.stderr).strip()[-300:]}")
        first, *further = done.stdout.splitlines()
        wall, cpu = first.split()
        watch.record(wall=float(wall), cpu=float(cpu))
        return {name: float(value) for name, value in (line.split() for line in further)}

    return run


@functools.cache
def _release() -> str:
    done = subprocess.run(
        ["erl", "-noshell", "-eval", 'io:put_chars(erlang:system_info(otp_release)), halt().'],
        capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or "of unknown release"
