"""What finds messages of a long conversation that bear on a question.

A retriever only says where to look: places in the log. What a model is shown is read from the log,
so that an index that is old, damaged or wrong can choose badly, but never show what was not said
or has been cleared.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..stores.record import Log


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found: `place` is its index in the log, a higher `score` is better."""

    place: int
    score: float


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What a retriever found, best first, and a `note` for the report if it is not the whole truth.

    For example "the index is 2,000 messages behind".
    """

    hits: tuple[Hit, ...] = ()
    note: str = ""


@runtime_checkable
class Retriever(Protocol):
    """Finds messages of one conversation by a text. Anything may implement it: words, vectors.

    A method `forget(conversation_id)`, if there is one, is called when a conversation is cleared.
    """

    def retrieve(
        self, conversation_id: str, log: Log, query: str, *, upto: int, limit: int
    ) -> Awaitable[Retrieved]:
        """At most `limit` hits among the first `upto` messages of `log`, best first.

        `log` is the conversation's, lazily, without marks: an index brings itself up to date from
        it. `query` is text as a user wrote it, never syntax. May raise anything, and take its time:
        the turn then goes on without.
        """
        ...
