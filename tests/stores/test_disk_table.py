"""DiskTable: opening and closing, who may do what, and copies from and to memory."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepwell.stores import ANY, DiskTable, MemoryTable, TableError, Var

from .table_files import TYPES, file_error, refused


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("durability", ["power", "process"])
def test_data_is_there_after_close_and_reopen(path: Path, type_: str, durability: str) -> None:
    """DETS-1."""
    rows = [(1, "a"), (2.0, ["b", (None,)]), ("k" * 600, {"x": 1})]
    with DiskTable.open("t", path, type_, durability=durability) as table:
        table.insert(rows)
        kept = table.to_list()
    with DiskTable.open("t", str(path), type_, durability=durability) as table:
        assert table.to_list() == kept
        assert sorted(map(repr, kept)) == sorted(map(repr, rows))
        assert (table.info("size"), table.info("durability")) == (3, durability)
        assert table.verify() == 3
        table.sync()


def test_files_are_for_the_owner_only(path: Path) -> None:
    with DiskTable.open("t", path):
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    names = {file.name for file in path.parent.iterdir()}
    assert names == {"t.dets", "t.dets-lock", "t.dets-owner"}


@pytest.mark.parametrize("type_", TYPES)
def test_the_file_fixes_the_type(path: Path, type_: str) -> None:
    """DETS-2."""
    with DiskTable.open("t", path, type_) as table:
        table.insert((1, "a"))
    for other in TYPES:
        if other != type_:
            file_error("type_mismatch", lambda other=other: DiskTable.open("t", path, other), path)
    file_error("keypos_mismatch", lambda: DiskTable.open("t", path, type_, keypos=1), path)
    with DiskTable.open("t", path, type_, access="read") as table:
        assert table.to_list() == [(1, "a")]


CALLS: dict[str, Callable[[Any], Any]] = {
    "insert": lambda t: t.insert((1, 1)),
    "insert_new": lambda t: t.insert_new((9, 1)),
    "delete": lambda t: t.delete(1),
    "delete_object": lambda t: t.delete_object((1, 1)),
    "delete_all_objects": lambda t: t.delete_all_objects(),
    "match_delete": lambda t: t.match_delete(ANY),
    "select_delete": lambda t: t.select_delete([(ANY, [], [True])]),
    "take": lambda t: t.take(1),
    "update_counter": lambda t: t.update_counter(1, 1),
    "update_element": lambda t: t.update_element(1, {1: 2}),
    "from_memory": lambda t: t.from_memory(MemoryTable("m")),
}
READS: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda t: t.lookup(1),
    "member": lambda t: t.member(1),
    "lookup_element": lambda t: t.lookup_element(1, 1),
    "to_list": lambda t: t.to_list(),
    "len": len,
    "first": lambda t: t.first(),
    "last": lambda t: t.last(),
    "next": lambda t: t.next(1),
    "prev": lambda t: t.prev(1),
    "match": lambda t: t.match((Var(1), ANY)),
    "match_object": lambda t: t.match_object(ANY, 1),
    "select": lambda t: t.select([(ANY, [], [1])]),
    "select_count": lambda t: t.select_count([(ANY, [], [True])]),
    "to_memory": lambda t: t.to_memory(MemoryTable("m")),
    "sync": lambda t: t.sync(),
    "fix": lambda t: t.fix(),
    "unfix": lambda t: t.unfix(),
    "verify": lambda t: t.verify(),
}


@pytest.mark.parametrize("call", CALLS | READS)
def test_a_closed_table_raises(path: Path, call: str) -> None:
    """DETS-4."""
    table = DiskTable.open("t", path)
    table.close()
    refused("badarg", lambda: (CALLS | READS)[call](table))
    assert table.info() is None
    assert table.info("size") is None
    refused("not_owner", table.close)


def test_access_read(path: Path) -> None:
    """DETS-7."""
    error = file_error("file_error", lambda: DiskTable.open("t", path, access="read"), path)
    assert error.reason == "enoent"
    assert not list(path.parent.iterdir())
    with DiskTable.open("t", path) as table:
        table.insert((1, 1))
    with DiskTable.open("t", path, access="read") as table:
        for call in CALLS.values():
            with pytest.raises(TableError) as error:
                call(table)
            assert (error.value.code, error.value.path) == ("access_mode", str(path))
        for call in READS.values():
            call(table)
        assert table.to_list() == [(1, 1)]
        assert table.info("access") == "read"


def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "t"
    error = file_error("file_error", lambda: DiskTable.open("t", missing), missing)
    assert error.reason == "enoent"
    assert file_error("file_error", lambda: DiskTable.open("t", tmp_path)).reason == "eisdir"


@pytest.mark.parametrize(
    "arguments",
    [
        {"type": "sett"}, {"access": "write"}, {"keypos": -1}, {"keypos": True}, {"name": b"t"},
        {"path": 1}, {"path": ""}, {"path": "a\0b"}, {"path": b"t"}, {"durability": "none"},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_arguments(path: Path, arguments: dict[str, Any]) -> None:
    refused("badarg", lambda: DiskTable.open(**{"name": "t", "path": path, **arguments}))
    assert not list(path.parent.iterdir())
    with pytest.raises(TypeError):
        DiskTable()


@pytest.mark.parametrize("type_", TYPES)
def test_to_and_from_memory(path: Path, type_: str) -> None:
    with DiskTable.open("t", path, type_) as table:
        table.insert([(1, "a"), (2, "b")])
        memory = MemoryTable("m", type=type_)
        assert table.to_memory(memory) is memory
        assert sorted(memory.to_list()) == [(1, "a"), (2, "b")]
        memory.delete(1)
        memory.insert([(3, ["c"])])
        table.from_memory(memory)
        assert table.to_list() == [(2, "b"), (3, ["c"])]
        memory.insert((4, object()))
        refused("badarg", lambda: table.from_memory(memory))
        refused("badarg", lambda: table.from_memory(table))
        refused("badarg", lambda: table.to_memory(table))
        assert len(table) == 2
