"""Models behind Anthropic's messages endpoint, or a server that speaks its protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .anthropic_wire import MessageStream, anthropic_payload, anthropic_reply
from .model import ModelReply, ModelRequest
from .retry import RetryPolicy
from .sdk_model import SdkModel, StreamParts


class AnthropicModel(SdkModel):
    """A chat model at an endpoint of the messages protocol; needs the extra `anthropic`.

    `base_url`: the endpoint without /v1; None takes ANTHROPIC_BASE_URL or Anthropic's own.
    `api_key`: None takes ANTHROPIC_API_KEY; it is never shown or logged. `max_output_tokens`: the
    protocol demands a limit. All else is as with OpenAIModel. Thinking blocks are kept in the
    message's extra field `thinking` and sent back in later calls.

    Raises ModelError "not_installed" without the extra. Calls raise ModelError, whatever the
    endpoint does; a reply is whole or it is an error.
    """

    sdk = "anthropic"
    client_class = "AsyncAnthropic"
    variables = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 120.0,
        idle_timeout: float = 60.0,
        retry: RetryPolicy | None = None,
        max_output_tokens: int = 4096,
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
        create: Callable[..., Awaitable[Any]] = client.messages.create
        return create

    def _payload(self, request: ModelRequest, *, streaming: bool) -> dict[str, Any]:
        payload = {"max_tokens": self._max_output_tokens, **anthropic_payload(request)}
        if self._temperature is not None:
            payload["temperature"] = self._temperature
        if streaming:
            payload["stream"] = True
        return payload

    def _read(self, data: object, request: ModelRequest) -> ModelReply:
        return anthropic_reply(data, request, self.name)

    def _parts(self, request: ModelRequest) -> StreamParts:
        return MessageStream(request, self.name)
