"""The running turn, as its own code sees it: `current_turn()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..actors.errors import RequestError
from ..agent.model import Usage
from ..stores.plain import Plain, copy_plain
from ..stores.session_errors import ChannelFull
from .errors import ChannelUndeclared, TurnOver

if TYPE_CHECKING:
    from ..memory.context import ContextReport
    from .channel import Channel

_running: ContextVar[Turn | None] = ContextVar("keepwell.turn", default=None)


def current_turn() -> Turn:
    """The turn whose code is running here. Raises RequestError outside of any."""
    turn = _running.get()
    if turn is None:
        raise RequestError("current_turn() was called outside of a session's turn", code="no_turn")
    return turn


def enter_turn(turn: Turn | None) -> None:
    """Make `turn` the current one of this context."""
    _running.set(turn)


class Turn:
    """One run of one turn. `turn_id` is equal in every run of a turn (C2).

    session_id, turn (its number, from 1), turn_id; channel and seq of the message. What it emits
    is buffered until the boundary (A16). Once the turn is over, or cancelled, nothing can be
    emitted any more: code that outlives its turn gets TurnOver.
    """

    def __init__(
        self,
        session_id: str,
        turn: int,
        turn_id: str,
        channel: str,
        seq: int,
        outputs: Mapping[str, Channel[Any]],
        default: str,
        on_progress: Callable[[Plain], object] | None = None,
    ) -> None:
        self.session_id = session_id
        self.turn = turn
        self.turn_id = turn_id
        self.channel = channel
        self.seq = seq
        self.emits: list[tuple[str, Plain]] = []
        self.closes: str | None = None
        self.explicit_close = False
        self.usage = Usage()
        """Tokens that the flow of this turn has used."""
        self.reports: list[ContextReport] = []
        """What each model call of this turn's flow was shown."""
        self._outputs = outputs
        self._default = default
        self._on_progress = on_progress
        self._over = False
        self._counts: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<Turn {self.turn} of session {self.session_id!r}>"

    def emit(self, value: object, channel: str | None = None) -> None:
        """Emit a copy of `value` at the boundary, on `channel` or the session's out channel.

        Raises ChannelUndeclared, NotPlain, PayloadInvalid, PayloadTooLarge, ChannelFull (a channel
        takes `capacity` outputs a turn), TurnOver. Uncaught they fail the turn.
        """
        if self._over:
            raise TurnOver("emit")
        name = self._default if channel is None else channel
        declared = self._outputs.get(name)
        if declared is None:
            raise ChannelUndeclared(name, tuple(self._outputs), "emitting")
        plain = declared.check(value).value
        count = self._counts.get(name, 0)
        if count >= declared.capacity:
            raise ChannelFull(name, declared.capacity, count)
        self._counts[name] = count + 1
        self.emits.append((name, plain))

    def progress(self, value: object) -> None:
        """Show plain data to live readers at once; it is not stored and has no position (A16)."""
        if self._over:
            raise TurnOver("progress")
        plain = copy_plain(value)
        if self._on_progress is not None:
            self._on_progress(plain)

    def close(self, reason: str | None = None) -> None:
        """Close the session once this turn is committed (A20); the first reason stands."""
        if self._over:
            raise TurnOver("close")
        if self.closes is None:
            self.explicit_close = reason is not None
            self.closes = "closed" if reason is None else str(copy_plain(str(reason)))

    def end(self) -> None:
        """No more emits: the turn's result is settled, or it was cancelled."""
        self._over = True
