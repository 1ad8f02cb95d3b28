"""A session or blob operation on its way into a store's next commit.

It waits in the same queue as appends and is run in the same transaction, so it is durable when they
are, costs no flush of its own, and can add records to a conversation atomically (E7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..actors.errors import KeepwellError
from .environment import Transaction
from .ledger import Plan
from .request import Append, Request
from .session_rows import Rows


class Operation(Request):
    """`work(rows)` in the store's next commit; its value, or the error it raises, is the answer.

    `work` may run more than once (when the map grows) and changes nothing if it raises. `recover`
    is asked first when the request is sent again after a crash: its answer, unless None, is that of
    the run that was not acknowledged. `append` goes into the same transaction if `work` succeeds;
    whether it is accepted or not does not matter to the answer.
    """

    __slots__ = ("append", "recover", "work")

    def __init__(
        self,
        work: Callable[[Rows], Any],
        append: Append | None = None,
        recover: Callable[[Rows], Any] | None = None,
    ) -> None:
        super().__init__("", b"")
        self.work = work
        self.append = append
        self.recover = recover

    def perform(self, rows: Rows, plan: Plan) -> bool:
        """Run it inside a commit; its answer goes to the plan. False if it changed nothing."""
        try:
            known = self.recover(rows) if self.recover is not None and self.attempts > 1 else None
            if known is not None:
                plan.answers.append(known)
                return False
            answer = self.work(rows)
        except KeepwellError as refusal:
            plan.answers.append(refusal)
            return False
        if self.append is not None:
            plan.take(self.append)
            plan.answers.pop()
        plan.answers.append(answer)
        return True


class LmdbRows:
    """`Rows` of one LMDB transaction."""

    __slots__ = ("_db", "_txn")

    def __init__(self, txn: Transaction, db: Any) -> None:
        self._txn = txn
        self._db = db

    def get(self, key: bytes) -> bytes | None:
        """See Rows."""
        value: bytes | None = self._txn.get(key, db=self._db)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """See Rows."""
        self._txn.put(key, value, db=self._db)

    def delete(self, key: bytes) -> None:
        """See Rows."""
        self._txn.delete(key, db=self._db)

    def scan(self, first: bytes, end: bytes, *, reverse: bool = False) -> Any:
        """See Rows."""
        with self._txn.cursor(db=self._db) as cursor:
            if not reverse:
                found = cursor.set_range(first)
                while found and cursor.key() < end:
                    yield cursor.item()
                    found = cursor.next()
                return
            found = cursor.prev() if cursor.set_range(end) else cursor.last()
            while found and cursor.key() >= first:
                yield cursor.item()
                found = cursor.prev()
