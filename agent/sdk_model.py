"""What the adapters built on a provider's SDK share: one request, one stream, every fault typed."""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import sys
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final, Protocol

from ..actors.errors import InvalidValue
from .endpoint_model import EndpointModel, require
from .errors import ModelError
from .model import ModelReply, ModelRequest, TextDelta
from .retry import RetryPolicy
from .sdk_error import corrupt, plain_data, sdk_error

_BESIDE: Final = ("temperature", "max_completion_tokens", "output_config")
"""Fields of a request that are sent as they are, past the SDK's own parameters."""

_AFTER_FINISH: Final = 2.0
"""Seconds to wait for what follows the finish reason: the reply is complete without it."""


class StreamParts(Protocol):
    """Puts the chunks of one streamed reply together."""

    @property
    def finished(self) -> bool:
        """Whether the finish reason has come: the reply is complete."""
        ...

    @property
    def nothing_follows(self) -> bool:
        """Whether all has come that the protocol promises."""
        ...

    def add(self, chunk: object) -> str:
        """Take a chunk in; returns the text to show. Raises ModelError."""
        ...

    def reply(self) -> ModelReply:
        """The whole reply. Raises ModelError "truncated" unless finished."""
        ...


@functools.cache
def _load(name: str) -> tuple[Any, Any]:
    """The SDK, and the TLS settings that all its clients share.

    Both are slow, seconds and some 50 ms: run it in a thread. Left to itself each client reads all
    certificates anew, on the event loop that it is made on.
    """
    sdk = importlib.import_module(name)
    client = next(c for c in sdk.DefaultAsyncHttpxClient.__mro__ if c.__name__ == "AsyncClient")
    library: Any = importlib.import_module(client.__module__.partition(".")[0])
    return sdk, library.create_ssl_context()


class SdkModel(EndpointModel[Any]):
    """Base of OpenAIModel and AnthropicModel; the SDK is loaded at the first call, in a thread.

    `base_url`: the endpoint; None takes the provider's environment variable or its own. `api_key`:
    None takes the variable; it is never shown or logged. `timeout`: seconds for a whole call,
    retries included; `idle_timeout`: seconds between two pieces of a stream. `retry`: our own; the
    SDK's retries are off. `max_output_tokens`, `temperature`: sent if given. `options`: further
    fields of the request as they are. `headers`: further HTTP headers.

    Raises InvalidValue, naming the field, and ModelError "not_installed" without the extra. Calls
    raise ModelError, whatever the endpoint does: statuses, broken or endless streams, bytes that
    are no JSON. A reply is whole or it is an error.

    `sdk` is the module and the extra, `client_class` its asynchronous client, `variables` the
    environment variables of the base URL and the key.
    """

    sdk: ClassVar[str]
    client_class: ClassVar[str]
    variables: ClassVar[tuple[str, str]]

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
        require(self.sdk, self.sdk)
        super().__init__(
            name, timeout=timeout, idle_timeout=idle_timeout, retry=retry or RetryPolicy()
        )
        limit: object = max_output_tokens
        if limit is not None and (
            not isinstance(limit, int) or isinstance(limit, bool) or limit < 1
        ):
            raise InvalidValue(f"max_output_tokens={limit!r}: pass an int of at least 1, or None")
        warmth: object = temperature
        if warmth is not None and (
            not isinstance(warmth, int | float) or isinstance(warmth, bool) or not warmth >= 0
        ):
            raise InvalidValue(f"temperature={warmth!r}: pass a number of at least 0, or None")
        for what, text in (("base_url", base_url), ("api_key", api_key)):
            given: object = text
            if given is not None and not isinstance(given, str):
                # The value is not shown: it may be a key in some wrapper.
                raise InvalidValue(f"{what} must be a str or None, got a {type(given).__name__}")
        self._base_url = base_url
        self._api_key = api_key
        self._max_output_tokens = max_output_tokens
        self._temperature = temperature
        self._options = dict(options or {})
        self._headers = dict(headers or {})

    @property
    def own_endpoint(self) -> bool:
        """Whether requests go to the provider itself and not to a compatible server."""
        return self._base_url is None and self.variables[0] not in os.environ

    async def _open(self) -> Any:
        sdk, tls = await asyncio.to_thread(_load, self.sdk)
        url_variable, key_variable = self.variables
        api_key = self._api_key or os.environ.get(key_variable)
        if not api_key:
            if self.own_endpoint:
                raise ModelError(
                    f"{self.name}: no API key: set {key_variable}, or pass base_url for a server "
                    "that needs none",
                    code="unauthorized",
                )
            api_key = "none"  # the SDKs insist on one, local servers ignore it
        return getattr(sdk, self.client_class)(
            base_url=self._base_url or os.environ.get(url_variable),
            api_key=api_key,
            max_retries=0,
            timeout=self._timeout,
            default_headers=self._headers,
            http_client=sdk.DefaultAsyncHttpxClient(verify=tls),
        )

    async def _close(self, client: Any) -> None:
        await client.close()

    @abstractmethod
    def _create(self, client: Any) -> Callable[..., Awaitable[Any]]:
        """The client's method that makes a reply."""

    @abstractmethod
    def _payload(self, request: ModelRequest, *, streaming: bool) -> dict[str, Any]:
        """The request's fields."""

    @abstractmethod
    def _read(self, data: object, request: ModelRequest) -> ModelReply:
        """The reply in the data of a whole answer. Raises ModelError."""

    @abstractmethod
    def _parts(self, request: ModelRequest) -> StreamParts:
        """What puts a streamed answer together."""

    async def _complete_once(self, client: Any, request: ModelRequest) -> ModelReply:
        try:
            data = plain_data(await self._ask(client, request, streaming=False))
        except Exception as error:
            raise self._model_error(error) from error
        return self._read(data, request)

    async def _stream_once(
        self, client: Any, request: ModelRequest
    ) -> AsyncGenerator[TextDelta | ModelReply]:
        parts = self._parts(request)
        try:
            chunks = await self._ask(client, request, streaming=True)
        except Exception as error:
            raise self._model_error(error) from error
        try:
            content_type = chunks.response.headers.get("content-type", "")
            if "json" in content_type:
                # The server does not stream: it answered whole.
                yield await self._read_whole(chunks.response, request)
                return
            if content_type and "event-stream" not in content_type:
                raise corrupt(self.name, f"the stream has the content type {content_type!r}")
            while (chunk := await self._next(chunks, parts)) is not None:
                if text := parts.add(chunk):
                    yield TextDelta(text)
        finally:
            await chunks.close()
        yield parts.reply()

    async def _ask(self, client: Any, request: ModelRequest, *, streaming: bool) -> Any:
        payload = {"model": self.name, **self._payload(request, streaming=streaming)}
        # Not as parameters: SDKs drop and rename those between versions, endpoints do not.
        beside = {key: payload.pop(key) for key in _BESIDE if key in payload}
        return await self._create(client)(**payload, extra_body={**beside, **self._options})

    async def _next(self, chunks: Any, parts: StreamParts) -> object:
        """The next chunk as plain data, None at the end of the stream."""
        try:
            if not parts.finished:
                return plain_data(await anext(chunks))
            if parts.nothing_follows:
                return None
            async with asyncio.timeout(_AFTER_FINISH):
                return plain_data(await anext(chunks))
        except StopAsyncIteration:
            return None
        except Exception as error:
            if parts.finished:  # whatever breaks now, the reply is complete
                return None
            raise self._model_error(error) from error

    async def _read_whole(self, response: Any, request: ModelRequest) -> ModelReply:
        try:
            data = json.loads(await response.aread())
        except Exception as error:
            raise self._model_error(error) from error
        return self._read(data, request)

    def _model_error(self, error: Exception) -> ModelError:
        return sdk_error(sys.modules[self.sdk], self.name, error)
