"""A blob store over rows (C13): what keepwell's own session stores have of one.

Everything is checked, copied and encoded in the caller; the work itself is one transaction.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from ..actors.derived import then
from ..actors.errors import InvalidValue
from ..actors.future import Future
from . import blob_ledger
from .blob_store import MIN_AGE, Collected, check_tenant, parse_ref
from .conversation_id import conversation_key
from .errors import shown
from .plain import Plain, canonical_json, copy_plain
from .session_rows import Rows, short_hash
from .session_state import LogRecords

T = TypeVar("T")


class RowsBlobStore(ABC):
    """Blobs over rows; subclasses say where the rows are. `wall`: seconds since 1970."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall

    @abstractmethod
    def _write(
        self,
        work: Callable[[Rows], T],
        *,
        log: LogRecords | None = None,
        recover: Callable[[Rows], T | None] | None = None,
    ) -> Future[T]:
        """Run `work` in a write transaction and commit; durable when the future is done.

        `log` is appended to its conversation with it, if `work` succeeds. `recover`: what an
        earlier run of the same work has answered, asked if it is run again after a crash.
        """

    @abstractmethod
    def _read(self, work: Callable[[Rows], T]) -> Future[T]:
        """Run `work` in a read transaction."""

    def put_blob(self, tenant: str, value: Plain) -> Future[str]:
        """See SessionStore. The ref's hash is `value_fingerprint(value)` (C13)."""
        return guarded(lambda: self.put(tenant, canonical_json(copy_plain(value))))

    def get_blob(self, tenant: str, ref: str) -> Future[Plain]:
        """See SessionStore."""
        return then(self.get(tenant, ref), json.loads)

    def put(self, tenant: str, data: bytes) -> Future[str]:
        """See BlobStore."""

        def prepare() -> Future[str]:
            check_tenant(tenant)
            if not isinstance(data, bytes | bytearray | memoryview):
                raise InvalidValue(f"a blob is bytes, not {shown(data)}: use put_blob for values")
            kept = bytes(data)
            digest, now = sha256(kept).digest(), self._wall()
            return self._write(lambda rows: blob_ledger.put(rows, tenant, kept, digest, now))

        return guarded(prepare)

    def keep_for_records(
        self, tenant: str, data: bytes, conversation_id: str, epoch: int
    ) -> Future[str]:
        """Store bytes that the records of a conversation's epoch hold until it is cleared; the ref.

        To be done before the append of the record that mentions the ref (C16).
        """

        def prepare() -> Future[str]:
            check_tenant(tenant)
            conversation_key(conversation_id)
            kept, digest, now = bytes(data), sha256(data).digest(), self._wall()
            return self._write(
                lambda rows: blob_ledger.keep_for_records(
                    rows, tenant, kept, digest, now, conversation_id, epoch
                )
            )

        return guarded(prepare)

    def held_for_records(self, conversation_id: str, epoch: int) -> Future[list[str]]:
        """The refs of the blobs that the records of a conversation's epoch hold."""
        return self._read(lambda rows: blob_ledger.held_for_records(rows, conversation_id, epoch))

    def get(self, tenant: str, ref: str) -> Future[bytes]:
        """See BlobStore."""

        def prepare() -> Future[bytes]:
            parse_ref(check_tenant(tenant), ref)
            return self._read(lambda rows: blob_ledger.get(rows, tenant, ref))

        return guarded(prepare)

    def hold(self, tenant: str, ref: str, holder: str) -> Future[None]:
        """See BlobStore."""

        def prepare() -> Future[None]:
            parse_ref(check_tenant(tenant), ref)
            name = _holder(holder)
            return self._write(lambda rows: blob_ledger.hold(rows, tenant, ref, name))

        return guarded(prepare)

    def release(self, holder: str) -> Future[None]:
        """See BlobStore."""

        def prepare() -> Future[None]:
            name = _holder(holder)
            return self._write(lambda rows: blob_ledger.release(rows, name))

        return guarded(prepare)

    def collect(self, min_age: float = MIN_AGE) -> Future[Collected]:
        """See BlobStore. Goes in steps, so that other writers need not wait for all of it."""
        if type(min_age) not in (int, float) or min_age < 0:
            return Future.failed(
                InvalidValue(f"min_age must be seconds, 0 or more, not {shown(min_age)}")
            )
        before = self._wall() - min_age
        result: Future[Collected] = Future()

        def begin(held: Future[list[tuple[str, int]]]) -> None:
            error = held.error()
            if error is not None:
                result.fail(error)
                return
            cleared = [one for one in held.get() if not self._holds(*one)]
            if cleared:
                done = self._write(partial(blob_ledger.release_records, cleared=cleared))
                done.add_done_callback(begin_collecting)
            else:
                self._collect(b"", before, Collected(0, 0), result)

        def begin_collecting(done: Future[None]) -> None:
            error = done.error()
            if error is not None:
                result.fail(error)
            else:
                self._collect(b"", before, Collected(0, 0), result)

        self._read(blob_ledger.record_holds).add_done_callback(begin)
        return result

    def _holds(self, conversation_id: str, epoch: int) -> bool:
        """Whether records of this epoch of a conversation may still be there; if unknown, True."""
        return True

    def _collect(
        self, after: bytes | None, before: float, total: Collected, result: Future[Collected]
    ) -> None:
        """Go on step by step; a loop where steps are done at once, else from one to the next."""
        while after is not None:
            step = self._write(partial(blob_ledger.collect, after=after, born_before=before))
            if not step.done():
                step.add_done_callback(
                    partial(self._collected, before=before, total=total, result=result)
                )
                return
            error = step.error()
            if error is not None:
                result.fail(error)
                return
            removed, after = step.get()
            total = Collected(total.blobs + removed.blobs, total.bytes + removed.bytes)
        result.complete(total)

    def _collected(
        self, done: Future[Any], before: float, total: Collected, result: Future[Collected]
    ) -> None:
        error = done.error()
        if error is not None:
            result.fail(error)
            return
        removed, after = done.get()
        total = Collected(total.blobs + removed.blobs, total.bytes + removed.bytes)
        self._collect(after, before, total, result)


def _holder(holder: object) -> bytes:
    if not isinstance(holder, str) or not holder:
        raise InvalidValue(f"a holder is a non-empty str, not {shown(holder)}")
    return short_hash(b"user", holder.encode("utf-8", "surrogatepass"))


def guarded(prepare: Callable[[], Future[T]]) -> Future[T]:
    """The future that `prepare()` returns; what it raises comes through one, too."""
    try:
        return prepare()
    except Exception as error:  # noqa: BLE001 - refusals come through the future
        return Future.failed(error)
