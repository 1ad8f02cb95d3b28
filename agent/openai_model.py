"""Models behind an OpenAI-compatible chat completions endpoint."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from .endpoint_model import EndpointModel, require
from .errors import ModelError, ModelErrorCode
from .model import ModelReply, ModelRequest, TextDelta
from .openai_wire import CompletionStream, corrupt, openai_payload, openai_reply
from .retry import RetryPolicy, parse_retry_after

_AFTER_FINISH: Final = 2.0
"""Seconds to wait for the usage after the finish reason: the reply is complete without it."""


class OpenAIModel(EndpointModel[Any]):
    """A chat model at an OpenAI-compatible endpoint; needs the extra `openai`.

    `base_url`: the endpoint, ending in /v1; None takes OPENAI_BASE_URL or OpenAI's own. `api_key`:
    None takes OPENAI_API_KEY; it is never shown or logged. `timeout`: seconds for a whole call,
    retries included; `idle_timeout`: seconds between two pieces of a stream. `retry`: our own; the
    SDK's retries are off. `max_output_tokens`, `temperature`: sent if given. `options`: further
    fields of the request as they are. `headers`: further HTTP headers.

    Raises ModelError "not_installed" without the extra. Calls raise ModelError, whatever the
    endpoint does: statuses, broken or endless streams, bytes that are no JSON. A reply is whole or
    it is an error. The SDK is loaded at the first call, in a thread.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 120.0,
        idle_timeout: float = 60.0,
        retry: RetryPolicy | None = None,
        max_output_tokens: int | None = None,
        temperature: float | None = None,
        options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        require("openai", "openai")
        super().__init__(
            name, timeout=timeout, idle_timeout=idle_timeout, retry=retry or RetryPolicy()
        )
        self._base_url = base_url
        self._api_key = api_key
        self._max_output_tokens = max_output_tokens
        self._temperature = temperature
        self._options = dict(options or {})
        self._headers = dict(headers or {})

    async def _open(self) -> Any:
        openai = await asyncio.to_thread(importlib.import_module, "openai")
        base_url = self._base_url or os.environ.get("OPENAI_BASE_URL")
        api_key = self._api_key or os.environ.get("OPENAI_API_KEY")
        if not api_key:
            if base_url is None:
                raise ModelError(
                    f"{self.name}: no API key: set OPENAI_API_KEY, or pass base_url for a server "
                    "that needs none",
                    code="unauthorized",
                )
            api_key = "none"  # the SDK insists on one, local servers ignore it
        return openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            max_retries=0,
            timeout=self._timeout,
            default_headers=self._headers,
        )

    async def _close(self, client: Any) -> None:
        await client.close()

    async def _complete_once(self, client: Any, request: ModelRequest) -> ModelReply:
        try:
            completion = await client.chat.completions.create(**self._payload(request))
            data = _plain(completion)
        except Exception as error:
            raise self._model_error(error) from error
        return openai_reply(data, request, self.name)

    async def _stream_once(
        self, client: Any, request: ModelRequest
    ) -> AsyncGenerator[TextDelta | ModelReply]:
        parts = CompletionStream(request, self.name)
        try:
            chunks = await client.chat.completions.create(
                **self._payload(request), stream=True, stream_options={"include_usage": True}
            )
        except Exception as error:
            raise self._model_error(error) from error
        try:
            content_type = chunks.response.headers.get("content-type", "")
            if "json" in content_type:
                # The server does not stream: it answered whole, or with an error.
                yield await self._whole(chunks.response, request)
                return
            if content_type and "event-stream" not in content_type:
                raise corrupt(self.name, f"the stream has the content type {content_type!r}")
            while (chunk := await self._next(chunks, parts)) is not None:
                if text := parts.add(chunk):
                    yield TextDelta(text)
        finally:
            await chunks.close()
        yield parts.reply()

    async def _next(self, chunks: Any, parts: CompletionStream) -> object:
        """The next chunk as plain data, None at the end of the stream."""
        try:
            if parts.finish is None:
                return _plain(await anext(chunks))
            if parts.usage_seen:
                return None
            async with asyncio.timeout(_AFTER_FINISH):
                return _plain(await anext(chunks))
        except StopAsyncIteration:
            return None
        except Exception as error:
            if parts.finish is not None:  # whatever breaks now, the reply is complete
                return None
            raise self._model_error(error) from error

    async def _whole(self, response: Any, request: ModelRequest) -> ModelReply:
        try:
            data = json.loads(await response.aread())
        except Exception as error:
            raise self._model_error(error) from error
        return openai_reply(data, request, self.name)

    def _payload(self, request: ModelRequest) -> dict[str, Any]:
        payload = {"model": self.name, **openai_payload(request)}
        if self._max_output_tokens is not None:
            # OpenAI renamed the field; the servers that follow its protocol know the old name.
            own = self._base_url is None and "OPENAI_BASE_URL" not in os.environ
            payload["max_completion_tokens" if own else "max_tokens"] = self._max_output_tokens
        if self._temperature is not None:
            payload["temperature"] = self._temperature
        if self._options:
            payload["extra_body"] = self._options
        return payload

    def _model_error(self, error: Exception) -> ModelError:
        """The ModelError for what the SDK, its HTTP client or its JSON parser raised."""
        if isinstance(error, ModelError):
            return error
        import openai

        if isinstance(error, openai.APIStatusError):
            return status_error(
                self.name, error.status_code, error.message, error.body, error.response.headers
            )
        if isinstance(error, openai.APITimeoutError | TimeoutError):
            return ModelError(
                f"{self.name}: the endpoint did not answer in time", code="timeout", retryable=True
            )
        if isinstance(error, openai.APIConnectionError | OSError):
            cause = error.__cause__ or error
            return ModelError(
                f"{self.name}: the connection failed ({type(cause).__name__}: {cause})",
                code="disconnected",
                retryable=True,
            )
        if isinstance(error, openai.APIError):  # an error event in the middle of a stream
            body = error.body
            fault = ModelError(f"{self.name}: {error.message}", code="server_error", retryable=True)
            if isinstance(body, Mapping) and "invalid_request" in str(body.get("type")):
                fault.retryable = False
            return fault
        if isinstance(error, ValueError | TypeError | AttributeError | KeyError):
            # The SDK parses leniently and stumbles over what is not the protocol.
            return corrupt(self.name, f"{type(error).__name__}: {error}"[:200])
        return ModelError(f"{self.name}: {type(error).__name__}: {error}", retryable=True)


def status_error(
    name: str, status: int, message: str, body: object, headers: Mapping[str, str]
) -> ModelError:
    """The ModelError for an HTTP status of 400 and above, of any provider."""
    kind = ""
    if isinstance(body, Mapping):
        inner = body.get("error")
        inner = inner if isinstance(inner, Mapping) else body
        kind = f"{inner.get('type') or ''} {inner.get('code') or ''}"
    words = f"{kind} {message}".lower()
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
    elif status == 413 or _is_context_error(words):
        code = "context_too_large"
    elif status >= 500:
        code, retryable = "server_error", True
    elif "content_filter" in words or "content_policy" in words:
        code = "refused"
    return ModelError(
        f"{name}: HTTP {status}: {message}",
        status=status,
        code=code,
        retryable=retryable,
        retry_after=parse_retry_after(
            headers.get("retry-after"),
            in_ms=headers.get("retry-after-ms"),
            now=datetime.now(UTC),
        ),
    )


def _is_context_error(words: str) -> bool:
    return (
        "context_length" in words
        or "context length" in words
        or "prompt is too long" in words
        or "exceed_context_size" in words
    )


def _plain(value: Any) -> object:
    """SDK objects as plain data; what is none (a str, for an unexpected content type) is parsed."""
    if isinstance(value, str):
        return json.loads(value)
    # warnings=False: the SDK builds its objects unchecked, and pydantic would warn of that.
    return value.model_dump(warnings=False)
