"""One model call with its retries and its deadline: an answer, or a `ModelError` (AG-7, AG-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ..actors import telemetry
from ..stores.message import Message
from .errors import ModelError
from .model import NO_USAGE, ModelReply, ModelRequest, TextDelta, Usage
from .watchdog import Watchdog

if TYPE_CHECKING:
    from .model import ChatModel

MAX_ATTEMPTS: Final = 3
"""Requests per model call: the first and two retries (AG-7)."""
FIRST_DELAY: Final = 0.25
MAX_DELAY: Final = 30.0

OnDelta = Callable[[str], Awaitable[None]]


class ModelCall:
    """One call in progress. `partial` is the text of the running attempt; `usage` what failed
    attempts that did return have cost (US-1)."""

    __slots__ = ("_model", "_seconds", "_watchdog", "partial", "usage")

    def __init__(self, model: ChatModel, seconds: float, watchdog: Watchdog | None = None) -> None:
        self._model = model
        self._seconds = seconds
        self._watchdog = Watchdog() if watchdog is None else watchdog
        self.partial = ""
        self.usage = NO_USAGE

    async def run(
        self,
        request: ModelRequest,
        on_delta: OnDelta | None = None,
        on_restart: Callable[[], Awaitable[None]] | None = None,
    ) -> ModelReply:
        """Ask until there is a usable reply.

        Streams if `on_delta` is given, and calls `on_restart` before an attempt that voids deltas.
        Raises ModelError with the text of the last attempt in `.partial`. An exception that is no
        `Exception` (SystemExit) passes: it is a crash.
        """
        attempts = 0
        while True:
            if self.partial and on_restart is not None:
                await on_restart()
            self.partial = ""
            try:
                reply = await self._in_time(request, on_delta)
                if reply.message.tool_calls or _says_something(reply):
                    return reply
                self.usage = self.usage + reply.usage
                error = ModelError(
                    f"{self._model.name} gave an empty reply", code="empty_reply", retryable=True
                )
            except ModelError as raised:
                error = raised
            except TimeoutError as late:
                error = ModelError(
                    f"{self._model.name} did not answer within {self._seconds:g} s",
                    code="timeout", retryable=True,
                )  # fmt: skip
                error.__cause__ = late
            except Exception as bug:
                error = ModelError(
                    f"{self._model.name} raised {type(bug).__name__}: {bug}", retryable=True
                )
                error.__cause__ = bug
            attempts += max(1, error.attempts)
            if attempts >= MAX_ATTEMPTS or not _worth_waiting(error):
                if self.partial and not error.partial:
                    error.partial = self.partial
                error.attempts = attempts
                raise error
            telemetry.emit("keepwell.model.retry", request=request, error=error)
            delay = FIRST_DELAY * 2 ** (attempts - 1)
            if error.retry_after is not None:
                delay = error.retry_after
            await asyncio.sleep(min(delay, MAX_DELAY))

    async def _in_time(self, request: ModelRequest, on_delta: OnDelta | None) -> ModelReply:
        watchdog = self._watchdog
        watchdog.start(self._seconds)
        try:
            if on_delta is None:
                return self._checked(await self._model.complete(request))
            return await self._stream(request, on_delta)
        except asyncio.CancelledError as cancelled:
            if watchdog.bit():
                raise TimeoutError from cancelled
            raise
        finally:
            watchdog.stop()

    async def _stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        reply: object = None
        async for item in self._model.stream(request):
            if isinstance(item, TextDelta):
                self.partial += item.text
                await on_delta(item.text)
            else:
                reply = item
        if reply is None:
            raise ModelError(
                f"the stream of {self._model.name} ended without a reply",
                partial=self.partial, code="truncated", retryable=True,
            )  # fmt: skip
        return self._checked(reply)

    def _checked(self, given: object) -> ModelReply:
        """What a model of anybody's gave, if it is a reply: it goes into the log as the answer."""
        if not isinstance(given, ModelReply):
            problem = f"a {type(given).__name__}, no ModelReply"
        else:
            message: object = given.message
            usage: object = given.usage
            if isinstance(message, Message) and isinstance(usage, Usage):
                if message.role == "assistant":
                    return given
                problem = f"a message of the role {message.role!r}: a reply is the assistant's"
            else:
                problem = (
                    f"a ModelReply of a {type(message).__name__} and a {type(usage).__name__}, "
                    "not of a Message and a Usage"
                )
        raise ModelError(f"{self._model.name} gave {problem}", code="corrupt")


def _worth_waiting(error: ModelError) -> bool:
    """Whether to ask again: not where a circuit breaker wants nobody to wait, and not before the
    time that the endpoint asked for."""
    asked_for = error.retry_after or 0.0
    return error.retryable and error.code != "circuit_open" and asked_for <= MAX_DELAY


def _says_something(reply: ModelReply) -> bool:
    content = reply.message.content
    return bool(content.strip() if isinstance(content, str) else content)
