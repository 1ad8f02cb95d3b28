"""What a custom provider gave, as messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..stores.errors import InvalidMessage
from ..stores.message import Message
from .foreign_log import guarded
from .provider import ProviderError


def given_messages(value: Any, method: str, conversation_id: str) -> list[Message]:
    """The messages that `method` of a provider gave: an iterable of messages, mappings or records.

    Raises ProviderError for anything else. Rules: PV-4, PV-7.
    """
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise ProviderError(method, conversation_id, f"gave {type(value).__name__}, no messages")
    messages = []
    for item in value:
        message = getattr(item, "message", item)
        if isinstance(message, Mapping):
            try:
                message = Message.from_dict(message)
            except InvalidMessage as error:
                raise ProviderError(
                    method, conversation_id, f"gave a bad message: {error}"
                ) from error
        if not isinstance(message, Message):
            raise ProviderError(method, conversation_id, f"gave {type(item).__name__}, no message")
        messages.append(message)
    return messages


def _history_fault(conversation_id: str, problem: str) -> ProviderError:
    return ProviderError("history", conversation_id, f"gave a log that {problem}")


def given_history(value: Any, conversation_id: str, *, journal: bool) -> Any:
    """What `history` of a provider gave: a log as it is, else a tuple of its messages.

    Raises ProviderError for anything else, and for what is no log of a provider that says it is a
    journal. Rules: PV-2, PV-9.
    """
    if hasattr(value, "epoch") and hasattr(value, "cursor"):
        return guarded(value, partial(_history_fault, conversation_id))
    if journal:
        raise ProviderError(
            "history", conversation_id,
            f"gave {type(value).__name__}, no Log as its `journal = True` promises",
        )  # fmt: skip
    return tuple(given_messages(value, "history", conversation_id))
