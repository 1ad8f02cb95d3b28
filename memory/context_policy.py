"""Which earlier turns a model call is shown, and at what cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..actors.errors import RequestError
from .turn import Turn

Scope = Literal["none", "local", "summary", "whole_session"]
SCOPES: Final = ("none", "local", "summary", "whole_session")
READING: Final = ("summary", "whole_session")
"""Scopes that read a transcript."""

Summarizer = Callable[[str | None, Sequence[Turn]], str | Awaitable[str]]
"""`summarizer(previous, new)`: the new summary, from the previous one and the turns since."""

FaultCode = Literal["CTX_UNKNOWN_SCOPE", "CTX_NO_BUDGET", "CTX_NO_SUMMARIZER", "CTX_BAD_BUDGET"]


class ContextPolicyError(RequestError, ValueError):
    """A policy that cannot be kept; `faults` are all of its faults as (code, message). Rule: E8."""

    def __init__(self, faults: Sequence[tuple[FaultCode, str]]) -> None:
        super().__init__("; ".join(text for _, text in faults), code=faults[0][0])
        self.faults = tuple(faults)

    @property
    def codes(self) -> tuple[FaultCode, ...]:
        """The codes of all faults, in order."""
        return tuple(code for code, _ in self.faults)


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """What a model call is shown beside its direct input.

    `scope`: "none" and "local" show the input only, "whole_session" the transcript cut to
    `max_tokens`, "summary" the same with `summarizer`'s text in place of what was cut, for which
    `summary_tokens` (a quarter of the budget unless given) are held free. Raises
    ContextPolicyError with all faults at once. Rule: E8.
    """

    scope: Scope = "local"
    max_tokens: int | None = None
    summarizer: Summarizer | None = None
    summary_tokens: int | None = None

    def __post_init__(self) -> None:
        faults: list[tuple[FaultCode, str]] = []
        scope: object = self.scope
        if scope not in SCOPES:
            faults.append(
                ("CTX_UNKNOWN_SCOPE", f"scope must be one of {', '.join(SCOPES)}, got {scope!r}")
            )
        if scope in READING and self.max_tokens is None:
            faults.append(("CTX_NO_BUDGET", f"scope {scope!r} needs max_tokens"))
        if scope == "summary" and self.summarizer is None:
            faults.append(("CTX_NO_SUMMARIZER", "scope 'summary' needs a summarizer"))
        if self.max_tokens is not None and not _positive(self.max_tokens):
            text = f"max_tokens must be an int of at least 1, got {self.max_tokens!r}"
            faults.append(("CTX_BAD_BUDGET", text))
        elif not self._summary_fits():
            text = (
                "summary_tokens must be an int of at least 1 and less than max_tokens "
                f"({self.max_tokens!r}), got {self.summary_tokens!r}"
            )
            faults.append(("CTX_BAD_BUDGET", text))
        if faults:
            raise ContextPolicyError(faults)

    def _summary_fits(self) -> bool:
        summary = self.summary_tokens
        if summary is None:
            if self.scope != "summary" or self.max_tokens is None:
                return True
            summary = self.max_tokens // 4
        return _positive(summary) and (self.max_tokens is None or summary < self.max_tokens)

    @property
    def reads(self) -> bool:
        """Whether this policy reads a transcript."""
        return self.scope in READING

    @property
    def budget(self) -> int:
        """max_tokens of a policy that reads. Raises ContextPolicyError for one without."""
        if self.max_tokens is None:
            raise ContextPolicyError([("CTX_NO_BUDGET", f"scope {self.scope!r} has no max_tokens")])
        return self.max_tokens

    @property
    def reserve(self) -> int:
        """Tokens held free for the summary; 0 without one."""
        if self.scope != "summary":
            return 0
        return self.budget // 4 if self.summary_tokens is None else self.summary_tokens


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
