"""The protocols of session stores (C1…C17).

A session store keeps revisions of a carrier under cursors, with compare-and-swap. A journal keeps
what a live session needs beside them: accepted messages, events, dead letters, the epoch of the
owner. A store written elsewhere may have async methods instead of ones that return Futures, and
may lack the journal: then a session is as durable as its carrier.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

from .plain import Plain
from .session_state import HEAD, HeadCursor, SessionState, TurnWrites

Cursor = int | HeadCursor
Stream = Literal["inbox", "events", "dead_letters"]


@runtime_checkable
class SessionStore(Protocol):
    """Revisions of sessions. All methods return Futures; a foreign store's may be coroutines.

    A cursor is an int: 0 is the empty session, commits of a session return 1, 2, 3… Rules: C8…C13.
    """

    def load(self, session_id: str, cursor: Cursor = HEAD) -> Any:
        """The SessionState at a cursor: carrier and counters. Raises CursorNotFound."""
        ...

    def commit(
        self,
        session_id: str,
        base: int,
        state: SessionState,
        fingerprint: str | None,
        *,
        writes: TurnWrites | None = None,
    ) -> Any:
        """Commit a state on the head `base`, with all of `writes` or not at all; the new cursor.

        Equal base and fingerprint (`value_fingerprint` of the carrier) as a retained revision's:
        that one's cursor, and nothing is written. Raises SessionCursorConflict, SessionFenced,
        FingerprintMismatch, BlobNotFound, NotPlain.
        """
        ...

    def load_value(self, session_id: str, cursor: Cursor = HEAD) -> Any:
        """The carrier at a cursor."""
        ...

    def commit_value(
        self, session_id: str, base: int, value: Plain, fingerprint: str | None = None
    ) -> Any:
        """Commit a carrier alone; the counters stay. The new cursor."""
        ...

    def put_blob(self, tenant: str, value: Plain) -> Any:
        """Store plain data as a blob of its canonical JSON; the ref."""
        ...

    def get_blob(self, tenant: str, ref: str) -> Any:
        """The plain data of a blob put by `put_blob`."""
        ...


@runtime_checkable
class SessionJournal(Protocol):
    """What lies beside the revisions of a session, in the same transactions."""

    def claim(self, session_id: str) -> Any:
        """Become the owner: Claim(epoch, cursor). Commits under older epochs are fenced (C7)."""
        ...

    def accept(
        self, session_id: str, channel: str, payload: Plain, *, key: str | None = None
    ) -> Any:
        """Accept a message durably: Ack."""
        ...

    def read(self, session_id: str, stream: Stream, *, after: int = 0, limit: int = 100) -> Any:
        """Items of a stream behind `after` (order, position or id), the oldest first."""
        ...
