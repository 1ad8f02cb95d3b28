"""Errors of sessions and flows; those that stores raise come from `stores.session_errors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..actors.errors import InvalidValue, RequestError, Unavailable
from ..stores.errors import shown

if TYPE_CHECKING:
    from ..stores.plain import Plain
    from .finding import Finding


class SessionDefinitionError(InvalidValue):
    """A session, channel or flow node cannot be made of what was given (A7, A11)."""


class SessionValidationError(SessionDefinitionError):
    """A flow cannot be the body of a session; `findings` has all that is wrong with it (D12)."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        lines = "".join(f"\n  {finding}" for finding in self.findings)
        super().__init__(f"the flow cannot be a session's body:{lines}")


class ChannelUndeclared(RequestError):
    """The session does not receive from, or emit to, a channel of that name (B10)."""

    def __init__(self, channel: object, known: Sequence[str], direction: str) -> None:
        super().__init__(
            f"channel {shown(channel)} is not declared for {direction}; there "
            f"{'is' if len(known) == 1 else 'are'} {', '.join(map(repr, known)) or 'none'}",
            code="channel_undeclared",
        )
        self.channel, self.known = channel, tuple(known)


class PayloadInvalid(InvalidValue):
    """A payload or carrier does not have the declared type; nothing was enqueued (A5, A14)."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(f"{what}: {problem}", code="payload_invalid")
        self.what, self.problem = what, problem


class PayloadTooLarge(InvalidValue):
    """The encoded size is over the limit, both in bytes (A6)."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} takes {size} bytes, the limit is {limit}: put it into a blob and pass "
            '{"$blob": ref}, or raise the limit',
            code="payload_too_large",
        )
        self.what, self.size, self.limit = what, size, limit


class RecvTimeout(Unavailable):
    """No message came in time (A4)."""

    def __init__(self, channel: str, seconds: float) -> None:
        super().__init__(f"no message on channel {shown(channel)} within {seconds} seconds")
        self.channel, self.seconds = channel, seconds


class MaxTurnsExceeded(RequestError):
    """A feed has more messages than the session may take (A18)."""

    def __init__(self, limit: int, length: int | None = None) -> None:
        more = f"{length} messages" if length is not None else "more messages"
        super().__init__(
            f"the feed has {more}, max_turns is {limit}: raise it, pass None for no bound, or feed "
            "less",
            code="max_turns",
        )
        self.limit, self.length = limit, length


class SessionFailed(RequestError):
    """A fatal error ended the session; `carrier` and `outputs` are what there was until then (A19).

    The error of the turn is the cause.
    """

    def __init__(self, reason: str, carrier: Plain, outputs: Sequence[Plain]) -> None:
        super().__init__(f"the session ended with a fatal error: {reason}", code="session_failed")
        self.reason, self.carrier, self.outputs = reason, carrier, list(outputs)


class SessionTurnError(RequestError):
    """Raise it in turn code to fail the turn; with `fatal=True` the session ends with it (B16)."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message, code="turn_error")
        self.fatal = fatal


class SessionConflict(RequestError):
    """The id is live with another Session object (B23)."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {shown(session_id)} is open with another definition: open it with the same "
            "Session object, or close it first",
            code="session_conflict",
        )
        self.session_id = session_id


class TurnOver(RequestError):
    """Something was emitted outside of a turn, or by code whose turn is over (A12, B20)."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: there is no turn, or it is over", code="turn_over")


class RaceFailed(RequestError):
    """Every branch of a race failed; `errors` in branch order (D2)."""

    def __init__(self, errors: Sequence[BaseException]) -> None:
        self.errors = tuple(errors)
        texts = "; ".join(error_text(error) for error in self.errors)
        super().__init__(f"all {len(self.errors)} branches failed: {texts}", code="race_failed")


class SubFailed(RequestError):
    """A child flow failed. Class and text of its error are all that leaves the child (D9, D11)."""

    def __init__(self, name: str, error_class: str, text: str) -> None:
        super().__init__(f"{name} failed: {error_class}: {text}", code="sub_failed")
        self.name, self.error_class, self.text = name, error_class, text


def error_text(error: BaseException) -> str:
    """"ValueError: text", at most 2,000 characters, always plain text (B15)."""
    text = str(error)
    name = type(error).__name__
    full = f"{name}: {text}" if text else name
    return full.encode("utf-8", "replace").decode()[:2_000]
