"""Coroutine style: an async function that runs live, turn after turn (A12, A13).

A turn lasts from the moment `await s.recv()` hands out a message to the next call of `recv`, or to
the return. Only `s.carrier` is durable: after a failed turn, a restart or a kill the function is
called again from its start, with the committed carrier. What goes wrong between turns (say, an
uncaught RecvTimeout) fails no message: the function is called again for the next one.

Everything here runs on one event loop; phases change between awaits only, so no lock is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Final

from ..actors import Future, telemetry
from ..stores.plain import Plain, copy_plain
from ..stores.session_errors import SessionClosed
from .errors import RecvTimeout, TurnOver
from .session import Session
from .turn_context import Turn, enter_turn
from .turn_result import Good, Stopped, TurnResult, result_of

logger = logging.getLogger("keepwell.sessions")

STOP_GRACE: Final = 1.0
"""Seconds that the function may take to end when recv has told it that the session is closed."""

RETURNED: Final = "returned"


class Phase(Enum):
    """Where one run of the function stands."""

    OUTSIDE = "outside"  # before its first recv, or after one that timed out
    WAITING = "waiting"  # in recv, for a message
    TURN = "turn"  # it has a message
    BOUNDARY = "boundary"  # in recv, until the turn before is committed
    ENDED = "ended"  # returned or raised


class LiveSession:
    """What an async session function is given: `s`.

    `carrier` is the session's own object: changes in place count, assigning copies; after each
    boundary it is in stored form. Outside a turn, `emit`, `progress` and `close` raise TurnOver.
    """

    def __init__(self, body: CoroutineBody, carrier: Plain) -> None:
        self._body = body
        self._carrier: Any = carrier
        self._turn: Turn | None = None
        self._phase = Phase.OUTSIDE
        self._inbox: asyncio.Future[Plain] | None = None
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def carrier(self) -> Any:
        """What the session carries from turn to turn; plain data."""
        return self._carrier

    @carrier.setter
    def carrier(self, value: object) -> None:
        self._carrier = copy_plain(value)

    def within(self, *phases: Phase) -> bool:
        """Whether this run stands in one of the phases; a call, since it changes at every await."""
        return self._phase in phases

    @property
    def failed(self) -> bool:
        """Whether this run has ended with an exception."""
        return self._phase is Phase.ENDED and self._error is not None

    @property
    def turn(self) -> Turn:
        """The running turn. Raises TurnOver between turns."""
        if self._turn is None:
            raise TurnOver("turn")
        return self._turn

    async def recv(self, timeout: float | None = None) -> Any:
        """Commit the turn that is running, and wait for the next message.

        Raises RecvTimeout after `timeout` seconds without one, SessionClosed when the session
        takes no more.
        """
        return await self._body.receive(self, timeout)

    def emit(self, value: object, channel: str | None = None) -> None:
        """Emit at the boundary. See `Turn.emit`."""
        self._open("emit").emit(value, channel)

    def progress(self, value: object) -> None:
        """Show to live readers at once. See `Turn.progress`."""
        self._open("progress").progress(value)

    def close(self, reason: str | None = None) -> None:
        """Close the session after this turn. See `Turn.close`."""
        self._open("close").close(reason)

    def _open(self, what: str) -> Turn:
        if self._turn is None:
            raise TurnOver(what)
        return self._turn


class CoroutineBody:
    """Runs the function, and cuts its life into turns. See TurnBody for the methods."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._function: Any = session.body
        self._live: LiveSession | None = None
        self._committed: Plain = None
        self._closed: str | None = None
        self._watchers: list[asyncio.Future[None]] = []
        self.over: Future[str] | None = Future()

    def start(self, carrier: Plain) -> None:
        """Call the function: what stands before its first `recv` runs at once."""
        self._committed = carrier
        self._begin()

    async def run(self, turn: Turn, message: Plain, carrier: Plain) -> TurnResult:
        """Hand the message out, and wait for the next recv, the return, or an exception."""
        self._committed = carrier
        live = await self._ready()
        if live.within(Phase.ENDED):
            return Stopped(RETURNED) if live._error is None else result_of(live._error)
        assert live._inbox is not None
        live._turn = turn
        self._enter(live, Phase.TURN)
        live._inbox.set_result(message)
        await self._until(lambda: live.within(Phase.BOUNDARY, Phase.ENDED))
        live._turn = None
        turn.end()
        if live._error is not None:
            return result_of(live._error)
        try:
            carrier = self._session.check_carrier(live._carrier)
        except Exception as error:  # noqa: BLE001 - the turn's failure
            self.abandon()
            return result_of(error)
        closes, explicit = turn.closes, turn.explicit_close
        if closes is None and live.within(Phase.ENDED):
            closes, explicit = RETURNED, False
        return Good(carrier, tuple(turn.emits), closes, explicit)

    def committed(self, carrier: Plain) -> None:
        """Let recv go on to wait, with the carrier in stored form (A15)."""
        self._committed = carrier
        live = self._live
        if live is None:
            return
        if live.within(Phase.BOUNDARY):
            live._carrier = copy_plain(carrier)
            self._enter(live, Phase.OUTSIDE)
        elif live.within(Phase.ENDED):
            self._live = None

    def abandon(self) -> None:
        """Let go of this run of the function, whatever it does; the next turn begins another."""
        live, self._live = self._live, None
        if live is not None and live._task is not None:
            live._turn = None
            live._task.cancel()

    async def stop(self, reason: str | None) -> None:
        """Let recv raise SessionClosed, or cancel the function."""
        live = self._live
        if live is None or live.within(Phase.ENDED):
            return
        if reason is None or live.within(Phase.TURN, Phase.BOUNDARY):
            self.abandon()
            return
        self._closed = reason
        if _receptive(live) and live._inbox is not None:
            live._inbox.set_exception(SessionClosed(reason))
        try:
            async with asyncio.timeout(STOP_GRACE):
                await self._until(lambda: live.within(Phase.ENDED))
        except TimeoutError:
            self.abandon()

    # -- one run of the function ---------------------------------------------------------------

    def _begin(self) -> LiveSession:
        live = self._live = LiveSession(self, copy_plain(self._committed))
        live._task = asyncio.get_running_loop().create_task(self._life(live))
        return live

    async def _life(self, live: LiveSession) -> None:
        # The error is kept as a value: a task must never raise SystemExit into its loop.
        try:
            enter_turn(None)
            await self._function(live)
        except BaseException as error:  # noqa: BLE001 - see turn_body
            live._error = error
        was = live._phase
        self._enter(live, Phase.ENDED)
        if live is not self._live or was is Phase.TURN:
            return
        if live._error is None:
            if self.over is not None:
                self.over.complete(RETURNED)
        elif not isinstance(live._error, SessionClosed):
            logger.warning("a session function ended between turns: %r", live._error)
            telemetry.emit("keepwell.session.body_ended", error=live._error)

    async def _ready(self) -> LiveSession:
        """The run that waits in recv. One that has failed between turns is replaced, once."""
        live, fresh = self._live, False
        while True:
            if live is None or (live.failed and not fresh):
                live, fresh = self._begin(), True
            await self._until(partial(_ready_or_over, live))
            if fresh or not live.failed:
                return live

    async def receive(self, live: LiveSession, timeout: float | None) -> Any:
        """`recv`: the boundary of the turn before, then the wait for a message."""
        if live is not self._live:
            raise SessionClosed("this run of the session function is over")
        if live.within(Phase.TURN):
            enter_turn(None)
            self._enter(live, Phase.BOUNDARY)
            await self._until(lambda: live is not self._live or live.within(Phase.OUTSIDE))
            if live is not self._live:
                raise SessionClosed("the turn was not committed")
        elif not live.within(Phase.OUTSIDE):
            raise TurnOver("recv")  # two tasks of the function receive at once
        if self._closed is not None:
            raise SessionClosed(self._closed)
        live._inbox = asyncio.get_running_loop().create_future()
        self._enter(live, Phase.WAITING)
        try:
            async with asyncio.timeout(timeout):
                message = await live._inbox
        except TimeoutError:
            if not live.within(Phase.TURN):
                self._enter(live, Phase.OUTSIDE)
                raise RecvTimeout(self._session.in_channel.name, timeout or 0.0) from None
            message = live._inbox.result()  # it came in the same moment, and counts
        except BaseException:
            if live.within(Phase.WAITING):
                self._enter(live, Phase.OUTSIDE)
            raise
        enter_turn(live._turn)
        return message

    def _enter(self, live: LiveSession, phase: Phase) -> None:
        live._phase = phase
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            watcher = asyncio.get_running_loop().create_future()
            self._watchers.append(watcher)
            await watcher


def _ready_or_over(live: LiveSession) -> bool:
    return live.within(Phase.ENDED) or _receptive(live)


def _receptive(live: LiveSession) -> bool:
    return live.within(Phase.WAITING) and live._inbox is not None and not live._inbox.done()
