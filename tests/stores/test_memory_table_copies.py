"""MemoryTable: what is copied, and what is shared (ETS-16)."""

from __future__ import annotations

import dataclasses
import datetime
import threading
from collections.abc import Callable
from typing import Any

import pytest

from keepwell.stores import ANY, END_OF_TABLE, ROW, MemoryTable, Var, never_changes

from .memory_tables import TYPES, filled, refused

OUT: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda t: t.lookup(1)[0][1],
    "take": lambda t: t.take(1)[0][1],
    "lookup_element": lambda t: t.lookup_element(1, 1)
    if t.info("type").endswith("set")
    else t.lookup_element(1, 1)[0],
    "to_list": lambda t: t.to_list()[0][1],
    "match": lambda t: t.match((1, Var(1)))[0][0],
    "match all": lambda t: t.match((ANY, Var(1)))[0][0],
    "match row": lambda t: t.match(Var(1))[0][0][1],
    "match_object": lambda t: t.match_object(ANY)[0][1],
    "select": lambda t: t.select([((ANY, Var(1)), [], [[Var(1)]])])[0][0],
    "select row": lambda t: t.select([(ANY, [], [ROW])])[0][1],
    "in chunks": lambda t: t.match_object(ANY, 1)[0][0][1],
}


@pytest.mark.parametrize("read", OUT)
@pytest.mark.parametrize("type_", TYPES)
def test_rows_are_copied_in_and_out(type_: str, read: str) -> None:
    table = MemoryTable("t", type=type_)
    inner: list[Any] = ["x"]
    value = {"list": inner, "tuple": (inner,)}
    table.insert((1, value))
    inner.append("changed after insert")
    value["new"] = 1
    found = OUT[read](table)
    assert found == {"list": ["x"], "tuple": (["x"],)}
    if read == "take":
        return
    found["list"].append("changed after reading")
    found["tuple"][0].append("changed after reading")
    assert OUT[read](table) == {"list": ["x"], "tuple": (["x"],)}


@pytest.mark.parametrize("type_", TYPES)
def test_keys_are_copied(type_: str) -> None:
    table = MemoryTable("t", type=type_)
    key = [1, [2]]
    table.insert((key, "v"))
    key[1].append(3)  # type: ignore[attr-defined]  # a list
    for read in (table.first, table.last, lambda: table.match((Var(1), "v"))[0][0]):
        found = read()
        assert found == [1, [2]]
        found[1].append(4)
    assert table.lookup([1, [2]]) == [([1, [2]], "v")]
    assert table.next([1, [2]]) is END_OF_TABLE


@pytest.mark.parametrize("type_", ["set", "ordered_set"])
def test_what_updates_put_in_is_copied(type_: str) -> None:
    table = MemoryTable("t", type=type_)
    table.insert((1, 0, None))
    value: list[Any] = []
    table.update_element(1, {2: value})
    value.append("changed")
    default = (0, 0, value)
    table.update_counter(2, 1, default)
    value.append("again")
    assert table.lookup(1) == [(1, 0, [])]
    assert table.lookup(2) == [(2, 1, ["changed"])]


def test_what_never_changes_is_shared() -> None:
    table = MemoryTable("t")
    moment = datetime.datetime.now(datetime.UTC)
    row = (1, "a", 2.0, b"b", None, (1, ("x",)), frozenset({1}), moment)
    table.insert(row)
    assert table.lookup(1)[0] is row
    assert table.match_object(ANY)[0] is row


def test_classes_can_be_declared_immutable() -> None:
    @never_changes
    @dataclasses.dataclass(frozen=True)
    class Point:
        x: int

    @dataclasses.dataclass
    class Box:
        content: list[int]

    point, box = Point(1), Box([1])
    table = MemoryTable("t")
    table.insert([(1, point), (2, box), (Point(3), "as a key")])
    assert table.lookup(1)[0][1] is point
    box.content.append(2)
    found = table.lookup(2)[0][1]
    assert found == Box([1])
    assert found is not box
    assert table.lookup(Point(3)) == [(Point(3), "as a key")]


def test_what_cannot_be_copied_is_refused() -> None:
    table = MemoryTable("t")
    refused(lambda: table.insert((1, threading.Lock())))
    refused(lambda: table.insert((1, (x for x in "abc"))))
    cycle: list[Any] = []
    cycle.append(cycle)
    refused(lambda: table.insert((1, cycle)))
    assert len(table) == 0


def test_refs_are_shared(owner: Any) -> None:
    table = filled()
    table.insert((3, owner, [owner]))
    assert table.lookup(3)[0][1] is owner
    assert table.lookup(3)[0][2][0] is owner
    table.insert((owner, 1))
    assert table.lookup(owner) == [(owner, 1)]
    ordered = MemoryTable("o", type="ordered_set")
    ordered.insert([((), 1), (owner, 2), ("s", 3), (0, 4)])
    assert [value for _, value in ordered.to_list()] == [4, 2, 1, 3]
