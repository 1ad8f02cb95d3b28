"""MemoryTable: names and other options (ETS-12)."""

from __future__ import annotations

from typing import Any

import pytest

from keepwell.actors import ActorSystem
from keepwell.stores import MemoryTable, TableError

from .memory_tables import refused
from .worker import run


def test_names_are_unique(owner: Any, other: Any) -> None:
    table = run(owner, lambda: MemoryTable("named", named=True))
    assert repr(table) == "<MemoryTable 'named'>"
    assert table.info("named_table") is True
    assert run(other, lambda: MemoryTable.whereis("named")) is table
    refused(lambda: run(other, lambda: MemoryTable("named", named=True)))
    assert MemoryTable("named").info("named_table") is False
    assert MemoryTable.whereis("named") is table


def test_rename(owner: Any) -> None:
    def work() -> None:
        one, two = MemoryTable("one", named=True), MemoryTable("two", named=True)
        with pytest.raises(TableError, match="taken"):
            one.rename("two")
        with pytest.raises(TableError):
            one.rename(b"bytes")
        one.rename("one")
        one.rename("three")
        assert (one.name, MemoryTable.whereis("three"), MemoryTable.whereis("one")) == (
            "three", one, None,
        )  # fmt: skip
        two.rename("one")
        two.drop()
        assert MemoryTable.whereis("one") is None
        unnamed = MemoryTable("x")
        unnamed.rename("three")
        assert MemoryTable.whereis("three") is one

    run(owner, work)


def test_each_system_has_its_own_names() -> None:
    with ActorSystem(name="a"):
        one = MemoryTable("t", named=True)
        with ActorSystem(name="b"):
            assert MemoryTable.whereis("t") is None
            two = MemoryTable("t", named=True)
            assert MemoryTable.whereis("t") is two
        assert MemoryTable.whereis("t") is one


@pytest.mark.parametrize(
    "arguments",
    [
        {"type": "sett"}, {"type": None}, {"type": []}, {"protection": "open"}, {"keypos": -1},
        {"keypos": "1"}, {"keypos": True}, {"keypos": 1.0}, {"heir": "h"}, {"heir": (1, 2)},
        {"heir": ()}, {"name": b"bytes"}, {"name": None},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_options(arguments: dict[str, Any]) -> None:
    """ETS-17."""
    refused(lambda: MemoryTable(**{"name": "t", **arguments}))
