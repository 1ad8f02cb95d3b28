"""Models behind Anthropic's messages endpoint, or a server that speaks its protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from .anthropic_wire import MessageStream, anthropic_payload, anthropic_reply
from .model import ModelReply, ModelRequest
from .sdk_model import SdkModel, StreamParts

_OUTPUT_TOKENS: Final = 4096


class AnthropicModel(SdkModel):
    """A chat model at an endpoint of the messages protocol; needs the extra `anthropic`.

    `base_url`: the endpoint without /v1; None takes ANTHROPIC_BASE_URL or Anthropic's own.
    `api_key`: None takes ANTHROPIC_API_KEY. `max_output_tokens`: None takes 4,096, since the
    protocol demands a limit. The other options, and what is raised, are SdkModel's. Thinking
    blocks are kept in the message's extra field `thinking` and sent back in later calls.
    """

    sdk = "anthropic"
    client_class = "AsyncAnthropic"
    variables = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")

    def _create(self, client: Any) -> Callable[..., Awaitable[Any]]:
        create: Callable[..., Awaitable[Any]] = client.messages.create
        return create

    def _payload(self, request: ModelRequest, *, streaming: bool) -> dict[str, Any]:
        limit = self._max_output_tokens or _OUTPUT_TOKENS
        payload = {"max_tokens": limit, **anthropic_payload(request)}
        if self._temperature is not None:
            payload["temperature"] = self._temperature
        if streaming:
            payload["stream"] = True
        return payload

    def _read(self, data: object, request: ModelRequest) -> ModelReply:
        return anthropic_reply(data, request, self.name)

    def _parts(self, request: ModelRequest) -> StreamParts:
        return MessageStream(request, self.name)
