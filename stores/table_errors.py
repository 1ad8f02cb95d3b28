"""Errors of the tables: the caller's (`TableError`) and the operator's (`TableFileError`)."""

from __future__ import annotations

import os

from ..actors.errors import RequestError
from .errors import StoreError, shown

__all__ = ["KILLED_CALLER", "BadArgument", "TableError", "TableFileError", "shown"]


KILLED_CALLER = "the calling actor has been killed: its access is over"


class BadArgument(ValueError):
    """What the tables' pure functions raise for a value; the table turns it into its TableError."""


class TableError(RequestError):
    """A table cannot do what was asked; nothing was changed.

    `code` is OTP's word: `badarg` (a value, a missing key, a dropped table, no right to it),
    `access_mode` (a write to a table that was opened with `access="read"`) or `not_owner` (close of
    a table that the caller has not opened). `path` is the file's for a disk table, else None.
    """

    def __init__(
        self, table: str, problem: str, *, code: str = "badarg", path: str | None = None
    ) -> None:
        super().__init__(f"table {table}: {problem}", code=code)
        self.table, self.problem, self.path = table, problem, path


class TableFileError(StoreError):
    """A table's file cannot be opened, read or written; the operator must act.

    `code` is OTP's word where there is one: `not_a_dets_file`, `type_mismatch`, `keypos_mismatch`,
    `incompatible_arguments`, `file_error` (with the system's word in `reason`: `enoent`, `eacces`,
    `enospc`, …). Ours: `damaged`, `in_use` (another process or another name has it open), `forked`
    (opened before a fork), `newer_format`.
    """

    def __init__(
        self, code: str, path: str | os.PathLike[str], problem: str, *, reason: str | None = None
    ) -> None:
        self.path = os.fspath(path)
        super().__init__(f"table file {self.path!r}: {problem}")
        self.code, self.problem, self.reason = code, problem, reason
