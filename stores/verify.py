"""Walks everything a store holds and reports what is wrong (`keepwell store verify`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from .codec import decode_body
from .disk_engine import DiskEngine
from .errors import DamagedStore
from .open_turns import is_indexed, is_open_after, strays
from .row import HEADER, ID_VALUE, NUMBER_KEY, ROW_KEY, SPOKEN, header_of

STEP = 2000
"""Rows read in one transaction: the walk never holds a snapshot for long (LMDB would grow)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; `conversation_id` and `seq` where it can be told."""

    what: str
    conversation_id: str | None = None
    seq: int | None = None

    def __str__(self) -> str:
        where = "" if self.conversation_id is None else f"conversation {self.conversation_id!r}"
        where += "" if self.seq is None else f", record {self.seq}"
        return f"{where}: {self.what}" if where else self.what


@dataclass(slots=True)
class Report:
    """What a walk found: counts, and problems (none: the store is sound)."""

    conversations: int = 0
    records: int = 0
    messages: int = 0
    tokens: int = 0
    bytes: int = 0
    append_ids: int = 0
    problems: list[Problem] = field(default_factory=list)


def verify(engine: DiskEngine, progress: Callable[[int], object] | None = None) -> Report:
    """Walk all conversations: gaps, counts, running totals, token sums, checksums, append ids,
    the index of open turns.

    Each conversation is checked at its cursor when the walk comes to it, so it may run beside the
    owner. `progress` is called with the number of records checked so far. Changes nothing.
    """
    report = Report()
    numbers: set[int] = set()
    after: str | None = None
    while page := engine.conversations(after=after, limit=200):
        for info in page:
            after = info.conversation_id
            _conversation(engine, info.conversation_id, report, numbers)
            if progress is not None:
                progress(report.records)
    _append_ids(engine, report)
    report.problems += [Problem("the index of open turns has it, the store has not", name)
                        for name in strays(engine)]
    return report


def _conversation(engine: DiskEngine, conversation_id: str, report: Report,
                  numbers: set[int]) -> None:
    def wrong(what: str, seq: int | None = None) -> None:
        report.problems.append(Problem(what, conversation_id, seq))

    info = engine.info(conversation_id)
    conversation, view = engine.at(conversation_id, info.epoch)
    if conversation is None or not view.cursor:
        return  # cleared meanwhile
    report.conversations += 1
    if conversation.number in numbers:
        wrong("its rows are another conversation's, too")
    numbers.add(conversation.number)
    stored = conversation.stored
    messages = tokens = 0
    expected = 1
    is_open = False
    for key, value in _rows(engine, conversation.number, view.epoch, stored):
        seq = ROW_KEY.unpack(key)[2]
        if seq != expected:
            wrong(f"records {expected} to {seq - 1} are missing", expected)
        expected = seq + 1
        try:
            header = header_of(value)
            body = value[HEADER.size:]
            if crc32(body) != header.check:
                wrong("its checksum does not match", seq)
            message, turn_id, mark = decode_body(body)
            if turn_id is not None:
                is_open = is_open_after(mark)
        except ValueError as problem:
            wrong(str(problem), seq)
            continue
        messages += header.flags & SPOKEN
        tokens += header.tokens
        if (message is not None) != bool(header.flags & SPOKEN):
            wrong("its header and its body disagree on whether it has a message", seq)
        if (header.messages_so_far, header.tokens_so_far) != (messages, tokens):
            wrong("its running totals are not the sums of the records before it", seq)
            messages, tokens = header.messages_so_far, header.tokens_so_far
        report.bytes += len(value)
    if expected != stored + 1:
        wrong(f"records {expected} to {stored} are missing", expected)
    waiting = view.records[max(0, stored + 1 - view.base):view.cursor - view.base + 1]
    if [record.seq for record in waiting] != list(range(stored + 1, view.cursor + 1)):
        wrong("the records that wait in the batch log do not follow those in the table")
    messages += sum(record.message is not None for record in waiting)
    tokens += sum(record.tokens for record in waiting)
    if (messages, tokens) != (view.total, view.tokens):
        wrong(f"it says {view.total} messages and {view.tokens} tokens, it has {messages} "
              f"and {tokens}")
    for record in waiting:
        if record.turn_id is not None:
            is_open = is_open_after(record.mark)
    if is_indexed(engine, conversation.key) != is_open and engine.info(conversation_id) == info:
        wrong("the index of open turns says that its newest turn is "
              f"{'ended' if is_open else 'open'}, its log says the contrary")
    report.records += view.cursor
    report.messages += messages
    report.tokens += tokens


def _rows(engine: DiskEngine, number: int, epoch: int, last: int) -> Iterator[tuple[bytes, bytes]]:
    start, stop = ROW_KEY.pack(number, epoch, 0), ROW_KEY.pack(number, epoch, last)
    yield from _walk(engine, engine.tables.rows, start, stop)


def _walk(engine: DiskEngine, table: Any, start: bytes,
          stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The items of a table from `start` to `stop`, in short transactions."""
    while True:
        items: list[tuple[bytes, bytes]] = []
        with engine.environment.read() as txn, txn.cursor(db=table) as cursor:
            if cursor.set_range(start):
                for key, value in cursor:
                    if key > stop or len(items) >= STEP:
                        break
                    items.append((key, value))
        yield from items
        if len(items) < STEP:
            return
        start = items[-1][0] + b"\0"


def _append_ids(engine: DiskEngine, report: Report) -> None:
    for key, value in _walk(engine, engine.tables.ids, b"\0", b"\xff" * 16):
        report.append_ids += 1
        if len(value) != ID_VALUE.size + 16 or len(key) <= NUMBER_KEY.size:
            report.problems.append(Problem(f"append id {key!r} cannot be read"))


def check(engine: DiskEngine) -> None:
    """Raise `DamagedStore` with the first problem of `verify`, if there is one."""
    report = verify(engine)
    if report.problems:
        first = report.problems[0]
        raise DamagedStore(engine.path, first.what, conversation_id=first.conversation_id,
                           seq=first.seq)
