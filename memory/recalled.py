"""Which of the turns that a budget left out are shown all the same. Pure.

A hit rarely makes sense alone: an answer needs its question, a result its call. So what is recalled
is the exchange that a hit stands in, from a user turn to the next one, or, where that is too large,
the hit's group behind its question, or the group alone. Groups are never parted, and those that no
model accepts (an unanswered call) are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ..stores.message import Message
from .budget import TurnGroup, groups_backwards
from .retriever import Hit
from .turn import Turn

EXCHANGE: Final = 64
"""Turns looked at on either side of a hit for the bounds of its exchange."""

SHARE_OF_BEST: Final = 0.2
"""Hits with less than this part of the best score are not worth their tokens."""


def choose_recalled(
    turns: Sequence[Turn],
    hits: Iterable[Hit],
    *,
    shown: Iterable[int],
    fits: Callable[[list[int]], bool],
) -> dict[int, float]:
    """The places to recall, in order, each with the score of the hit that it came with.

    `shown`: places that are shown anyway, which are never chosen. `fits(places)`: whether so many
    can be shown together. Better hits come first, of equal ones the newer. Reads only the
    exchanges of hits.
    """
    taken = set(shown)
    chosen: dict[int, float] = {}
    ranked = sorted(hits, key=lambda hit: (-hit.score, -hit.place))
    for hit in ranked:
        if hit.score < SHARE_OF_BEST * ranked[0].score:
            break
        if hit.place in taken or not 0 <= hit.place < len(turns):
            continue
        for places in _portions(turns, hit.place):
            new = [place for place in places if place not in taken]
            if fits(sorted([*chosen, *new])):
                chosen.update(dict.fromkeys(new, hit.score))
                taken.update(new)
                break
    return dict(sorted(chosen.items()))


def _portions(turns: Sequence[Turn], place: int) -> Iterator[list[int]]:
    """What may be recalled for a hit, the most first."""
    start, stop = _exchange(turns, place)
    groups = [
        group
        for group in groups_backwards(reversed(turns[start:stop]), stop)
        if group.showable
    ]
    own = next((group for group in groups if place in group.places), None)
    if own is None:
        return
    yield _places(groups)
    question = groups[-1]
    if question.role == "user" and question is not own:
        yield _places([question, own])
    yield _places([own])


def _exchange(turns: Sequence[Turn], place: int) -> tuple[int, int]:
    """From the user turn at or before `place` to the next one behind it."""
    start = place
    while start > 0 and turns[start]["role"] != "user" and place - start < EXCHANGE:
        start -= 1
    stop = place + 1
    while stop < len(turns) and turns[stop]["role"] != "user" and stop - place < EXCHANGE:
        stop += 1
    return start, stop


def _places(groups: Iterable[TurnGroup]) -> list[int]:
    return sorted(place for group in groups for place in group.places)


def recall_marker(n: int) -> str:
    """The text of the system turn that says which messages are recalled.

    It is true wherever an adapter puts system messages: recalled ones are the first of the others.
    """
    first = "the first message" if n == 1 else f"the first {n} messages"
    return f"Recalled from earlier: {first} below."


def announced(text: str, **what: int) -> Message:
    """A system message that a provider puts into a context, told apart by its field `keepwell`."""
    return Message("system", text, keepwell=what)


def as_recalled(message: Message) -> Message:
    """The message with a field that says that it was recalled; the field is never sent."""
    return message.replace(keepwell={"recalled": 1})


def is_recalled(message: Message) -> bool:
    """Whether a message was put into a context by recall, its announcement included."""
    return _field(message, "recalled") > 0


def without_marker(messages: Sequence[Message]) -> tuple[Sequence[Message], int]:
    """The messages without a provider's elision marker, and how many turns it announced."""
    elided = sum(_field(message, "elided") for message in messages if message.role == "system")
    if not elided:
        return messages, 0
    return [message for message in messages if not _field(message, "elided")], elided


def without_recalled(
    messages: Sequence[Message], elided: int
) -> tuple[Sequence[Message], int]:
    """The messages without those of recall, which are counted as elided from then on."""
    kept = [message for message in messages if not is_recalled(message)]
    turns = sum(is_recalled(message) and message.role != "system" for message in messages)
    return kept, elided + turns


def _field(message: Message, name: str) -> int:
    fields = message.extra.get("keepwell")
    value = fields.get(name) if isinstance(fields, Mapping) else None
    return value if isinstance(value, int) and value > 0 else 0
