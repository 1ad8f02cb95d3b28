"""A message that wants an answer."""

from __future__ import annotations

from typing import Any

from .errors import KeepwellError
from .future import Future
from .propagation import type_name


class Request(Future[Any]):
    """A message whose sender waits for the reply: in the mailbox, and for the sender its future.

    Also the handle that `Actor.defer` gives, and what `on_batch` gets.
    """

    __slots__ = ("context", "message")

    message: Any
    context: Any
    """In a batch, and only while contexts are propagated: the sender's (`telemetry.propagate`)."""

    def reply(self, value: Any = None) -> bool:
        """Answer; False if it was answered before or the asker has given up (then dropped)."""
        return self.complete(value)

    def __repr__(self) -> str:
        return f"<Request {type_name(self.message)}>"


class AskedItself(KeepwellError, RuntimeError):
    """An actor waits for an answer that only it could give, which would never come (CALL-5).

    No RequestError: uncaught, it is a crash of that actor.
    """

    def __init__(self, ref: object) -> None:
        super().__init__(
            f"{ref} asked itself and would wait for ever: call the method directly, "
            "or tell() and handle the answer later"
        )
