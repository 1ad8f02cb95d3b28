"""Calling the functions of users: which are async, and threads for those that are not."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from ..memory.call_threads import CallThreads
from .errors import SessionDefinitionError

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


def check_takes(function: Callable[..., Any], *arguments: str) -> None:
    """Raise SessionDefinitionError unless a function can be called with these, by position."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as problem:
        raise SessionDefinitionError(
            f"{getattr(function, '__name__', function)!r} is called with "
            f"({', '.join(arguments)}): {problem}"
        ) from None
    except ValueError:
        return  # a builtin that does not tell


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function: an async one here, another one in a thread; what it gives is awaited."""
    if is_async(function):
        return await function(*args, **kwargs)
    value = await step_threads.run(functools.partial(function, *args, **kwargs))
    return await value if inspect.isawaitable(value) else value
