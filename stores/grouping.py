"""Groups: what a window, a budget or a repair never parts (WN-2, WN-3).

A group is an assistant message with all results of its calls; any other message is a group of
its own. A result belongs to the nearest earlier message with an open call of that id, wherever it
stands in the log, and is put behind that message, in order of arrival. Matching is by call id,
never by position. A result without an open call is an orphan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .message import Message, ToolCall


@dataclass(frozen=True, slots=True)
class Group:
    """One unit of a history.

    `places` are the indexes of its messages in the sequence that was grouped, `messages` the
    messages themselves; the assistant (or only) message comes first. `open_calls` are the calls
    that have no result yet, in call order.
    """

    places: tuple[int, ...]
    messages: tuple[Message, ...]
    open_calls: tuple[ToolCall, ...] = ()

    @property
    def role(self) -> str:
        """The role of the first message."""
        return self.messages[0].role


@dataclass(frozen=True, slots=True)
class Grouping:
    """A sequence of messages as groups in log order, and the places of the orphan results."""

    groups: tuple[Group, ...]
    orphans: tuple[int, ...]


def grouped(messages: Iterable[Message]) -> Grouping:
    """Group messages; linear in their number. Pure.

    Two calls of one message may share an id (`a(c1,c1)`): each takes one result.
    """
    members: list[tuple[list[int], list[Message], list[ToolCall]]] = []
    # For each call id the groups that have an open call of it, oldest first: one entry a call.
    waiting: dict[str, list[int]] = {}
    orphans: list[int] = []
    for place, message in enumerate(messages):
        if message.role == "tool":
            stack = waiting.get(message.tool_call_id or "")
            if not stack:
                orphans.append(place)
                continue
            places, inside, open_calls = members[stack.pop()]
            places.append(place)
            inside.append(message)
            del open_calls[
                next(i for i, call in enumerate(open_calls) if call.id == message.tool_call_id)
            ]
            continue
        for call in message.tool_calls:
            waiting.setdefault(call.id, []).append(len(members))
        members.append(([place], [message], list(message.tool_calls)))
    return Grouping(
        tuple(
            Group(tuple(places), tuple(inside), tuple(open_calls))
            for places, inside, open_calls in members
        ),
        tuple(orphans),
    )
