"""Rows as bytes: msgpack, with the types that msgpack lacks, and a checksum in front.

msgpack gives tuples back as lists and knows ints up to 64 bits only, so tuples, big ints and Atoms
travel as extensions. What cannot be given back as it was put in is refused at the door, with the
place of the value in the row.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final, cast

import msgpack

from .table_errors import BadArgument, shown
from .term_order import Atom

_TUPLE, _BIG_INT, _ATOM = 1, 2, 3

MAX_ROW_BYTES: Final = 64 * 1024 * 1024
"""Largest encoded row, 64 MiB."""

_CHECKSUM: Final = struct.Struct(">I")
_SCALARS: Final = frozenset({int, str, bytes, float, bool, type(None), Atom})
MAX_NESTING: Final = 100
"""How deep the values of a row may nest. What has been encoded can then be decoded from any
sensible depth of calls; msgpack itself gives up at about 500."""


class UnusableRow(BadArgument):
    """A row cannot be stored, with the reason and the place."""


class DamagedRow(ValueError):
    """Stored bytes are no row: the file was changed or the disk returned something else."""


def encode_row(row: tuple[Any, ...]) -> bytes:
    """Encode a row. Raises UnusableRow, naming the place of the value that cannot be stored."""
    if not _SCALARS.issuperset(map(type, row)):
        _find_unusable(row, "row", 0)
    try:
        packed = _pack(row)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnusableRow(f"the row cannot be encoded: {error}") from None
    if len(packed) > MAX_ROW_BYTES:
        raise UnusableRow(f"the row takes {len(packed)} bytes, {MAX_ROW_BYTES} are allowed")
    return _CHECKSUM.pack(zlib.crc32(packed)) + packed


def decode_row(stored: bytes) -> tuple[Any, ...]:
    """Decode a stored row. Raises DamagedRow."""
    if len(stored) < _CHECKSUM.size or zlib.crc32(stored[4:]) != _CHECKSUM.unpack_from(stored)[0]:
        raise DamagedRow("the checksum of a row does not match")
    try:
        row = _unpack(stored[4:])
    except (ValueError, TypeError) as error:
        raise DamagedRow(f"a row cannot be decoded: {error}") from error
    if type(row) is not tuple:
        raise DamagedRow("a stored value is no row")
    return row


def _pack(value: Any) -> bytes:
    return cast(
        "bytes",
        msgpack.packb(value, default=_extend, strict_types=True, unicode_errors="surrogatepass"),
    )


def _extend(value: Any) -> msgpack.ExtType:
    kind = type(value)
    if kind is tuple:
        return msgpack.ExtType(_TUPLE, _pack(list(value)))
    if kind is int:
        size = value.bit_length() // 8 + 1
        return msgpack.ExtType(_BIG_INT, value.to_bytes(size, "big", signed=True))
    if kind is Atom:
        return msgpack.ExtType(_ATOM, value.encode("utf-8", "surrogatepass"))
    raise TypeError(kind.__name__)


def _unpack(packed: bytes) -> Any:
    return msgpack.unpackb(
        packed, ext_hook=_restore, strict_map_key=False, unicode_errors="surrogatepass"
    )


def _restore(code: int, data: bytes) -> Any:
    if code == _TUPLE:
        return tuple(_unpack(data))
    if code == _BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    if code == _ATOM:
        return Atom(data.decode("utf-8", "surrogatepass"))
    raise ValueError(f"extension {code} is unknown")


def _find_unusable(value: Any, path: str, depth: int) -> None:
    """Raise UnusableRow for the first value in `value` that cannot be stored."""
    kind = type(value)
    if kind in _SCALARS:
        return
    if depth > MAX_NESTING:
        raise UnusableRow(f"{path[:80]}…: nests over {MAX_NESTING} levels deep")
    if kind is tuple or kind is list:
        for index, item in enumerate(value):
            _find_unusable(item, f"{path}[{index}]", depth + 1)
    elif kind is dict:
        for key, item in value.items():
            _find_unusable(key, f"{path} (a key)", depth + 1)
            _find_unusable(item, f"{path}[{shown(key)}]", depth + 1)
    else:
        raise UnusableRow(
            f"{path} is a {kind.__name__}, {shown(value)}: a disk table holds None, bool, int, "
            "float, str, bytes, and tuples, lists and dicts of them"
        )
