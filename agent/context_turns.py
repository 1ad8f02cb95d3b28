"""What a context is cut from: turns of a log, made as they are touched, then the running turn's.

Each turn made is remembered with the message that it stands for, so that a model is shown that
message whole (reasoning, signatures and all), not what a transcript keeps of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from ..memory.lazy_turns import LazyTurns
from ..memory.turn import Turn, message_turn, record_turn, turn_messages

if TYPE_CHECKING:
    from ..stores.message import Message
    from ..stores.record import Log, Record


class ContextTurns(LazyTurns["Record"]):
    """The turns of `log`, lazily, followed by `more` (messages with their turns).

    `shown(message)` gives what of a message of the log is shown: itself, or one that is cut, which
    is counted anew. Reads of the log only what is touched; what a touch raises is the log's
    (StaleEpoch, StoreUnavailable). Rule: F14.
    """

    def __init__(
        self,
        log: Log | Sequence[Record],
        more: Sequence[tuple[Message, Turn]],
        shown: Callable[[Message], Message],
    ) -> None:
        records = cast("Sequence[Record]", log)  # a Log is one in all but name
        super().__init__(records, [turn for _message, turn in more])
        self._shown = shown
        self._messages = {id(turn): (turn, message) for message, turn in more}

    def systems(self) -> list[Turn]:
        """The system turns, in order, by the log's index."""
        index = getattr(self._first, "systems", None)
        records = index() if index is not None else ()
        return [*map(self._of_first, records), *(t for t in self._more if t["role"] == "system")]

    def message_of(self, turn: Turn) -> Message:
        """The message that a turn stands for; made of it, if it is none of these."""
        known = self._messages.get(id(turn))
        return turn_messages([turn])[0] if known is None else known[1]

    def _of_first(self, item: Record) -> Turn:
        message = item.message
        assert message is not None  # logs are read without pure marks
        shown = self._shown(message)
        if shown is message:
            turn = record_turn(item)
        else:
            turn = {**message_turn(shown), "seq": item.seq, "turn_id": item.turn_id}
        self._messages[id(turn)] = (turn, shown)
        return turn
