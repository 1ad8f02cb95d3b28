"""Errors of the stores, branched by who must act (design §9).

The caller: `InvalidConversationId`, `InvalidMessage`, `AppendConflict`, `StaleEpoch`,
`CursorConflict`, `PredecessorMissing`. Nobody, try again: `StoreUnavailable`. The operator:
`StoreError` and its children.
"""

from __future__ import annotations

import os
from typing import Literal

from ..actors.errors import InvalidValue, KeepwellError, RequestError, Unavailable

Outcome = Literal["not written", "unknown"]
"""What became of a write that was not acknowledged: nothing is stored, or all of it may be."""


def shown(value: object, limit: int = 80) -> str:
    """`repr` of a value for a sentence, cut to `limit` characters; never raises."""
    if isinstance(value, (str, bytes)) and len(value) > limit:
        value = value[:limit]
        return repr(value) + "…"
    try:
        text = repr(value)
    except Exception:  # a foreign __repr__ may raise anything
        return f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[:limit] + "…"


# -- the caller must act ----------------------------------------------------------------------


class InvalidConversationId(InvalidValue):
    """A conversation id is no `str`, is empty, over 64 KiB, or no valid Unicode (CS-8, CS-9)."""

    def __init__(self, value: object, problem: str) -> None:
        super().__init__(
            f"conversation id {shown(value)}: {problem}", code="invalid_conversation_id"
        )
        self.value = value


class InvalidMessage(InvalidValue):
    """A message cannot be stored (CS-10…13); nothing of its batch is.

    `index` is its place in the batch (None if a `Message` was being made on its own), `path` the
    place inside the message, such as `content[0].image`.
    """

    def __init__(self, problem: str, *, index: int | None = None, path: str = "") -> None:
        where = "message" if index is None else f"message {index}"
        super().__init__(f"{where}{', ' + path if path else ''}: {problem}", code="invalid_message")
        self.problem, self.index, self.path = problem, index, path


class AppendConflict(RequestError):
    """The append id was used before in this conversation with another payload (CS-15)."""

    def __init__(self, conversation_id: str, append_id: str) -> None:
        super().__init__(
            f"{shown(conversation_id)}: append id {shown(append_id)} was used before with another "
            "payload. Use a new append id for a new append.",
            code="append_conflict",
        )
        self.conversation_id, self.append_id = conversation_id, append_id


class StaleEpoch(RequestError):
    """The conversation was cleared since the epoch was read (CS-17, CS-23)."""

    def __init__(self, conversation_id: str, given: int, current: int) -> None:
        super().__init__(
            f"{shown(conversation_id)} was cleared: epoch {given} was given, {current} is "
            "current. Read the conversation again before writing.",
            code="stale_epoch",
        )
        self.conversation_id, self.given, self.current = conversation_id, given, current


class CursorConflict(RequestError):
    """The head of the conversation is not where the caller saw it (CS-18)."""

    def __init__(self, conversation_id: str, given: int, head: int) -> None:
        super().__init__(
            f"{shown(conversation_id)} has moved on: cursor {given} was given, the head is {head}. "
            "Read what is new and try again.",
            code="cursor_conflict",
        )
        self.conversation_id, self.given, self.head = conversation_id, given, head


class PredecessorMissing(RequestError):
    """The append that this one follows is not in the log (CS-15a)."""

    def __init__(self, conversation_id: str, follows: str) -> None:
        super().__init__(
            f"{shown(conversation_id)}: the append {shown(follows)} that it follows is not in "
            "the log. Send that one first.",
            code="predecessor_missing",
        )
        self.conversation_id, self.follows = conversation_id, follows


# -- nobody must act: try again ---------------------------------------------------------------


class StoreUnavailable(Unavailable):
    """The store did not answer by the deadline, or went down with this request in flight (SH-1…3).

    `append_id` and `outcome` speak of an append: with outcome "unknown" send it again under this
    id, it is stored once whatever happened.
    """

    def __init__(
        self,
        store: str,
        problem: str = "it is not running",
        *,
        append_id: str | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        hint = (
            f"; the outcome of append {shown(append_id)} is unknown: send it again under this id"
            if append_id is not None and outcome == "unknown"
            else ""
        )
        super().__init__(f"store {shown(store)} is unavailable: {problem}{hint}")
        self.store, self.problem, self.append_id, self.outcome = store, problem, append_id, outcome


class StoreNotStarted(StoreUnavailable):
    """A store was used that nobody has started yet; refused at once, nothing was sent."""

    def __init__(self, store: str, *, append_id: str | None = None) -> None:
        super().__init__(
            store,
            "it has not been started. `await runtime.start_store(store)` starts it under a "
            "supervisor, `store.start()` or `await store.spawn()` without one; the default store "
            "of a runtime starts when that is entered.",
            append_id=append_id,
            outcome=None if append_id is None else "not written",
        )


# -- the operator must act --------------------------------------------------------------------


class StoreError(KeepwellError):
    """Something about the stored data or its disk needs an operator."""


def _path(path: str | os.PathLike[str]) -> str:
    return repr(os.fspath(path))


class StoreInUse(StoreError):
    """Another live store owns the directory (DS-5)."""

    def __init__(self, path: str | os.PathLike[str], pid: int | None) -> None:
        owner = (
            "this process" if pid == os.getpid() else f"process {pid}" if pid else "another process"
        )
        super().__init__(
            f"{_path(path)} is in use by {owner}. Use that one, stop it first, or open read-only."
        )
        self.path, self.pid = os.fspath(path), pid


class ForeignFormat(StoreError):
    """The file is not one of keepwell's (DS-6); it was left as it is."""

    def __init__(self, path: str | os.PathLike[str], problem: str) -> None:
        super().__init__(
            f"{_path(path)} is not a keepwell store: {problem}. Give another directory."
        )
        self.path, self.problem = os.fspath(path), problem


class NewerFormat(StoreError):
    """The file was written by a newer keepwell (DS-6); it was left as it is."""

    def __init__(self, path: str | os.PathLike[str], found: int, known: int) -> None:
        super().__init__(
            f"{_path(path)} has format {found}, this keepwell knows formats up to {known}. "
            "Upgrade keepwell to open it."
        )
        self.path, self.found, self.known = os.fspath(path), found, known


class DamagedStore(StoreError):
    """The file is garbled or cut short, or one record cannot be read (DS-6).

    With `conversation_id` and `seq` only that record is damaged; all else can be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        problem: str,
        *,
        conversation_id: str | None = None,
        seq: int | None = None,
    ) -> None:
        where = "" if conversation_id is None else f" conversation {shown(conversation_id)}"
        where += "" if seq is None else f" record {seq}"
        super().__init__(
            f"{_path(path)}{where} is damaged: {problem}. Restore a backup, or run "
            "`keepwell store verify`."
        )
        self.path, self.problem = os.fspath(path), problem
        self.conversation_id, self.seq = conversation_id, seq


class DiskFull(StoreError):
    """There was no room for this batch: nothing of it is stored, the store works on (DS-7)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(
            f"no space left for {_path(path)}: nothing of this batch was stored. "
            "Make room on the disk and send it again."
        )
        self.path = os.fspath(path)


class ReadOnlyStore(StoreError):
    """The store was opened read-only, or its directory cannot be written to (DS-5)."""

    def __init__(
        self, path: str | os.PathLike[str], problem: str = "it was opened read-only"
    ) -> None:
        super().__init__(
            f"{_path(path)} cannot be written to: {problem}. Open it for writing, or give a "
            "directory that you may write to."
        )
        self.path, self.problem = os.fspath(path), problem


class OlderFormat(ReadOnlyStore):
    """A store of an older format was opened read-only: bringing it up writes to it (DS-6)."""

    def __init__(self, path: str | os.PathLike[str], found: int) -> None:
        super().__init__(path, f"it has the old format {found}, which its owner brings to the "
                               "present one; a backup keeps it as it is")


class ForkedStore(StoreError):
    """A store was used in a forked child; the environment belongs to the parent (F07)."""

    def __init__(self, path: str | os.PathLike[str], owner: int) -> None:
        super().__init__(
            f"{_path(path)} was opened by process {owner} before a fork and cannot be used in its "
            "child. Open the store after forking, or start processes with `spawn`."
        )
        self.path, self.owner = os.fspath(path), owner
