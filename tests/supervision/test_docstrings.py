"""The examples in the docstrings of the supervision floor run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import keepwell.supervision

MODULES = [
    f"keepwell.supervision.{m.name}" for m in pkgutil.iter_modules(keepwell.supervision.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [t for n in MODULES for t in finder.find(importlib.import_module(n)) if t.examples]
    assert len(found) >= 4
