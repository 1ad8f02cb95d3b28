"""The sliding window: how many messages of a history a model is shown.

`apply_window` reads its input from the end and stops where the window is full, so that a window
over a lazy log of 100,000 messages costs what it keeps. Pairing calls and results from the end
gives the same pairs as `stores.grouped` from the start, because both are bracket matching: a
result closes the nearest open call of its id. Rules: WN-1...7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, runtime_checkable

from ..actors.errors import InvalidValue
from ..stores.message import Message


@runtime_checkable
class HasSystems(Protocol):
    """A sequence of messages that finds its system messages by an index."""

    def systems(self) -> Sequence[Message]: ...


@dataclass(frozen=True, slots=True)
class Window:
    """A window of `n` messages, n >= 1; `memory=Window(50)` gives an agent one.

    System messages are not counted and always kept; a call and its results are kept or dropped
    together; the question of the current turn is never dropped. Raises InvalidValue unless n is
    an int of at least 1. Rules: WN-1...7, PV-5.
    """

    n: int

    def __post_init__(self) -> None:
        n: object = self.n
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InvalidValue(f"a window holds an int of at least 1 messages, got {n!r}")

    def apply(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """What of `messages` the window shows."""
        return apply_window(messages, self.n)


def apply_window(messages: Sequence[Message], n: int) -> tuple[Message, ...]:
    """The system messages, then the newest groups of together at most n messages, in log order.

    The last user message and the newest group are kept even beyond n; groups are never parted;
    a result stands behind its call; results without call are dropped. Pure and idempotent.

    `messages` may be lazy: it is read once, from its end, through `reversed()`. If it has a method
    `systems()`, that gives the system messages; otherwise all of it is looked through for them.
    """
    backwards = iter(reversed(messages))
    # The question's place is needed before anything older is admitted: its message counts.
    looked_at: list[Message] = []
    for message in backwards:
        looked_at.append(message)
        if message.role == "user":
            break
    question = looked_at[-1] if looked_at and looked_at[-1].role == "user" else None

    room = n - (0 if question is None else 1)
    kept: list[tuple[Message, ...]] = []  # newest first
    full = False
    for group in _groups_backwards(chain(looked_at, backwards)):
        if group[0] is question:
            kept.append(group)
            question = None
        elif not kept or (not full and len(group) <= room):  # the newest group goes in regardless
            kept.append(group)
            room -= len(group)
        else:
            full = True
        if full and question is None:
            break
    return (*system_messages(messages), *(m for group in reversed(kept) for m in group))


def system_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The system messages in order, by the sequence's own index if it has a `systems()`."""
    if isinstance(messages, HasSystems):
        return tuple(messages.systems())
    return tuple(message for message in messages if message.role == "system")


def _groups_backwards(backwards: Iterator[Message]) -> Iterator[tuple[Message, ...]]:
    """The groups of a history from newest to oldest, each with its results in log order."""
    place = 0
    waiting: dict[str, list[tuple[int, Message]]] = {}  # results whose call has not come yet
    for message in backwards:
        place -= 1
        if message.role == "system":
            continue
        if message.role == "tool":
            waiting.setdefault(message.tool_call_id or "", []).append((place, message))
            continue
        results = [stack.pop() for call in message.tool_calls if (stack := waiting.get(call.id))]
        results.sort(key=lambda result: result[0])
        yield (message, *(result for _, result in results))
