"""The unfinished turns of a store (FL-3)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..stores.errors import StaleEpoch
from .journal import agent_of, newest_turn
from .turn import fold

if TYPE_CHECKING:
    from ..stores.store_handle import StoreHandle

PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn in the log that has not ended. `paused`: it waits for a human, nobody resumes it."""

    conversation_id: str
    turn_id: str
    agent: str
    paused: bool


async def find_open_turns(store: StoreHandle) -> tuple[OpenTurn, ...]:
    """All of them, in the order of `conversations`.

    Found by the store's index: conversations without an open turn are not looked at, however many
    there are. The event loop goes on between two pages.
    """
    found: list[OpenTurn] = []
    after: str | None = None
    while page := await store.open_turns(after=after, limit=PAGE):
        for conversation_id in page:
            turn = await _open_turn(store, conversation_id)
            if turn is not None:
                found.append(turn)
        after = page[-1]
        await asyncio.sleep(0)
    return tuple(found)


async def _open_turn(store: StoreHandle, conversation_id: str) -> OpenTurn | None:
    try:
        log = await store.read(conversation_id, marks=True)
        newest = log[-1] if len(log) else None
        if newest is None or (newest.mark is not None and "ended" in newest.mark):
            return None
        turn_id, records = newest_turn(log)
    except StaleEpoch:
        return None  # cleared meanwhile
    if turn_id is None:
        return None
    turn = fold(turn_id, records)
    if turn.ended is not None:
        return None
    return OpenTurn(conversation_id, turn_id, agent_of(turn_id, records), bool(turn.pending()))
