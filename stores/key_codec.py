"""Keys as bytes whose order is the order of the keys.

LMDB compares keys as byte strings, so a disk table that keeps ordered_set's order needs an encoding
with `encode(a) < encode(b)` exactly when a sorts before b (`term_order`). It has two more
properties that the row layout leans on: no encoding is the beginning of another (a sequence number
may follow), and equal encodings mean the same key.

- A number is a tag for its sign, then the exponent of its leading bit, then the bits after it in
  chunks of eight bytes, each followed by a byte that says whether another one comes. An int and a
  float of the same value get the same bytes; with `exact=True` a last byte tells them apart. After
  the tag of a negative number every byte is complemented, which turns the order round.
- Text is UTF-8 (whose byte order is the order of code points) with 00 written as 00 FF, ended by
  00 01.
- Tuples and dicts begin with their size, as Erlang compares them by size first. Lists have a byte 1
  before each item and 0 at the end.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from .term_order import MAX_DEPTH, WORDS, Atom, Term, UnusableKey, order_key

_NEGATIVE: Final = 0x10
_ZERO: Final = 0x11
_POSITIVE: Final = 0x12
_WORD: Final = 0x20
_TUPLE: Final = 0x40
_DICT: Final = 0x50
_LIST: Final = 0x60
_TEXT: Final = 0x70
_BYTES: Final = 0x71

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")

_BIAS: Final = 2048
"""Added to exponents, so that the smallest of a float (-1073) is positive."""
_WIDE: Final = 0xFFFF
"""Stands before an exponent that does not fit into two bytes (an int of over 63,000 bits)."""
_INFINITE: Final = 0xFFFFFFFF
_INT, _FLOAT = b"\x00", b"\x01"

_COMPLEMENT: Final = bytes(255 - byte for byte in range(256))


def encode_key(term: Term, *, exact: bool) -> bytes:
    """Encode a key; `exact` tells 1 from 1.0, else they are one (ordered_set).

    Raises UnusableKey for what has no place in the order or cannot be stored (refs, NaN, other
    objects, more than `MAX_DEPTH` levels).
    """
    out = bytearray()
    _encode(term, exact, out, 0)
    return bytes(out)


def _encode(term: Term, exact: bool, out: bytearray, depth: int) -> None:
    kind = type(term)
    if kind is str:
        _encode_bytes(_TEXT, term.encode("utf-8", "surrogatepass"), out)
    elif kind is int:
        _encode_int(term, out)
        if exact:
            out += _INT
    elif kind is float:
        _encode_float(term, out)
        if exact:
            out += _FLOAT
    elif kind is bytes:
        _encode_bytes(_BYTES, term, out)
    elif term is None or kind is bool:
        _encode_bytes(_WORD, WORDS[term].encode(), out)
    elif kind is Atom:
        _encode_bytes(_WORD, term.encode("utf-8", "surrogatepass"), out)
    elif depth >= MAX_DEPTH:
        raise UnusableKey(f"a key may nest {MAX_DEPTH} levels deep, not more")
    elif kind is tuple:
        out.append(_TUPLE)
        out += _U32.pack(len(term))
        for item in term:
            _encode(item, exact, out, depth + 1)
    elif kind is list:
        out.append(_LIST)
        for item in term:
            out.append(1)
            _encode(item, exact, out, depth + 1)
        out.append(0)
    elif kind is dict:
        out.append(_DICT)
        out += _U32.pack(len(term))
        keys = sorted(term, key=lambda k: (order_key(k), type(k) is float))
        for key in keys:
            # Always exact: the keys inside a dict are compared so (`order_key`).
            _encode(key, True, out, depth + 1)
        for key in keys:
            _encode(term[key], exact, out, depth + 1)
    else:
        raise UnusableKey(
            f"a {kind.__name__} cannot be a key on disk: use numbers, str, bytes, bool, None, and "
            "tuples, lists and dicts of them"
        )


def _encode_bytes(tag: int, raw: bytes, out: bytearray) -> None:
    out.append(tag)
    out += raw.replace(b"\x00", b"\x00\xff") if b"\x00" in raw else raw
    out += b"\x00\x01"


def _encode_int(number: int, out: bytearray) -> None:
    if not number:
        out.append(_ZERO)
        return
    magnitude = abs(number)
    length = magnitude.bit_length()
    _encode_magnitude(number < 0, length, magnitude, length, out)


def _encode_float(number: float, out: bytearray) -> None:
    if not number:
        out.append(_ZERO)
    elif math.isnan(number):
        raise UnusableKey("NaN is not equal to itself and could never be found again")
    elif math.isinf(number):
        body = _U16.pack(_WIDE) + _U32.pack(_INFINITE)
        out.append(_NEGATIVE if number < 0 else _POSITIVE)
        out += body.translate(_COMPLEMENT) if number < 0 else body
    else:
        fraction, exponent = math.frexp(abs(number))
        # 0.5 <= fraction < 1, so that 53 bits hold it and the first of them is set.
        _encode_magnitude(number < 0, exponent, int(math.ldexp(fraction, 53)), 53, out)


def _encode_magnitude(
    negative: bool, exponent: int, bits: int, length: int, out: bytearray
) -> None:
    """Append sign, exponent and `bits` (its leading bit set, `length` bits long)."""
    biased = exponent + _BIAS
    if biased < _WIDE:
        body = bytearray(_U16.pack(biased))
    else:
        if biased >= _INFINITE:
            raise UnusableKey("an int of over four thousand million bits cannot be a key")
        body = bytearray(_U16.pack(_WIDE) + _U32.pack(biased))
    chunks = -(-length // 64)
    raw = (bits << (chunks * 64 - length)).to_bytes(chunks * 8, "big")
    # Zeros at the end say nothing and would tell 2**100 from the float of the same value.
    significant = -(-len(raw.rstrip(b"\x00")) // 8) * 8
    for start in range(0, significant, 8):
        body += raw[start : start + 8]
        body.append(start + 8 < significant)
    out.append(_NEGATIVE if negative else _POSITIVE)
    out += body.translate(_COMPLEMENT) if negative else body
