"""Errors of models and tools.

`ModelError` and `ToolError` are branches of their own beside `RequestError` and `Unavailable`:
the party at fault is neither the caller nor keepwell, but a model endpoint or a tool function.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from ..actors.errors import KeepwellError

ModelErrorCode = Literal[
    "",  # not further known
    "rate_limited",  # 429, overloaded
    "server_error",  # 5xx
    "timeout",  # no reply, or no further chunk, within the deadline
    "disconnected",  # refused, reset, or closed before the reply was complete
    "truncated",  # a stream that ended without a finish reason
    "corrupt",  # bytes that are not the protocol: broken JSON, wrong content type or shape
    "empty_reply",  # neither text nor tool calls
    "invalid_output",  # an answer without the form that `output=` asks for, after all repairs
    "refused",  # the model or its content filter declined
    "context_too_large",  # the request exceeds the model's context window
    "unauthorized",  # 401, 403: credentials or permissions
    "bad_request",  # other 4xx: the same request will fail again
    "circuit_open",  # not sent: the circuit breaker is open
    "not_installed",  # the extra, or the weights, that the model needs are missing
    "closed",  # the model object was closed
]

ToolErrorType = Literal[
    "unknown_tool",
    "invalid_arguments",
    "semantic",
    "transient",
    "crashed",
    "environment",
    "denied",
    "cancelled",
    "interrupted",
    "skipped",
]
TOOL_ERROR_TYPES: Final[tuple[ToolErrorType, ...]] = get_args(ToolErrorType)


class ModelError(KeepwellError):
    """A model call ended without a usable reply.

    `partial`: the text that had been streamed before the fault ("" if none); it is never an
    answer. `retryable`: the same request may succeed later. `retry_after`: seconds that the
    endpoint asked to wait, or None. `status`: the HTTP status, or None. `code`: what went wrong,
    in one word. `attempts`: how many requests were made for this call, at least 1; whoever
    retries counts these against its own limit, so that nested retries do not multiply.
    The library's own exception, if any, is the cause. Rules: AG-7, F28.
    """

    def __init__(
        self,
        message: str,
        *,
        partial: str = "",
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
        code: ModelErrorCode = "",
        attempts: int = 1,
    ) -> None:
        super().__init__(message)
        self.partial = partial
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        self.code: ModelErrorCode = code
        self.attempts = attempts


class ToolError(KeepwellError):
    """A tool call failed; it becomes a result that the model can read, never the end of a turn.

    A tool function may raise it to choose the `type` of that result: "semantic" (default: the
    call made no sense), "transient" (trying again may help), "environment" (credentials or
    set-up are missing; a human must act). Rule: TL-4.
    """

    def __init__(
        self,
        message: str,
        *,
        type: ToolErrorType = "semantic",
    ) -> None:
        super().__init__(message)
        self.type: ToolErrorType = type


class InvalidArguments(ToolError):
    """The arguments of a tool call do not fit its schema; the message names path and remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message, type="invalid_arguments")
