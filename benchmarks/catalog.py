"""Finds the benchmarks: the modules beside this one that define `questions(scale)`."""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from keepwell.actors.errors import RequestError

from .benchmark import Question, Scale

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the names of all benchmarks, in alphabetical order. Imports none of them."""
    return sorted(path.stem for path in _FOLDER.glob("*.py") if _asks(_parsed(path.stem)))


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
    return (ast.get_docstring(_parsed(name)) or "").partition("\n")[0]


def method(name: str) -> list[str]:
    """Return the paragraphs and list items of the docstring below its title; [] if unknown."""
    if not (_FOLDER / f"{name}.py").exists():
        return []
    _, _, rest = (ast.get_docstring(_parsed(name)) or "").partition("\n")
    parts = rest.replace("\n- ", "\n\n- ").split("\n\n")
    return [text for part in parts if (text := " ".join(part.split()).removeprefix("- "))]


def _parsed(name: str) -> ast.Module:
    return ast.parse((_FOLDER / f"{name}.py").read_text(encoding="utf-8"))


def _asks(module: ast.Module) -> bool:
    """Whether it defines `questions(scale)`."""
    return any(
        isinstance(node, ast.FunctionDef) and node.name == "questions"
        and [argument.arg for argument in node.args.args] == ["scale"]
        for node in module.body
    )
