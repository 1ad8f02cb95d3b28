"""The calls that memory tables and disk tables share, and what they mean (ETS-1 to 9, DETS-3).

`Table` is written against `Rows` and knows neither where the rows are nor who may touch them: its
two kinds open the rows for reading or writing, which is where access is judged, and say what an
ident and a stored row are. Everything that can be wrong with the arguments is found before the rows
are opened, so that a refused call has changed nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from .match_spec import (
    ANY,
    NO_RESULT,
    MatchSpec,
    Pattern,
    compile_pattern,
    compile_spec,
    variables_in_order,
)
from .table_errors import BadArgument, TableError, shown
from .table_rows import END_OF_TABLE, Ident, Position, Row, Rows, Stored, TableType
from .table_update import CounterOp, count, replace
from .term_order import Term

T = TypeVar("T")
Chunk = tuple[list[Any], Any]
"""Results and a `Continuation`, or END_OF_TABLE in its place."""


@dataclass(frozen=True, slots=True, repr=False)
class Continuation:
    """Where a traversal in chunks goes on: give it to the same call of the same table."""

    table: Table
    call: str
    select: Callable[[Row], Any]
    limit: int
    position: Position

    def __repr__(self) -> str:
        return f"<Continuation of {self.call} on {self.table.name!r}>"


class Table(ABC):
    """A table of rows (tuples) with a key each, at the position `keypos` (counted from 0)."""

    name: str
    type: TableType
    keypos: int

    # -- what a kind of table provides -----------------------------------------------------------

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Rows]:
        """Open the rows for reading. Raises TableError if the caller may not, or there are none."""

    @abstractmethod
    def _write(self, work: Callable[[Rows], T]) -> T:
        """Run one atomic change on the rows. Raises TableError as `_reading`.

        If `work` raises, nothing has changed; it may be run again, from nothing.
        """

    @abstractmethod
    def _ident(self, key: Term) -> Ident:
        """What tells the key apart. Raises BadArgument."""

    @abstractmethod
    def _stored(self, row: Row) -> Stored:
        """The row as it is stored. Raises BadArgument."""

    def _copy(self, value: T, row: Row) -> T:
        """A value made of a stored row, as the caller may have it."""
        return value

    def _fail(self, problem: object, *, code: str = "badarg") -> NoReturn:
        raise TableError(shown(self.name), str(problem), code=code) from None

    # -- arguments -------------------------------------------------------------------------------

    def _key(self, key: Term) -> Ident:
        try:
            return self._ident(key)
        except BadArgument as error:
            self._fail(f"key {shown(key)}: {error}")

    def _prepare(self, row: Any) -> tuple[Ident, Stored]:
        if type(row) is not tuple:
            if not isinstance(row, tuple):
                self._fail(f"a row is a tuple, not {shown(row)}")
            row = tuple(row)  # a named tuple is a row like others
        if len(row) <= self.keypos:
            self._fail(f"the row {shown(row)} has no key at position {self.keypos}")
        try:
            return self._ident(row[self.keypos]), self._stored(row)
        except BadArgument as error:
            self._fail(f"the row {shown(row)}: {error}")

    def _prepare_all(self, rows: Row | Sequence[Row]) -> list[tuple[Ident, Stored]]:
        if type(rows) is list:
            return [self._prepare(row) for row in rows]
        return [self._prepare(rows)]

    def _pattern(self, pattern: Term) -> Pattern:
        try:
            return compile_pattern(pattern, self.keypos)
        except BadArgument as error:
            self._fail(error)

    def _spec(self, spec: Term) -> MatchSpec:
        try:
            return compile_spec(spec, self.keypos)
        except BadArgument as error:
            self._fail(error)

    # -- writing ---------------------------------------------------------------------------------

    def insert(self, rows: Row | list[Row]) -> None:
        """Insert a row, or all rows of a list as one change: one bad row, and none is in (ETS-3).

        In a set or ordered_set a row replaces the one with its key; a bag takes a row once, a
        duplicate_bag as often as it comes. Raises TableError for what is no row of this table.
        """
        prepared = self._prepare_all(rows)

        def work(into: Rows) -> None:
            for ident, stored in prepared:
                into.put(ident, stored)

        self._write(work)

    def insert_new(self, rows: Row | list[Row]) -> bool:
        """Insert as `insert` if none of the keys is there, else change nothing: False (ETS-4)."""
        prepared = self._prepare_all(rows)

        def work(into: Rows) -> bool:
            if any(into.has(ident) for ident, _ in prepared):
                return False
            for ident, stored in prepared:
                into.put(ident, stored)
            return True

        return self._write(work)

    def delete(self, key: Term) -> None:
        """Remove the rows with the key; if there are none, that is fine (ETS-7)."""
        ident = self._key(key)
        self._write(lambda rows: rows.remove(ident))

    def delete_object(self, row: Row) -> None:
        """Remove the rows that equal `row` exactly; if there are none, that is fine."""
        ident, _ = self._prepare(row)
        self._write(lambda rows: rows.remove_row(ident, row))

    def delete_all_objects(self) -> None:
        """Remove all rows."""
        self._write(lambda rows: rows.clear())

    def take(self, key: Term) -> list[Row]:
        """Return the rows with the key and remove them, as one change."""
        ident = self._key(key)

        def work(rows: Rows) -> list[Row]:
            found = rows.get(ident)
            rows.remove(ident)
            return [self._copy(row, row) for row in found]

        return self._write(work)

    def update_element(self, key: Term, changes: Mapping[int, Any]) -> bool:
        """Replace values of a row, `{position: value}`; False if the key is not there (ETS-6).

        Raises TableError for a position outside the row, for the key's, and in bags.
        """
        self._only_sets("update_element")
        if not isinstance(changes, Mapping):
            self._fail(f"changes are given as {{position: value}}, not {shown(changes)}")
        ident = self._key(key)

        def work(rows: Rows) -> bool:
            found = rows.get(ident)
            if not found:
                return False
            try:
                row = replace(found[0], self.keypos, changes)
            except BadArgument as error:
                self._fail(error)
            rows.put(*self._prepare(row))
            return True

        return self._write(work)

    def update_counter(
        self, key: Term, op: CounterOp | Sequence[CounterOp], default: Row | None = None
    ) -> Any:
        """Count in a row and return the new value, as one change (ETS-6).

        `op`: `n` adds to the value after the key, `(pos, n)` to the one at `pos`, `(pos, n,
        threshold, reset)` puts `reset` where the sum passes the threshold; a list of these gives
        the list of values. If the key is missing, `default` is inserted (with this key) and counted
        in. Raises TableError if the key is missing without default, if a value is no int (a bool is
        none), and in bags; then nothing was changed.
        """
        self._only_sets("update_counter")
        ident = self._key(key)
        if default is not None:
            self._prepare(default)

        def work(rows: Rows) -> Any:
            found = rows.get(ident)
            if found:
                row = found[0]
            elif default is None:
                self._fail(f"update_counter: there is neither key {shown(key)} nor a default")
            else:
                row = (*default[: self.keypos], key, *default[self.keypos + 1 :])
            try:
                row, result = count(row, self.keypos, op)
            except BadArgument as error:
                self._fail(error)
            rows.put(*self._prepare(row))
            return result

        return self._write(work)

    def _only_sets(self, call: str) -> None:
        if self.type not in ("set", "ordered_set"):
            self._fail(f"{call} is for tables with one row a key, this is a {self.type}")

    def match_delete(self, pattern: Term) -> None:
        """Remove the rows that match a pattern."""
        match = self._pattern(pattern).match
        self._delete_where(lambda row: match(row) is not None)

    def select_delete(self, spec: Term) -> int:
        """Remove the rows for which a match specification gives True; returns how many (ETS-9)."""
        select = self._spec(spec).select
        return self._delete_where(lambda row: select(row) is True)

    def _delete_where(self, doomed: Callable[[Row], bool]) -> int:
        def work(rows: Rows) -> int:
            found = [entry for entry in rows.entries() if doomed(entry[1])]
            for handle, row in found:
                rows.discard(handle, row)
            return len(found)

        return self._write(work)

    # -- reading ---------------------------------------------------------------------------------

    def lookup(self, key: Term) -> list[Row]:
        """Return the rows with the key, in bags in order of insertion."""
        ident = self._key(key)
        with self._reading() as rows:
            return [self._copy(row, row) for row in rows.get(ident)]

    def lookup_element(self, key: Term, position: int) -> Any:
        """Return the value at a position, in bags the list of them; missing: TableError (ETS-8)."""
        ident = self._key(key)
        with self._reading() as rows:
            found = rows.get(ident)
            if not found:
                self._fail(f"lookup_element: key {shown(key)} is not there")
            if type(position) is not int or not all(0 <= position < len(row) for row in found):
                self._fail(f"lookup_element: key {shown(key)} has no position {shown(position)}")
            values = [self._copy(row[position], row) for row in found]
        return values[0] if self.type in ("set", "ordered_set") else values

    def member(self, key: Term) -> bool:
        """Whether a row has the key."""
        ident = self._key(key)
        with self._reading() as rows:
            return rows.has(ident)

    def to_list(self) -> list[Row]:
        """Return all rows, those of an ordered_set in the order of their keys."""
        with self._reading() as rows:
            return [self._copy(row, row) for _, row in rows.entries()]

    def __len__(self) -> int:
        with self._reading() as rows:
            return rows.size()

    def first(self) -> Any:
        """Return the first key, or END_OF_TABLE."""
        with self._reading() as rows:
            return self._copy_key(rows.first())

    def last(self) -> Any:
        """Return the last key of an ordered_set; in other types the same as `first`, as in ETS."""
        with self._reading() as rows:
            return self._copy_key(rows.last())

    def next(self, key: Term) -> Any:
        """Return the key after `key`, or END_OF_TABLE.

        In an ordered_set `key` need not be there. In other types that raises TableError, unless the
        table is fixed and the key was deleted since (ETS-15).
        """
        return self._neighbour(key, "next")

    def prev(self, key: Term) -> Any:
        """Return the key before `key` in an ordered_set; in other types the same as `next`."""
        return self._neighbour(key, "prev")

    def _neighbour(self, key: Term, call: Literal["next", "prev"]) -> Any:
        ident = self._key(key)
        with self._reading() as rows:
            try:
                return self._copy_key(rows.next(ident) if call == "next" else rows.prev(ident))
            except KeyError:
                self._fail(f"{call}: key {shown(key)} is not there; fix() the table to delete in a "
                           "traversal")  # fmt: skip

    def _copy_key(self, key: Term) -> Any:
        return key

    # -- queries ---------------------------------------------------------------------------------

    def match(self, pattern: Term, limit: int | None = None) -> Any:
        """Return the variables' values of the rows that match, a list for each row (ETS-9).

        With `limit` returns `(lists, continuation)`; `match(continuation)` goes on. The
        continuation is END_OF_TABLE when no row is left.
        """
        if limit is None and type(pattern) is not Continuation and pattern is not END_OF_TABLE:
            compiled = self._pattern(pattern)
            return self._select_all(_variables_of(compiled), compiled.key)
        return self._chunk("match", pattern, limit, lambda: _variables_of(self._pattern(pattern)))

    def match_object(self, pattern: Term, limit: int | None = None) -> Any:
        """Return the rows that match a pattern; with `limit` in chunks, as `match`."""
        if limit is None and type(pattern) is not Continuation and pattern is not END_OF_TABLE:
            compiled = self._pattern(pattern)
            return self._select_all(_rows_of(compiled), compiled.key)
        return self._chunk("match_object", pattern, limit, lambda: _rows_of(self._pattern(pattern)))

    def select(self, spec: Term, limit: int | None = None) -> Any:
        """Return what a match specification gives for the rows; with `limit` as `match`."""
        if limit is None and type(spec) is not Continuation and spec is not END_OF_TABLE:
            compiled = self._spec(spec)
            return self._select_all(compiled.select, compiled.key)
        return self._chunk("select", spec, limit, lambda: self._spec(spec).select)

    def select_count(self, spec: Term) -> int:
        """Count the rows for which a match specification gives True."""
        select = self._spec(spec).select
        with self._reading() as rows:
            return sum(1 for _, row in rows.entries() if select(row) is True)

    def _select_all(self, select: Callable[[Row], Any], key: Any) -> list[Any]:
        ident = NO_RESULT
        if key is not ANY:
            try:
                ident = self._ident(key)
            except BadArgument:
                return []  # no row can have such a key
        with self._reading() as rows:
            candidates = (
                (row for _, row in rows.entries()) if ident is NO_RESULT else iter(rows.get(ident))
            )
            return [
                self._copy(result, row)
                for row in candidates
                if (result := select(row)) is not NO_RESULT
            ]

    def _chunk(
        self, call: str, given: Any, limit: int | None, compile_: Callable[[], Callable[[Row], Any]]
    ) -> Chunk:
        if given is END_OF_TABLE:
            return [], END_OF_TABLE
        if type(given) is Continuation:
            if given.table is not self or given.call != call:
                self._fail(f"{call}: {given!r} belongs to another call or table")
            select, position = given.select, given.position
            limit = given.limit if limit is None else limit
        else:
            select, position = compile_(), None
        if type(limit) is not int or limit < 1:
            self._fail(f"{call}: a limit is an int above 0, not {shown(limit)}")
        results: list[Any] = []
        with self._reading() as rows:
            for position, row in rows.resume(position):  # noqa: B020 - goes on from where it began
                result = select(row)
                if result is not NO_RESULT:
                    results.append(self._copy(result, row))
                    if len(results) == limit:
                        return results, Continuation(self, call, select, limit, position)
        return results, END_OF_TABLE



def _variables_of(pattern: Pattern) -> Callable[[Row], Any]:
    match = pattern.match

    def select(row: Row) -> Any:
        bound = match(row)
        return NO_RESULT if bound is None else variables_in_order(bound)

    return select


def _rows_of(pattern: Pattern) -> Callable[[Row], Any]:
    match = pattern.match
    return lambda row: NO_RESULT if match(row) is None else row
