"""Match specifications: what the operators do, what is refused, and that nothing is evaluated."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.actors import Actor
from keepwell.stores import ANY, BINDINGS, ROW, Atom, MemoryTable, TableError, Var
from keepwell.stores.guard_functions import FUNCTIONS, LAZY
from keepwell.stores.match_spec import NO_RESULT, BadMatchSpec, compile_pattern, compile_spec


def value_of(expression: Any, row: tuple[Any, ...] = (0,)) -> Any:
    """What an expression gives in a body; `Var(n)` is the n-th value of the row."""
    head = tuple(Var(n) for n in range(len(row)))
    return compile_spec([(head, [], [expression])], 0).select(row)


def holds(guard: Any, row: tuple[Any, ...] = (0,)) -> bool:
    head = tuple(Var(n) for n in range(len(row)))
    return compile_spec([(head, [guard], [True])], 0).select(row) is True


FAILS = Atom("EXIT")

OPERATORS = [
    (("==", 1, 1.0), True), (("==", 1, True), False), (("==", ((1, "a"),), ((1.0, "a"),)), True),
    (("/=", 1, 1.0), False), (("/=", "a", 1), True), (("=:=", 1, 1.0), False),
    (("=:=", [1], [1]), True), (("=/=", 1, 1.0), True), (("<", 1, 1.5), True),
    (("<", 1, "a"), True), (("<", "a", 1), False), (("<", True, "a"), True),
    ((">", "b", "a"), True), ((">", ((2, 0),), ((1, 9),)), True),
    ((">", ((9,),), ((1, 1),)), False), (("=<", 1.0, 1), True), ((">=", [2], [1, 5]), True),
    ((">=", None, 5), True), (("+", 1, 2), 3), (("+", 1, 2.0), 3.0), (("+", 1, "a"), FAILS),
    (("+", 1, True), FAILS), (("-", 5), -5), (("+", 5), 5), (("-", 5, 7), -2), (("*", 3, 4), 12),
    (("/", 7, 2), 3.5), (("/", 1, 0), FAILS), (("div", 7, 2), 3), (("div", -7, 2), -3),
    (("div", 7, -2), -3), (("div", 7, 0), FAILS), (("div", 7.0, 2), FAILS), (("rem", -7, 2), -1),
    (("rem", 7, -2), 1), (("band", 12, 10), 8), (("bor", 12, 10), 14), (("bxor", 12, 10), 6),
    (("bnot", 0), -1), (("bsl", 1, 10), 1024), (("bsr", 1024, 3), 128), (("bsl", 8, -2), 2),
    (("bsl", 1, 10**9), FAILS), (("abs", -3), 3), (("float", 2), 2.0), (("round", 2.5), 3),
    (("round", -2.5), -3), (("round", 7), 7), (("trunc", -2.7), -2), (("floor", -2.5), -3),
    (("ceil", 2.1), 3), (("not", True), False), (("not", 1), FAILS), (("xor", True, False), True),
    (("and", True, True, False), False), (("and", False, 1), FAILS), (("or", False, True), True),
    (("or", True, 1), FAILS), (("andalso", False, 1), False), (("andalso", True, 1), 1),
    (("andalso", 1, True), FAILS), (("orelse", True, 1), True), (("orelse", False, "x"), "x"),
    (("is_integer", 1), True), (("is_integer", True), False), (("is_float", 1.0), True),
    (("is_number", 1.5), True), (("is_atom", True), True), (("is_atom", None), True),
    (("is_atom", Atom("a")), True), (("is_atom", "a"), False), (("is_boolean", False), True),
    (("is_tuple", ((1,),)), True), (("is_list", []), True), (("is_map", {}), True),
    (("is_binary", "a"), True), (("is_binary", b""), True), (("is_pid", 1), False),
    (("is_reference", 1), False), (("is_port", 1), False), (("is_function", 1), False),
    (("is_record", (("r", 1),), "r"), True), (("is_record", (("r", 1),), "r", 2), True),
    (("is_record", (("r", 1),), "r", 3), False), (("is_record", [], "r"), False),
    (("element", 1, (("a", "b"),)), "b"), (("element", 2, (("a", "b"),)), FAILS),
    (("element", -1, (("a",),)), FAILS), (("hd", [1, 2]), 1), (("tl", [1, 2]), [2]),
    (("hd", []), FAILS), (("tl", []), FAILS), (("length", [1, 2]), 2), (("length", "ab"), FAILS),
    (("size", ((1, 2),)), 2), (("size", "é"), 2), (("tuple_size", ((),)), 0),
    (("byte_size", "é"), 2), (("byte_size", b"abc"), 3), (("bit_size", "a"), 8),
    (("map_size", {"a": 1}), 1), (("is_map_key", "a", {"a": 1}), True),
    (("is_map_key", 1, {True: 1}), False), (("map_get", "a", {"a": 1}), 1),
    (("map_get", "b", {"a": 1}), FAILS), (("const", (1, Var(9))), (1, Var(9))),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "result"), OPERATORS, ids=repr)
def test_operators(expression: Any, result: Any) -> None:
    """ETS-9; a failing operator fails the guard and gives EXIT in a body."""
    assert repr(value_of(expression)) == repr(result)
    assert holds(expression) == (result is True)


def test_every_operator_is_tested() -> None:
    tested = {expression[0] for expression, _ in OPERATORS} | {"self"}
    assert tested - {"const"} == {name for name, _ in FUNCTIONS} | set(LAZY)


def test_self_is_the_calling_actor() -> None:
    class Asker(Actor):
        def on_receive(self, _message: Any) -> Any:
            table = MemoryTable("t")
            table.insert([(1, self.actor_ref), (2, None)])
            return table.select([((Var(1), Var(2)), [("=:=", Var(2), ("self",))], [Var(1)])])

    asker = Asker.start()
    assert asker.ask("go") == [1]
    asker.stop()


def test_variables_and_constructed_values() -> None:
    row = ("k", [1, (2, 3)], {"x": 4})
    head = (Var(1), [ANY, (Var(3), Var(2))], {"x": Var(4)})
    spec = compile_spec([(head, [], [{"v": Var(4), "l": [BINDINGS, ROW]}])], 0)
    assert spec.select(row) == {"v": 4, "l": [["k", 3, 2, 4], row]}
    assert spec.select(("k", [1, (2,)], {"x": 4})) is NO_RESULT
    assert spec.select(("k", [1, (2, 3)], {"y": 4})) is NO_RESULT
    assert spec.select(("k", [1, (2, 3)], {"y": 1, "x": 4})) is not NO_RESULT
    assert spec.select(("k", "no list", {"x": 4})) is NO_RESULT


def test_only_the_first_clause_that_matches_counts() -> None:
    spec = compile_spec(
        [((Var(1),), [(">", Var(1), 5)], ["big"]), ((3,), [], ["three"]), (ANY, [], ["rest"])], 0
    )
    assert [spec.select((n,)) for n in (9, 3, 1)] == ["big", "three", "rest"]


def test_a_guard_must_be_true_itself() -> None:
    assert not holds(1)
    assert not holds("true")
    assert not holds([True])
    assert holds(True)
    assert not holds(("const", 1))


@pytest.mark.parametrize(
    "spec",
    [
        None, (), [], "spec", [1], [(ANY, [])], [(ANY, [], [])], [(ANY, (), [True])],
        [(ANY, [], (True,))], [("head", [], [True])], [([1], [], [True])], [(ANY, [], [Var(1)])],
        [((Var(1),), [(">", Var(2), 1)], [True])], [(ANY, [("eval", "1")], [True])],
        [(ANY, [("__import__", "os")], [True])], [(ANY, [("==", 1)], [True])],
        [(ANY, [(1, 2)], [True])], [(ANY, [()], [True])], [(ANY, [("and",)], [True])],
        [(ANY, [], [ANY])], [(ANY, [], [("const",)])], [(ANY, [((), ())], [True])],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_match_specification(spec: Any) -> None:
    with pytest.raises(BadMatchSpec):
        compile_spec(spec, 0)
    with pytest.raises(TableError) as refused:
        MemoryTable("t").select(spec)
    assert refused.value.code == "badarg"


@pytest.mark.parametrize("number", [-1, 1.0, "1", True, None, 10**9])
def test_variables_have_numbers(number: Any) -> None:
    with pytest.raises(BadMatchSpec):
        Var(number)


values = st.recursive(
    st.one_of(st.integers(-2, 2), st.sampled_from([0.0, 1.0, True, "a", b"a", None])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.lists(inner, max_size=2).map(tuple)),
    max_leaves=4,
)
rows = st.lists(values, min_size=1, max_size=3).map(tuple)


@given(rows, rows)
def test_a_pattern_without_wildcards_matches_itself_only(left: Any, right: Any) -> None:
    pattern = compile_pattern(left, 0)
    assert pattern.match(left) == {}
    assert (pattern.match(right) == {}) == (repr(left) == repr(right))
    assert repr(pattern.key) == repr(left[0])


@given(rows, st.data())
def test_wildcards_match_what_they_stand_for(row: Any, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(row) - 1), unique=True))
    pattern = tuple(Var(at) if at in places else value for at, value in enumerate(row))
    assert compile_pattern(pattern, 0).match(row) == {at: row[at] for at in places}
    assert (compile_pattern(pattern, 0).key is ANY) == (0 in places)
    blind = tuple(ANY if at in places else value for at, value in enumerate(row))
    assert compile_pattern(blind, 0).match(row) == {}
    same = compile_pattern((Var(1), Var(1)), 0)
    assert (same.match((row, list(row))), same.match((row, row))) == (None, {1: row})


@given(values, values)
def test_comparisons_agree_with_each_other(left: Any, right: Any) -> None:
    def check(name: str) -> bool:
        return holds((name, Var(0), Var(1)), (left, right))

    assert check("<") + check("==") + check(">") == 1
    assert check("=<") == (check("<") or check("=="))
    assert check(">=") == (check(">") or check("=="))
    assert check("/=") != check("==")
    assert check("=/=") != check("=:=")
    assert check("==") or not check("=:=")


def test_nan_fails_guards_instead_of_lying() -> None:
    assert not holds(("<", Var(0), 1), (math.nan,))
    assert not holds(("==", Var(0), Var(0)), (math.nan,))
