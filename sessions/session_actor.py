"""The actor of a live session, and the supervisor of all of them (B16…B21, C1…C7).

The actor owns the session's epoch. Its turns run in a task of its own, so that it can serve
requests meanwhile; if that task fails, the actor crashes, and its supervisor starts the next one
at the last boundary. Messages are accepted by the store, not by the actor: a restart loses none.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..actors import AsyncActor, ExitActor, Ignore, telemetry
from ..actors.errors import KeepwellError, Unavailable
from ..stores.errors import CursorConflict, StoreError
from ..stores.plain import Plain
from ..stores.session_errors import SessionClosed
from ..stores.session_event import InboxMessage, SessionEvent
from ..supervision import ChildSpec, DynamicSupervisor
from .session_home import RECENT_EVENTS, SessionHome, ended_error, outcome_in
from .session_step import Step, next_step
from .session_view import TurnOutcome
from .turn_loop import CLOSES, TurnLoop

if TYPE_CHECKING:
    from ..supervision.children import ChildRecord

SHUTDOWN_SECONDS: Final = 5.0
"""How long a running turn may go on at shutdown (C6)."""


@dataclass(frozen=True, slots=True)
class CancelTurn:
    """Cancel the running turn; the reply says whether it will not be committed (B20)."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Finished:
    """The actor's own task has ended, with an error or because the session has closed."""

    error: BaseException | None


class SessionActor(AsyncActor):
    """Takes one message a turn, threads the carrier, commits at the boundary."""

    def __init__(self, home: SessionHome) -> None:
        super().__init__()
        self._home = home
        self._turns: TurnLoop | None = None
        self._work: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()

    async def on_start(self) -> Any:  # type: ignore[override]  # pykka's is no coroutine
        """Claim the session, load its head, and begin to work."""
        home = self._home
        turns = self._turns = TurnLoop(
            home.session, home.session_id, home.store, max_errors=home.max_errors,
            settings=home.settings, max_deliveries=home.max_deliveries, spared=home.spared,
            make_body=home.make_body, on_commit=home.committed,
        )  # fmt: skip
        try:
            await turns.open()
        except SessionClosed:
            home.closed(await home.store.info(home.session_id))
            return Ignore
        await self._answer_overdue()
        loop = asyncio.get_running_loop()
        turns.start()
        if turns.body.over is not None:
            turns.body.over.add_done_callback(lambda _: home.poke())
        work = self._work = loop.create_task(self._run(turns))
        ref: Any = self.actor_ref
        work.add_done_callback(lambda task: ref.tell(_Finished(_error_of(task))))
        # Whatever way the actor ends, a kill too, its task must not go on.
        ref.on_exit(lambda _reason: _cancel(loop, work))
        home.moved_in(ref, partial(_wake, loop, self._look))
        self._woken.set()
        return None

    async def on_receive(self, message: Any) -> Any:
        """Cancel the turn; end with the task."""
        if isinstance(message, CancelTurn):
            assert self._turns is not None
            return self._turns.cancel(message.reason)
        if isinstance(message, _Finished):
            if message.error is not None:
                self._note(message.error)
                raise ExitActor(message.error)
            self.stop()
            return None
        return super().on_receive(message)

    async def on_stop(self) -> None:  # type: ignore[override]  # pykka's is no coroutine
        """Let a running turn end, for 5 s; what it has not committed is as if it had not begun."""
        self._stopping.set()
        work, turns = self._work, self._turns
        if work is None or turns is None:
            return
        self._woken.set()
        await asyncio.wait({work}, timeout=SHUTDOWN_SECONDS)
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
        if not self._home.ended.done():
            try:
                await turns.stop()
            except (KeepwellError, OSError):
                pass  # the store ends too: what is noted there counts one run too many

    # -- the task ------------------------------------------------------------------------------

    async def _run(self, turns: TurnLoop) -> None:
        home = self._home
        while not self._stopping.is_set():
            self._woken.clear()
            info, message = await home.store.next_message(home.session_id)
            if self._stopping.is_set():
                return  # a turn that has not begun waits for the next opening (C6)
            over = turns.body.over
            ended = over is not None and over.done()
            step = next_step(info, cut=home.cut, over=ended)
            if step is Step.WAIT:
                await self._woken.wait()
            elif step is Step.CLOSE:
                reason = over.get() if ended and over is not None else None
                home.closed(await turns.close(reason))
                return
            else:
                assert message is not None  # it is pending
                await self._turn(turns, message)
                if home.ended.done():
                    return

    async def _turn(self, turns: TurnLoop, message: InboxMessage) -> None:
        home = self._home
        started = turns.started(message)
        loop = asyncio.get_running_loop()

        def progress(value: Plain) -> None:
            event = SessionEvent(
                "progress", None, started.turn, message.channel, message.seq, value
            )
            if _get_running_loop() is loop:
                home.progress(event)
            else:
                loop.call_soon_threadsafe(home.progress, event)

        home.turn_started(message, started)
        try:
            plan = await turns.run(message, progress, lambda: home.cut)
        finally:
            home.turn_ended()
        if telemetry.enabled("keepwell.session.turn"):
            telemetry.emit(
                "keepwell.session.turn", session_id=home.session_id, turn=plan.state.turn,
                outcome=plan.outcome, error=plan.error,
            )  # fmt: skip
        if plan.closed:
            home.closed(await home.store.info(home.session_id))
            await turns.body.stop(plan.writes.closes)

    def _look(self) -> None:
        """Something has changed: a message, a reader, the end of the time to close."""
        self._woken.set()
        if self._home.cut and self._turns is not None:
            self._turns.cancel(CLOSES)

    async def _answer_overdue(self) -> None:
        """Tell those who wait for turns that the last incarnation has committed unknowingly."""
        home = self._home
        info = await home.store.info(home.session_id)
        overdue = home.overdue(info)
        if not overdue:
            return
        after = max(info.position - RECENT_EVENTS, info.oldest_event - 1)
        events: Any = await home.store.read(
            home.session_id, "events", after=after, limit=RECENT_EVENTS
        )
        out = home.session.out_channel.name
        for channel, seq in overdue:
            found = outcome_in(events, channel, seq, out)
            lost = TurnOutcome("failed", [], "the outcome was not kept: see the events")
            home.settle(channel, seq, found or lost)

    def _note(self, error: BaseException) -> None:
        """A turn that the store has failed is run again without being counted (B17, B18)."""
        turns = self._turns
        if turns is not None and isinstance(error, StoreError | CursorConflict | Unavailable):
            self._home.spared = turns.last_taken


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    try:
        loop.call_soon_threadsafe(task.cancel)
    except RuntimeError:
        pass  # the loop is closed, and the task with it


def _wake(loop: asyncio.AbstractEventLoop, look: Callable[[], None]) -> None:
    if _get_running_loop() is loop:
        look()
        return
    try:
        loop.call_soon_threadsafe(look)
    except RuntimeError:
        pass  # the loop is closed: nobody is there to look


class Branch(Protocol):
    """What is above the session supervisor, and outlives its incarnations."""

    supervisor: Any

    def close(self, reason: object) -> None:
        """The supervisor has ended, and all sessions with it."""
        ...


class SessionSupervisor(DynamicSupervisor):
    """Sessions as `transient` children, each with a restart budget of its own (5 in 10 s).

    Whoever waits for a session that will not come back is told: when it is given up, and when the
    supervisor itself ends. `sessions` is where its present incarnation is found.
    """

    def __init__(self, sessions: Branch) -> None:
        # At shutdown a turn has 5 s; the rest is for letting go of it.
        spec = ChildSpec(
            "session", SessionActor, restart="transient", shutdown=SHUTDOWN_SECONDS + 2
        )
        super().__init__(spec, per_child=True)
        self._sessions = sessions

    def on_start(self) -> Any:
        """Be found, and leave nobody waiting at the end."""
        started = super().on_start()
        self._sessions.supervisor = self._own_ref
        self._own_ref.on_exit(self._sessions.close)
        return started

    def _give_child_up(self, record: ChildRecord) -> None:
        reason = record.last_reason
        super()._give_child_up(record)
        home: SessionHome = record.args[0]
        home.give_up(ended_error(home.session_id, reason))
