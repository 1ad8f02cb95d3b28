"""Durable appends with what one would use instead: SQLite, Redis, DETS, an SDK's session.

All have `tasks` conversations whose next append begins when the one before is acknowledged. What
an acknowledgement promises is the same, flushed to the disk, save where the contender's note says
that it is less.

Redis runs as a private server on a Unix socket in the benchmark's directory, with
`appendonly yes` and `appendfsync always` (it answers after the flush); one that runs already is
not touched. The processor time that it uses is added to the client's.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from .benchmark import Contender, Stopwatch, missing_module
from .disk import directory
from .erlang import erlang

Run = Callable[[Stopwatch, int], Mapping[str, float] | None]
Write = Callable[[int, str], Awaitable[object]]

# 600 characters: what each append of this benchmark says.
TEXT = ("What is the weather like in Lisbon today, and what will it be like tomorrow? " * 8)[:600]


def opponents(tasks: int, appends: int) -> list[Contender]:
    """Return the contenders; those that cannot run here say why."""
    return [
        Contender("sqlite", sqlite_log(tasks, "FULL"), appends, opponent=True,
                  note="WAL, synchronous FULL"),
        Contender("sqlite normal", sqlite_log(tasks, "NORMAL"), appends * 3, opponent=True,
                  note="WAL, synchronous NORMAL; weaker: a power cut may undo acknowledged ones"),
        Contender("redis", redis_list(tasks), appends * 3, opponent=True, missing=redis_missing(),
                  note="AOF, appendfsync always"),
        Contender("openai-agents session", agents_session(tasks), appends, opponent=True,
                  missing=missing_module("agents"), note="its SQLiteSession, as documented"),
        erlang("append.escript", str(tasks), appends, name="dets",
               note="a sync after each insert; weaker: a kill leaves a table to be repaired"),
    ]  # fmt: skip


async def _converse(watch: Stopwatch, tasks: int, operations: int, write: Write) -> None:
    async def one(conversation: int) -> None:
        for _ in range(max(1, operations // tasks)):
            await write(conversation, TEXT)

    with watch:
        await asyncio.gather(*(one(number) for number in range(tasks)))


def sqlite_log(tasks: int, synchronous: str) -> Run:
    """One transaction an append, one writer thread for all tasks."""

    def contend(watch: Stopwatch, operations: int) -> None:
        with directory() as path, ThreadPoolExecutor(1) as thread:
            base = thread.submit(_open, path / "log.sqlite", synchronous).result()

            def insert(conversation: int, text: str) -> None:
                with base:
                    base.execute("INSERT INTO log VALUES (?, (SELECT coalesce(max(seq), 0) + 1 "
                                 "FROM log WHERE conversation = ?), ?)",
                                 (conversation, conversation, text))  # fmt: skip

            def write(conversation: int, text: str) -> Awaitable[None]:
                return asyncio.get_running_loop().run_in_executor(
                    thread, insert, conversation, text)

            asyncio.run(_converse(watch, tasks, operations, write))
            thread.submit(base.close).result()

    return contend


def _open(path: Path, synchronous: str) -> sqlite3.Connection:
    base = sqlite3.connect(path)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute(f"PRAGMA synchronous={synchronous}")
    base.execute("CREATE TABLE log (conversation, seq, text, PRIMARY KEY (conversation, seq))")
    return base


def agents_session(tasks: int) -> Run:
    """`SQLiteSession.add_items`, one session a conversation on one file."""

    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        import agents  # noqa: PLC0415 - an opponent: imported when it is measured

        sessions = [agents.SQLiteSession(f"c{number}", path / "sessions.db")
                    for number in range(tasks)]  # fmt: skip

        def write(conversation: int, text: str) -> Awaitable[None]:
            return sessions[conversation].add_items([{"role": "user", "content": text}])

        try:
            await _converse(watch, tasks, operations, write)
        finally:
            for session in sessions:
                session.close()

    def contend(watch: Stopwatch, operations: int) -> None:
        with directory() as path:
            asyncio.run(run(watch, operations, path))

    return contend


def redis_missing() -> str:
    """Why Redis cannot be measured here, "" if it can."""
    if shutil.which("redis-server") is None:
        return "no redis-server on the PATH (Debian: redis-server)"
    return missing_module("redis")


def redis_list(tasks: int) -> Run:
    """A list a conversation, `RPUSH` an append, a connection a task."""

    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        async with redis_server(path) as client:
            def write(conversation: int, text: str) -> Awaitable[object]:
                pushed: Awaitable[object] = client.rpush(f"c{conversation}", text)
                return pushed

            await _converse(Stopwatch(), tasks, tasks, write)  # each has its connection
            before = await _processor_seconds(client)
            await _converse(watch, tasks, operations, write)
            watch.record(wall=0, cpu=await _processor_seconds(client) - before)

    def contend(watch: Stopwatch, operations: int) -> None:
        with directory() as path:
            asyncio.run(run(watch, operations, path))

    return contend


async def _processor_seconds(client: Any) -> float:
    used = await client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


@asynccontextmanager
async def redis_server(path: Path) -> AsyncIterator[Any]:
    """A client of a server of its own that flushes before it answers; both are gone afterwards.

    Raises RuntimeError with what the server wrote if it does not serve within 20 s.
    """
    from redis import asyncio as redis  # noqa: PLC0415 - an opponent
    from redis.exceptions import ConnectionError as NotYet  # noqa: PLC0415 - an opponent

    socket = path / "redis.sock"
    log = path / "redis.log"
    server = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs on this loop yet
        ["redis-server", "--port", "0", "--unixsocket", str(socket), "--dir", str(path),
         "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--logfile", str(log)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    client = redis.Redis(unix_socket_path=str(socket))
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                await client.ping()
                break
            except NotYet as error:
                if server.poll() is not None or time.monotonic() > deadline:
                    said = log.read_text() if log.exists() else ""
                    raise RuntimeError(f"redis-server does not serve: {said[-300:]}") from error
                await asyncio.sleep(0.02)
        yield client
    finally:
        with contextlib.suppress(Exception):
            await client.aclose()
        server.kill()
        server.wait()
