"""The root of keepwell's errors, branched by who must act (design §9).

`RequestError`: the caller (bad value, conflict, full, not found). `Unavailable`: nobody, try
again. `ActorDied`: the actor that was asked is gone. Higher floors add `StoreError` (the
operator), `ModelError` and `ToolError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pykka

from .exits import describe, root_cause

if TYPE_CHECKING:
    from .exits import ExitReason


class KeepwellError(Exception):
    """Root of everything that keepwell raises on purpose."""


class RequestError(KeepwellError):
    """The request cannot be served as it is; the caller must change it.

    Raised by a handler, it is the answer to that one request: the actor lives. `code` is OTP's
    word where there is one (`not_found`, `already_started`, ...).
    """

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message or code)
        self.code = code


class InvalidValue(RequestError, ValueError):
    """A value that was passed in cannot be used; the sentence names it and what to pass instead."""


class Unavailable(KeepwellError):
    """The request may be right, but cannot be served now; trying again later may help."""


class CallTimeout(Unavailable, pykka.Timeout):
    """No reply within the timeout. The request may still be served; its late reply is dropped."""


class ActorDied(KeepwellError, pykka.ActorDeadError):
    """The actor ended before it replied (`reason`), or was dead before it was asked (`noproc`)."""

    def __init__(self, message: str = "", *, reason: ExitReason = "noproc") -> None:
        super().__init__(message or f"the actor died: {describe(reason)}")
        self.reason = reason
        self.__cause__ = root_cause(reason)


class StartFailed(KeepwellError):
    """An actor did not start; `reason` is the exit reason, the exception in it also the cause."""

    def __init__(self, message: str = "", *, reason: ExitReason = "normal") -> None:
        super().__init__(message or f"the actor did not start: {describe(reason)}")
        self.reason = reason
        self.__cause__ = root_cause(reason)


class MailboxFull(RequestError):
    """A bounded mailbox holds as many messages as it may; send again when it has drained."""

    def __init__(self, target: str, capacity: int) -> None:
        super().__init__(f"the mailbox of {target} is full ({capacity} messages): send later, "
                         "or raise max_mailbox of its class", code="mailbox_full")
        self.target, self.capacity = target, capacity
