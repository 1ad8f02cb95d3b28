"""What blob operations do to rows (C13…C17), one transaction each; errors change nothing."""

from __future__ import annotations

from hashlib import sha256

from .blob_store import Collected, blob_ref, parse_ref, refs_in
from .session_errors import BlobIntegrityError, BlobNotFound
from .session_rows import BLOB, BLOB_DATA, HOLD, RECORD_HOLDS, Rows, pack, short_hash, unpack

STEP = 500
"""Most blobs looked at in one step of a collection: others wait no longer than that."""

_KEY_SIZE = 16 + 32


def _key(tenant: str, digest: bytes) -> bytes:
    return short_hash(tenant.encode()) + digest


def put(rows: Rows, tenant: str, data: bytes, digest: bytes, now: float) -> str:
    """Store bytes under their digest; a damaged blob is repaired, the age begins anew."""
    key = _key(tenant, digest)
    known = rows.get(BLOB + key)
    holds = unpack(known)[3] if known is not None else 0
    if rows.get(BLOB_DATA + key) != data:
        rows.put(BLOB_DATA + key, data)
    rows.put(BLOB + key, pack((tenant, len(data), now, holds)))
    return blob_ref(tenant, digest)


def get(rows: Rows, tenant: str, ref: str) -> bytes:
    """The bytes, hashed again."""
    digest = parse_ref(tenant, ref)
    data = rows.get(BLOB_DATA + _key(tenant, digest))
    if data is None:
        raise BlobNotFound(ref)
    if sha256(data).digest() != digest:
        raise BlobIntegrityError(ref)
    return bytes(data)


def hold(rows: Rows, tenant: str, ref: object, holder: bytes) -> None:
    """Make `holder` (short_hash of its name) hold a blob."""
    key = _key(tenant, parse_ref(tenant, ref))
    known = rows.get(BLOB + key)
    if known is None:
        raise BlobNotFound(str(ref))
    if rows.get(HOLD + holder + key) is not None:
        return
    owner, size, born, holds = unpack(known)
    rows.put(HOLD + holder + key, b"\1")
    rows.put(BLOB + key, pack((owner, size, born, holds + 1)))


def hold_all(rows: Rows, tenant: str, value: object, holder: bytes) -> bool:
    """Make `holder` hold every blob that plain data mentions; False if it mentions none."""
    found = False
    for ref in refs_in(value):
        hold(rows, tenant, ref, holder)
        found = True
    return found


def check_all(rows: Rows, tenant: str, value: object) -> bool:
    """Raise what `hold_all` would, and change nothing; False if no blob is mentioned."""
    found = False
    for ref in refs_in(value):
        if rows.get(BLOB + _key(tenant, parse_ref(tenant, ref))) is None:
            raise BlobNotFound(str(ref))
        found = True
    return found


def release(rows: Rows, holder: bytes) -> None:
    """Let go of what `holder` holds."""
    first = HOLD + holder
    for name, _ in list(rows.scan(first, first + b"\xff" * (_KEY_SIZE + 1))):
        key = name[len(first) :]
        known = rows.get(BLOB + key)
        if known is not None:
            owner, size, born, holds = unpack(known)
            rows.put(BLOB + key, pack((owner, size, born, max(0, holds - 1))))
        rows.delete(name)


def drop(rows: Rows, place: bytes) -> None:
    """Remove a row and let go of the blobs that it mentions; nearly always there are none."""
    value = rows.get(place)
    if value is not None and b"$blob" in value:
        release(rows, short_hash(place))
    rows.delete(place)


def hold_for_records(
    rows: Rows, tenant: str, refs: tuple[str, ...], conversation_id: str, epoch: int
) -> None:
    """Let the records of a conversation hold blobs, for as long as its epoch lasts (C16)."""
    holder = short_hash(b"records", conversation_id.encode(), b"%d" % epoch)
    rows.put(RECORD_HOLDS + holder, pack((conversation_id, epoch)))
    for ref in refs:
        hold(rows, tenant, ref, holder)


def keep_for_records(
    rows: Rows,
    tenant: str,
    data: bytes,
    digest: bytes,
    now: float,
    conversation_id: str,
    epoch: int,
) -> str:
    """Store bytes that a record of a conversation is about to mention, held from the start."""
    ref = put(rows, tenant, data, digest, now)
    hold_for_records(rows, tenant, (ref,), conversation_id, epoch)
    return ref


def held_for_records(rows: Rows, conversation_id: str, epoch: int) -> list[str]:
    """The refs of the blobs that the records of a conversation hold."""
    first = HOLD + short_hash(b"records", conversation_id.encode(), b"%d" % epoch)
    refs = []
    for name, _ in rows.scan(first, first + b"\xff" * (_KEY_SIZE + 1)):
        key = name[len(first) :]
        known = rows.get(BLOB + key)
        if known is not None:
            refs.append(blob_ref(unpack(known)[0], key[-32:]))
    return refs


def record_holds(rows: Rows) -> list[tuple[str, int]]:
    """The conversations and epochs whose records hold blobs."""
    found = rows.scan(RECORD_HOLDS, RECORD_HOLDS + b"\xff" * 17)
    return [(conversation_id, epoch) for conversation_id, epoch in (unpack(v) for _, v in found)]


def release_records(rows: Rows, cleared: list[tuple[str, int]]) -> None:
    """Let go of what the records of conversations that were cleared have held."""
    for conversation_id, epoch in cleared:
        holder = short_hash(b"records", conversation_id.encode(), b"%d" % epoch)
        release(rows, holder)
        rows.delete(RECORD_HOLDS + holder)


def collect(rows: Rows, after: bytes, born_before: float) -> tuple[Collected, bytes | None]:
    """Remove unheld old blobs among the next `STEP` after a key; also where to go on, or None."""
    first = BLOB + after + b"\0" if after else BLOB
    looked: list[tuple[bytes, bytes]] = []
    for item in rows.scan(first, BLOB + b"\xff" * (_KEY_SIZE + 1)):
        looked.append(item)
        if len(looked) == STEP:
            break
    blobs = size = 0
    for key, value in looked:
        _, length, born, holds = unpack(value)
        if holds == 0 and born <= born_before:
            rows.delete(key)
            rows.delete(BLOB_DATA + key[1:])
            blobs, size = blobs + 1, size + length
    following = looked[-1][0][1:] if len(looked) == STEP else None
    return Collected(blobs, size), following
