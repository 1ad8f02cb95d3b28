"""The sessions of a runtime: opening, finding, deleting them (B22, B23, C6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

from ..actors.errors import ActorDied, InvalidValue, StartFailed, Unavailable
from ..actors.system import ActorSystem
from ..stores.blob_store import check_tenant
from ..stores.conversation_id import conversation_key
from ..stores.errors import shown
from ..stores.session_errors import NotFound
from ..stores.session_state import DEDUPE_WINDOW, DEFAULT_TENANT, RETAIN_EVENTS, SessionSettings
from ..stores.session_store import RowsSessionStore
from ..supervision import terminate_child
from .drive import check_max_errors
from .errors import SessionConflict
from .session import Session
from .session_handle import SessionHandle
from .session_home import SessionHome, ended_error
from .session_view import Closed
from .turn_loop import MAX_DELIVERIES

MAX_ERRORS: Final = 3


class OpenSessions:
    """All live sessions of one runtime, under its session supervisor, over its session store."""

    def __init__(
        self,
        store: RowsSessionStore,
        system: ActorSystem,
        make_body: Callable[[SessionHome], Callable[[Session], Any]] | None = None,
    ) -> None:
        self.store = store
        self._system = system
        self.supervisor: Any = None
        """The ref of the session supervisor's present incarnation; it enters itself."""
        self._make_body = make_body
        self._homes: dict[str, SessionHome] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def open(
        self,
        session: Session,
        session_id: str,
        *,
        tenant: str = DEFAULT_TENANT,
        conversation_id: str | None = None,
        max_consecutive_turn_errors: int | None = MAX_ERRORS,
        max_deliveries: int = MAX_DELIVERIES,
        retain_events: int = RETAIN_EVENTS,
        dedupe_window: int = DEDUPE_WINDOW,
    ) -> SessionHandle:
        """See `Runtime.open_session`."""
        if not isinstance(session, Session):
            raise InvalidValue(f"session must be a Session, not {shown(session)}")
        conversation_key(session_id)
        if conversation_id is not None:
            conversation_key(conversation_id)
        check_max_errors(max_consecutive_turn_errors)
        for name, value in (
            ("max_deliveries", max_deliveries),
            ("retain_events", retain_events),
            ("dedupe_window", dedupe_window),
        ):
            if type(value) is not int or value < 1:
                raise InvalidValue(f"{name} must be an int of 1 or more, not {shown(value)}")
        home = SessionHome(
            session, session_id, self.store, self._system,
            settings=SessionSettings(retain_events, dedupe_window, check_tenant(tenant)),
            conversation_id=conversation_id or session_id,
            max_errors=max_consecutive_turn_errors, max_deliveries=max_deliveries,
        )  # fmt: skip
        if self._make_body is not None:
            home.make_body = self._make_body(home)
        async with self._lock(session_id):
            return SessionHandle(await self._open(home))

    def _lock(self, session_id: str) -> asyncio.Lock:
        """Held while a session is opened or deleted; kept for as long as somebody waits for it."""
        lock = self._opening.get(session_id)
        if lock is None:
            lock = self._opening[session_id] = asyncio.Lock()
        return lock

    async def _open(self, home: SessionHome) -> SessionHome:
        session_id = home.session_id
        live = self._homes.get(session_id)
        if live is not None and not live.ended.done():
            if live.session is not home.session:
                raise SessionConflict(session_id)
            return live
        info = await self.store.info(session_id)
        if info.closed:
            home.ended.complete(Closed(info.reason or "closed", info.unprocessed))
            return home  # for reading; there is nothing to run
        self._homes[session_id] = home
        home.on_end.append(lambda: self._forget(home))
        try:
            await self.supervisor.start_child(home)
        except ActorDied as gone:
            error = Unavailable("the session supervisor is being restarted: open the session again")
            home.give_up(error)
            raise error from gone
        except BaseException as error:
            home.give_up(ended_error(session_id, error))
            if isinstance(error, StartFailed) and isinstance(error.reason, Exception):
                raise error.reason from error
            raise
        return home

    def _forget(self, home: SessionHome) -> None:
        if self._homes.get(home.session_id) is home:
            del self._homes[home.session_id]

    async def pending(self) -> list[str]:
        """Ids of the sessions with untaken messages."""
        return await self.store.pending_sessions()

    async def delete(self, session_id: str) -> None:
        """Stop the session and remove all of it. Raises NotFound."""
        async with self._lock(session_id):
            home = self._homes.get(session_id)
            if home is not None and not home.ended.done():
                home.deleted = True
                await terminate_child(self.supervisor, home.ref)
                home.give_up(NotFound(f"session {shown(session_id)}"))
            if not await self.store.delete(session_id):
                raise NotFound(f"session {shown(session_id)}")

    def close(self, reason: object) -> None:
        """The supervisor or the runtime ends: nobody who waits is left waiting."""
        for home in list(self._homes.values()):
            home.give_up(ended_error(home.session_id, reason))
