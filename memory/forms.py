"""The five forms of `memory=` (MF-1…6).

    nothing or "default"     the shared default store, no window
    Window(n)                the shared default store, windowed
    a store or store handle  that store, no window
    a provider               an object with history, append, prepare and clear, as it is
    False or "none"          stateless

Anything else is refused when the spec is built. None too: it could mean the first or the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ..actors.errors import InvalidValue
from .default_provider import DefaultProvider
from .provider import PROVIDER_METHODS
from .window import Window

STORE_METHODS: Final = ("read", "get", "add", "clear", "info")
FORMS: Final = (
    'memory takes "default" (the shared store), Window(n) (the shared store, windowed), a store or '
    'store handle, a provider (history, append, prepare, clear), or False or "none" (stateless)'
)


@dataclass(frozen=True, slots=True)
class MemoryForm:
    """What a `memory=` value means. `target`: the store or provider, None for the default."""

    kind: Literal["store", "provider", "none"]
    target: object = None
    window: Window | None = None


def memory_form(value: object) -> MemoryForm:
    """Read a `memory=` value. Raises InvalidValue naming the value and the five forms. MF-6."""
    if value is False or (isinstance(value, str) and value == "none"):
        return MemoryForm("none")
    if isinstance(value, str) and value == "default":
        return MemoryForm("store")
    if isinstance(value, Window):
        return MemoryForm("store", window=value)
    if value is None:
        raise InvalidValue(
            f"memory=None could mean the default store or no memory: {FORMS}. "
            'Leave it out for the first, pass "none" for the second.'
        )
    if isinstance(value, type):
        raise InvalidValue(f"memory={value.__name__} is a class, pass an instance: {FORMS}")
    if type(value) is DefaultProvider:
        return MemoryForm("store", value.store, value.window)
    has = {name for name in PROVIDER_METHODS if callable(getattr(value, name, None))}
    if has == set(PROVIDER_METHODS):
        return MemoryForm("provider", value)
    if all(callable(getattr(value, name, None)) for name in STORE_METHODS):
        return MemoryForm("store", value)
    if {"history", "append", "prepare"} & has:
        missing = ", ".join(name for name in PROVIDER_METHODS if name not in has)
        raise InvalidValue(f"memory={value!r} is no provider, it lacks {missing}: {FORMS}")
    if all(callable(getattr(value, name, None)) for name in ("get", "add", "clear")):
        raise InvalidValue(
            f"memory={value!r}: wrap it as SimpleStore(…) to make it a store. {FORMS}"
        )
    raise InvalidValue(f"memory={value!r} is none of the five forms: {FORMS}")
