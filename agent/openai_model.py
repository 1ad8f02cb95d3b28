"""Models behind an OpenAI-compatible chat completions endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .model import ModelReply, ModelRequest
from .openai_wire import CompletionStream, openai_payload, openai_reply
from .sdk_model import SdkModel, StreamParts


class OpenAIModel(SdkModel):
    """A chat model at an OpenAI-compatible endpoint; needs the extra `openai`.

    `base_url`: the endpoint, ending in /v1; None takes OPENAI_BASE_URL or OpenAI's own. `api_key`:
    None takes OPENAI_API_KEY. The other options, and what is raised, are SdkModel's.
    """

    sdk = "openai"
    client_class = "AsyncOpenAI"
    variables = ("OPENAI_BASE_URL", "OPENAI_API_KEY")

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
