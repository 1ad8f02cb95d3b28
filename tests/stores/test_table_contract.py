"""What every table does, whatever holds its rows: one suite over MemoryTable and DiskTable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keepwell.stores import (
    ANY,
    BINDINGS,
    END_OF_TABLE,
    ROW,
    Atom,
    Continuation,
    DiskTable,
    MemoryTable,
    Table,
    TableError,
    Var,
)

TYPES = ("set", "ordered_set", "bag", "duplicate_bag")
SETS = ("set", "ordered_set")
BAGS = ("bag", "duplicate_bag")

Make = Callable[..., Table]


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    opened: list[DiskTable] = []

    def memory(type_: str = "set", keypos: int = 0) -> Table:
        return MemoryTable("t", type=type_, keypos=keypos)

    def disk(type_: str = "set", keypos: int = 0) -> Table:
        name = f"t{len(opened)}"
        path = tmp_path / name
        opened.append(DiskTable.open(name, path, type_, keypos=keypos, durability="process"))
        return opened[-1]

    yield memory if request.param == "memory" else disk
    for table in opened:
        if table.info() is not None:
            table.close()


def text(rows: Any) -> str:
    """Distinguishes 1, 1.0 and True, which `==` does not."""
    return repr(rows)


def sorted_rows(table: Table) -> list[Any]:
    return sorted(table.to_list(), key=repr)


# -- types ---------------------------------------------------------------------------------------


def test_set_replaces_the_row_with_the_key(make: Make) -> None:
    """ETS-1."""
    table = make("set")
    table.insert((1, "a"))
    table.insert((1, "b"))
    assert table.lookup(1) == [(1, "b")]
    assert table.lookup(2) == []
    assert len(table) == table.info("size") == 1


def test_bag_takes_equal_rows_once(make: Make) -> None:
    """ETS-1."""
    table = make("bag")
    table.insert([(1, "b"), (1, "a"), (1, "b"), (1, 1), (1, 1.0), (1, True)])
    assert text(table.lookup(1)) == text([(1, "b"), (1, "a"), (1, 1), (1, 1.0), (1, True)])
    table.insert((1, {"x": 1, "y": 2}))
    table.insert((1, {"y": 2, "x": 1}))
    assert len(table) == 6


def test_duplicate_bag_keeps_all_in_order_of_insertion(make: Make) -> None:
    """ETS-1."""
    table = make("duplicate_bag")
    table.insert([(1, "b"), (1, "a"), (1, "b"), (2, "c")])
    assert table.lookup(1) == [(1, "b"), (1, "a"), (1, "b")]
    table.delete_object((1, "b"))
    assert table.lookup(1) == [(1, "a")]
    table.insert((1, "b"))
    assert table.lookup(1) == [(1, "a"), (1, "b")]
    assert len(table) == 3


@pytest.mark.parametrize("type_", ["set", "bag", "duplicate_bag"])
def test_keys_are_told_apart_exactly(make: Make, type_: str) -> None:
    """ETS-2: 1, 1.0 and True are three keys, at any depth."""
    table = make(type_)
    keys = [1, 1.0, True, (1,), (1.0,), (True,), [1], [1.0], {"k": 1}, {"k": 1.0}, "1", b"1", None]
    keys += [Atom("1"), Atom("None"), "None", 0, False, 0.0, "", b"", (), [], {}]
    for number, key in enumerate(keys):
        table.insert((key, number))
    for number, key in enumerate(keys):
        assert text(table.lookup(key)) == text([(key, number)])
        assert table.member(key)
    assert len(table) == len(keys)


def test_ordered_set_sorts_and_takes_1_and_1_0_as_one_key(make: Make) -> None:
    """ETS-2."""
    table = make("ordered_set")
    table.insert([(3, "c"), (1, "a"), (2, "b")])
    assert table.lookup(1.0) == [(1, "a")]
    assert table.lookup(True) == []
    table.insert((1.0, "f"))
    assert text(table.to_list()) == text([(1.0, "f"), (2, "b"), (3, "c")])
    assert text((table.first(), table.last())) == text((1.0, 3))
    assert text([table.next(2), table.prev(2), table.next(0), table.next(1.5)]) == text(
        [3, 1.0, 1.0, 2]
    )
    assert text([table.prev(99), table.prev("text"), table.prev(2.5)]) == text([3, 3, 2])
    assert table.next(99) is table.prev(0) is table.next(3) is table.prev(1) is END_OF_TABLE


def test_ordered_set_sorts_keys_of_mixed_types(make: Make) -> None:
    """ETS-2: number < word < tuple < dict < list < str < bytes."""
    table = make("ordered_set")
    ordered = [
        float("-inf"), -(2**70), -1.5, -1, 0, 0.5, 1, 2, 2**53 + 1, 2.0**60, 2**200, float("inf"),
        Atom("a"), False, True, None, Atom("z"),
        (), ("z",), (0, 0), (0, "a"), (1, 0),
        {}, {1: 2}, {"a": 0, "b": 0},
        [], [0], [0, 0], [1], [(), 0], [[]], ["a"], ["b"],
        "", "\0", "\0a", "a", "aa", "b", "é", "\U0001f600",
        b"", b"\0", b"a",
    ]  # fmt: skip
    table.insert([(key,) for key in reversed(ordered)])
    assert text([key for (key,) in table.to_list()]) == text(ordered)


def test_long_keys_keep_their_order(make: Make) -> None:
    """Keys that are longer than LMDB's are cut on disk, and still sort among all others."""
    table = make("ordered_set")
    long = "k" * 600
    keys = ["k", "k" * 470, long, long + "a", long + "b", long + "b" * 900, "k" * 599 + "l", "l"]
    table.insert([(key, number) for number, key in enumerate(keys)])
    table.insert((long + "a", "again"))
    assert [key for key, _ in table.to_list()] == sorted(keys)
    assert table.lookup(long + "a") == [(long + "a", "again")]
    forwards, key = [], table.first()
    while key is not END_OF_TABLE:
        forwards.append(key)
        key = table.next(key)
    backwards, key = [], table.last()
    while key is not END_OF_TABLE:
        backwards.append(key)
        key = table.prev(key)
    assert forwards == backwards[::-1] == sorted(keys)
    assert table.next(long + "aa") == long + "b"
    assert table.prev(long + "aa") == long + "a"
    assert table.next("k" * 500) == long
    chunks, more = table.match((Var(1), ANY), 1)
    while more is not END_OF_TABLE:
        rows, more = table.match(more)
        chunks += rows
    assert chunks == [[key] for key in sorted(keys)]
    table.delete(long)
    assert not table.member(long)
    assert table.member(long + "a")


@pytest.mark.parametrize("type_", TYPES)
def test_long_keys_are_found(make: Make, type_: str) -> None:
    table = make(type_)
    keys = ["x" * n for n in (1, 476, 477, 478, 479, 480, 481, 511, 512, 5000)]
    keys += [("x" * 1000, n) for n in range(3)]
    table.insert([(key, n) for n, key in enumerate(keys)])
    assert [table.lookup(key) for key in keys] == [[(key, n)] for n, key in enumerate(keys)]
    for key in keys[::2]:
        table.delete(key)
    assert [table.member(key) for key in keys] == [n % 2 == 1 for n in range(len(keys))]


# -- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("bad", ["row", 1, [2], (), None, (float("nan"),), ([(float("nan"),)],)])
def test_one_bad_row_and_none_is_in(make: Make, type_: str, bad: Any) -> None:
    """ETS-3, ETS-17."""
    table = make(type_)
    table.insert((1, "a"))
    for rows in ([(3, "c"), bad], [bad]):
        with pytest.raises(TableError) as refused:
            table.insert(rows)
        assert refused.value.code == "badarg"
        with pytest.raises(TableError):
            table.insert_new(rows)
    assert table.to_list() == [(1, "a")]


@pytest.mark.parametrize("type_", TYPES)
def test_insert_new_is_all_or_nothing(make: Make, type_: str) -> None:
    """ETS-4."""
    table = make(type_)
    assert table.insert_new((1, "a")) is True
    assert table.insert_new((1, "b")) is False
    assert table.insert_new([(2, "x"), (1, "y")]) is False
    assert table.to_list() == [(1, "a")]
    assert table.insert_new([(3, "x"), (2, "y")]) is True
    assert table.insert_new([]) is True
    assert sorted_rows(table) == [(1, "a"), (2, "y"), (3, "x")]


@pytest.mark.parametrize("type_", TYPES)
def test_keypos(make: Make, type_: str) -> None:
    """ETS-5."""
    table = make(type_, keypos=1)
    table.insert(("a", 1, "x"))
    assert table.lookup(1) == [("a", 1, "x")]
    assert table.first() == 1
    with pytest.raises(TableError, match="no key at position 1"):
        table.insert(("a",))
    assert table.info("keypos") == 1


def test_named_tuples_are_rows(make: Make) -> None:
    class Point(NamedTuple):
        x: int
        y: int

    table = make()
    table.insert([Point(1, 2)])
    table.insert(Point(2, 3))
    assert text(sorted_rows(table)) == text([(1, 2), (2, 3)])


@pytest.mark.parametrize("type_", TYPES)
def test_delete_and_take(make: Make, type_: str) -> None:
    """ETS-7."""
    table = make(type_)
    table.insert([(1, "a"), (2, "b"), (3, "c")])
    table.delete(77)
    table.delete(1)
    assert table.take(2) == [(2, "b")]
    assert table.take(2) == []
    table.delete_object((3, "other"))
    table.delete_object((3.0, "c"))
    assert table.to_list() == [(3, "c")]
    table.delete_object((3, "c"))
    table.insert([(5, 5), (6, 6)])
    table.delete_all_objects()
    assert (len(table), table.to_list(), table.first()) == (0, [], END_OF_TABLE)
    table.insert((5, 5))
    assert table.to_list() == [(5, 5)]


@pytest.mark.parametrize("type_", BAGS)
def test_bags_delete_and_take_all_of_a_key(make: Make, type_: str) -> None:
    table = make(type_)
    table.insert([(1, "a"), (1, "b"), (2, "c")])
    table.delete_object((1, "a"))
    assert table.lookup(1) == [(1, "b")]
    table.insert((1, "a"))
    assert table.take(1) == [(1, "b"), (1, "a")]
    assert table.to_list() == [(2, "c")]
    assert len(table) == 1


@pytest.mark.parametrize("type_", SETS)
def test_update_counter(make: Make, type_: str) -> None:
    """ETS-6."""
    table = make(type_)
    table.insert(("k", 5, 1))
    assert table.update_counter("k", 3) == 8
    assert table.update_counter("k", (1, -100)) == -92
    assert table.update_counter("k", (1, 10, 4, 0)) == -82
    assert table.update_counter("k", (1, 100, 4, 0)) == 0
    assert table.update_counter("k", (1, -5, -4, 7)) == 7
    assert table.update_counter("k", (1, -5, 2, 9)) == 2
    assert table.update_counter("k", [(1, 1), (2, 1), (1, 1)]) == [3, 2, 4]
    assert table.update_counter("k", [(1, 0, 8, 7), (1, 0, 3, 5), (1, -1)]) == [4, 5, 4]
    assert table.update_counter("k", []) == []
    assert table.update_counter("new", 1, ("ignored", 10)) == 11
    assert table.update_counter("big", 2**80, ("", 1)) == 2**80 + 1
    assert sorted_rows(table) == [("big", 2**80 + 1), ("k", 4, 2), ("new", 11)]


@pytest.mark.parametrize("type_", SETS)
@pytest.mark.parametrize(
    "call",
    [
        ("missing", 1), ("s", 1), ("b", 1), ("f", 1), ("k", (0, 1)), ("k", (9, 1)), ("k", (-1, 1)),
        ("k", "1"), ("k", 1.0), ("k", True), ("k", (1,)), ("k", (1, 2, 3)), ("k", (1, 1.0)),
        ("k", [1]), ("k", [(1, 1), (0, 1)]), ("missing", 1, ()), ("missing", 1, ("x",)),
        ("missing", 1, ("x", "y")), ("missing", 1, ["x", 1]),
    ],
    ids=repr,
)  # fmt: skip
def test_update_counter_refuses(make: Make, type_: str, call: tuple[Any, ...]) -> None:
    """ETS-6: and nothing has changed."""
    table = make(type_)
    rows = [("b", True), ("f", 1.0), ("k", 5), ("s", "str")]
    table.insert(rows)
    with pytest.raises(TableError) as refused:
        table.update_counter(*call)
    assert refused.value.code == "badarg"
    assert sorted_rows(table) == rows


@pytest.mark.parametrize("type_", SETS)
def test_update_element(make: Make, type_: str) -> None:
    """ETS-6."""
    table = make(type_)
    table.insert(("k", 5, 6))
    assert table.update_element("k", {2: "z"}) is True
    assert table.update_element("k", {1: 0, 2: [1]}) is True
    assert table.update_element("k", {}) is True
    assert table.update_element("zz", {1: "z"}) is False
    for changes in ({0: "z"}, {3: "z"}, {-1: "z"}, {"1": 1}, {1: 1, 0: 1}, [(1, "z")]):
        with pytest.raises(TableError):
            table.update_element("k", changes)
    assert table.lookup("k") == [("k", 0, [1])]


@pytest.mark.parametrize("type_", BAGS)
def test_bags_have_no_updates(make: Make, type_: str) -> None:
    table = make(type_)
    table.insert((1, 1))
    with pytest.raises(TableError, match="one row a key"):
        table.update_counter(1, 1)
    with pytest.raises(TableError, match="one row a key"):
        table.update_element(1, {1: 1})


# -- reading -------------------------------------------------------------------------------------


def test_lookup_element(make: Make) -> None:
    """ETS-8."""
    table = make("set")
    table.insert((1, "a"))
    assert table.lookup_element(1, 1) == "a"
    for key, position in ((9, 1), (1, 4), (1, -1), (1, "1"), (1, True)):
        with pytest.raises(TableError):
            table.lookup_element(key, position)


@pytest.mark.parametrize("type_", BAGS)
def test_lookup_element_in_bags(make: Make, type_: str) -> None:
    table = make(type_)
    table.insert([(1, "a"), (1, "b", "c")])
    assert table.lookup_element(1, 1) == ["a", "b"]
    with pytest.raises(TableError):
        table.lookup_element(1, 2)


@pytest.mark.parametrize("type_", TYPES)
def test_traversal_meets_every_key_once(make: Make, type_: str) -> None:
    table = make(type_)
    keys = [n * 7919 % 1009 for n in range(300)]
    table.insert([(key, n) for n, key in enumerate(keys)] * 2)
    seen, key = [], table.first()
    while key is not END_OF_TABLE:
        seen.append(key)
        key = table.next(key)
    assert len(seen) == len(set(seen))
    assert sorted(seen) == sorted(set(keys))
    if type_ == "ordered_set":
        assert seen == sorted(seen)
    else:
        assert (table.last(), table.prev(seen[0])) == (table.first(), table.next(seen[0]))


@pytest.mark.parametrize("type_", ["set", "bag", "duplicate_bag"])
def test_next_of_an_absent_key_is_refused_unless_fixed(make: Make, type_: str) -> None:
    """ETS-15."""
    table = make(type_)
    table.insert([(n, n) for n in range(5)])
    with pytest.raises(TableError, match="fix"):
        table.next(99)
    with table.fix():
        left = set(range(5))
        key = table.first()
        while key is not END_OF_TABLE:
            left.remove(key)
            table.delete(key)
            table.insert(("new", key))
            table.delete("new")
            key = table.next(key)
        assert not left
        assert table.info("safe_fixed") is not False
    assert table.info("safe_fixed") is False
    assert len(table) == 0
    with pytest.raises(TableError):
        table.next(1)


@pytest.mark.parametrize("call", ["delete", "delete_object", "take", "match_delete"])
@pytest.mark.parametrize("type_", ["set", "bag", "duplicate_bag"])
def test_a_key_deleted_right_after_the_fix_still_has_a_next(
    make: Make, type_: str, call: str
) -> None:
    """ETS-15: though the traversal began before the fix, or has not begun."""
    table = make(type_)
    table.insert([(n, n) for n in range(5)])
    order = [key for key, _ in table.to_list()]
    key = table.first()
    with table.fix():
        for at in (0, 1):
            whole_row = call in ("delete_object", "match_delete")
            getattr(table, call)((order[at], order[at]) if whole_row else order[at])
            assert table.next(order[at]) == table.next(key) == order[at + 1]
        table.delete_all_objects()
        assert table.next(key) is END_OF_TABLE


def test_fixes_count(make: Make) -> None:
    table = make()
    table.fix()
    table.fix()
    table.unfix()
    assert table.info("safe_fixed") is not False
    table.unfix()
    assert table.info("safe_fixed") is False
    table.unfix()
    assert table.info("safe_fixed") is False


# -- queries -------------------------------------------------------------------------------------


def test_match_and_match_object(make: Make) -> None:
    """ETS-9."""
    table = make("ordered_set")
    rows = [(1, "a", 10), (2, "b", 20), (3, "a", 30), (4, "a"), (5, 5, 5), (6, 6.0, 6)]
    table.insert(rows)
    assert table.match((Var(1), "a", ANY)) == [[1], [3]]
    assert table.match((Var(2), "a", Var(1))) == [[10, 1], [30, 3]]
    assert table.match_object((ANY, "a", ANY)) == [rows[0], rows[2]]
    assert table.match_object((ANY, ANY)) == [rows[3]]
    assert table.match((Var(1), Var(1), ANY)) == [[5]]
    assert table.match_object((Var(1), Var(2), Var(1))) == [rows[4], rows[5]]
    assert table.match((2, ANY, Var(1))) == [[20]]
    assert table.match((2.0, ANY, Var(1))) == []
    assert table.match((99, ANY, ANY)) == []
    assert table.match((2, "b", 20)) == [[]]
    assert table.match_object(ANY) == table.to_list() == rows
    assert table.match(Var(1))[:1] == [[rows[0]]]


@pytest.mark.parametrize("type_", TYPES)
def test_match_delete_and_select_delete(make: Make, type_: str) -> None:
    table = make(type_)
    table.insert([(n, "ab"[n % 2], n * 10) for n in range(10)])
    table.match_delete((ANY, "a", ANY))
    assert sorted(key for key, _, _ in table.to_list()) == [1, 3, 5, 7, 9]
    over_40 = [((Var(1), ANY, Var(2)), [(">", Var(2), 40)], [True])]
    assert table.select_count(over_40) == 3
    assert table.select_delete(over_40) == 3
    assert table.select_delete(over_40) == 0
    assert sorted(key for key, _, _ in table.to_list()) == [1, 3]
    assert table.select_delete([(ANY, [], ["yes"])]) == table.select_count([(ANY, [], [1])]) == 0
    assert len(table) == 2


def test_duplicates_are_counted_when_deleted(make: Make) -> None:
    table = make("duplicate_bag")
    table.insert([(1, "x")] * 3 + [(1, "y")])
    assert table.select_delete([((ANY, "x"), [], [True])]) == 3
    assert table.to_list() == [(1, "y")]


def test_select(make: Make) -> None:
    """ETS-9."""
    table = make("ordered_set")
    table.insert([(1, "a", 10), (2, "b", 20), (3, "a", 30)])
    assert table.select([((Var(1), ANY, Var(2)), [(">", Var(2), 15)], [Var(1)])]) == [2, 3]
    spec = [((Var(1), "a", Var(2)), [], [((Var(1), [Var(2)], BINDINGS),)]), (ANY, [], [ROW])]
    assert table.select(spec) == [(1, [10], [1, 10]), (2, "b", 20), (3, [30], [3, 30])]
    assert table.select([(ANY, [], [ROW, "last"])]) == ["last"] * 3


@pytest.mark.parametrize("type_", TYPES)
def test_queries_in_chunks(make: Make, type_: str) -> None:
    """ETS-9: with a limit."""
    table = make(type_)
    table.insert([(n, n % 3) for n in range(20)])
    spec = [((Var(1), 1), [], [Var(1)])]
    whole = table.select(spec)
    assert sorted(whole) == [1, 4, 7, 10, 13, 16, 19]
    got, more = table.select(spec, 3)
    assert len(got) == 3
    assert isinstance(more, Continuation)
    while more is not END_OF_TABLE:
        rows, more = table.select(more)
        assert len(rows) <= 3
        got += rows
    assert got == whole
    assert table.match_object((ANY, ANY), 100) == (table.to_list(), END_OF_TABLE)
    assert table.match((ANY, 77), 5) == ([], END_OF_TABLE)
    assert table.select(END_OF_TABLE) == ([], END_OF_TABLE)


@pytest.mark.parametrize("type_", TYPES)
def test_a_traversal_in_chunks_survives_changes(make: Make, type_: str) -> None:
    table = make(type_)
    table.insert([(n, 0) for n in range(20)])
    rows, more = table.match_object((ANY, ANY), 5)
    seen = [key for key, _ in rows]
    gone = [n for n in range(20) if n not in seen][:3]
    for key in [*seen, *gone]:
        table.delete(key)
    while more is not END_OF_TABLE:
        rows, more = table.match_object(more)
        seen += [key for key, _ in rows]
    assert sorted(seen) == [n for n in range(20) if n not in gone]


def test_continuations_belong_to_their_call_and_table(make: Make) -> None:
    table, other = make(), make()
    table.insert([(n,) for n in range(9)])
    _, more = table.match((Var(1),), 2)
    with pytest.raises(TableError):
        table.select(more)
    with pytest.raises(TableError):
        other.match(more)
    rows, _ = table.match(more, 5)
    assert len(rows) == 5
    for limit in (0, -1, 1.0, "2", True):
        with pytest.raises(TableError):
            table.match((ANY,), limit)


@pytest.mark.parametrize("type_", TYPES)
def test_info(make: Make, type_: str) -> None:
    """ETS-17, DETS-10."""
    table = make(type_)
    facts = table.info()
    assert {"name", "type", "keypos", "size", "safe_fixed"} <= set(facts)
    assert (table.info("type"), table.info("keypos"), table.info("size")) == (type_, 0, 0)
    with pytest.raises(TableError, match="nosuch"):
        table.info("nosuch")


def test_values_of_every_kind_come_back_as_they_went_in(make: Make) -> None:
    values = [
        None, True, False, 0, -1, 2**63, -(2**63) - 1, 2**200, 0.1, float("inf"), "", "é\ud800",
        "\0", b"\0\xff", (), ((),), [], [[1, (2, [3])]], {}, {"a": (1,), 2: [3.0], (4,): {5: 6}},
        Atom("word"), ["x" * 10_000],
    ]  # fmt: skip
    table = make()
    table.insert((1, *values))
    assert text(table.lookup(1)) == text([(1, *values)])
