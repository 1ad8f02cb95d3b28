"""What the providers' SDKs, their HTTP clients and JSON parsers raise, as ModelErrors. Pure.

The SDKs agree in their class names and disagree in what they let through: a lost connection is
an APIConnectionError here and a bare transport error there, a corrupt chunk a JSONDecodeError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from .errors import ModelError, ModelErrorCode
from .retry import parse_retry_after

_HTTP_CLIENTS: Final = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2"})


def corrupt(model: str, what: str) -> ModelError:
    """What came is not the protocol; asking again may help."""
    return ModelError(f"{model}: not the protocol: {what}", code="corrupt", retryable=True)


def sdk_error(sdk: Any, model: str, raised: Exception) -> ModelError:
    """The ModelError for an exception from a call into `sdk` (the module openai or anthropic)."""
    if isinstance(raised, ModelError):
        return raised
    error: Any = raised  # its class comes from a module that may not be installed
    if isinstance(error, sdk.APIStatusError):
        if error.status_code < 400:  # an error event in a stream that had begun well
            return stream_error(error.body, model)
        return status_error(
            model, error.status_code, error.message, error.body, error.response.headers
        )
    if isinstance(error, sdk.APITimeoutError | TimeoutError):
        return ModelError(
            f"{model}: the endpoint did not answer in time", code="timeout", retryable=True
        )
    if isinstance(error, sdk.APIConnectionError | OSError) or _is_transport(error):
        cause = error.__cause__ or error
        return ModelError(
            f"{model}: the connection failed ({type(cause).__name__}: {cause})",
            code="disconnected",
            retryable=True,
        )
    if isinstance(error, sdk.APIError):  # an error event likewise
        return stream_error(error.body or error.message, model)
    # The SDKs parse leniently and stumble over what is not the protocol in many ways.
    return corrupt(model, f"{type(error).__name__}: {error}"[:200])


def status_error(
    model: str, status: int, message: str, body: object, headers: Mapping[str, str]
) -> ModelError:
    """The ModelError for an HTTP status of 400 and above."""
    words = f"{_kind(body)} {message}".lower()
    code: ModelErrorCode = "bad_request"
    retryable = False
    if status == 429:
        code = "rate_limited"
        retryable = "insufficient_quota" not in words  # a bill to pay does not pass by waiting
    elif status in (401, 403):
        code = "unauthorized"
    elif status in (408, 504):
        code, retryable = "timeout", True
    elif status in (409, 425):
        retryable = True
    elif status == 413 or _is_context(words):
        code = "context_too_large"
    elif status >= 500:
        code, retryable = "server_error", True
    elif "content_filter" in words or "content_policy" in words:
        code = "refused"
    return ModelError(
        f"{model}: HTTP {status}: {message}",
        status=status,
        code=code,
        retryable=retryable,
        retry_after=parse_retry_after(
            headers.get("retry-after"), in_ms=headers.get("retry-after-ms"), now=datetime.now(UTC)
        ),
    )


def stream_error(body: object, model: str) -> ModelError:
    """An error that came inside a stream, after the status 200."""
    kind = _kind(body)
    message = body if isinstance(body, str) else kind
    if isinstance(body, Mapping):
        inner = body.get("error")
        inner = inner if isinstance(inner, Mapping) else body
        message = inner.get("message") or inner.get("error") or kind
    code: ModelErrorCode = "server_error"
    if "rate_limit" in kind or "overloaded" in kind:
        code = "rate_limited"
    elif _is_context(kind):
        code = "context_too_large"
    elif "invalid_request" in kind:
        code = "bad_request"
    elif "authentication" in kind or "permission" in kind:
        code = "unauthorized"
    return ModelError(
        f"{model}: {message}",
        code=code,
        retryable=code in ("server_error", "rate_limited"),
    )


def plain_data(value: Any) -> object:
    """An SDK's object as plain data; what is none (a str, for an odd content type) is parsed."""
    if isinstance(value, str):
        return json.loads(value)
    # warnings=False: the SDKs build their objects unchecked, and pydantic would warn of that.
    return value.model_dump(warnings=False)


def _kind(body: object) -> str:
    if not isinstance(body, Mapping):
        return ""
    inner = body.get("error")
    inner = inner if isinstance(inner, Mapping) else body
    return f"{inner.get('type') or ''} {inner.get('code') or ''}"


def _is_context(words: str) -> bool:
    return any(
        sign in words
        for sign in (
            "context_length", "context length", "prompt is too long", "exceed_context_size",
            "request_too_large", "model_context_window",
        )
    )  # fmt: skip


def _is_transport(error: Exception) -> bool:
    return any(cls.__module__.split(".")[0] in _HTTP_CLIENTS for cls in type(error).__mro__)
