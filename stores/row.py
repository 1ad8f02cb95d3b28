"""Rows of the conversation tables: keys, headers, heads.

A record's key is (conversation number, epoch, seq), so the log of one epoch is one ascending
range, and a clear only has to move on to the next epoch. Its value is a fixed header and the body
that the caller encoded. The header holds running totals: how many messages, and how many tokens,
the log has up to and including this record. They make "message i" a binary search, and let
`verify` find what was lost.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple, Protocol
from zlib import crc32

from .codec import decode, decode_body, encode
from .conversation import moment
from .errors import DamagedStore
from .record import ConversationInfo, Record

ROW_KEY = Struct(">QII")
"""Conversation number, epoch, seq."""
EPOCH_KEY = Struct(">QI")
NUMBER_KEY = Struct(">Q")

HEADER = Struct(">IBBIIQQ")
"""CRC-32 of the body, flags, counter code, tokens, messages so far, tokens so far, time in µs."""

SPOKEN, SYSTEM = 1, 2
"""Flags of a row: it has a message; that is a system message."""

ID_VALUE = Struct(">IIIQ")
"""Epoch, first seq, count, time in µs; the 16-byte digest follows."""

MAX_EPOCH = MAX_SEQ = (1 << 32) - 1

LONG_ID_BYTES = 33
"""Of what stands for a long append id in a key: 0xFF, which no text begins with, and its hash."""


class IdEntry(NamedTuple):
    """What is known of an append id: where its records went, and the digest of its payload."""

    epoch: int
    first_seq: int
    size: int
    digest: bytes


class RowHeader(NamedTuple):
    """The decoded header of a row."""

    check: int
    flags: int
    counter: int
    tokens: int
    messages_so_far: int
    tokens_so_far: int
    micros: int


def pack_row(header: RowHeader, body: bytes) -> bytes:
    """The value of a record's row."""
    return HEADER.pack(*header) + body


def header_of(value: bytes) -> RowHeader:
    """The header of a row's value. Raises ValueError if it is too short."""
    try:
        return RowHeader._make(HEADER.unpack_from(value))
    except struct_error as problem:
        raise ValueError(f"the row has {len(value)} bytes, fewer than a header") from problem


def record_of(value: bytes, seq: int, counters: dict[int, str]) -> Record:
    """The record of a row's value. Raises ValueError if the row is damaged."""
    header = header_of(value)
    body = value[HEADER.size:]
    if crc32(body) != header.check:
        raise ValueError("its checksum does not match")
    message, turn_id, mark = decode_body(body)
    return Record(seq, message, turn_id, header.tokens, counters.get(header.counter, "unknown"),
                  moment(header.micros), mark)


def id_key(number: int, append_id: str | bytes) -> bytes:
    """The key of an append id: ids that are made one after the other lie side by side.

    Bytes are what follows the number in a key, as an export says it.
    """
    if isinstance(append_id, bytes):
        return NUMBER_KEY.pack(number) + append_id
    name = append_id.encode("utf-8", "surrogatepass")
    if len(name) > 200:
        name = b"\xff" + blake2b(name, digest_size=32).digest()
    return NUMBER_KEY.pack(number) + name


class State(Protocol):
    """What a head row holds of a conversation (see `View`)."""

    epoch: int
    cursor: int
    total: int
    tokens: int
    created: int
    updated: int


def pack_head(conversation_id: str, number: int, state: State) -> bytes:
    """The value of a head row, or of a tombstone (cursor 0)."""
    return encode((conversation_id, number, state.epoch, state.cursor, state.total, state.tokens,
                   state.created, state.updated))


class Head(NamedTuple):
    """The decoded value of a head row."""

    conversation_id: str
    number: int
    epoch: int
    cursor: int
    total: int
    tokens: int
    created: int
    updated: int


def head_of(value: bytes, path: str) -> Head:
    """Decode a head row. Raises `DamagedStore`."""
    try:
        return Head._make(decode(value))
    except (ValueError, TypeError) as problem:
        raise DamagedStore(path, f"a head row cannot be read ({problem})") from problem


def info_of_head(head: Head) -> ConversationInfo:
    """A head row as `ConversationInfo`."""
    return ConversationInfo(head.conversation_id, head.cursor, head.epoch, head.total, head.tokens,
                            moment(head.created) if head.cursor else None,
                            moment(head.updated) if head.cursor else None)
