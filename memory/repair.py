"""Repair of a history before it is sent: every call has its results, every result its call.

Crashes, cancellations, imports and windows of custom providers leave histories that model
endpoints refuse. The log itself is never changed. Rule: CN-4.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..stores.grouping import Group, grouped
from ..stores.message import Message

INTERRUPTED: Final = '{"error":{"type":"interrupted","message":"interrupted, outcome unknown"}}'
"""The result that an open call is given: the truth, since nobody knows how far it got."""


def repair(messages: Iterable[Message]) -> tuple[Message, ...]:
    """A history that every provider accepts. Pure, idempotent; a valid one comes back unchanged.

    Results are put behind their call (in order of arrival), results without call are dropped,
    open calls get the result `INTERRUPTED`, assistant messages without text and calls are
    dropped. System messages keep their places.
    """
    repaired: list[Message] = []
    for group in grouped(messages).groups:
        if _says_nothing(group.messages[0]):
            continue
        repaired.extend(group.messages)
        repaired.extend(
            Message("tool", INTERRUPTED, tool_call_id=call.id) for call in group.open_calls
        )
    return tuple(repaired)


def in_call_order(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The same history with the results of each batch in the order of its calls.

    A log holds results as they arrived; a model is shown them in call order. Results are matched
    by id; of equal ids the first call takes the first result. Rules: AG-3, F15.
    """
    ordered: list[Message] = []
    for group in grouped(messages).groups:
        ordered.extend(_call_order(group) if len(group.messages) > 2 else group.messages)
    return tuple(ordered)


def _call_order(group: Group) -> list[Message]:
    first, *results = group.messages
    by_id: dict[str, list[Message]] = {}
    for result in reversed(results):
        by_id.setdefault(result.tool_call_id or "", []).append(result)
    return [first, *(by_id[call.id].pop() for call in first.tool_calls if by_id.get(call.id))]


def _says_nothing(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls and not message.content
