"""Runs one function in a fresh Python process, for figures that a used process would blur.

Resident memory is the case: what an earlier contender freed stays with the process.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import keepwell


def in_child(function: Callable[..., dict[str, float]], *args: str | int | float | bool,
             timeout: float = 300) -> dict[str, float]:
    """Return `function(*args)` of a module-level function, computed in a fresh process.

    Raises RuntimeError with the end of the child's standard error if it fails, and
    subprocess.TimeoutExpired after `timeout` seconds.
    """
    root = str(Path(keepwell.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    target = f"{function.__module__}:{function.__qualname__}"
    done = subprocess.run(
        [sys.executable, "-m", __name__, target, json.dumps(args)], capture_output=True,
        text=True, timeout=timeout, env={**os.environ, "PYTHONPATH": path}, check=False)
    if done.returncode:
        raise RuntimeError(f"{target} ended with exit code {done.returncode}: "
                           f"{done.stderr.strip()[-500:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


if __name__ == "__main__":
    _module, _, _name = sys.argv[1].partition(":")
    _function = getattr(importlib.import_module(_module), _name)
    print(json.dumps(_function(*json.loads(sys.argv[2]))))
