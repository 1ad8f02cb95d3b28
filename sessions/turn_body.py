"""Runs the code of one turn (A8…A11): functions here, live coroutines and flows beside it.

Whatever the code raises, `SystemExit` and `CancelledError` included, is the turn's failure and
never leaves a task: asyncio would end the loop for some of them (B15).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..actors import Future
from ..stores.plain import Plain
from .errors import SessionTurnError
from .plain_call import call
from .session import NO_OUTPUT, Session
from .turn_context import Turn, enter_turn
from .turn_result import Good, TurnResult, result_of


class TurnBody(Protocol):
    """Runs turns of one session, one after another."""

    def start(self, carrier: Plain) -> None:
        """Called once before the first turn, with the committed carrier."""
        ...

    async def run(self, turn: Turn, message: Plain, carrier: Plain) -> TurnResult:
        """Run a turn; never raises, except for the cancellation of the task that awaits it."""
        ...

    def committed(self, carrier: Plain) -> None:
        """The last turn's result was committed (or refused: then `carrier` is the one before)."""
        ...

    def abandon(self) -> None:
        """The running turn was cancelled, and its code may go on: whatever it does is ignored."""
        ...

    async def stop(self, reason: str | None) -> None:
        """No more turns come: the session has closed for `reason`, or (None) its owner ends."""
        ...

    @property
    def over(self) -> Future[str] | None:
        """Done with a reason once the body has ended the session between turns; None: it cannot."""
        ...


class FunctionBody:
    """The turns of a scan or loop whose body is a function."""

    over: Future[str] | None = None

    def __init__(self, session: Session) -> None:
        assert callable(session.body)
        self._session = session
        self._function: Callable[..., Any] = session.body

    def start(self, carrier: Plain) -> None:
        """See TurnBody."""

    def committed(self, carrier: Plain) -> None:
        """See TurnBody."""

    def abandon(self) -> None:
        """See TurnBody: a blocked thread is left to itself, the next step gets another one."""

    async def stop(self, reason: str | None) -> None:
        """See TurnBody."""

    async def run(self, turn: Turn, message: Plain, carrier: Plain) -> TurnResult:
        """See TurnBody."""
        enter_turn(turn)
        try:
            value = await call(self._function, message, carrier)
            return finish(self._session, turn, value)
        except BaseException as error:  # noqa: BLE001 - see the module's docstring
            return result_of(error)
        finally:
            turn.end()


def finish(session: Session, turn: Turn, value: Any) -> Good:
    """A turn's result from what its body returned. Raises what is wrong with it (A9, A10, A14)."""
    if session.style == "scan":
        if type(value) is not tuple or len(value) != 2:
            raise SessionTurnError(
                f"a scan's step returns a tuple (carrier, output), not {type(value).__name__}"
                + (f" of {len(value)}" if isinstance(value, tuple | list) else "")
            )
        value, output = value
        if output is not NO_OUTPUT:
            turn.emit(output)
    carrier = session.check_carrier(value)
    return Good(carrier, tuple(turn.emits), turn.closes, turn.explicit_close)


async def settled(value: Any) -> Any:
    """The value of what a store returned: a Future, another awaitable, or the value itself."""
    return await value if isinstance(value, Awaitable) else value
