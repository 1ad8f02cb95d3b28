"""The turns of one session, one after another: run the code, settle, commit (A15…A20, C1…C5).

`TurnLoop` is what the session actor and `drive_session` share. It knows a store and a body, and
neither mailboxes nor readers. All on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ..actors import Future
from ..actors.errors import RequestError
from ..actors.failpoint import failpoint
from ..stores.errors import CursorConflict
from ..stores.plain import Plain, copy_plain
from ..stores.session_errors import SessionClosed, SessionFenced
from ..stores.session_event import InboxMessage, SessionEvent
from ..stores.session_state import (
    HEAD,
    Claim,
    SessionInfo,
    SessionSettings,
    SessionState,
)
from ..stores.session_store import RowsSessionStore
from .coroutine_body import CoroutineBody
from .flow_body import FlowBody
from .flow_services import FlowServices
from .session import Session
from .turn_body import FunctionBody, TurnBody, settled
from .turn_context import Turn
from .turn_result import Cancelled, Crashed, Failed, Good, Rules, Settled, TurnResult, settle

CANCEL_GRACE: Final = 0.5
"""Seconds that cancelled turn code may take to clean up before the next turn begins beside it."""

CLOSES: Final = "the session closes"
"""Why a turn is cancelled when the time to close is over (B21)."""

MAX_DELIVERIES: Final = 3
"""Times that a message is taken up again after its owner has died (B18)."""


class TurnLoop:
    """Runs the turns of `session` under `session_id`, from the store's head on.

    `store`: a SessionStore, with its journal if it has one. `max_errors`, `max_deliveries`: B16,
    B18. `spared`: the order of a message whose last run ended without its fault (the store failed).
    `phase` is "idle", "running" (the turn can still be cancelled) or "committing".
    """

    def __init__(
        self,
        session: Session,
        session_id: str,
        store: Any,
        *,
        max_errors: int | None,
        settings: SessionSettings | None = None,
        max_deliveries: int = MAX_DELIVERIES,
        spared: int = 0,
        make_body: Callable[[Session], TurnBody] | None = None,
        on_commit: Callable[[InboxMessage, Settled], object] | None = None,
    ) -> None:
        self.session = session
        self.session_id = session_id
        self.store = store
        self.phase = "idle"
        self.running: InboxMessage | None = None
        self.state = SessionState()
        self.claim = Claim(0, 0)
        self._settings = settings
        self._own = isinstance(store, RowsSessionStore)
        self._journaled = self._own or all(
            callable(getattr(store, name, None)) for name in ("claim", "accept", "read")
        )
        self._rules = Rules(session.out_channel.name, max_errors)
        self._outputs = session.outputs
        self.body: TurnBody = (make_body or body_for)(session)
        # Done with the reason of a cancellation, or with None when the turn has ended by itself.
        self._cancelled: asyncio.Future[str | None] | None = None
        self._on_commit = on_commit
        self.last_taken = 0
        self._max_deliveries = max_deliveries
        self._spared = spared
        self._inherited = 0
        self._noted: tuple[int, int] | None = None

    async def open(self) -> None:
        """Claim the session and load its head. Whoever had it before is fenced from now on (C7).

        Raises SessionClosed if it has ended.
        """
        failpoint("session.claim.before")
        self.closing: str | None = None
        if self._own:
            info: SessionInfo = await self.store.info(self.session_id)
            if info.closed:
                raise SessionClosed(info.reason or "closed", session_id=self.session_id)
            self.claim = await self.store.claim(self.session_id, self._settings)
            self._inherited = info.accepted
            if info.closing:
                self.closing = info.reason or "closed"
        elif self._journaled:
            self.claim = Claim(*(await settled(self.store.claim(self.session_id))))
        self.state = await settled(self.store.load(self.session_id, HEAD))
        cursor = self.claim.cursor
        if not self._journaled:
            # A plain SessionStore does not tell its head's cursor: there is one commit a turn.
            cursor = self.state.turn
            self.claim = Claim(0, cursor)
        if cursor == 0:
            self.state = SessionState(copy_plain(self.session.init))
        self.cursor = cursor
        failpoint("session.claim.after")

    def start(self) -> None:
        """Bring the body up; what stands before the first recv of a live function runs now."""
        self.body.start(self.state.carrier)

    # -- messages ------------------------------------------------------------------------------

    async def accept(self, value: object) -> InboxMessage:
        """Accept a message of a feed; it is the next to be taken. Raises what B9 says."""
        channel = self.session.in_channel
        payload = channel.check(value).value
        if not self._journaled:
            turn = self.state.turn + 1
            return InboxMessage(turn, channel.name, turn, payload)
        await settled(self.store.accept(self.session_id, channel.name, payload))
        return (await self.inbox(1))[0]

    async def inbox(self, limit: int = 1) -> list[InboxMessage]:
        """The next untaken messages."""
        if not self._journaled:
            return []
        found: list[InboxMessage] = await settled(
            self.store.read(self.session_id, "inbox", after=0, limit=limit)
        )
        return found

    # -- a turn --------------------------------------------------------------------------------

    def started(self, message: InboxMessage) -> SessionEvent:
        """The event that shows that the turn of `message` begins, at its position (B2)."""
        return SessionEvent(
            "turn_started", self.state.position + 1, self.state.turn + 1, message.channel,
            message.seq,
        )  # fmt: skip

    async def run(
        self,
        message: InboxMessage,
        on_progress: Callable[[Plain], object] | None = None,
        closing: Callable[[], bool] = lambda: False,
    ) -> Settled:
        """Run and commit the turn of a message. Raises what the store raises (B17).

        `closing()`: whether a turn that is cancelled now ends the session (B21).
        """
        turn_number = self.state.turn + 1
        birth = f"{self.claim.birth}:" if self.claim.birth else ""
        turn = Turn(
            self.session_id, turn_number, f"{self.session_id}/{birth}{turn_number}",
            message.channel, message.seq, self._outputs, self.session.out_channel.name, on_progress,
        )  # fmt: skip
        self.running = message
        self.last_taken = message.order
        self.phase = "running"
        self._cancelled = asyncio.get_running_loop().create_future()
        if closing():
            self.cancel(CLOSES)
        try:
            result: TurnResult | None = await self._delivery(message)
            if result is None:
                failpoint("session.turn.before")
                result = await self._result(turn, message)
                if isinstance(result, Cancelled) and closing():
                    result = Cancelled(result.reason, closes=True)
            failpoint("session.turn.after")
            self.phase = "committing"
            return await self.finish(message, result)
        finally:
            self.phase = "idle"
            self.running = self._cancelled = None

    def cancel(self, reason: str) -> bool:
        """Make sure that the running turn is not committed; False if there is none (B20)."""
        if self.phase != "running" or self._cancelled is None or self._cancelled.done():
            return False
        self._cancelled.set_result(reason)
        return True

    async def _delivery(self, message: InboxMessage) -> Crashed | None:
        """Note that a message is taken up again; or give it up (B18).

        Only messages that were there when this owner came can have been run before: others cost
        no write. Hence a message is run once unnoted, and at most `max_deliveries` times noted.
        """
        if not self._own or message.order > self._inherited or message.order == self._spared:
            return None
        if message.deliveries >= self._max_deliveries:
            return Crashed(message.deliveries)
        self._noted = (message.order, message.deliveries)
        await self.store.deliver(
            self.session_id, self.claim.epoch, message.order, message.deliveries + 1
        )
        return None

    async def _result(self, turn: Turn, message: InboxMessage) -> TurnResult:
        cancelled = self._cancelled
        assert cancelled is not None
        carrier, payload = copy_plain(self.state.carrier), copy_plain(message.payload)
        task = asyncio.get_running_loop().create_task(self.body.run(turn, payload, carrier))
        task.add_done_callback(lambda _: None if cancelled.done() else cancelled.set_result(None))
        try:
            reason = await cancelled
            if reason is None:
                return task.result()
        except asyncio.CancelledError:
            if not task.cancelled():
                turn.end()
                task.cancel()
                self.body.abandon()
            raise
        turn.end()
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_GRACE)
        self.body.abandon()
        return Cancelled(reason)

    async def finish(self, message: InboxMessage, result: TurnResult) -> Settled:
        """Commit the turn of `message`, which ended with `result`."""
        try:
            plan = await self._commit(message, result)
        except (SessionFenced, CursorConflict):
            raise
        except RequestError as refusal:
            # Say, the carrier names a blob that is not there: the turn's own failure (C16).
            if not isinstance(result, Good):
                raise
            self.body.abandon()
            plan = await self._commit(message, Failed(refusal))
        self.body.committed(self.state.carrier)
        return plan

    async def _commit(self, message: InboxMessage, result: TurnResult) -> Settled:
        plan = settle(self.state, message, result, self._rules, self.claim.epoch)
        failpoint("session.commit.before")
        writes = plan.writes if self._journaled else None
        commit = self.store.commit(self.session_id, self.cursor, plan.state, None, writes=writes)
        told = partial(self._tell, message, plan)
        if isinstance(commit, Future):
            # By the commit itself: this task may be cancelled while it waits.
            commit.add_done_callback(lambda done: told() if done.error() is None else None)
            self.cursor = await commit
        else:
            self.cursor = await settled(commit)
            told()
        failpoint("session.commit.after")
        self._noted = None
        self.state = plan.state
        return plan

    def _tell(self, message: InboxMessage, plan: Settled) -> None:
        if self._on_commit is not None:
            self._on_commit(message, plan)

    # -- the end -------------------------------------------------------------------------------

    async def close(self, reason: str | None, error: str | None = None) -> SessionInfo:
        """End the session between turns; untaken messages become dead letters.

        `error`: a fatal error outside of any turn, which has an event of its own before `closed`.
        """
        if self._own:
            info: SessionInfo = await self.store.finish(
                self.session_id, self.claim.epoch, reason, error
            )
        else:
            position = self.state.position + (1 if error is None else 2)
            info = SessionInfo(
                self.session_id, position=position, closed=True, reason=reason or "closed"
            )
        await self.body.stop(info.reason or "closed")
        return info

    async def stop(self) -> None:
        """Let go of the session without ending it: the running turn, if any, was not at fault."""
        await self.body.stop(None)
        noted, self._noted = self._noted, None
        if noted is not None:
            await self.store.deliver(self.session_id, self.claim.epoch, *noted)


def body_for(session: Session, services: FlowServices | None = None) -> TurnBody:
    """What runs the turns of a session."""
    if session.is_flow:
        return FlowBody(session, services or FlowServices())
    if session.style == "coroutine":
        return CoroutineBody(session)
    return FunctionBody(session)
