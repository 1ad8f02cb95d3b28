"""pykka's view of a mailbox, for code that puts its envelopes there by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .request import Request

if TYPE_CHECKING:
    from .future import Future
    from .ref import ActorRef


class Inbox:
    """pykka's inbox protocol over a ref's mailbox."""

    __slots__ = ("_ref",)

    def __init__(self, ref: ActorRef[Any]) -> None:
        self._ref = ref

    def put(self, envelope: Any, /) -> None:
        """Send an envelope of pykka's."""
        reply_to = envelope.reply_to
        if reply_to is None:
            self._ref.tell(envelope.message)
            return
        request = Request()
        request.message = envelope.message

        def forward(done: Future[Any]) -> None:
            error = done.error()
            if error is None:
                reply_to.set(done.get())
            else:
                reply_to.set_exception((type(error), error, error.__traceback__))

        request.add_done_callback(forward)
        self._ref._send(request)

    def empty(self) -> bool:
        """Whether no message waits."""
        return self._ref.mailbox_size == 0

    def get(self) -> Any:
        """Not for keepwell's actors: their scheduler takes the messages."""
        raise NotImplementedError("the mailbox is read by the actor's scheduler only")
