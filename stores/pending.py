"""Batches that are in the log table but not yet in the conversations' rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from zlib import crc32

from .codec import decode, decode_body, encode
from .conversation import Conversation
from .conversation_id import conversation_key
from .disk_tables import Packed
from .ledger import Cleared, Written
from .request import Append, Part

_APPEND, _CLEAR = 0, 1

Recall = Callable[[str, bytes, int], Conversation]
"""Give the conversation of an id, its key and its number."""


class Pending:
    """What waits to be moved: its rows, its batches' places, its append ids and conversations.

    Changed by the owner only; `conversations` and `packed.turns` under the engine's lock, because
    listings read them.
    """

    __slots__ = ("bytes", "conversations", "ids", "next_place", "packed", "places")

    def __init__(self) -> None:
        self.next_place = 1
        self.clear()

    def clear(self) -> None:
        """Forget everything: it has been moved."""
        self.packed = Packed()
        self.places: list[int] = []
        self.ids: dict[bytes, bytes] = {}
        self.conversations: dict[bytes, Conversation] = {}
        self.bytes = 0

    def add(self, entries: Sequence[Written | Cleared], packed: Packed) -> None:
        """Take entries whose batch is committed, and what they were packed into."""
        self.packed.extend(packed)
        self.ids.update(packed.ids)
        for entry in entries:
            self.conversations[entry.conversation.key] = entry.conversation

    def keep(self, place: int, size: int) -> None:
        """Note that the batch of the entries added last is at `place`, and its bytes."""
        self.places.append(place)
        self.bytes += size
        self.next_place = place + 1


def pack_batch(entries: Sequence[Written | Cleared], micros: int,
               codes: Mapping[str, int]) -> bytes:
    """A batch as one value: CRC-32, then msgpack. Bodies are taken as the callers encoded them."""
    packed: list[tuple[object, ...]] = []
    for entry in entries:
        conversation = entry.conversation
        if type(entry) is Written:
            request = entry.request
            packed.append((_APPEND, conversation.conversation_id, conversation.number, entry.epoch,
                           entry.first_seq, entry.id_key, request.digest, request.follows,
                           codes[request.counter],
                           [(body, tokens) for _, _, _, body, _, tokens in request.parts],
                           entry.count_before, entry.tokens_before, entry.micros - micros))
        elif type(entry) is Cleared:
            packed.append((_CLEAR, conversation.conversation_id, conversation.number, entry.epoch,
                           entry.had_records))
    value = encode((micros, packed))
    return crc32(value).to_bytes(4, "big") + value


def unpack_batch(value: bytes, counters: Mapping[int, str],
                 recall: Recall) -> Iterator[Written | Cleared]:
    """The entries of a batch, in order. Raises ValueError if it is damaged."""
    if crc32(value[4:]) != int.from_bytes(value[:4], "big"):
        raise ValueError("its checksum does not match")
    micros, packed = decode(value[4:])
    for kind, conversation_id, number, epoch, *rest in packed:
        conversation = recall(conversation_id, conversation_key(conversation_id), number)
        if kind == _CLEAR:
            yield Cleared(conversation, epoch, rest[0], micros)
            continue
        first, key, digest, follows, code, bodies, count, total, later = rest
        parts: tuple[Part, ...] = tuple((*decode_body(body), body, crc32(body), tokens)
                                        for body, tokens in bodies)
        request = Append.restored(conversation_id, parts, counters.get(code, "unknown"), digest,
                                  follows)
        yield Written(request, conversation, epoch, first, key, count, total, micros + later)
