"""The `TokenCounter` protocol; the counters themselves live in the memory floor."""

from __future__ import annotations

import importlib
from typing import Final, Protocol, runtime_checkable

from .message import Message

DEFAULT_COUNTER: Final = ("keepwell.memory.token_counter", "TiktokenCounter")
"""Where the default counter (o200k_base) is found. By name: this floor cannot import that one."""


@runtime_checkable
class TokenCounter(Protocol):
    """Counts the tokens of messages and texts: deterministic, thread-safe, no I/O but to load.

    `name` is stored with each count, so that counts of different vocabularies are never mixed up.
    """

    @property
    def name(self) -> str:
        """The vocabulary, such as "o200k_base"."""
        ...

    def count_message(self, message: Message) -> int:
        """Tokens that the message takes in a model call, 0 or more."""
        ...

    def count_text(self, text: str) -> int:
        """Tokens of a plain text, special tokens counted as text."""
        ...


class NoCounter:
    """Counts everything as 0: for stores whose readers need no budgets, and for benchmarks."""

    name = "none"

    def count_message(self, message: Message) -> int:
        """0."""
        return 0

    def count_text(self, text: str) -> int:
        """0."""
        return 0


NO_COUNTER: Final[TokenCounter] = NoCounter()

_default: list[TokenCounter] = []


def default_counter() -> TokenCounter:
    """The counter of stores that were made without one; made at its first use."""
    if not _default:
        module, name = DEFAULT_COUNTER
        _default.append(getattr(importlib.import_module(module), name)())
    return _default[0]
