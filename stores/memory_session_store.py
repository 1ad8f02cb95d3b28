"""Sessions and blobs in memory: for tests, and for runtimes without a data directory.

It survives the crash of every actor, but not the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..actors.failpoint import failpoint
from ..actors.future import Future
from .plain import Plain
from .session_rows import MemoryRows, Rows
from .session_state import RETAIN_REVISIONS, LogRecords
from .session_store import RowsSessionStore

T = TypeVar("T")


class MemorySessionStore(RowsSessionStore):
    """`SessionStore`, `SessionJournal` and `BlobStore` in one object, in memory.

    Safe to use from any thread. `append_log`: appends to a conversation, elsewhere, what a turn
    adds to it (E7), and returns a future; the commit is done when that is. `holds`: whether
    records of an epoch of a conversation may still be there; without it they are taken to be.
    """

    def __init__(
        self,
        *,
        empty_value: Plain = None,
        retain_revisions: int = RETAIN_REVISIONS,
        wall: Callable[[], float] = time.time,
        append_log: Callable[[LogRecords], Future[Any]] | None = None,
        holds: Callable[[str, int], bool] | None = None,
    ) -> None:
        super().__init__(empty_value=empty_value, retain_revisions=retain_revisions, wall=wall)
        self._rows = MemoryRows()
        self._append_log = append_log
        self._still_holds = holds

    def _holds(self, conversation_id: str, epoch: int) -> bool:
        return self._still_holds is None or self._still_holds(conversation_id, epoch)

    def _write(
        self,
        work: Callable[[Rows], T],
        *,
        log: LogRecords | None = None,
        recover: Callable[[Rows], T | None] | None = None,  # noqa: ARG002 - nothing is sent again
    ) -> Future[T]:
        appended: Future[Any] | None = None
        try:
            failpoint("session.store.before")
            with self._rows.transaction() as rows:
                result = work(rows)
                failpoint("session.store.inside")
                if log is not None and self._append_log is not None:
                    # Sent while the commit can still be undone: from here on neither is lost.
                    appended = self._append_log(log)
            failpoint("session.store.after")
        except Exception as error:  # noqa: BLE001 - it is the caller's answer
            return Future.failed(error)
        if appended is None:
            return Future.of(result)
        answer: Future[T] = Future()
        # A log that was cleared meanwhile refuses the records: the turn is none the worse.
        appended.add_done_callback(lambda _: answer.complete(result))
        return answer

    def _read(self, work: Callable[[Rows], T]) -> Future[T]:
        try:
            with self._rows.lock:
                return Future.of(work(self._rows))
        except Exception as error:  # noqa: BLE001 - it is the caller's answer
            return Future.failed(error)
