"""Models behind an OpenAI-compatible chat completions endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .model import ModelReply, ModelRequest
from .openai_wire import CompletionStream, openai_payload, openai_reply
from .retry import RetryPolicy
from .sdk_model import SdkModel, StreamParts


class OpenAIModel(SdkModel):
    """A chat model at an OpenAI-compatible endpoint; needs the extra `openai`.

    `base_url`: the endpoint, ending in /v1; None takes OPENAI_BASE_URL or OpenAI's own. `api_key`:
    None takes OPENAI_API_KEY; it is never shown or logged. `timeout`: seconds for a whole call,
    retries included; `idle_timeout`: seconds between two pieces of a stream. `retry`: our own; the
    SDK's retries are off. `max_output_tokens`, `temperature`: sent if given. `options`: further
    fields of the request as they are. `headers`: further HTTP headers.

    Raises ModelError "not_installed" without the extra. Calls raise ModelError, whatever the
    endpoint does: statuses, broken or endless streams, bytes that are no JSON. A reply is whole or
    it is an error.
    """

    sdk = "openai"
    client_class = "AsyncOpenAI"
    variables = ("OPENAI_BASE_URL", "OPENAI_API_KEY")

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
        super().__init__(
            name,
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            idle_timeout=idle_timeout,
            retry=retry,
            options=options,
            headers=headers,
        )
        self._max_output_tokens = max_output_tokens
        self._temperature = temperature

    def _create(self, client: Any) -> Callable[..., Awaitable[Any]]:
        create: Callable[..., Awaitable[Any]] = client.chat.completions.create
        return create

    def _payload(self, request: ModelRequest, *, streaming: bool) -> dict[str, Any]:
        payload = openai_payload(request)
        if self._max_output_tokens is not None:
            # OpenAI renamed the field; the servers that follow its protocol know the old name.
            field = "max_completion_tokens" if self.own_endpoint else "max_tokens"
            payload[field] = self._max_output_tokens
        if self._temperature is not None:
            payload["temperature"] = self._temperature
        if streaming:
            payload |= {"stream": True, "stream_options": {"include_usage": True}}
        return payload

    def _read(self, data: object, request: ModelRequest) -> ModelReply:
        return openai_reply(data, request, self.name)

    def _parts(self, request: ModelRequest) -> StreamParts:
        return CompletionStream(request, self.name)
