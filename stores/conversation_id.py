"""Conversation ids: the check at the door, and the key they have on disk (CS-7…9).

An id is any non-empty `str` that UTF-8 can encode, at most 64 KiB. It is never trimmed, folded,
normalised or made a path. LMDB keys end at 511 bytes, so an id of more than 200 bytes is cut and
hashed *in the key only*: its first 200 bytes, 0xFF, and the SHA-256 of all of it. 0xFF occurs in no
UTF-8 text, so such a key never equals that of a short id; and keys sort like the ids they stand
for, which keeps prefix searches a range. The full id is stored in the value and compared.
"""

from __future__ import annotations

from hashlib import sha256

from .errors import InvalidConversationId

TEMPORARY_PREFIX = "keepwell:tmp:"
"""Ids that begin so are ours: conversations of one invocation, cleared at its end (KF-8)."""

LONGEST_PLAIN = 200
LONGEST = 64 * 1024


def conversation_key(conversation_id: object) -> bytes:
    """Check an id and return its key. Raises `InvalidConversationId`."""
    if not isinstance(conversation_id, str):
        raise InvalidConversationId(conversation_id, "it must be a str")
    if not conversation_id:
        raise InvalidConversationId(conversation_id, "it must not be empty")
    try:
        key = conversation_id.encode()
    except UnicodeEncodeError as problem:
        raise InvalidConversationId(
            conversation_id,
            f"it holds a lone surrogate at index {problem.start}, which UTF-8 cannot encode",
        ) from None
    if len(key) <= LONGEST_PLAIN:
        return key
    if len(key) > LONGEST:
        raise InvalidConversationId(
            conversation_id, f"it has {len(key)} bytes, the limit is {LONGEST}"
        )
    return key[:LONGEST_PLAIN] + b"\xff" + sha256(key).digest()


def is_temporary(conversation_id: str) -> bool:
    """Whether the id belongs to a single invocation."""
    return conversation_id.startswith(TEMPORARY_PREFIX)
