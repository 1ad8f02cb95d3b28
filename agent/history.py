"""The messages before the running turn, kept in the form in which a model is shown them.

Repairing and ordering a history costs time in proportion to its length, and almost all of it is
the same from one model call to the next. So an agent keeps the messages it has already checked and
adds those of each turn that ends well; only what others wrote in between is read again. Behind a
window only a suffix is kept, long enough that the window closes inside it: the window over the
suffix is then the window over the log (WN-5 stops at the first group that does not fit).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, overload

from ..memory.repair import in_call_order, repair
from ..stores.message import Message
from .context_view import MAX_SHOWN_CHARACTERS, capped

if TYPE_CHECKING:
    from ..memory.window import Window
    from ..stores.record import Log

_SPARE: Final = 32
"""Messages kept beyond what a window needs, so that the suffix is not cut at every turn."""


class History:
    """Valid messages in call order: all of a log's, or a suffix that a window closes inside."""

    __slots__ = ("_complete", "_messages", "_most", "_systems", "_window")

    def __init__(
        self,
        messages: Sequence[Message],
        window: Window | None = None,
        *,
        systems: Sequence[Message] = (),
        complete: bool = True,
        most: int = MAX_SHOWN_CHARACTERS,
    ) -> None:
        self._window = window
        self._most = most
        # A tuple, as each model call is given one: joining two of them copies once.
        self._messages = capped(in_call_order(repair(messages)), most)
        self._systems = list(systems)
        self._complete = complete

    @classmethod
    def of(cls, log: Log, window: Window | None, most: int = MAX_SHOWN_CHARACTERS) -> History:
        """Read what is needed of a log; through a window that does not grow with the log."""
        if window is None:
            return cls([r.message for r in log if r.message is not None], most=most)
        systems = [r.message for r in log.systems() if r.message is not None]
        size = len(log)
        wanted = window.n + 2 * _SPARE
        while wanted < size:
            tail = tuple(r.message for r in log[size - wanted :] if r.message is not None)
            history = cls(
                _from_a_question(tail), window, systems=systems, complete=False, most=most
            )
            if history._closes():
                return history
            wanted *= 4
        messages = [r.message for r in log if r.message is not None]
        return cls(messages, window, systems=systems, most=most)

    def _closes(self) -> bool:
        """Whether the window is full before the suffix begins."""
        if self._window is None or self._complete:
            return True
        return sum(m.role != "system" for m in self._messages) > self._window.n

    def extend(self, turn: Sequence[Message]) -> bool:
        """Add the messages of a turn that has ended; False if the log must be read again."""
        turn = capped(tuple(turn), self._most)
        self._messages += turn
        self._systems.extend(m for m in turn if m.role == "system")
        if self._window is not None and len(self._messages) > 2 * self._window.n + 8 * _SPARE:
            kept = _from_a_question(self._messages[-(self._window.n + 2 * _SPARE) :])
            self._complete = self._complete and len(kept) == len(self._messages)
            self._messages = kept
        return self._closes()

    def shown_with(self, turn: Sequence[Message]) -> tuple[Message, ...]:
        """What the model is shown of the history and the turn so far."""
        if self._window is None:
            return self._messages + capped(tuple(turn), self._most)
        turn = capped(tuple(turn), self._most)
        return self._window.apply(_View(self._messages, turn, self._systems))


class _View(Sequence[Message]):
    """Two lists as one sequence, with the system messages known beforehand."""

    __slots__ = ("_more", "_old", "_systems")

    def __init__(
        self, old: Sequence[Message], more: Sequence[Message], systems: Sequence[Message]
    ) -> None:
        self._old, self._more, self._systems = old, more, systems

    def __len__(self) -> int:
        return len(self._old) + len(self._more)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return (*self._old, *self._more)[index]

    def __reversed__(self) -> Iterator[Message]:
        yield from reversed(self._more)
        yield from reversed(self._old)

    def systems(self) -> tuple[Message, ...]:
        """All system messages of the conversation, in order."""
        return (*self._systems, *(m for m in self._more if m.role == "system"))


def _from_a_question(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages from the first user message on: no group is parted there."""
    for place, message in enumerate(messages):
        if message.role == "user":
            return messages[place:]
    return messages
