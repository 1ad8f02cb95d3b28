"""Tool results that are too large for a context: kept as blobs, shown cut, read by portions.

The message that is stored holds the beginning, a note that says what is left out, and the ref of
the whole result in its extra field `content_ref`. The blob is stored first, and held by the records
of the conversation: it goes when that is cleared, and is exported and backed up with it (C16).
"""

from __future__ import annotations

import contextvars
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..memory.call_threads import call_threads
from ..stores.session_state import DEFAULT_TENANT
from .context_view import CONTENT_REF, beginning
from .errors import InvalidArguments
from .tool import Tool
from .tool_schema import function_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..memory.provider_handle import NoMemory, ProviderHandle
    from ..stores.message import Message

SHORT: Final = 12
"""Digits of a blob's hash by which a model names a result."""

PORTION: Final = 20_000
"""Most characters of one portion that a model reads."""

_NOTE: Final = 120
"""Characters held free for the note behind a portion."""


class KeptResults:
    """The large results of one conversation.

    `epoch()`: that of its log, as its agent sees it. `most`: characters of a result that is shown.
    """

    def __init__(
        self,
        memory: ProviderHandle | NoMemory,
        conversation_id: str,
        epoch: Callable[[], int | None],
        most: int,
    ) -> None:
        self._most = max(most - _NOTE, most // 2, 1)
        self._memory = memory
        self._id = conversation_id
        self._epoch = epoch

    async def keep(self, text: str) -> str | None:
        """Store a whole result; its ref, None if this memory cannot keep any. Raises StoreError."""
        store, epoch = self._memory.contents, self._epoch()
        if store is None or epoch is None:
            return None
        kept = store

        def put() -> Any:  # in a thread: it is encoded and hashed
            return kept.keep_for_records(DEFAULT_TENANT, encoded(text), self._id, epoch)

        ref: str = await (await call_threads().run(put))
        return ref

    async def portion(self, name: str, offset: int, length: int) -> tuple[str, int]:
        """Characters `offset`… of the result whose hash begins with `name`, and how many it has.

        As many as are asked for, but no more than a result may have to be shown whole. Raises
        InvalidArguments if this conversation has no such result: others' are out of reach.
        """
        store, epoch = self._memory.contents, self._epoch()
        refs = [] if store is None or epoch is None else await store.held_for_records(
            self._id, epoch
        )  # fmt: skip
        found = [ref for ref in refs if name and digits(ref).startswith(name)]
        if store is None or len(found) != 1:
            known = ", ".join(digits(ref)[:SHORT] for ref in refs[:20]) or "none"
            raise InvalidArguments(f"there is no result {name!r}; kept are: {known}")
        data = await store.get(DEFAULT_TENANT, found[0])
        text = await call_threads().run(lambda: decoded(data))
        return text[offset : offset + min(length, PORTION, self._most)], len(text)


def shown_result(text: str, most: int, ref: str, *, readable: bool) -> str:
    """What is stored and shown of a result that is kept whole under `ref`."""
    name = digits(ref)[:SHORT]
    if readable:
        note = f'read_result(result="{name}", offset={most}) gives more'
    else:
        note = f"the whole result is kept as {name}"
    return beginning(text, most, note)


def digits(ref: str) -> str:
    """The hash of a ref, in hex."""
    return ref.rpartition(":")[2]


def encoded(text: str) -> bytes:
    """A text as the JSON that a session store's `get_blob` reads; lone surrogates survive."""
    return json.dumps(text).encode()


def decoded(data: bytes) -> str:
    """The text of a blob."""
    text = json.loads(data)
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


def ref_of(message: Message | str) -> str | None:
    """The ref of a message's whole content, None if it is whole; a str is a ref."""
    if isinstance(message, str):
        return message
    ref = message.extra.get(CONTENT_REF)
    return ref if isinstance(ref, str) else None


running_results: contextvars.ContextVar[KeptResults | None] = contextvars.ContextVar(
    "keepwell.agent.results", default=None
)
"""The kept results of the conversation whose turn runs this code."""


@dataclass(frozen=True)
class ResultReader(Tool):
    """The tool with which a model reads on in a result that it was shown cut."""


def result_reader() -> Tool:
    """A tool `read_result` for agents with large results: the model reads on where it was cut.

    It reaches the results of its own conversation only, in portions of at most 20,000 characters.
    """

    async def read_result(result: str, offset: int = 0, length: int = PORTION) -> str:
        """Read on in a tool result that was shown only in part.

        Args:
            result: the name of the result, as the note at its end says it
            offset: the character to begin with
            length: how many characters, at most 20000
        """
        results = running_results.get()
        if results is None:
            raise InvalidArguments("no results are kept here")
        if offset < 0 or length < 1:
            raise InvalidArguments("offset must be at least 0 and length at least 1")
        part, size = await results.portion(result, offset, length)
        end = offset + len(part)
        if end >= size:
            return part or "(the end)"
        more = f'read_result(result="{result}", offset={end}) gives more'
        return f"{part}\n[characters {offset} to {end} of {size}; {more}]"

    described = function_schema(read_result)
    return ResultReader(
        described.name, described.description, described.parameters, read_result, idempotent=True,
        function=described,
    )  # fmt: skip
