"""Several models as one: the next is asked where the one before fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from ..actors.errors import InvalidValue
from .errors import ModelError
from .model import ChatModel, ModelReply, ModelRequest, TextDelta


class FallbackModel:
    """Asks `models` in order until one answers.

    A ModelError leads to the next model, unless `when(error)` says no (default: always) or some
    text of the reply has been shown: half of one model's answer is never followed by another's.
    If all fail, the last error is raised; it counts all `attempts`, and its notes tell the others.
    Retries belong into the models themselves; give those before the last a short RetryPolicy.
    """

    def __init__(
        self,
        *models: ChatModel,
        name: str = "",
        when: Callable[[ModelError], bool] | None = None,
    ) -> None:
        if not models:
            raise InvalidValue("a FallbackModel needs at least one model")
        for model in models:
            if not isinstance(model, ChatModel):
                raise InvalidValue(
                    f"{model!r} is no chat model: it needs name, complete and stream"
                )
        self._models = models
        self._name = name or " or ".join(model.name for model in models)
        self._when = when

    @property
    def name(self) -> str:
        """The names of its models."""
        return self._name

    async def complete(self, request: ModelRequest) -> ModelReply:
        """The reply of the first model that gives one. Raises the last ModelError."""
        failures = _Failures()
        for model in self._models:
            try:
                return await model.complete(request)
            except ModelError as error:
                failures.add(model, error)
                if model is self._models[-1] or not self._follows(error):
                    raise failures.told(error) from error.__cause__
        raise AssertionError("unreachable: the last model returns or raises")

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextDelta | ModelReply]:
        """The stream of the first model that begins one and ends it. Raises likewise."""
        failures = _Failures()
        for model in self._models:
            shown = ""
            try:
                async with aclosing(closable(model.stream(request))) as items:
                    async for item in items:
                        if isinstance(item, TextDelta):
                            shown += item.text
                        yield item
                return
            except ModelError as error:
                failures.add(model, error)
                error.partial = error.partial or shown
                last = model is self._models[-1]
                if last or error.partial or not self._follows(error):
                    raise failures.told(error) from error.__cause__

    def _follows(self, error: ModelError) -> bool:
        return self._when is None or self._when(error)


class _Failures:
    def __init__(self) -> None:
        self._attempts = 0
        self._told: list[str] = []

    def add(self, model: ChatModel, error: ModelError) -> None:
        self._attempts += error.attempts
        self._told.append(f"{model.name}: {error}")

    def told(self, error: ModelError) -> ModelError:
        """The error with what led to it."""
        error.attempts = self._attempts
        for line in self._told[:-1]:
            error.add_note(f"tried before: {line}")
        return error


async def closable(
    items: AsyncIterator[TextDelta | ModelReply],
) -> AsyncGenerator[TextDelta | ModelReply]:
    """The same items from a generator, which can be closed whatever the model returned."""
    try:
        async for item in items:
            yield item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()
