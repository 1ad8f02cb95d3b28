"""Calling the functions of users: which are async, and threads for those that are not."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from ..memory.call_threads import CallThreads

step_threads: Final = CallThreads()
"""The threads of blocking steps and tools: they grow on demand and are never joined at exit."""


def target_of(function: object) -> object:
    """The function behind partials and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        return getattr(function, "__call__", function)  # noqa: B004 - the bound method is wanted
    return function


def is_async(function: object) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(target_of(function))


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function: an async one here, another one in a thread; what it gives is awaited."""
    if is_async(function):
        return await function(*args, **kwargs)
    value = await step_threads.run(functools.partial(function, *args, **kwargs))
    return await value if inspect.isawaitable(value) else value
