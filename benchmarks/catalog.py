"""Finds the benchmarks: the modules beside this one that ask questions."""

from __future__ import annotations

import ast
import difflib
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path

from keepwell.actors.errors import RequestError

from .benchmark import Question, Scale

_FOLDER = Path(__file__).parent

# What measures rather than asks.
_MACHINERY = {"__main__", "benchmark", "catalog", "chart", "child", "compare", "disk", "erlang",
              "machine",
              "measure", "open_loop", "page", "population", "report", "runner"}


def names() -> list[str]:
    """Return the names of all benchmarks, in alphabetical order."""
    return sorted(
        module.name
        for module in pkgutil.iter_modules([str(_FOLDER)])
        if module.name not in _MACHINERY
    )


def check(wanted: Sequence[str]) -> list[str]:
    """Return `wanted`, or all names if it is empty; RequestError for one that does not exist."""
    known = names()
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            raise RequestError(f"there is no benchmark {name!r}; {hint}", code="not_found")
    return list(wanted) or known


def questions(name: str, scale: Scale) -> Sequence[Question]:
    """Return the questions of the benchmark `name` at `scale`."""
    module = importlib.import_module(f".{name}", __package__)
    ask: Callable[[Scale], Sequence[Question]] = module.questions
    return ask(scale)


def title(name: str) -> str:
    """Return the first line of the benchmark's docstring: what it asks. Imports nothing."""
    tree = ast.parse((_FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]
