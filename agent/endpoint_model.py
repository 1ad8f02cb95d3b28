"""What all adapters to model endpoints share: deadlines, retries, connections, closing.

An adapter translates one request (`_complete_once`, `_stream_once`) and raises ModelError; this
class repeats it, bounds it in time, and keeps one client per event loop.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from ..actors.errors import InvalidValue
from .errors import ModelError
from .model import ModelReply, ModelRequest, TextDelta
from .retry import RetryPolicy, retry_delay, with_retries

Client = TypeVar("Client")
Item = TypeVar("Item")


class EndpointModel(ABC, Generic[Client]):
    """Base of the adapters; fulfils ChatModel.

    `timeout`: seconds for a whole call, retries and waits included. `idle_timeout`: seconds
    without any byte of a stream. A stream is repeated only while nothing of it has been shown;
    after that a fault comes up with the text so far in `.partial`. Usable from any number of
    conversations and event loops at once; `aclose()` closes the connections of the running loop,
    which otherwise are closed with the loop.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: float,
        idle_timeout: float,
        retry: RetryPolicy,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        given: object = name
        if not isinstance(given, str) or not given:
            raise InvalidValue(f"the model's name must be a non-empty str, got {given!r}")
        for what, value in (("timeout", timeout), ("idle_timeout", idle_timeout)):
            number: object = value
            if not isinstance(number, int | float) or isinstance(number, bool) or not number > 0:
                raise InvalidValue(f"{what} must be a positive number of seconds, got {number!r}")
        self._name = name
        self._timeout = timeout
        self._idle_timeout = idle_timeout
        self._retry = retry
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._lock = threading.Lock()
        self._clients: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[Client, AsyncGenerator[None]]
        ] = weakref.WeakKeyDictionary()

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer the request. Raises ModelError after the policy's retries, or at the deadline."""
        deadline = self._clock() + self._timeout

        async def once() -> ModelReply:
            client = await self._client()
            return await self._within(
                self._complete_once(client, request), deadline - self._clock()
            )

        return await with_retries(
            once,
            self._retry,
            deadline=deadline,
            clock=self._clock,
            sleep=self._sleep,
            chance=self._chance,
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelReply]:
        """Answer the request piece by piece. Raises ModelError with `.partial`."""
        deadline = self._clock() + self._timeout
        attempts = 0
        while True:
            attempts += 1
            shown: list[str] = []
            client = await self._client()
            events = self._stream_once(client, request)
            try:
                async for item in self._in_time(events, deadline):
                    if isinstance(item, TextDelta):
                        shown.append(item.text)
                    elif not shown and item.message.text:
                        # The endpoint did not stream, or refused in a field of its own: what is
                        # shown must still join to the text of the reply.
                        yield TextDelta(item.message.text)
                    yield item
                return
            except ModelError as error:
                error.attempts = attempts
                error.partial = error.partial or "".join(shown)
                delay = retry_delay(
                    self._retry,
                    error,
                    attempts,
                    chance=self._chance(),
                    remaining=deadline - self._clock(),
                )
                if error.partial or delay is None:
                    raise
            finally:
                await events.aclose()
            await self._sleep(delay)

    async def aclose(self) -> None:
        """Close the connections that were opened on the running loop. The model stays usable."""
        with self._lock:
            held = self._clients.pop(asyncio.get_running_loop(), None)
        if held is not None:
            await held[1].aclose()

    @abstractmethod
    async def _open(self) -> Client:
        """A client for the running loop; may load libraries."""

    @abstractmethod
    async def _close(self, client: Client) -> None:
        """Close a client that `_open` made."""

    @abstractmethod
    async def _complete_once(self, client: Client, request: ModelRequest) -> ModelReply:
        """One request, one reply. Raises ModelError for every fault of the endpoint."""

    @abstractmethod
    def _stream_once(
        self, client: Client, request: ModelRequest
    ) -> AsyncGenerator[TextDelta | ModelReply]:
        """One request, its pieces and its reply. Raises ModelError likewise."""

    async def _client(self) -> Client:
        loop = asyncio.get_running_loop()
        with self._lock:
            held = self._clients.get(loop)
        if held is not None:
            return held[0]
        client = await self._open()
        keeper = self._keep(client)
        await anext(keeper)
        with self._lock:
            kept, _ = self._clients.setdefault(loop, (client, keeper))
        if kept is not client:  # another task was faster
            await keeper.aclose()
        return kept

    async def _keep(self, client: Client) -> AsyncGenerator[None]:
        # A loop closes its open async generators when it ends. So the connections are closed in
        # time on the loop they belong to, even if nobody calls aclose().
        try:
            yield
        finally:
            await self._close(client)

    async def _within(self, call: Awaitable[Item], seconds: float) -> Item:
        scope = asyncio.timeout(max(seconds, 0))
        try:
            async with scope:
                return await call
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise self._late() from error

    async def _in_time(self, events: AsyncIterator[Item], deadline: float) -> AsyncIterator[Item]:
        """The items of a stream; each must come before the deadline and within `idle_timeout`."""
        while True:
            # Entered and left within one item, so that a consumer's own time between two items is
            # not counted against the endpoint's idle time.
            scope = asyncio.timeout(max(min(deadline - self._clock(), self._idle_timeout), 0))
            try:
                async with scope:
                    item = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                if not scope.expired():
                    raise
                raise self._late() from error
            yield item

    def _late(self) -> ModelError:
        return ModelError(
            f"{self._name}: no reply within the timeout ({self._timeout:g} s in all, "
            f"{self._idle_timeout:g} s between two pieces)",
            code="timeout",
            retryable=True,
        )


def require(module: str, extra: str) -> None:
    """Raise ModelError "not_installed", naming the extra, if `module` cannot be imported."""
    if importlib.util.find_spec(module) is None:
        raise ModelError(
            f"the package {module} is not installed: pip install 'keepwell[{extra}]'",
            code="not_installed",
        )
