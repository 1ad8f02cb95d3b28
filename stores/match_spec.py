"""Patterns and match specifications: ETS's little query language, compiled to closures.

A *pattern* is a tuple of the row's length in which `ANY` matches everything, `Var(n)` matches
everything and binds it (the same value wherever it occurs again), and anything else matches itself,
exactly: 1, 1.0 and True differ. `ANY` or a `Var` alone matches every row.

A *match specification* is a list of `(head, guards, body)`. For each row the first head that
matches and whose guards are all True gives a result: the last value of its body. In guards and
bodies a tuple is a call, `(">", Var(1), 15)`; a tuple to be made is wrapped in one of its own,
`((Var(1), "x"),)`; `ROW` is the whole row, `BINDINGS` the list of the variables, `("const", x)` is
x as it is. The operators are those of `guard_functions`. An operator that fails makes its guard
fail; in a body it gives the word `EXIT`, as in OTP.

Nothing is evaluated as code: a specification is data, and an unknown operator is refused when it is
compiled (rule ETS-9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

from .guard_functions import FUNCTIONS, LAZY
from .table_errors import BadArgument, shown
from .term_order import Atom, Term, exactly_equal

Row: TypeAlias = tuple[Any, ...]
Bindings: TypeAlias = dict[int, Any]
Matcher: TypeAlias = Callable[[Row], "Bindings | None"]
"""Gives the variables of a row that matches, else None."""
Selector: TypeAlias = Callable[[Row], Any]
"""Gives a row's result, or NO_RESULT."""
_Evaluate: TypeAlias = Callable[[Row, Bindings], Any]
_Part: TypeAlias = Callable[[Term, Bindings], bool]


class BadMatchSpec(BadArgument):
    """A pattern or match specification that cannot be used, with the reason."""


class _Sign:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __copy__(self) -> _Sign:
        return self

    def __deepcopy__(self, _memo: object) -> _Sign:
        return self


ANY: Final = _Sign("ANY")
"""Matches everything (Erlang's `'_'`)."""
ROW: Final = _Sign("ROW")
"""In guards and bodies: the whole row (`'$_'`)."""
BINDINGS: Final = _Sign("BINDINGS")
"""In guards and bodies: the variables' values, by number, in a list (`'$$'`)."""
NO_RESULT: Final = _Sign("NO_RESULT")


@dataclass(frozen=True, slots=True)
class Var:
    """A variable of a pattern, by number (Erlang's `'$1'` is `Var(1)`)."""

    number: int

    def __post_init__(self) -> None:
        if type(self.number) is not int or not 0 <= self.number <= 100_000_000:
            _refuse(f"Var({shown(self.number)}): a variable has a number from 0 to 100000000")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern. `key` is what every matching row has as key, or `ANY`."""

    match: Matcher
    key: Any
    variables: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MatchSpec:
    """A compiled match specification. `key`: as in `Pattern`, if all heads agree on one."""

    select: Selector
    key: Any


def compile_pattern(pattern: Term, keypos: int) -> Pattern:
    """Compile a pattern. Raises BadMatchSpec if it is no tuple, `ANY` or `Var`."""
    if pattern is ANY:
        return Pattern(lambda _row: {}, ANY, ())
    if type(pattern) is Var:
        number = pattern.number
        return Pattern(lambda row: {number: row}, ANY, (number,))
    if type(pattern) is not tuple:
        _refuse(f"the pattern {shown(pattern)} is no tuple, as all rows are: nothing could match")
    parts: list[tuple[int, _Part]] = []
    numbers: set[int] = set()
    for position, item in enumerate(pattern):
        if item is not ANY:
            parts.append((position, _compile_part(item, numbers)))
    length = len(pattern)
    key = pattern[keypos] if keypos < length else ANY
    match = _tuple_matcher(length, tuple(parts))
    return Pattern(match, ANY if _has_wildcard(key) else key, tuple(sorted(numbers)))


def _tuple_matcher(length: int, parts: tuple[tuple[int, _Part], ...]) -> Matcher:
    def match(row: Row) -> Bindings | None:
        if len(row) != length:
            return None
        bound: Bindings = {}
        for position, part in parts:
            if not part(row[position], bound):
                return None
        return bound

    return match


def _compile_part(item: Term, numbers: set[int]) -> _Part:
    kind = type(item)
    if item is ANY:
        return lambda _value, _bound: True
    if kind is Var:
        return _variable_part(item.number, numbers)
    if kind is tuple or kind is list:
        if _has_wildcard(item):
            parts = [_compile_part(inner, numbers) for inner in item]
            return _sequence_part(kind, parts)
    elif kind is dict and _has_wildcard(item):
        pairs = [(key, _compile_part(inner, numbers)) for key, inner in item.items()]
        return _dict_part(pairs)
    if kind is tuple or kind is list or kind is dict:
        return lambda value, _bound: exactly_equal(value, item)
    return lambda value, _bound: type(value) is kind and bool(value == item)


def _variable_part(number: int, numbers: set[int]) -> _Part:
    if number in numbers:
        return lambda value, bound: exactly_equal(value, bound[number])
    numbers.add(number)

    def bind(value: Term, bound: Bindings) -> bool:
        bound[number] = value
        return True

    return bind


def _sequence_part(
    kind: type[tuple[Any, ...]] | type[list[Any]], parts: Sequence[_Part]
) -> _Part:
    def match(value: Term, bound: Bindings) -> bool:
        if type(value) is not kind or len(value) != len(parts):
            return False
        return all(part(item, bound) for part, item in zip(parts, value, strict=True))

    return match


def _dict_part(pairs: Sequence[tuple[Any, _Part]]) -> _Part:
    """Match a dict that has at least these keys, as Erlang matches a map with variables in it."""

    def match(value: Term, bound: Bindings) -> bool:
        if type(value) is not dict:
            return False
        return all(key in value and part(value[key], bound) for key, part in pairs)

    return match


def _has_wildcard(item: Term) -> bool:
    kind = type(item)
    if kind is tuple or kind is list:
        return any(map(_has_wildcard, item))
    if kind is dict:
        return any(map(_has_wildcard, item.values()))
    return item is ANY or kind is Var


def compile_spec(spec: Term, keypos: int) -> MatchSpec:
    """Compile a match specification. Raises BadMatchSpec naming what is wrong with it."""
    if type(spec) is not list or not spec:
        _refuse(f"a match specification is a list of (head, guards, body), not {shown(spec)}")
    clauses: list[tuple[Matcher, tuple[_Evaluate, ...], tuple[_Evaluate, ...]]] = []
    keys: list[Any] = []
    for clause in spec:
        if type(clause) is not tuple or len(clause) != 3:
            _refuse(f"a clause is a tuple (head, guards, body), not {shown(clause)}")
        head, guards, body = clause
        if type(guards) is not list or type(body) is not list or not body:
            _refuse(f"guards and body are lists, the body is not empty, in {shown(clause)}")
        pattern = compile_pattern(head, keypos)
        known = frozenset(pattern.variables)
        clauses.append(
            (
                pattern.match,
                tuple([_compile_expression(guard, known) for guard in guards]),
                tuple([_compile_expression(part, known) for part in body]),
            )
        )
        keys.append(pattern.key)
    same = all(exactly_equal(key, keys[0]) for key in keys)
    return MatchSpec(_selector(clauses), keys[0] if same else ANY)


def _selector(
    clauses: Sequence[tuple[Matcher, tuple[_Evaluate, ...], tuple[_Evaluate, ...]]],
) -> Selector:
    def select(row: Row) -> Any:
        for match, guards, body in clauses:
            bound = match(row)
            if bound is not None and _all_hold(guards, row, bound):
                result = None
                for part in body:
                    result = _value_or_exit(part, row, bound)
                return result
        return NO_RESULT

    return select


def _all_hold(guards: Sequence[_Evaluate], row: Row, bound: Bindings) -> bool:
    try:
        return all(guard(row, bound) is True for guard in guards)
    except _FAILURES:
        return False


def _value_or_exit(part: _Evaluate, row: Row, bound: Bindings) -> Any:
    try:
        return part(row, bound)
    except _FAILURES:
        return EXIT


EXIT: Final = Atom("EXIT")
"""What a body gives where an operator fails."""
_FAILURES = (ValueError, TypeError, ArithmeticError, LookupError)


def _compile_expression(item: Term, known: frozenset[int]) -> _Evaluate:
    kind = type(item)
    if kind is Var:
        if item.number not in known:
            _refuse(f"{item} is not bound by the head of its clause")
        number = item.number
        return lambda _row, bound: bound[number]
    if item is ROW:
        return lambda row, _bound: row
    if item is BINDINGS:
        return lambda _row, bound: [bound[number] for number in sorted(bound)]
    if item is ANY:
        _refuse("ANY has no value: use a Var in the head and here")
    if kind is list:
        items = [_compile_expression(inner, known) for inner in item]
        return lambda row, bound: [inner(row, bound) for inner in items]
    if kind is dict:
        values = {key: _compile_expression(inner, known) for key, inner in item.items()}
        return lambda row, bound: {key: inner(row, bound) for key, inner in values.items()}
    if kind is tuple:
        return _compile_tuple(item, known)
    return lambda _row, _bound: item


def _compile_tuple(item: Row, known: frozenset[int]) -> _Evaluate:
    if len(item) == 1 and type(item[0]) is tuple:
        parts = [_compile_expression(inner, known) for inner in item[0]]
        return lambda row, bound: tuple([inner(row, bound) for inner in parts])
    if not item or not isinstance(item[0], str):
        _refuse(f"{shown(item)} is no call: write ((…),) to make a tuple")
    name = str(item[0])
    if name == "const":
        if len(item) != 2:
            _refuse(f'("const", x) takes one value, {shown(item)} has {len(item) - 1}')
        constant = item[1]
        return lambda _row, _bound: constant
    arguments = [_compile_expression(inner, known) for inner in item[1:]]
    if name in LAZY:
        if not arguments:
            _refuse(f"{name!r} takes arguments")
        lazy = LAZY[name]
        return lambda row, bound: lazy([partial(argument, row, bound) for argument in arguments])
    if (name, len(arguments)) not in FUNCTIONS:
        arities = sorted(arity for known_name, arity in FUNCTIONS if known_name == name)
        if not arities:
            _refuse(f"{name!r} is no operator of a match specification")
        _refuse(f"{name!r} takes {' or '.join(map(str, arities))} arguments, not {len(arguments)}")
    function: Callable[..., Any] = FUNCTIONS[name, len(arguments)]
    if len(arguments) == 1:
        only = arguments[0]
        return lambda row, bound: function(only(row, bound))
    if len(arguments) == 2:
        left, right = arguments
        return lambda row, bound: function(left(row, bound), right(row, bound))
    return lambda row, bound: function(*[argument(row, bound) for argument in arguments])


def _refuse(problem: str) -> NoReturn:
    raise BadMatchSpec(problem)


def variables_in_order(bound: Mapping[int, Any]) -> list[Any]:
    """The values of a match's variables, by number."""
    return [bound[number] for number in sorted(bound)]
