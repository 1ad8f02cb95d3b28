"""Tables of all types against a list of rows, in any interleaving of calls and reopenings."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keepwell.stores import ANY, END_OF_TABLE, DiskTable, MemoryTable, Table, TableError, Var

LONG = "k" * 500
KEYS = [
    0, 1, 1.0, True, -3, 2.5, "a", "b", b"a", None, (1,), (1.0,), [1], {"k": 1}, LONG, LONG + "b",
]  # fmt: skip
keys = st.sampled_from(KEYS)
values = st.sampled_from([0, 1, 1.0, "x", ["m"], (True,), None])
rows = st.tuples(keys, values) | st.tuples(keys, values, values)


def same(left: Any, right: Any) -> bool:
    return repr(left) == repr(right)


class Model:
    """A table as a list of rows in order of insertion, in plain code."""

    def __init__(self, type_: str) -> None:
        self.type = type_
        self.rows: list[Any] = []

    def same_key(self, left: Any, right: Any) -> bool:
        if self.type == "ordered_set":
            return same(_floats(left), _floats(right))
        return same(left, right)

    def lookup(self, key: Any) -> list[Any]:
        return [row for row in self.rows if self.same_key(row[0], key)]

    def insert(self, row: Any) -> None:
        if self.type in ("set", "ordered_set"):
            self.delete(row[0])
        elif self.type == "bag" and any(same(row, other) for other in self.rows):
            return
        self.rows.append(row)

    def delete(self, key: Any) -> None:
        self.rows = [row for row in self.rows if not self.same_key(row[0], key)]


def _floats(key: Any) -> Any:
    if type(key) is int:
        return float(key)
    if isinstance(key, (tuple, list)):
        return type(key)(map(_floats, key))
    return {k: _floats(v) for k, v in key.items()} if isinstance(key, dict) else key


def multiset(found: list[Any]) -> list[str]:
    return sorted(map(repr, found))


class TableMachine(RuleBasedStateMachine):
    """Every rule is a call on the table and on the model."""

    kind: str
    type_: str

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="keepwell-table-"))
        self.model = Model(self.type_)
        self.table: Table

    @initialize()
    def open(self) -> None:
        if self.kind == "memory":
            self.table = MemoryTable("t", type=self.type_)
        else:
            self.table = DiskTable.open(
                "model", self.folder / "t", self.type_, durability="process"
            )

    def teardown(self) -> None:
        if self.kind == "disk" and self.table.info() is not None:
            self.table.close()
        shutil.rmtree(self.folder)

    @rule(row=rows)
    def insert(self, row: Any) -> None:
        self.table.insert(row)
        self.model.insert(row)

    @rule(some=st.lists(rows, max_size=5))
    def insert_list(self, some: list[Any]) -> None:
        self.table.insert(some)
        for row in some:
            self.model.insert(row)

    @rule(some=st.lists(rows, max_size=3))
    def insert_new(self, some: list[Any]) -> None:
        fresh = not any(self.model.lookup(row[0]) for row in some)
        assert self.table.insert_new(some) is fresh
        if fresh:
            for row in some:
                self.model.insert(row)

    @rule(some=st.lists(rows, max_size=3))
    def insert_with_a_bad_row(self, some: list[Any]) -> None:
        with pytest.raises(TableError):
            self.table.insert([*some, "bad"])

    @rule(key=keys)
    def lookup(self, key: Any) -> None:
        assert same(self.table.lookup(key), self.model.lookup(key))
        assert self.table.member(key) is bool(self.model.lookup(key))

    @rule(key=keys)
    def delete(self, key: Any) -> None:
        self.table.delete(key)
        self.model.delete(key)

    @rule(key=keys)
    def take(self, key: Any) -> None:
        assert same(self.table.take(key), self.model.lookup(key))
        self.model.delete(key)

    @rule(row=rows)
    def delete_object(self, row: Any) -> None:
        self.table.delete_object(row)
        self.model.rows = [other for other in self.model.rows if not same(other, row)]

    @precondition(lambda self: self.type_ in ("set", "ordered_set"))
    @rule(key=keys, step=st.integers(-3, 3))
    def count(self, key: Any, step: int) -> None:
        found = self.model.lookup(key)
        if found and type(found[0][1]) is not int:
            with pytest.raises(TableError):
                self.table.update_counter(key, step, ("", 10))
            return
        row = found[0] if found else (key, 10)
        assert self.table.update_counter(key, step, ("", 10)) == row[1] + step
        ats = [at for at, other in enumerate(self.model.rows) if other is row]
        at = ats[0] if ats else len(self.model.rows)
        self.model.rows[at : at + 1] = [(row[0], row[1] + step, *row[2:])]

    @rule(value=values)
    def match_delete(self, value: Any) -> None:
        self.table.match_delete((ANY, value))
        gone = [row for row in self.model.rows if len(row) == 2 and same(row[1], value)]
        self.model.rows = [row for row in self.model.rows if not any(row is g for g in gone)]

    @rule(value=values)
    def select_delete(self, value: Any) -> None:
        spec = [((Var(1), Var(2), ANY), [("=:=", Var(2), ("const", value))], [True])]
        gone = [row for row in self.model.rows if len(row) == 3 and same(row[1], value)]
        assert self.table.select_count(spec) == self.table.select_delete(spec) == len(gone)
        self.model.rows = [row for row in self.model.rows if not any(row is g for g in gone)]

    @rule(limit=st.integers(1, 4))
    def in_chunks(self, limit: int) -> None:
        found, more = self.table.match_object(ANY, limit)
        while more is not END_OF_TABLE:
            chunk, more = self.table.match_object(more)
            found = found + chunk
        assert same(found, self.table.to_list())

    @rule()
    def clear(self) -> None:
        if len(self.model.rows) > 8:
            self.table.delete_all_objects()
            self.model.rows = []

    @precondition(lambda self: self.kind == "disk")
    @rule()
    def reopen(self) -> None:
        self.table.close()
        self.open()

    @invariant()
    def holds_the_same_rows(self) -> None:
        if not hasattr(self, "table"):
            return
        found = self.table.to_list()
        assert multiset(found) == multiset(self.model.rows)
        assert len(self.table) == len(self.model.rows)
        walked, key = [], self.table.first()
        while key is not END_OF_TABLE:
            walked.append(key)
            key = self.table.next(key)
        distinct: list[Any] = []
        for row in found:
            if not any(self.model.same_key(row[0], other) for other in distinct):
                distinct.append(row[0])
        assert same(walked, distinct) if self.kind == "disk" or self.type_ == "ordered_set" \
            else multiset(walked) == multiset(distinct)  # fmt: skip


@pytest.mark.parametrize("type_", ["set", "ordered_set", "bag", "duplicate_bag"])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_tables_are_lists_of_rows(kind: str, type_: str) -> None:
    machine = type("Machine", (TableMachine,), {"kind": kind, "type_": type_})
    case = machine.TestCase
    case.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
    case().runTest()


def walk(table: Table) -> list[Any]:
    seen, key = [], table.first()
    while key is not END_OF_TABLE:
        seen.append(key)
        assert len(seen) < 50
        key = table.next(key)
    return seen


@pytest.mark.parametrize("type_", ["set", "bag", "duplicate_bag"])
@pytest.mark.parametrize("seed", range(40))
def test_walks_meet_every_key_once_after_any_changes(type_: str, seed: int) -> None:
    """A dict has no next key: what stands in for it must not go stale, whatever happened before."""
    chance = random.Random(seed)
    table, live = MemoryTable("t", type=type_), set[int]()
    for _ in range(600):
        call, key = chance.randrange(9), chance.randrange(8)
        if call < 2:
            table.insert((key, 0))
            live.add(key)
        elif call < 4:
            table.delete(key)
            live.discard(key)
        elif call == 4 and chance.random() < 0.2:
            table.delete_all_objects()
            live.clear()
        elif call == 5:
            first = table.first()
            assert first in live if live else first is END_OF_TABLE
        elif call == 6 and live:
            after = table.next(chance.choice(sorted(live)))
            assert after is END_OF_TABLE or after in live
        elif call == 7:
            assert sorted(walk(table)) == sorted(live)
        elif call == 8 and chance.random() < 0.3:
            with table.fix():
                before, met, key = set(live), [], table.first()
                while key is not END_OF_TABLE:
                    met.append(key)
                    for other in chance.sample(range(8), 2):
                        table.delete(other)
                        before.discard(other)
                        live.discard(other)
                        if chance.random() < 0.5:
                            table.insert((other, 1))
                            live.add(other)
                    key = table.next(key)
                assert len(met) == len(set(met))
                assert before <= set(met)
