"""Sessions and blobs on disk, in the environment of a `DiskStore`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ..actors.future import Future
from .disk_engine import DiskEngine
from .errors import StoreError
from .plain import Plain
from .request import Append, is_large
from .session_request import Operation
from .session_rows import Rows
from .session_state import RETAIN_REVISIONS, LogRecords
from .session_store import RowsSessionStore
from .store_handle import StoreHandle, pass_on
from .store_handle import _run as run_in_thread

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
        port, timeout = self._handle.port, self._handle.timeout
        if log is None:
            return port.submit(Operation(work, None, recover), timeout)

        def encode() -> Append:
            return Append(
                log.conversation_id, log.records, append_id=log.append_id, epoch=log.epoch,
                counter=port.counter(), max_message_bytes=port.max_message_bytes,
            )  # fmt: skip

        if port.counting and not is_large(log.records):
            return port.submit(Operation(work, encode(), recover), timeout)
        answer: Future[T] = Future()

        def send(encoded: Future[Append]) -> None:
            refusal = encoded.error()
            if refusal is not None:
                answer.fail(refusal)
                return
            port.counting = True
            done = port.submit(Operation(work, encoded.get(), recover), timeout)
            done.add_done_callback(partial(pass_on, answer))

        # In a thread: the first count loads a vocabulary, and large texts take their time.
        run_in_thread(encode).add_done_callback(send)
        return answer

    def _holds(self, conversation_id: str, epoch: int) -> bool:
        return still_holds(self._handle, conversation_id, epoch)

    def _read(self, work: Callable[[Rows], T]) -> Future[T]:
        def read(engine: Any) -> T:
            if not isinstance(engine, DiskEngine):
                raise StoreError(
                    f"store {self._handle.name!r} is no DiskStore: it cannot keep sessions on disk"
                )
            result: T = engine.read_rows(work)
            return result

        return self._handle.port.read(read, self._handle.timeout)


def still_holds(store: StoreHandle, conversation_id: str, epoch: int) -> bool:
    """Whether a store has records of this epoch of a conversation; True while it cannot say."""
    info = store.info(conversation_id)
    if not info.done() or info.error() is not None:
        return True
    found = info.get()
    return found.epoch == epoch and found.exists
