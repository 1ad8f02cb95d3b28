"""What tests of sessions share: turn code that waits, and waiting for what a session does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from keepwell import telemetry
from keepwell.sessions import (
    SessionEvent,
    SessionHandle,
    SessionView,
)

LIMIT = 20.0


class Gate:
    """Async turn code that says when it runs, and goes on when it may."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.open = asyncio.Event()
        self.runs = 0

    async def step(self, message: Any, carrier: Any) -> Any:
        self.runs += 1
        if message == "wait":
            self.running.set()
            await self.open.wait()
        if message == "bad":
            raise ValueError("no good")
        return [*(carrier or []), message], message


async def told(event: str, action: Callable[[], Any]) -> Any:
    """Run `action` and wait until telemetry has told `event`."""
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[Any] = loop.create_future()

    def note(_name: str, fields: Any) -> None:
        loop.call_soon_threadsafe(lambda: None if seen.done() else seen.set_result(fields))

    with telemetry.attach(event, note):
        action()
        return await asyncio.wait_for(seen, LIMIT)


async def crash(handle: SessionHandle) -> None:
    """Kill the session's actor, and wait for the next one."""
    home = handle._home
    before = home.ref
    moved: asyncio.Event = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = home.moved_in

    def moved_in(ref: Any, wake: Any) -> None:
        real(ref, wake)
        loop.call_soon_threadsafe(moved.set)

    home.moved_in = moved_in  # type: ignore[method-assign]  # wrapped for the test
    before.kill()
    await asyncio.wait_for(moved.wait(), LIMIT)


async def all_events(handle: SessionHandle, after: int = 0) -> list[SessionEvent]:
    return [event async for event in handle.events(after, follow=False)]


async def until(handle: SessionHandle, condition: Callable[[SessionView], bool]) -> None:
    """Let others run until the session's state is as it should be."""
    async with asyncio.timeout(LIMIT):
        while not condition(await handle.state()):  # noqa: ASYNC110 - nothing tells of this
            await asyncio.sleep(0)


async def settled(handle: SessionHandle) -> None:
    """Wait until nothing is pending and nothing runs."""
    async for event in handle.events():
        if event.kind in ("turn_done", "closed"):
            state = await handle.state()
            if not state.pending and not state.running:
                return
