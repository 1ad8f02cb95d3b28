"""A runtime inside somebody's service: an orderly end on SIGTERM, systemd, ASGI, event streams.

The library installs no signal handler by itself. A program that owns its main loop asks for one
with `serving`; below an ASGI server, which has handlers of its own, `lifespan` is enough.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from .runtime import DRAIN_SECONDS, Runtime
from .server_sent_events import event_frames

logger = logging.getLogger("keepwell.service")


class Service:
    """What `serving` gives: whether and why the service is to stop."""

    def __init__(self, runtime: Runtime, drain_timeout: float) -> None:
        self.runtime = runtime
        self.drain_timeout = drain_timeout
        self.signal: signal.Signals | None = None
        """The signal that asked the service to stop, if one did."""
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self, number: int | None = None) -> None:
        """Ask the service to stop; asked a second time it does not wait for running turns."""
        if self._stopping.is_set():
            self._hurry.set()
            return
        if number is not None:
            self.signal = signal.Signals(number)
        self._stopping.set()

    async def wait(self) -> None:
        """Return when the service is to stop: a signal came, `stop` was called, the tree ended."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        ended = asyncio.ensure_future(_result_of(self.runtime.ended))
        try:
            await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            ended.cancel()

    async def drain(self) -> bool:
        """Refuse new turns and wait for the running ones; True if all have ended in time."""
        draining = asyncio.ensure_future(_result_of(self.runtime.drain(self.drain_timeout)))
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
            return draining.done() and draining.result()
        finally:
            draining.cancel()
            hurry.cancel()


async def _result_of(future: Any) -> Any:
    return await future


@asynccontextmanager
async def serving(
    runtime: Runtime,
    *,
    signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
    drain_timeout: float = DRAIN_SECONDS,
) -> AsyncIterator[Service]:
    """Serve until a signal comes; inside `async with Runtime(…)`, in the main thread.

    Installs handlers for `signals` on the running loop and takes them back at the end. Tells
    systemd `READY=1`, `STOPPING=1`, and `WATCHDOG=1` while the runtime is alive, if the service
    manager has asked for it. At the end of the block running turns get `drain_timeout` seconds; a
    second signal ends the wait. What is not finished then stays in the log and is resumed by the
    next process.

    >>> async def main():
    ...     async with Runtime(data_dir="./data") as runtime, serving(runtime) as service:
    ...         await service.wait()
    """
    loop = asyncio.get_running_loop()
    service = Service(runtime, drain_timeout)
    installed = []
    for number in signals:
        loop.add_signal_handler(number, service.stop, number)
        installed.append(number)
    try:
        async with _watched(runtime):
            notify("READY=1")
            yield service
            notify("STOPPING=1")
            if not await service.drain():
                _report_unfinished()
    finally:
        for number in installed:
            loop.remove_signal_handler(number)


def lifespan(
    make_runtime: Callable[[], Runtime], *, drain_timeout: float = DRAIN_SECONDS
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return an ASGI lifespan (for Starlette, FastAPI, …) that runs one runtime in the server.

    The runtime is `app.state.runtime`. At shutdown the server has stopped taking requests; running
    turns get `drain_timeout` seconds, then the runtime is closed. systemd is told as by `serving`:
    `READY=1`, `STOPPING=1`, and `WATCHDOG=1` while the runtime is alive. One process per data
    directory: run the server with one worker, or give each worker a directory and route by
    conversation.
    """

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[None]:
        async with make_runtime() as runtime:
            app.state.runtime = runtime
            async with _watched(runtime):
                notify("READY=1")
                try:
                    yield
                finally:
                    notify("STOPPING=1")
                    if not await runtime.drain(drain_timeout):
                        _report_unfinished()

    return run


def notify(state: str) -> bool:
    """Tell the service manager `state` (sd_notify); False if there is none that listens.

    Nothing but a datagram to the socket that NOTIFY_SOCKET names.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError as problem:
            logger.warning("the service manager does not hear %s: %s", state, problem)
            return False
    return True


def _report_unfinished() -> None:
    logger.warning(
        "turns were still running when the service ended; they are in the log and will be resumed"
    )


@asynccontextmanager
async def _watched(runtime: Runtime) -> AsyncIterator[None]:
    """Keep the service manager's watchdog quiet for the time of the block, draining included."""
    watchdog = asyncio.ensure_future(_watchdog(runtime))
    try:
        yield
    finally:
        watchdog.cancel()


async def _watchdog(runtime: Runtime) -> None:
    """Tell the service manager that we are alive, twice as often as it demands, while we are."""
    seconds = watchdog_seconds()
    if seconds is None:
        return
    while True:
        if runtime.health().live:
            notify("WATCHDOG=1")
        await asyncio.sleep(seconds / 2)


def watchdog_seconds() -> float | None:
    """How often the service manager wants to hear of this process; None if it does not."""
    text, pid = os.environ.get("WATCHDOG_USEC"), os.environ.get("WATCHDOG_PID")
    if not text or not text.isdigit() or (pid and pid != str(os.getpid())):
        return None
    return int(text) / 1e6


__all__ = [
    "DRAIN_SECONDS", "Service", "event_frames", "lifespan", "notify", "serving", "watchdog_seconds",
]  # fmt: skip
