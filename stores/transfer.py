"""Conversations as JSON Lines, for other programs and other machines.

The first line is `{"keepwell": "conversations", "format": 2}`. Then, for each conversation, a line
`{"conversation": id, "epoch": e, "records": n}` (without records: it was cleared, and its epoch
still counts) and a line for each record: `{"seq", "message", "turn_id", "tokens", "counter",
"time", "mark"}`. The first record of an append that had an append id has `"append"` too: `{"id",
"records", "digest"}`, so that a retry that comes after the import is recognised (CS-15). Ids of
more than 200 bytes are known by their hash only: `{"$bytes": base64}`. Append ids from before a
clear stand between the two, as `{"append": {"id", "records", "digest", "epoch", "first_seq"}}`
(CS-16). Values are in the form of `json_lines`; large contents that are kept beside the log are
carried by `blob_transfer`.

The last line is `{"end": true}`: without it the file was cut short.

Format 1 had no epochs, append ids or end; it is read as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from zlib import crc32

from ..actors.errors import InvalidValue
from .append_ids import append_ids, remember
from .blob_transfer import blob_lines, keep_blob
from .codec import encode_body
from .conversation import EPOCH_TIME, moment
from .conversation_id import is_temporary
from .disk_engine import DiskEngine
from .errors import CursorConflict, DamagedStore, StaleEpoch, shown
from .json_lines import line, tagged, untagged
from .message import Message
from .record import NewRecord, Record
from .request import Append, Clear, Part, payload_digest
from .row import LONG_ID_BYTES, MAX_EPOCH, MAX_SEQ, NUMBER_KEY, IdEntry, head_of, id_key

FORMAT = 2
BATCH = 500
"""Most appends of one commit of an import, and most records of an append without append id."""

MAX_IMPORTED_EPOCH = MAX_EPOCH // 2
"""Nobody clears as often; what came with the last epoch there is could never be cleared."""

FAULTS = (KeyError, TypeError, ValueError, OverflowError, RecursionError)
"""What reading values that no export writes may raise."""


class InvalidExport(InvalidValue):
    """A line of an import is not what an export writes; `line` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}. Give a file that `keepwell store export` wrote.")
        self.line, self.problem = line, problem


@dataclass(frozen=True, slots=True)
class Transferred:
    """How much an import stored (or found stored by an earlier run of the same import)."""

    conversations: int
    records: int


# -- export ---------------------------------------------------------------------------------------


def export(engine: DiskEngine, *, prefix: str = "",
           skip: Callable[[DamagedStore], object] | None = None) -> Iterator[str]:
    """The lines of an export, each with its newline; reads in short steps, beside the owner.

    Holds the append ids of one conversation at a time. A damaged record raises `DamagedStore`, or
    is left out and given to `skip`.
    """
    yield line({"keepwell": "conversations", "format": FORMAT})
    after: str | None = None
    while page := engine.conversations(prefix=prefix, after=after, limit=200):
        for info in page:
            after = info.conversation_id
            yield from _conversation(engine, info.conversation_id, info.epoch, skip)
    for conversation_id in _cleared(engine, prefix):
        if not is_temporary(conversation_id):
            epoch = engine.info(conversation_id).epoch
            yield from _conversation(engine, conversation_id, epoch, skip)
    yield line({"end": True})


def _cleared(engine: DiskEngine, prefix: str) -> list[str]:
    """Ids of the conversations that were cleared and have no records, in key order."""
    start = prefix.encode("utf-8", "surrogatepass")[:200]
    with engine._lock:
        waiting = {key: conversation for key, conversation in engine.pending.conversations.items()
                   if key.startswith(start)}
        found = {key: conversation.conversation_id for key, conversation in waiting.items()
                 if not conversation.view.cursor}
    with engine.environment.read() as txn, txn.cursor(db=engine.tables.cleared) as cursor:
        if cursor.set_range(start) if start else cursor.first():
            for key, value in cursor:
                if not key.startswith(start):
                    break
                if key not in waiting:
                    found[key] = head_of(value, engine.path).conversation_id
    return [found[key] for key in sorted(found) if found[key].startswith(prefix)]


def _conversation(engine: DiskEngine, conversation_id: str, epoch: int,
                  skip: Callable[[DamagedStore], object] | None) -> Iterator[str]:
    conversation, view = engine.at(conversation_id, epoch)
    if conversation is None:
        return
    yield line({"conversation": conversation_id, "epoch": epoch, "records": view.cursor})
    appends: dict[int, tuple[bytes, IdEntry]] = {}
    blobs: set[str] = set()
    for name, entry in append_ids(engine, conversation):
        if entry.epoch < epoch:
            yield line({"append": {**_append(name, entry), "epoch": entry.epoch,
                                   "first_seq": entry.first_seq}})
        elif entry.epoch == epoch and entry.first_seq + entry.size <= view.cursor + 1:
            appends[entry.first_seq] = name, entry
    for first in range(1, view.cursor + 1, 200):
        last = min(first + 199, view.cursor)
        try:
            records: Iterable[Record] = engine.records(conversation, view, first, last)
        except DamagedStore:
            records = _one_by_one(engine, conversation_id, epoch, first, last, skip)
        for record in records:
            yield from blob_lines(engine, record, blobs)
            item = _plain(record)
            if record.seq in appends:
                item["append"] = _append(*appends[record.seq])
            yield line(item)


def _one_by_one(engine: DiskEngine, conversation_id: str, epoch: int, first: int, last: int,
                skip: Callable[[DamagedStore], object] | None) -> Iterator[Record]:
    for seq in range(first, last + 1):
        try:
            yield from engine.span(conversation_id, epoch, seq, seq)
        except DamagedStore as damaged:
            if skip is None:
                raise
            skip(damaged)


def _append(name: bytes, entry: IdEntry) -> dict[str, Any]:
    plain = name if name[:1] == b"\xff" else name.decode("utf-8", "surrogatepass")
    return {"id": tagged(plain), "records": entry.size, "digest": entry.digest.hex()}


def _plain(record: Record) -> dict[str, Any]:
    message = record.message
    return {"seq": record.seq, "message": None if message is None else tagged(message.to_dict()),
            "turn_id": tagged(record.turn_id), "tokens": record.tokens, "counter": record.counter,
            "time": record.time.isoformat(), "mark": tagged(record.mark)}


# -- import ---------------------------------------------------------------------------------------


def import_lines(engine: DiskEngine, lines: Iterable[str],
                 progress: Callable[[int], object] | None = None) -> Transferred:
    """Store what `export` wrote, with token counts, times, epochs and append ids.

    Conversations must be new. Each append is whole or not there; an import that was interrupted is
    run again and goes on where it ended. Raises `InvalidExport` naming the line (of a file that was
    cut short, once what is whole is stored), `InvalidMessage`, `DiskFull`, and `AppendConflict`,
    `CursorConflict` or `StaleEpoch` if a conversation holds something else.
    """
    importing = _Import(engine, progress)
    number = 0
    try:
        for number, text in enumerate(lines, 1):
            if text.strip():
                importing.take(number, _parsed(number, text))
    except UnicodeDecodeError as problem:  # of the file that gives the lines, which reads ahead
        raise InvalidExport(number + 1, f"here or soon after is no UTF-8 ({problem.reason})") \
            from problem
    importing.end(number)
    return Transferred(importing.conversations, importing.records)


class _Name(NamedTuple):
    """What a file says of an append id and the append that had it."""

    append_id: str | bytes
    size: int
    digest: bytes


class _Import:
    """One run: what has been read and is not stored yet."""

    def __init__(self, engine: DiskEngine, progress: Callable[[int], object] | None) -> None:
        self._format = 0
        self._ended = False
        self.conversations = self.records = 0
        self._engine = engine
        self._progress = progress
        self._id: str | None = None
        self._cursor = 0
        self._seq = 0  # of the last record in the file; what was left out has no line
        self._requests: list[Append] = []
        self._cleared: list[tuple[bytes, IdEntry]] = []
        # The append whose records are being read; `end` is the seq behind it in the file.
        self._parts: list[Part] = []
        self._shared = ("", 0)
        self._name: _Name | None = None
        self._end = 0

    def take(self, number: int, item: dict[str, Any]) -> None:
        """Take what line `number` says."""
        if not self._format:
            form = item.get("format")
            if item.get("keepwell") != "conversations" or type(form) is not int \
                    or not 1 <= form <= FORMAT:
                raise InvalidExport(number, f"it does not begin with {FORMAT=} of conversations")
            self._format = form
        elif self._ended:
            raise InvalidExport(number, "it stands behind the end")
        elif "end" in item:
            self._ended = True
            self.flush()
        elif "conversation" in item:
            self.flush()
            self._begin(number, item["conversation"], item.get("epoch", 0))
        elif self._id is None:
            raise InvalidExport(number, "a record stands before its conversation")
        elif "append" in item and "seq" not in item:
            self._cleared.append(_id_entry(number, item["append"]))
        elif "blob" in item:
            try:
                keep_blob(self._engine, self._id, item)
            except ValueError as problem:
                raise InvalidExport(number, str(problem)) from problem
        else:
            self._record(number, item)

    def _begin(self, number: int, conversation_id: str, epoch: object) -> None:
        if type(epoch) is not int or not 0 <= epoch <= MAX_IMPORTED_EPOCH:
            raise InvalidExport(number, f"an epoch is an int from 0 to {MAX_IMPORTED_EPOCH}, "
                                        f"not {shown(epoch)}")
        (refused,) = self._engine.commit([Clear(conversation_id, to=epoch)])
        if isinstance(refused, CursorConflict):  # it has records: stored by an earlier run?
            present = self._engine.info(conversation_id).epoch
            if present != epoch:
                raise StaleEpoch(conversation_id, epoch, present)
        self._id, self._cursor, self._seq = conversation_id, 0, 0
        self.conversations += 1

    def _record(self, number: int, item: dict[str, Any]) -> None:
        part, counter, micros = _part(number, item)
        shared = counter, micros
        seq, name = item["seq"], _name(number, item)
        if seq <= self._seq:
            raise InvalidExport(number, f"its record {seq} stands behind record {self._seq}")
        self._seq = seq
        if self._parts and (name is not None or shared != self._shared
                            or (seq >= self._end if self._name else len(self._parts) >= BATCH)):
            self._end_append()
        if not self._parts:
            self._shared = shared
            self._name = name
            self._end = 0 if name is None else seq + name.size
        self._parts.append(part)

    def _end_append(self) -> None:
        if not self._parts or self._id is None:
            return
        parts, name = tuple(self._parts), self._name
        if name is not None and name.size != len(parts):
            name = None  # a record of it was left out: it is not what was appended under that id
        digest = payload_digest(parts) if name is None else name.digest
        request = Append.restored(self._id, parts, self._shared[0], digest, None)
        request.cursor, request.micros = self._cursor, self._shared[1]
        if name is not None:
            request.append_id = name.append_id
        self._cursor += len(parts)
        self._requests.append(request)
        self._parts = []
        self._name = None
        if len(self._requests) >= BATCH:
            self._store()

    def end(self, number: int) -> None:
        """Store what is left after the last line, `number`, and see whether it is the end."""
        if not self._format:
            raise InvalidExport(1, "it is empty")
        if self._format > 1 and not self._ended:
            if self._name is not None and len(self._parts) < self._name.size:
                self._parts = []  # its append goes on behind the cut: whole or not at all
            self.flush()
            raise InvalidExport(number, "here it was cut short; what is whole up to here is stored")
        self.flush()

    def flush(self) -> None:
        """Store what was read of the conversation."""
        self._end_append()
        self._store()
        if self._cleared and self._id is not None:
            remember(self._engine, self._id, self._cleared)
        self._cleared = []

    def _store(self) -> None:
        requests, self._requests = self._requests, []
        for request, answer in zip(requests, self._engine.commit(requests), strict=True):
            if isinstance(answer, CursorConflict) and request.append_id is None:
                self._go_on(request, answer)
            elif isinstance(answer, BaseException):
                raise answer
            self.records += len(request.parts)
        if self._progress is not None:
            self._progress(self.records)

    def _go_on(self, request: Append, conflict: CursorConflict) -> None:
        """Store what an earlier run has not; it must have stored the rest of just this."""
        engine, name, parts = self._engine, request.conversation_id, request.parts
        before = conflict.given
        stored = engine.span(name, engine.info(name).epoch, before + 1,
                             min(conflict.head, before + len(parts)))
        same = zip(stored, parts, strict=False)
        if conflict.head < before or any(
            encode_body(record.message, record.turn_id, record.mark) != body
            for record, (_, _, _, body, _, _) in same
        ):
            raise conflict
        if len(stored) < len(parts):
            rest = Append.restored(name, parts[len(stored):], request.counter, b"", None)
            rest.cursor, rest.micros = before + len(stored), request.micros
            (answer,) = engine.commit([rest])
            if isinstance(answer, BaseException):
                raise answer


def _part(number: int, item: dict[str, Any]) -> tuple[Part, str, int]:
    """A record's line: the part of an append, its token counter, its time in µs."""
    try:
        _check_count(item["seq"], "seq", 1)
        message = None if item["message"] is None else \
            Message.from_dict(untagged(item["message"]))
        record = NewRecord(message, untagged(item["turn_id"]), untagged(item["mark"]))
        tokens, counter = _check_count(item["tokens"], "tokens"), str(item["counter"])
        since = datetime.fromisoformat(item["time"]) - EPOCH_TIME
        micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        if micros < 0:
            raise ValueError("its time is before 1970")
        moment(micros)
        body = encode_body(record.message, record.turn_id, record.mark)
    except FAULTS as problem:
        raise InvalidExport(number, f"this is no record ({shown(problem)})") from problem
    return (record.message, record.turn_id, record.mark, body, crc32(body), tokens), counter, micros


def _name(number: int, item: dict[str, Any]) -> _Name | None:
    if "append" not in item:
        return None
    try:
        given = item["append"]
        name = _Name(untagged(given["id"]), given["records"], bytes.fromhex(given["digest"]))
        _check_count(name.size, "records", 1)
        _check_count(item["seq"], "seq", 1)
        if not _is_append_id(name.append_id) or len(name.digest) != 16:
            raise ValueError("a field of it is of another kind")
    except FAULTS as problem:
        raise InvalidExport(number, f"this is no append ({shown(problem)})") from problem
    return name


def _id_entry(number: int, given: Any) -> tuple[bytes, IdEntry]:
    """An append id from before a clear."""
    try:
        first, epoch = given["first_seq"], _check_count(given["epoch"], "epoch")
    except FAULTS as problem:
        raise InvalidExport(number, f"this is no append ({shown(problem)})") from problem
    name = _name(number, {"append": given, "seq": first})
    if name is None:
        raise InvalidExport(number, "this is no append")
    key = id_key(0, name.append_id)[NUMBER_KEY.size:]
    return key, IdEntry(epoch, first, name.size, name.digest)


def _is_append_id(value: object) -> bool:
    return bool(value) if isinstance(value, str) else \
        isinstance(value, bytes) and len(value) == LONG_ID_BYTES and value[:1] == b"\xff"


def _check_count(value: object, name: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= MAX_SEQ:
        raise ValueError(f"{name} is an int from {least} to {MAX_SEQ}, not {shown(value)}")
    return value


def _parsed(number: int, text: str) -> dict[str, Any]:
    try:
        item = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InvalidExport(number, f"it is no JSON ({problem})") from problem
    if not isinstance(item, dict):
        raise InvalidExport(number, f"it is no object but {shown(item)}")
    return item
