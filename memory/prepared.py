"""What `prepare` of a provider may return: messages, and a report of how they were chosen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from ..stores.message import Message

if TYPE_CHECKING:
    from .context import ContextReport


class Prepared(tuple[Message, ...]):
    """The messages for one model call, with the provider's `report` of them.

    An agent writes the report beside the model's reply into the log. A provider that has none
    returns any other sequence.
    """

    report: ContextReport

    def __new__(cls, messages: Iterable[Message], report: ContextReport) -> Self:
        made = super().__new__(cls, messages)
        made.report = report
        return made
