"""Descriptions from docstrings: the text of a function and of each of its parameters."""

from __future__ import annotations

import inspect
import re
from typing import Final

_SECTION: Final = re.compile(
    r"(args|arguments|parameters|params|returns?|raises?|yields?|examples?|notes?|attributes)\s*:?",
    re.IGNORECASE,
)
_PARAMETERS: Final = frozenset({"args", "arguments", "parameters", "params"})
_GOOGLE_ITEM: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ITEM: Final = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?$")
_SPHINX_PARAM: Final = re.compile(
    r":(?:param|parameter|arg|argument)\s+(?:[^:]*?\s)?\*{0,2}(\w+)\s*:\s*(.*)"
)
_SPHINX_FIELD: Final = re.compile(r":\w+[^:]*:")


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """`(description, {parameter: description})` of a Google, NumPy or Sphinx docstring.

    The description is what stands before the first section; an unknown form is all description.
    """
    if not text:
        return "", {}
    lines = inspect.cleandoc(text).splitlines()
    described: list[str] = []
    parameters: dict[str, str] = {}
    i = 0
    in_description = True
    while i < len(lines):
        line = lines[i]
        sphinx = _SPHINX_PARAM.match(line)
        if sphinx is not None:
            in_description = False
            block, i = _continued(lines, i + 1, 1)
            parameters[sphinx[1]] = _join([sphinx[2], *block])
            continue
        if _SPHINX_FIELD.match(line):
            in_description = False
            _, i = _continued(lines, i + 1, 1)
            continue
        heading = _heading(lines, i)
        if heading is not None:
            in_description = False
            name, i = heading
            if name in _PARAMETERS:
                found, i = _section(lines, i)
                parameters.update(found)
            continue
        if in_description:
            described.append(line)
        i += 1
    return "\n".join(described).strip(), parameters


def _heading(lines: list[str], i: int) -> tuple[str, int] | None:
    """The section that starts at line i, and the index of its first line."""
    line = lines[i]
    if _SECTION.fullmatch(line.strip()) is None or line[:1].isspace():
        return None
    name = line.strip().rstrip(":").strip().lower()
    if i + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[i + 1].strip()):
        return name, i + 2
    if line.rstrip().endswith(":"):
        return name, i + 1
    return None


def _section(lines: list[str], i: int) -> tuple[dict[str, str], int]:
    found: dict[str, str] = {}
    numpy = i > 0 and re.fullmatch(r"-{3,}", lines[i - 1].strip()) is not None
    if numpy:
        while i < len(lines) and _heading(lines, i) is None:
            item = _NUMPY_ITEM.match(lines[i])
            if item is None:
                i += 1
                continue
            block, i = _continued(lines, i + 1, 1)
            found[item[1]] = _join(block)
        return found, i
    indent = next((_indent(line) for line in lines[i:] if line.strip()), 0)
    if indent == 0:
        return found, i
    while i < len(lines) and (not lines[i].strip() or _indent(lines[i]) >= indent):
        item = _GOOGLE_ITEM.match(lines[i].strip()) if _indent(lines[i]) == indent else None
        if item is None:
            i += 1
            continue
        block, i = _continued(lines, i + 1, indent + 1)
        found[item[1]] = _join([item[2], *block])
    return found, i


def _continued(lines: list[str], i: int, indent: int) -> tuple[list[str], int]:
    """The lines from i on that are indented by at least `indent`, and the index after them."""
    block: list[str] = []
    while i < len(lines) and lines[i].strip() and _indent(lines[i]) >= indent:
        block.append(lines[i])
        i += 1
    return block, i


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(parts: list[str]) -> str:
    return " ".join(part.strip() for part in parts if part.strip())
