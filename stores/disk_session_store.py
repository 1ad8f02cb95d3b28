"""Sessions and blobs on disk, in the environment of a `DiskStore`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..actors.future import Future
from .disk_engine import DiskEngine
from .errors import StoreError
from .plain import Plain
from .request import Append
from .session_request import Operation
from .session_rows import Rows
from .session_state import RETAIN_REVISIONS, LogRecords
from .session_store import RowsSessionStore
from .store_handle import StoreHandle

T = TypeVar("T")


class DiskSessionStore(RowsSessionStore):
    """`SessionStore`, `SessionJournal` and `BlobStore` in one object, on disk.

    `store`: a DiskStore, or the handle of one that is running. Its actor commits what is written
    here together with what is appended there, one flush for all of it, and with its durability.
    While it restarts requests wait and are sent again, up to the handle's timeout; then they end
    with StoreUnavailable, outcome unknown: a commit may be repeated as it is (C9), an accept under
    its key. Reads are short and do not wait for writers.
    """

    def __init__(
        self,
        store: StoreHandle,
        *,
        empty_value: Plain = None,
        retain_revisions: int = RETAIN_REVISIONS,
    ) -> None:
        super().__init__(empty_value=empty_value, retain_revisions=retain_revisions)
        self._handle = store

    def _write(
        self,
        work: Callable[[Rows], T],
        *,
        log: LogRecords | None = None,
        recover: Callable[[Rows], T | None] | None = None,
    ) -> Future[T]:
        port = self._handle.port
        append: Append | None = None
        if log is not None:
            append = Append(
                log.conversation_id, log.records, append_id=log.append_id, epoch=log.epoch,
                counter=port.counter(), max_message_bytes=port.max_message_bytes,
            )  # fmt: skip
        return port.submit(Operation(work, append, recover), self._handle.timeout)

    def _read(self, work: Callable[[Rows], T]) -> Future[T]:
        def read(engine: Any) -> T:
            if not isinstance(engine, DiskEngine):
                raise StoreError(
                    f"store {self._handle.name!r} is no DiskStore: it cannot keep sessions on disk"
                )
            result: T = engine.read_rows(work)
            return result

        return self._handle.port.read(read, self._handle.timeout)
