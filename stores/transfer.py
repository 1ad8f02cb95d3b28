"""Conversations as JSON Lines, for other programs and other machines.

The first line is `{"keepwell": "conversations", "format": 1}`. Then, for each conversation, a line
`{"conversation": id, "records": n}` and a line for each record: `{"seq", "message", "turn_id",
"tokens", "counter", "time", "mark"}`. What JSON has no form for is tagged: `{"$bytes": base64}`,
`{"$datetime": iso}`, `{"$float": "nan"}`, `{"$int": hex}` from 2**53 on; a mapping with a key that
begins with `$` is `{"$mapping": [[key, value], …]}`.

Epochs and append ids belong to a store and are not exported.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zlib import crc32

from ..actors.errors import InvalidValue
from .codec import encode_body
from .conversation import EPOCH_TIME
from .disk_engine import DiskEngine
from .engine import Engine
from .errors import DamagedStore, shown
from .message import Message
from .record import NewRecord, Record
from .request import Append, Part, payload_digest

FORMAT = 1
_PLAIN_INT = 1 << 53  # beyond, other programs' JSON numbers lose digits
BATCH = 500
"""Most records of one append of an import."""


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


def export(engine: Engine, *, prefix: str = "",
           skip: Callable[[DamagedStore], object] | None = None) -> Iterator[str]:
    """The lines of an export, each with its newline; reads in short steps, beside the owner.

    A damaged record raises `DamagedStore`, or is left out and given to `skip`.
    """
    yield _line({"keepwell": "conversations", "format": FORMAT})
    after: str | None = None
    while page := engine.conversations(prefix=prefix, after=after, limit=200):
        for info in page:
            after = info.conversation_id
            conversation, view = engine.at(info.conversation_id, info.epoch)
            if conversation is None:
                continue
            yield _line({"conversation": info.conversation_id, "records": view.cursor})
            for first in range(1, view.cursor + 1, 200):
                last = min(first + 199, view.cursor)
                try:
                    records: Iterable[Record] = engine.records(conversation, view, first, last)
                except DamagedStore:
                    records = _one_by_one(engine, info.conversation_id, info.epoch, first, last,
                                          skip)
                for record in records:
                    yield _line(_plain(record))


def _one_by_one(engine: Engine, conversation_id: str, epoch: int, first: int, last: int,
                skip: Callable[[DamagedStore], object] | None) -> Iterator[Record]:
    for seq in range(first, last + 1):
        try:
            yield from engine.span(conversation_id, epoch, seq, seq)
        except DamagedStore as damaged:
            if skip is None:
                raise
            skip(damaged)


def import_lines(engine: DiskEngine, lines: Iterable[str],
                 progress: Callable[[int], object] | None = None) -> Transferred:
    """Store what `export` wrote, with its token counts and times; conversations must be new.

    Each append is whole or not there; an import that was interrupted is run again and goes on
    where it ended. Raises `InvalidExport` naming the line, `InvalidMessage`, `DiskFull`, and
    `AppendConflict` or `CursorConflict` if a conversation holds something else.
    """
    conversation_id: str | None = None
    batch: list[tuple[Part, str, int]] = []
    conversations = records = cursor = 0
    begun = False

    def flush() -> None:
        nonlocal batch, cursor, records
        if conversation_id is None or not batch:
            return
        parts = tuple(part for part, _, _ in batch)
        request = Append.restored(conversation_id, parts, batch[0][1], payload_digest(parts), None)
        request.append_id, request.cursor = f"import/{cursor}", cursor
        request.micros = batch[0][2]
        (answer,) = engine.commit([request])
        if isinstance(answer, BaseException):
            raise answer
        cursor += len(parts)
        records += len(parts)
        batch = []
        if progress is not None:
            progress(records)

    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        item = _parsed(number, line)
        if number == 1:
            if item.get("keepwell") != "conversations" or item.get("format") != FORMAT:
                raise InvalidExport(number, f"it does not begin with {FORMAT=} of conversations")
            begun = True
        elif "conversation" in item:
            flush()
            conversation_id, cursor = item["conversation"], 0
            conversations += 1
        elif conversation_id is None:
            raise InvalidExport(number, "a record stands before its conversation")
        else:
            part, counter, micros = _part(number, item)
            if batch and ((counter, micros) != batch[0][1:] or len(batch) >= BATCH):
                flush()
            batch.append((part, counter, micros))
    if not begun:
        raise InvalidExport(1, "it is empty")
    flush()
    return Transferred(conversations, records)


def _part(number: int, item: dict[str, Any]) -> tuple[Part, str, int]:
    try:
        message = None if item["message"] is None else Message.from_dict(_value(item["message"]))
        record = NewRecord(message, item["turn_id"], _value(item["mark"]))
        tokens, counter = int(item["tokens"]), str(item["counter"])
        since = datetime.fromisoformat(item["time"]) - EPOCH_TIME
    except (KeyError, TypeError, ValueError) as problem:
        raise InvalidExport(number, f"this is no record ({shown(problem)})") from problem
    body = encode_body(record.message, record.turn_id, record.mark)
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return (record.message, record.turn_id, record.mark, body, crc32(body), tokens), counter, micros


def _parsed(number: int, line: str) -> dict[str, Any]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise InvalidExport(number, f"it is no JSON ({problem})") from problem
    if not isinstance(item, dict):
        raise InvalidExport(number, f"it is no object but {shown(item)}")
    return item


def _plain(record: Record) -> dict[str, Any]:
    message = record.message
    return {"seq": record.seq, "message": None if message is None else _tagged(message.to_dict()),
            "turn_id": record.turn_id, "tokens": record.tokens, "counter": record.counter,
            "time": record.time.isoformat(), "mark": _tagged(record.mark)}


def _tagged(value: Any) -> Any:
    if type(value) is int and not -_PLAIN_INT < value < _PLAIN_INT:
        return {"$int": hex(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat(), "fold": value.fold}
    if isinstance(value, Mapping):
        if any(key.startswith("$") for key in value):
            return {"$mapping": [[key, _tagged(item)] for key, item in value.items()]}
        return {key: _tagged(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tagged(item) for item in value]
    return value


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$int" in value:
        return int(value["$int"], 16)
    if "$float" in value:
        return float(value["$float"])
    if "$bytes" in value:
        return base64.b64decode(value["$bytes"], validate=True)
    if "$datetime" in value:
        return datetime.fromisoformat(value["$datetime"]).replace(fold=value.get("fold", 0))
    if "$mapping" in value:
        return {key: _value(item) for key, item in value["$mapping"]}
    return {key: _value(item) for key, item in value.items()}


def _line(item: dict[str, Any]) -> str:
    return json.dumps(item, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"
