"""An index of words over conversations, in one SQLite file (FTS5). No actor; one thread.

    conversations (number, id, epoch, indexed, anchor)
    messages      FTS5, rowid = number << 32 | place in the log; the message's terms

It is derived data: everything in it can be made again from the logs, so whatever is wrong with the
file, it is removed and begun anew. A step of catching up writes messages and watermark (`epoch`,
`indexed`) in one transaction: after a crash it goes on where it was, and no message is in it twice.
`anchor` names the last record indexed. A log that was cleared, or cut back and written anew (a
restored backup), does not have that record there: the conversation is then indexed from its start.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ..actors.failpoint import failpoint
from ..stores.errors import StoreError
from .retriever import Hit
from .search_terms import match_expression, search_terms
from .turn import record_turn, turn_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..stores.record import Log, Record

FORMAT: Final = 1
FILE: Final = "recall.sqlite3"
STEP: Final = 500
"""Messages that are indexed in one transaction."""
MAX_CHARACTERS: Final = 20_000
"""How much of a message is indexed."""

_BITS: Final = 32
_BROKEN: Final = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""What SQLite says of a file that is damaged, is none of its own, or has other tables than ours."""

_SCHEMA: Final = f"""
CREATE TABLE conversations (number INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL UNIQUE,
    epoch INTEGER NOT NULL, indexed INTEGER NOT NULL, anchor TEXT NOT NULL);
CREATE VIRTUAL TABLE messages USING fts5(terms, tokenize='porter unicode61 remove_diacritics 2');
PRAGMA user_version = {FORMAT};
"""


class FullTextSearchMissing(StoreError):
    """The SQLite that Python was built with has no FTS5."""

    def __init__(self) -> None:
        super().__init__(
            f"SQLite {sqlite3.sqlite_version} of this Python has no full-text search (FTS5): use a "
            "Python whose sqlite3 is built with it, as those of python.org and the distributions "
            "are, or another Retriever"
        )


class Watermark(NamedTuple):
    """How far a conversation is indexed: the first `indexed` messages of its log in `epoch`."""

    conversation_id: str
    epoch: int
    indexed: int
    anchor: str


class SearchIndex:
    """The index in `directory` (made with mode 0700, its file with 0600), None: in memory.

    Raises FullTextSearchMissing, and OSError or sqlite3.Error for a directory that cannot be used.
    A damaged or older file is replaced by an empty one; `rebuilt` counts how often.
    """

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        _check_full_text_search()
        self._path: Path | None = None
        if directory is not None:
            folder = Path(directory)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path = folder / FILE
        self.rebuilt = 0
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self.rebuild()

    def _open(self) -> sqlite3.Connection:
        if self._path is not None:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        # One thread uses it; the one in which a killed owner is collected may be another.
        db = sqlite3.connect(
            self._path or ":memory:", timeout=5.0, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA secure_delete = ON")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")  # what a power cut takes is indexed again
            with _transaction(db):
                found = db.execute("PRAGMA user_version").fetchone()[0]
                tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if not tables:
                    for statement in _SCHEMA.split(";\n"):
                        db.execute(statement)
                elif found != FORMAT:
                    error = sqlite3.DatabaseError(f"format {found}, not {FORMAT}")
                    error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
                    raise error
        except BaseException:
            db.close()
            raise
        return db

    def rebuild(self) -> None:
        """Begin anew with an empty index."""
        self.close()
        if self._path is not None:
            for ending in ("", "-wal", "-shm"):
                self._path.with_name(FILE + ending).unlink(missing_ok=True)
        self.rebuilt += 1
        self._db = self._open()

    def close(self) -> None:
        """Let go of the file; happens by itself when nobody has the index any more."""
        db = getattr(self, "_db", None)  # there is none if opening it has failed
        if db is not None:
            db.close()

    def __del__(self) -> None:
        self.close()

    # -- keeping up ------------------------------------------------------------------------------

    def catch_up(self, conversation_id: str, log: Log, most: int) -> int:
        """Index at most `most` messages of the log; returns how many are still to come.

        An older view of the log than was indexed before changes nothing. Raises what a touch of
        the log raises (StaleEpoch, StoreUnavailable), and sqlite3.Error; what was committed stays.
        """
        behind = len(log)
        while most > 0 and behind > 0:
            with _transaction(self._db):
                behind = self._step(conversation_id, log, min(most, STEP))
                failpoint("recall.commit.before")
            failpoint("recall.commit.after")
            most -= STEP
        return behind

    def _step(self, conversation_id: str, log: Log, most: int) -> int:
        number, mark = self._watermark(conversation_id)
        if mark.epoch > log.epoch:
            return 0
        start = mark.indexed
        if start and (mark.epoch < log.epoch or _is_other(log, mark)):
            self._remove(number)
            number = start = 0
        records = log[start : start + most]
        if not records:
            return 0
        if not number:
            added = self._db.execute(
                "INSERT INTO conversations (id, epoch, indexed, anchor) VALUES (?, ?, 0, '')",
                (_key(conversation_id), log.epoch),
            )
            number = added.lastrowid or 0
        base = number << _BITS
        self._db.executemany(
            "INSERT INTO messages (rowid, terms) VALUES (?, ?)",
            [
                (base | (start + place), terms)
                for place, record in enumerate(records)
                if (terms := _terms(record))
            ],
        )
        indexed = start + len(records)
        self._db.execute(
            "UPDATE conversations SET epoch = ?, indexed = ?, anchor = ? WHERE number = ?",
            (log.epoch, indexed, anchor_of(records[-1]), number),
        )
        return len(log) - indexed

    def forget(self, conversation_id: str) -> None:
        """Remove a conversation."""
        with _transaction(self._db):
            number, _ = self._watermark(conversation_id)
            if number:
                self._remove(number)

    def watermarks(self, after: str = "", limit: int = 100) -> list[Watermark]:
        """How far conversations are indexed, in the order of their ids, from behind `after` on."""
        rows = self._db.execute(
            "SELECT id, epoch, indexed, anchor FROM conversations WHERE id > ? ORDER BY id LIMIT ?",
            (_key(after), limit),
        )
        return [Watermark(bytes(key).decode(), *rest) for key, *rest in rows]

    def _watermark(self, conversation_id: str) -> tuple[int, Watermark]:
        row = self._db.execute(
            "SELECT number, epoch, indexed, anchor FROM conversations WHERE id = ?",
            (_key(conversation_id),),
        ).fetchone()
        if row is None:
            return 0, Watermark(conversation_id, 0, 0, "")
        return row[0], Watermark(conversation_id, *row[1:])

    def _remove(self, number: int) -> None:
        low, high = number << _BITS, (number + 1) << _BITS
        self._db.execute("DELETE FROM messages WHERE rowid >= ? AND rowid < ?", (low, high))
        self._db.execute("DELETE FROM conversations WHERE number = ?", (number,))

    # -- searching -------------------------------------------------------------------------------

    def search(
        self, conversation_id: str, epoch: int, text: str, *, upto: int, limit: int
    ) -> tuple[Hit, ...]:
        """The best hits for any of the words of `text` among the first `upto` messages.

        Scores are bm25's over all conversations, positive, higher is better; of equal ones the
        newer message comes first. Nothing for another epoch than the indexed one.
        """
        expression = match_expression(text)
        number, mark = self._watermark(conversation_id)
        if expression is None or not number or mark.epoch != epoch or upto < 1:
            return ()
        base = number << _BITS
        rows = self._db.execute(
            "SELECT rowid, -bm25(messages) AS score FROM messages WHERE messages MATCH ? "
            "AND rowid >= ? AND rowid < ? ORDER BY score DESC, rowid DESC LIMIT ?",
            (expression, base, base + upto, limit),
        )
        return tuple(Hit(rowid - base, score) for rowid, score in rows)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the file cannot be used any more (and not: full, locked, busy)."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and (code & 0xFF) in _BROKEN


def anchor_of(record: Record) -> str:
    """What tells a record from another one at the same place of another log."""
    return f"{record.seq}@{record.time.isoformat()}"


def _is_other(log: Log, mark: Watermark) -> bool:
    return mark.indexed <= len(log) and anchor_of(log[mark.indexed - 1]) != mark.anchor


def _terms(record: Record) -> str:
    """The terms of a message; system messages are always shown, and need not be found."""
    if record.message is None or record.message.role == "system":
        return ""
    return " ".join(search_terms(turn_text(record_turn(record))[:MAX_CHARACTERS]))


def _key(conversation_id: str) -> bytes:
    return conversation_id.encode()


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """A write transaction from its beginning: what it reads nobody changes meanwhile."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _check_full_text_search() -> None:
    db = sqlite3.connect(":memory:")
    try:
        db.execute("CREATE VIRTUAL TABLE probe USING fts5(terms)")
    except sqlite3.OperationalError as error:
        raise FullTextSearchMissing from error
    finally:
        db.close()
