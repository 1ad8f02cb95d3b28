"""Blobs: bytes under their own hash, for what is too big to be carried about (C13…C17)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from .session_errors import BlobRefError, BlobTenantError

MIN_AGE = 3600.0
"""Seconds for which a blob that nothing holds is kept by default."""

_MARK = "/sha256:"
_DIGITS = frozenset("0123456789abcdef")


class Collected(NamedTuple):
    """What a collection removed: how many blobs, of how many bytes together."""

    blobs: int
    bytes: int


class BlobStore(Protocol):
    """Content-addressed bytes of tenants that cannot see each other's. All methods return Futures.

    A ref reads `<tenant>/sha256:<64 hex>`; the hash is that of the bytes, so the same bytes put
    twice by a tenant are one blob. What holds a blob keeps it from being collected.
    """

    def put(self, tenant: str, data: bytes) -> Any:
        """Store bytes; the ref. Renews the age, and repairs a damaged blob (C13, C15, C17)."""
        ...

    def get(self, tenant: str, ref: str) -> Any:
        """The bytes. Raises BlobRefError, BlobTenantError, BlobNotFound, BlobIntegrityError."""
        ...

    def hold(self, tenant: str, ref: str, holder: str) -> Any:
        """Keep the blob until the holder lets go; holding twice is holding once."""
        ...

    def release(self, holder: str) -> Any:
        """Let go of everything that the holder holds."""
        ...

    def collect(self, min_age: float = MIN_AGE) -> Any:
        """Remove blobs without holder that were put more than `min_age` seconds ago: Collected."""
        ...


def check_tenant(tenant: object) -> str:
    """Return the tenant's name: 1 to 128 characters, no '/'. Raises BlobTenantError."""
    if not isinstance(tenant, str) or not 1 <= len(tenant) <= 128 or "/" in tenant:
        raise BlobTenantError(tenant)
    try:
        tenant.encode()
    except UnicodeEncodeError:
        raise BlobTenantError(tenant) from None
    return tenant


def blob_ref(tenant: str, digest: bytes) -> str:
    """The ref of a blob with this SHA-256."""
    return f"{tenant}{_MARK}{digest.hex()}"


def parse_ref(tenant: str, ref: object) -> bytes:
    """The SHA-256 that a ref names. Raises BlobRefError, BlobTenantError (another's)."""
    if not isinstance(ref, str):
        raise BlobRefError(ref)
    owner, mark, digits = ref.partition(_MARK)
    if not mark or len(digits) != 64 or not _DIGITS.issuperset(digits) or not owner or "/" in owner:
        raise BlobRefError(ref)
    if owner != tenant:
        raise BlobTenantError(tenant, ref)
    return bytes.fromhex(digits)


def refs_in(value: object) -> Iterator[object]:
    """Every ref that plain data mentions, as `{"$blob": ref}` (C16)."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if len(item) == 1 and "$blob" in item:
                yield item["$blob"]
            else:
                stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
