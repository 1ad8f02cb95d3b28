"""Errors of session and blob stores: the caller's to act on, but for `BlobIntegrityError`."""

from __future__ import annotations

from ..actors.errors import InvalidValue, RequestError
from .errors import CursorConflict, StoreError, shown


class SessionCursorConflict(CursorConflict):
    """The base of a commit is not the head, and no retained revision equals it (C9).

    `base` is what was given, `head` what the session is at.
    """

    def __init__(self, session_id: str, base: int, head: int) -> None:
        RequestError.__init__(
            self,
            f"session {shown(session_id)}: the commit is based on cursor {base}, the head is "
            f"{head}. Load the head and decide again.",
            code="cursor_conflict",
        )
        self.conversation_id = self.session_id = session_id
        self.given = self.base = base
        self.head = head


class CursorNotFound(RequestError):
    """There is no such revision: never made, or compacted; `oldest` is the first kept (C11)."""

    def __init__(self, session_id: str, cursor: int, oldest: int) -> None:
        super().__init__(
            f"session {shown(session_id)} has no revision {cursor}; the oldest kept is {oldest}",
            code="not_found",
        )
        self.session_id, self.cursor, self.oldest = session_id, cursor, oldest


class FingerprintMismatch(RequestError):
    """The fingerprint passed to a commit is not that of its value (C10)."""

    def __init__(self, given: str, actual: str) -> None:
        super().__init__(
            f"fingerprint {shown(given)} was given, the value has {actual}: pass "
            "value_fingerprint(value), or None",
            code="fingerprint_mismatch",
        )
        self.given, self.actual = given, actual


class SessionFenced(RequestError):
    """A newer owner has claimed the session; nothing was written (C7)."""

    def __init__(self, session_id: str, given: int, current: int) -> None:
        super().__init__(
            f"session {shown(session_id)}: epoch {given} was given, its owner has epoch {current}. "
            "This owner must stop.",
            code="session_fenced",
        )
        self.session_id, self.given, self.current = session_id, given, current


class SessionClosed(RequestError):
    """The session takes no messages any more (B22). Raised in a turn, it closes it (A20)."""

    def __init__(self, reason: str = "closed", *, session_id: str = "") -> None:
        where = f"session {shown(session_id)} is closed" if session_id else "the session is closed"
        super().__init__(f"{where}: {reason}", code="session_closed")
        self.reason, self.session_id = reason, session_id


class ChannelFull(RequestError):
    """As many messages wait in the channel as it may hold (A3, B12)."""

    def __init__(self, channel: str, capacity: int, pending: int) -> None:
        super().__init__(
            f"channel {shown(channel)} holds {pending} messages of at most {capacity}: send again "
            "when some are taken, or give it more capacity",
            code="channel_full",
        )
        self.channel, self.capacity, self.pending = channel, capacity, pending


class IdempotencyConflict(RequestError):
    """The key was used before in this channel with another payload (B11)."""

    def __init__(self, channel: str, key: str) -> None:
        super().__init__(
            f"channel {shown(channel)}: key {shown(key)} was used before with another payload; "
            "use a new key for a new message",
            code="idempotency_conflict",
        )
        self.channel, self.key = channel, key


class NotFound(RequestError):
    """What was named does not exist (any more)."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} does not exist", code="not_found")


class EventsTrimmed(RequestError):
    """Events after that position have been trimmed; `oldest` is the first one kept (B6)."""

    def __init__(self, session_id: str, after: int, oldest: int) -> None:
        super().__init__(
            f"session {shown(session_id)}: events after {after} are no longer all there; the "
            f"oldest kept is {oldest}. Read with after={oldest - 1}, or as a named consumer.",
            code="events_trimmed",
        )
        self.session_id, self.after, self.oldest = session_id, after, oldest


class BlobRefError(InvalidValue):
    """A blob ref is malformed: it must read `<tenant>/sha256:<64 hex digits>` (C14)."""

    def __init__(self, ref: object) -> None:
        super().__init__(
            f"{shown(ref)} is no blob ref: it reads tenant/sha256:<64 hex digits>", code="blob_ref"
        )
        self.ref = ref


class BlobTenantError(RequestError):
    """The blob belongs to another tenant, or the tenant's name cannot be one (C14)."""

    def __init__(self, tenant: object, ref: object = None) -> None:
        problem = (
            f"tenant {shown(tenant)} cannot be one: give 1 to 128 characters without '/'"
            if ref is None
            else f"blob {shown(ref)} does not belong to tenant {shown(tenant)}"
        )
        super().__init__(problem, code="blob_tenant")
        self.tenant, self.ref = tenant, ref


class BlobNotFound(RequestError):
    """There is no such blob (C14, C16)."""

    def __init__(self, ref: str) -> None:
        super().__init__(f"blob {shown(ref)} does not exist: put it first", code="not_found")
        self.ref = ref


class BlobIntegrityError(StoreError):
    """The bytes of a blob have another hash; putting the right ones repairs it (C15)."""

    def __init__(self, ref: str) -> None:
        super().__init__(
            f"blob {shown(ref)} is damaged: its bytes have another hash. Put the right bytes "
            "again, or restore a backup."
        )
        self.ref = ref
