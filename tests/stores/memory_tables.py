"""What tests of memory tables share: the types, a table to begin with, a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keepwell.stores import MemoryTable, TableError

TYPES = ("set", "ordered_set", "bag", "duplicate_bag")


def filled(**options: Any) -> MemoryTable:
    table = MemoryTable("t", **options)
    table.insert([(1, 1), (2, 2)])
    return table


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(TableError) as error:
        call()
    assert error.value.code == "badarg"
