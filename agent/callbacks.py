"""Callbacks observe a turn; they never steer or hurt it (CB-1)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..actors import telemetry
from ..actors.errors import InvalidValue

if TYPE_CHECKING:
    from ..memory.call_threads import CallThreads

CALLBACK_NAMES: Final = (
    "on_turn_start",
    "on_turn_end",
    "on_turn_error",
    "on_model_call",
    "on_model_result",
    "on_tool_call",
    "on_tool_result",
    "on_token",
    "on_pause",
    "on_resume",
)
CALLBACK_TIMEOUT: Final = 5.0
"""Seconds after which a callback is left to itself and logged."""

logger = logging.getLogger("keepwell.agent")


@dataclass(frozen=True, slots=True)
class CallbackInfo:
    """What a callback is told.

    `value`: the question (on_turn_start), the `TurnResult` (on_turn_end, on_pause), the exception
    (on_turn_error), the `ModelRequest`, the `ModelReply`, the `PendingCall`-like `ToolCall`
    (on_tool_call), the result `Message` (on_tool_result), the text (on_token), the decisions by
    call id (on_resume).
    """

    name: str
    conversation_id: str
    turn_id: str
    step: int
    value: Any


Callback = Callable[[CallbackInfo], object]


def check_callbacks(callbacks: object) -> dict[str, Callback]:
    """The callbacks by name. Raises InvalidValue for an unknown name or what cannot be called."""
    if not isinstance(callbacks, Mapping):
        raise InvalidValue(f"callbacks={callbacks!r}: pass a mapping of name to function")
    for name, function in callbacks.items():
        if name not in CALLBACK_NAMES:
            raise InvalidValue(f"unknown callback {name!r}: one of {', '.join(CALLBACK_NAMES)}")
        if not callable(function):
            raise InvalidValue(f"callback {name!r} cannot be called: {function!r}")
    return dict(callbacks)


async def fire(callback: Callback, info: CallbackInfo, threads: CallThreads) -> None:
    """Run one callback: a coroutine function on the loop, a plain one in a thread.

    Whatever it raises, and that it took over 5 s, is logged and goes to telemetry.
    """
    try:
        async with asyncio.timeout(CALLBACK_TIMEOUT):
            if inspect.iscoroutinefunction(callback):
                # In a task of its own: what is late is left behind, not waited for.
                error = await asyncio.shield(_guarded(callback(info)))
            else:
                error = await threads.run(lambda: _called(callback, info))
                if inspect.isawaitable(error):
                    error = await asyncio.shield(_guarded(error))
    except TimeoutError:
        _report(info, f"it took more than {CALLBACK_TIMEOUT:g} s", None)
    else:
        if error is not None:
            _report(info, "it raised", error)


async def _guarded(answer: Any) -> BaseException | None:
    try:
        await answer
    except BaseException as error:  # noqa: BLE001 - SystemExit in an observer is no reason to exit
        return error
    return None


def _called(callback: Callback, info: CallbackInfo) -> Any:
    try:
        value = callback(info)
    except BaseException as error:  # noqa: BLE001 - as above
        return error
    return value if inspect.isawaitable(value) else None


def _report(info: CallbackInfo, what: str, error: BaseException | None) -> None:
    logger.error(
        "callback %s of conversation %r, turn %r: %s", info.name, info.conversation_id,
        info.turn_id, what, exc_info=error,
    )  # fmt: skip
    telemetry.emit("keepwell.agent.callback_failed", info=info, error=error)
