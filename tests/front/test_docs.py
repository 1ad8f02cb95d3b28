"""What is documented is checked against what exists."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
)
PACKAGES = ("keepwell", "keepwell.testing", "keepwell.actors", "keepwell.supervision",
            "keepwell.stores", "keepwell.memory", "keepwell.agent", "keepwell.sessions")
BLOCK = re.compile(
    r"^(?P<mark><!-- not run:(?P<reason>[^\n]*)-->\n)?```python\n(?P<code>.*?)^```$", re.M | re.S
)
# The blocks of a page run in order, in one namespace and, where they await, on one event loop.
RUN = """
import ast, asyncio, inspect, json, sys
names = {"__name__": "__main__"}
with asyncio.Runner() as runner:
    for page, line, source in json.load(sys.stdin):
        code = compile("\\n" * line + source, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        ran = eval(code, names)
        if inspect.iscoroutine(ran):
            runner.run(ran)
"""


def blocks(page: str) -> Iterator[tuple[int, str, str | None]]:
    """Line, code and the reason not to run it, of each python block of `page`."""
    text = (ROOT / page).read_text()
    for match in BLOCK.finditer(text):
        reason = match["reason"]
        line = text.count("\n", 0, match.start("code"))
        yield line, match["code"], None if reason is None else reason.strip()


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str, tmp_path: Path) -> None:
    wanted = [[page, line, code] for line, code, reason in blocks(page) if reason is None]
    if not wanted:
        return
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", RUN], input=json.dumps(wanted), cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=50,
        check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_that_do_not_run_say_why(page: str) -> None:
    silent = [line for line, _, reason in blocks(page) if reason is not None and len(reason) < 8]
    assert silent == []
    # Each fence is found by the pattern above, or it would go unseen.
    assert len(list(blocks(page))) == (ROOT / page).read_text().count("\n```python")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / page).read_text(), flags=re.S)
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    local = [target for target in targets if not target.startswith(("http://", "https://"))]
    broken = [target for target in local if not ((ROOT / page).parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("folder", ["docs", "docs/decisions"])
def test_every_page_is_in_the_index_beside_it(folder: str) -> None:
    index = (ROOT / folder / "README.md").read_text()
    pages = {path.name for path in (ROOT / folder).glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()


def public(package: str) -> Iterator[tuple[str, Any]]:
    """Each class and function of the package's `__all__`, and their public methods."""
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        yield f"{package}.{name}", value
        if not inspect.isclass(value):
            continue
        for attribute, member in vars(value).items():
            # What dataclasses and enums write is theirs to describe.
            ours = inspect.isroutine(member) or isinstance(member, property)
            if ours and not attribute.startswith("_"):
                yield f"{package}.{name}.{attribute}", getattr(value, attribute)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_docstring(package: str) -> None:
    silent: list[str] = []
    for name, value in public(package):
        text = value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)
        written_by_dataclass = inspect.isclass(value) and (text or "").startswith(
            f"{value.__name__}("
        )
        if not text or written_by_dataclass:
            silent.append(name)
    assert silent == []


@pytest.mark.parametrize("package", PACKAGES)
def test_all_names_what_is_there(package: str) -> None:
    module = importlib.import_module(package)
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


def test_the_changelog_knows_the_version(pyproject: dict[str, Any]) -> None:
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == "Unreleased" or headings[0] == pyproject["project"]["version"]
    assert len(headings) == len(set(headings))


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    promised = set(re.findall(r"^make ([a-z-]+)", text, re.M))
    assert {"demo", "test"} <= promised <= targets


def test_decisions_are_numbered_without_gap() -> None:
    pages = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [int(name[:4]) for name in pages]
    assert numbers == list(range(1, len(numbers) + 1))
