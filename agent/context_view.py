"""What one model call is shown by a custom provider, and how giant results are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ..actors.errors import KeepwellError
from ..actors.future import Future
from ..memory.given_messages import given_messages
from ..memory.log_messages import LogMessages
from ..memory.prepared import Prepared
from ..memory.provider import ProviderError
from ..memory.repair import in_call_order, repair
from ..stores.message import Message

if TYPE_CHECKING:
    from ..memory.context import ContextReport
    from ..memory.provider_handle import NoMemory, ProviderHandle

MAX_SHOWN_CHARACTERS: Final = 200_000
"""A tool result longer than this is shown cut, unless the agent says otherwise."""

CONTENT_REF: Final = "content_ref"
"""The extra field of a message whose whole content is kept as a blob."""


async def shown_by_provider(
    memory: ProviderHandle | NoMemory,
    conversation_id: str,
    base: Sequence[Message],
    turn: Sequence[Message],
    most: int = MAX_SHOWN_CHARACTERS,
) -> tuple[tuple[Message, ...], ContextReport | None]:
    """What a custom provider's `prepare` gives, repaired, and its report, if any (PV-3, PV-4).

    `base`: the history before the turn, lazily; `turn`: its messages so far. Raises ProviderError
    if `prepare` raises, or gives nothing or what are no messages.
    """
    view: Sequence[Message]
    if isinstance(base, LogMessages):
        view = LogMessages(base.log, turn)
    else:
        view = (*base, *turn)
    prepared: Any = memory.prepare(conversation_id, view)
    if isinstance(prepared, Future):
        prepared = await prepared
    try:
        given = given_messages(prepared, "prepare", conversation_id)
    except KeepwellError:
        raise
    except Exception as error:  # what it gave is read lazily, and raises
        raise ProviderError(
            "prepare", conversation_id, f"gave what raised {type(error).__name__}: {error}"
        ) from error
    messages = in_call_order(repair(given))
    if not messages:
        raise ProviderError("prepare", conversation_id, "gave no messages")
    return capped(messages, most), prepared.report if isinstance(prepared, Prepared) else None


def capped(messages: tuple[Message, ...], most: int = MAX_SHOWN_CHARACTERS) -> tuple[Message, ...]:
    """Giant tool results cut for the model, with a note that says so."""
    if not any(_giant(message, most) for message in messages):
        return messages
    return tuple(cut_result(message, most) for message in messages)


def cut_result(message: Message, most: int = MAX_SHOWN_CHARACTERS) -> Message:
    """A message as a model is shown it: a giant tool result cut, anything else as it is.

    One that is kept elsewhere (it has a `content_ref`) was cut when it was stored.
    """
    if not _giant(message, most):
        return message
    content = message.content
    assert isinstance(content, str)
    note = f"the whole result of call {message.tool_call_id} is in the conversation's log"
    return message.replace(content=beginning(content, most, note))


def beginning(text: str, most: int, note: str) -> str:
    """The first `most` characters, and a note that says how many are left out."""
    left = len(text) - most
    return f"{text[:most]}\n[{left} of {len(text)} characters left out; {note}]"


def _giant(message: Message, most: int) -> bool:
    content = message.content
    return (
        message.role == "tool"
        and isinstance(content, str)
        and len(content) > most
        and CONTENT_REF not in message.extra
    )
