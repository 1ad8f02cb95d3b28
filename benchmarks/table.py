"""How fast are tables, beside a dict and Erlang's ETS and DETS?

How: rows of a number and 100 characters. In memory: inserted and looked up by key, one at a time,
by code outside of any actor; an ETS table is private and of the same size. On disk: every insert is
flushed before the next, in DETS by a `sync` after it; lookups go to a table of the same rows.

- `dict`: what a MemoryTable is made of, without its copies and without asking who may do this.
- `raw`: LMDB, one row a transaction, which is what an insert into a DiskTable must at least do.

What it does not say: what matching and folding over a table costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import lmdb

from keepwell.stores import DiskTable, MemoryTable

from .benchmark import Contender, Question, Scale, Stopwatch, faster
from .disk import described, directory
from .erlang import erlang

Run = Callable[[Stopwatch, int], Mapping[str, float] | None]

_VALUE = "x" * 100
_SCRIPT = "table.escript"


def questions(scale: Scale) -> Sequence[Question]:
    """Return the four questions."""
    rows = scale.pick(50_000, 5_000)
    flushed = scale.pick(300, 60)
    read = scale.pick(10_000, 1_000)
    return [
        Question(
            "memory_insert", "How many rows a second go into a table in memory?", "insert",
            [Contender("keepwell", _insert, rows),
             Contender("dict", _dict_insert, rows, opponent=True),
             erlang(_SCRIPT, "ets_insert", rows * 10, name="ets")],
            [faster("table_insert_vs_dict", "keepwell", "dict"),
             faster("table_insert_vs_ets", "keepwell", "ets")]),
        Question(
            "memory_lookup", "How many rows a second are looked up in it?", "lookup",
            [Contender("keepwell", _lookup, rows),
             Contender("dict", _dict_lookup, rows, opponent=True),
             erlang(_SCRIPT, "ets_lookup", rows * 10, name="ets")],
            [faster("table_lookup_vs_dict", "keepwell", "dict"),
             faster("table_lookup_vs_ets", "keepwell", "ets")]),
        Question(
            "disk_insert", "How many flushed inserts a second take a table on disk?", "insert",
            [Contender("keepwell", _disk_insert, flushed, note=described()),
             Contender("raw", _raw_insert, flushed, opponent=True),
             erlang(_SCRIPT, "dets_insert", flushed, name="dets",
                    note="a sync after each insert; weaker: a kill leaves a table to be repaired")],
            [faster("disk_table_insert_vs_raw_lmdb", "keepwell", "raw", floor=0.5),
             faster("disk_table_insert_vs_dets", "keepwell", "dets")],
            rounds=scale.pick(5, 2)),
        Question(
            "disk_lookup", "How many rows a second are looked up on disk?", "lookup",
            [Contender("keepwell", _disk_lookup, read),
             erlang(_SCRIPT, "dets_lookup", read, name="dets")],
            [faster("disk_table_lookup_vs_dets", "keepwell", "dets")],
            rounds=scale.pick(5, 2)),
    ]  # fmt: skip


def _insert(watch: Stopwatch, operations: int) -> None:
    table = MemoryTable("rows")
    with watch:
        for number in range(operations):
            table.insert((number, _VALUE))
    assert table.info("size") == operations
    table.drop()


def _lookup(watch: Stopwatch, operations: int) -> None:
    table = MemoryTable("rows")
    for number in range(operations):
        table.insert((number, _VALUE))
    with watch:
        for number in range(operations):
            table.lookup(number)
    assert table.lookup(0) == [(0, _VALUE)]
    table.drop()


def _dict_insert(watch: Stopwatch, operations: int) -> None:
    table: dict[int, tuple[int, str]] = {}
    with watch:
        for number in range(operations):
            table[number] = (number, _VALUE)


def _dict_lookup(watch: Stopwatch, operations: int) -> None:
    table = {number: (number, _VALUE) for number in range(operations)}
    with watch:
        for number in range(operations):
            table.get(number)


def _disk_insert(watch: Stopwatch, operations: int) -> None:
    with directory() as path, DiskTable.open("rows", path / "rows.table") as table, watch:
        for number in range(operations):
            table.insert((number, _VALUE))


def _raw_insert(watch: Stopwatch, operations: int) -> None:
    with directory() as path, lmdb.open(str(path), map_size=1 << 30) as env, watch:
        for number in range(operations):
            with env.begin(write=True) as txn:
                txn.put(number.to_bytes(8, "big"), _VALUE.encode())


def _disk_lookup(watch: Stopwatch, operations: int) -> None:
    with directory() as path, DiskTable.open("rows", path / "rows.table") as table:
        table.insert([(number, _VALUE) for number in range(operations)])
        with watch:
            for number in range(operations):
                table.lookup(number)
        assert table.lookup(0) == [(0, _VALUE)]
