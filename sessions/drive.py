"""Drive a session from a feed, in this task: `drive_session`, `run_session` (A17…A20)."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Sized
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from ..actors.errors import InvalidValue
from ..stores.errors import shown
from ..stores.memory_session_store import MemorySessionStore
from ..stores.plain import Plain, copy_plain
from ..stores.session_contract import SessionStore
from ..stores.session_event import InboxMessage, SessionEvent
from ..stores.session_store import RowsSessionStore
from .errors import MaxTurnsExceeded, SessionFailed, error_text
from .flow_services import FlowServices, LocalConversation, default_services
from .session import Session
from .turn_loop import TurnLoop, body_for
from .turn_result import Settled

Feed = Iterable[Any] | AsyncIterable[Any]

MAX_TURNS = 1_000


class SessionResult(NamedTuple):
    """What `run_session` gives: the last carrier, and the payloads of the out channel in order."""

    carrier: Plain
    outputs: list[Plain]


def drive_session(
    session: Session,
    feed: Feed,
    *,
    max_turns: int | None = MAX_TURNS,
    max_consecutive_turn_errors: int | None = 3,
    session_id: str | None = None,
    store: SessionStore | None = None,
) -> AsyncIterator[SessionEvent]:
    """Run a turn for each item of `feed`; an async iterator of what happens.

    Item n+1 is pulled when turn n is done and its events are taken. The session closes when the
    feed ends, a turn says so, or an error is fatal; if the feed raises, its exception comes after
    `closed`. Closing the iterator cancels the running turn, closes the feed and, with a `store`,
    leaves the session to be driven on: untaken messages come first then.

    max_turns: messages that may pass, None for no bound. max_consecutive_turn_errors: so many in a
    row are fatal, None: never. Raises at once MaxTurnsExceeded for a sized feed that is longer,
    InvalidValue for values that cannot be used. Rules: A17, A18, A20.
    """
    return _Drive(
        session, feed, max_turns, max_consecutive_turn_errors, session_id, store
    ).events()


async def run_session(
    session: Session,
    inputs: Feed,
    *,
    max_turns: int | None = MAX_TURNS,
    max_consecutive_turn_errors: int | None = 1,
    session_id: str | None = None,
    store: SessionStore | None = None,
) -> SessionResult:
    """Run the session over all inputs: the final carrier and the out channel's payloads.

    Raises SessionFailed with both so far if an error is fatal (the error is the cause), and what
    the feed raises. Else as `drive_session`. Rule: A19.

        >>> import asyncio
        >>> from keepwell.sessions import scan
        >>> summed = scan(lambda message, total: (total + message, total + message), 0)
        >>> asyncio.run(run_session(summed, [1, 2, 3]))
        SessionResult(carrier=6, outputs=[1, 3, 6])
    """
    drive = _Drive(session, inputs, max_turns, max_consecutive_turn_errors, session_id, store)
    out = session.out_channel.name
    outputs: list[Plain] = []
    async with aclosing(drive.events()) as events:
        async for event in events:
            if event.is_emit() and event.channel == out:
                outputs.append(event.payload)  # noqa: PERF401 - what there is, even if it raises
    if drive.fatal is not None:
        raise SessionFailed(drive.fatal_text, drive.carrier, outputs) from drive.fatal
    return SessionResult(drive.carrier, outputs)


class _Drive:
    def __init__(
        self,
        session: Session,
        feed: Feed,
        max_turns: int | None,
        max_errors: int | None,
        session_id: str | None,
        store: SessionStore | None,
    ) -> None:
        if not isinstance(session, Session):
            raise InvalidValue(f"session must be a Session, not {shown(session)}")
        if max_turns is not None and (type(max_turns) is not int or max_turns < 0):
            raise InvalidValue(
                f"max_turns must be an int of 0 or more, or None, not {shown(max_turns)}"
            )
        check_max_errors(max_errors)
        if isinstance(feed, str | bytes) or not isinstance(feed, Iterable | AsyncIterable):
            raise InvalidValue(f"a feed is an iterable or async iterable, not {shown(feed)}")
        if store is not None and session_id is None:
            raise InvalidValue("store= needs session_id=: it says what to load and to commit")
        if max_turns is not None and isinstance(feed, Sized) and len(feed) > max_turns:
            raise MaxTurnsExceeded(max_turns, len(feed))
        self._feed = feed
        self._max_turns = max_turns
        name = session_id or f"drive-{secrets.token_hex(6)}"
        self._log = LocalConversation()
        used = store if store is not None else MemorySessionStore()
        services = default_services[-1]() if default_services else FlowServices()
        services.conversation_id, services.conversation = name, self._log.read
        if isinstance(used, RowsSessionStore):
            services.blobs = services.summaries = used
        self._loop = TurnLoop(
            session, name, used, max_errors=max_errors,
            make_body=partial(body_for, services=services), on_commit=self._committed,
        )  # fmt: skip
        self.fatal: BaseException | None = None
        self.fatal_text = ""

    def _committed(self, _message: InboxMessage, plan: Settled) -> None:
        """A driven session's conversation lives as long as it is driven."""
        if plan.writes.log is not None:
            _ = self._log.add(plan.writes.log)

    @property
    def carrier(self) -> Plain:
        return copy_plain(self._loop.state.carrier)

    async def events(self) -> AsyncGenerator[SessionEvent, None]:
        """The events; see `drive_session`."""
        turns = self._loop
        pull, close_feed = _puller(self._feed)
        ended = False
        try:
            await turns.open()
            turns.start()
            await asyncio.sleep(0)  # a live function may end before its first recv
            for passed in itertools.count():
                reason, trouble, message = None, None, None
                waiting = await turns.inbox(1)  # left from an earlier owner
                if waiting:
                    message = waiting[0]
                elif turns.closing is not None:
                    reason = turns.closing
                else:
                    try:
                        item = await self._next(pull)
                    except _Over as over:
                        reason = over.reason
                    except Exception as error:  # noqa: BLE001 - the feed's own, raised below
                        reason, trouble = "feed failed", error
                    else:
                        if self._max_turns is not None and passed >= self._max_turns:
                            ended = True
                            for event in await self._too_many():
                                yield event
                            return
                        message = await turns.accept(item)
                if message is None:
                    ended = True
                    info = await turns.close(reason)
                    yield SessionEvent("closed", info.position, reason=info.reason)
                    if trouble is not None:
                        raise trouble
                    return
                yield turns.started(message)
                async with aclosing(self._turn(message)) as events:
                    async for event in events:
                        ended = ended or event.is_closed()
                        yield event
                if ended:
                    return
        finally:
            await close_feed()
            if not ended:
                await turns.stop()

    async def _next(self, pull: Callable[[], Any]) -> Any:
        """The next item; raises _Over at the end of the feed or of the body."""
        over = self._loop.body.over
        if over is None:
            return await pull()
        if over.done():
            raise _Over(over.get())
        task = asyncio.ensure_future(pull())
        wake = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        over.add_done_callback(lambda _: loop.call_soon_threadsafe(_release, wake))
        try:
            await asyncio.wait({task, wake}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _Over(over.get())
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            wake.cancel()

    async def _turn(self, message: InboxMessage) -> AsyncGenerator[SessionEvent, None]:
        turns = self._loop
        live: asyncio.Queue[SessionEvent | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        number = turns.state.turn + 1

        def progress(value: Plain) -> None:
            event = SessionEvent("progress", None, number, message.channel, message.seq, value)
            loop.call_soon_threadsafe(live.put_nowait, event)

        task = loop.create_task(turns.run(message, progress))
        task.add_done_callback(lambda _: loop.call_soon(live.put_nowait, None))
        try:
            while (event := await live.get()) is not None:
                yield event
            plan = task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        for event in plan.events[1:]:  # the start was shown when it happened
            yield event
        if plan.fatal is not None:
            self.fatal, self.fatal_text = plan.fatal, plan.error or ""
        if plan.closed:
            await turns.body.stop(plan.writes.closes)
            yield SessionEvent("closed", plan.state.position + 1, reason=plan.writes.closes)

    async def _too_many(self) -> tuple[SessionEvent, SessionEvent]:
        assert self._max_turns is not None
        self.fatal = MaxTurnsExceeded(self._max_turns)
        self.fatal_text = error_text(self.fatal)
        info = await self._loop.close(self.fatal_text, self.fatal_text)
        return (
            SessionEvent("error", info.position - 1, reason=self.fatal_text, fatal=True),
            SessionEvent("closed", info.position, reason=info.reason),
        )


class _Over(Exception):
    def __init__(self, reason: str) -> None:
        self.reason = reason


def check_max_errors(value: object) -> None:
    """Raise InvalidValue unless it is None or an int of 1 or more (B16)."""
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidValue(
            f"max_consecutive_turn_errors must be an int of 1 or more, or None, not {shown(value)}"
        )


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _puller(feed: Feed) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """How to get the next item (raises _Over at the end), and how to close the feed."""
    if isinstance(feed, AsyncIterable):
        async_items = aiter(feed)

        async def pull_async() -> Any:
            try:
                return await anext(async_items)
            except StopAsyncIteration:
                raise _Over("feed ended") from None

        async def close_async() -> None:
            close = getattr(async_items, "aclose", None)
            if close is not None:
                await close()

        return pull_async, close_async
    items = iter(feed)

    async def pull() -> Any:
        try:
            return next(items)
        except StopIteration:
            raise _Over("feed ended") from None

    async def close() -> None:
        closing = getattr(items, "close", None)
        if closing is not None:
            closing()

    return pull, close
