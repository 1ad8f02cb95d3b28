"""Starts a coroutine in place, as a task of its own.

Its first step is taken at once; if it ends without suspending, no trip through the loop is made. On
Python 3.12 asyncio does this by itself (`eager_start`). On 3.11 the same is done by hand: the
task's first step is taken out of the loop's ready queue and run now, with the caller's task put
aside; a loop without such a queue (uvloop) runs the step in its next round.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Coroutine
from typing import Any


def start_now(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    context: contextvars.Context,
) -> asyncio.Task[Any]:
    """Make a task of `coroutine` and take its first step now, if the running loop allows it.

    It is a task like any other, `asyncio.timeout` and `current_task` work in it; one that never
    suspends is done on return, without a trip through the loop.
    """
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, context=context, eager_start=True)
    return _start_by_hand(loop, coroutine, context)


def _start_by_hand(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    context: contextvars.Context,
) -> asyncio.Task[Any]:
    """Make a task of `coroutine` and take its first step now, if the loop allows it."""
    task = asyncio.Task(coroutine, loop=loop, context=context)
    ready = getattr(loop, "_ready", None)
    if ready is None:
        return task
    handle = ready.pop()
    current = asyncio.current_task(loop)
    if current is None:
        handle._run()
        return task
    asyncio._leave_task(loop, current)
    try:
        handle._run()
    finally:
        asyncio._enter_task(loop, current)
    return task


class Escaped(Exception):  # noqa: N818 - it carries an error
    """Carries what asyncio would let out of its loop to where the actor's crash is dealt with."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


async def guard(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Keep SystemExit and KeyboardInterrupt of a handler from ending the loop (F45)."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise Escaped(error) from None


def unwrap(error: BaseException) -> BaseException:
    """Undo what `guard` did."""
    return error.error if isinstance(error, Escaped) else error
