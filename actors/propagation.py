"""Trace context across mailboxes: what the sender's context holds is there in the handler.

Context variables do not cross a mailbox. With a pair of functions installed, each message that is
sent takes along what `capture()` gave in the sender, and is handled inside `activate(that)`. Nobody
pays for it otherwise: installing exchanges the methods that send, and what they put into the
mailbox is a message of a class that runners treat apart anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from types import CoroutineType
from typing import Any

from .errors import RequestError

Capture = Callable[[], Any]
Activate = Callable[[Any], AbstractContextManager[Any]]


class Carried:
    """A message on its way, with the context it was sent in."""

    __slots__ = ("context", "message")

    def __init__(self, message: Any, context: Any) -> None:
        self.message = message
        self.context = context


class Propagation:
    """What `propagate` returns; `detach()` ends it. Also a context manager."""

    def __init__(self, restore: Callable[[], None]) -> None:
        self._restore = restore

    def detach(self) -> None:
        """Send plain messages again. Those on their way keep their context as far as it matters."""
        restore, self._restore = self._restore, lambda: None
        restore()

    def __enter__(self) -> Propagation:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def _pass_on(message: Any) -> Any:
    return message


carry: Callable[[Any], Any] = _pass_on
"""Return the message as it is to be sent now: itself, or with the context of the moment."""

_activate: Activate | None = None


def install(capture: Capture, activate: Activate) -> Propagation:
    """See `telemetry.propagate`. Raises RequestError if another pair is installed."""
    global carry, _activate
    from .ref import ActorRef, Bounded  # refs need this module

    if _activate is not None:
        raise RequestError("contexts are propagated already: detach that first", code="badarg")

    def carrying(message: Any) -> Any:
        context = None if message.__class__ is Carried else capture()
        return message if context is None else Carried(message, context)

    methods = [(ActorRef, "tell"), (ActorRef, "ask"), (ActorRef, "call"), (Bounded, "tell")]
    plain = {(cls, name): vars(cls)[name] for cls, name in methods}
    for (cls, name), method in plain.items():
        setattr(cls, name, _sending(method))
    carry, _activate = carrying, activate

    def restore() -> None:
        global carry, _activate
        carry, _activate = _pass_on, None
        for (cls, name), method in plain.items():
            setattr(cls, name, method)

    return Propagation(restore)


def _sending(method: Callable[..., Any]) -> Callable[..., Any]:
    def send(ref: Any, message: Any, **options: Any) -> Any:
        return method(ref, carry(message), **options)

    send.__name__, send.__doc__ = method.__name__, method.__doc__
    return send


def handle(carried: Carried, receive: Callable[[Any], Any]) -> Any:
    """Give the message to `receive` inside its context; a coroutine runs inside it too."""
    activate = _activate
    if activate is None:  # detached meanwhile
        return receive(carried.message)
    with activate(carried.context):
        value = receive(carried.message)
    if value.__class__ is CoroutineType:
        return _inside(activate, carried.context, value)
    return value


async def _inside(activate: Activate, context: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    with activate(context):
        return await coroutine


def type_name(message: Any) -> str:
    """The name of the class of a message, whatever it travels in: never its content."""
    if message.__class__ is Carried:
        message = message.message
    return type(message).__name__
