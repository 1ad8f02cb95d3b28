"""The examples run as they stand: from any folder, without network, without a warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = {"fastapi_app.py", "starlette_app.py"}  # they serve for ever: see test_embedding.py
ARGUMENTS = {"context_pictures.py": ["."]}
EXAMPLES = sorted({path.name for path in (ROOT / "examples").glob("*.py")} - SERVICES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", str(ROOT / "examples" / name),
         *ARGUMENTS.get(name, [])], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    assert done.stdout, "an example shows something"
    for drawn in tmp_path.glob("*.svg"):
        kept = ROOT / "docs" / "pictures" / drawn.name
        assert drawn.read_text() == kept.read_text(), f"run examples/{name} docs/pictures"
