"""How many turns a second do durable sessions run, 64 at once?

How: an echo session whose carrier counts. Each of 64 sessions sends its next message when the turn
before is done (`handle.request`), so a turn is one durable accept and one durable commit of
carrier, counters, events and output. keepwell's durable contender is a `DiskStore` with durability
"power": an accept is acknowledged, and a turn is done, when it is flushed.

- `turns_memory`, `turns_durable`: the rates, and the processor time of one turn.
- `baseline`: what one would write: a coroutine each that updates one SQLite row a turn (WAL,
  synchronous FULL). It keeps the carrier only: no accepted messages, no events, no keys.
- `long`: whether a turn costs more when the session has run 20,000 turns before.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keepwell.runtime import Runtime
from keepwell.sessions import scan
from keepwell.stores import NoCounter

from .benchmark import Contender, Question, Ratio, Results, Scale, Stopwatch, faster, growth
from .disk import described, directory

SESSIONS = 64

Run = Callable[[Stopwatch, int], None]


async def _echo(message: Any, carrier: Any) -> Any:
    return (carrier or 0) + 1, message


_ECHO = scan(_echo)


def questions(scale: Scale) -> Sequence[Question]:
    """Return the questions."""
    each = scale.pick(40, 6)
    alone = scale.pick(400, 60)
    before = scale.pick(20_000, 2_000)
    return [
        Question(
            "session_turns_64", f"How many turns a second do {SESSIONS} sessions run?", "turn",
            [Contender("memory", _memory(SESSIONS), SESSIONS * each),
             Contender("durable", _durable(SESSIONS), SESSIONS * each, note=described()),
             Contender("sqlite row", _sqlite(SESSIONS), SESSIONS * scale.pick(10, 2),
                       note="carrier only")],
            [_rate("session_turns_per_s_memory", "memory"),
             _rate("session_turns_per_s_durable", "durable"),
             faster("session_turns_vs_sqlite_row", "durable", "sqlite row")],
            rounds=scale.pick(5, 2)),
        Question(
            "session_turns_1", "And one session alone?", "turn",
            [Contender("memory", _memory(1), alone),
             Contender("durable", _durable(1), scale.pick(150, 30), note=described())],
            [_rate("session_turns_per_s_memory_1", "memory"),
             _rate("session_turns_per_s_durable_1", "durable")],
            rounds=scale.pick(5, 2)),
        Question(
            "session_long", "Does a turn cost more in a session that has run for long?", "turn",
            [Contender("at 0", _memory(1), alone),
             Contender(f"at {before:,}", _memory(1, before), alone)],
            [growth("session_turn_at_20k_vs_at_0", "at 0", f"at {before:,}", ceiling=1.3)],
            rounds=scale.pick(5, 2)),
    ]  # fmt: skip


async def _talk(handle: Any, turns: int) -> None:
    for n in range(turns):
        outcome = await handle.request(n)
        assert outcome.outputs == [n]


async def _run(
    runtime: Runtime, watch: Stopwatch, operations: int, sessions: int, before: int
) -> None:
    handles = [await runtime.open_session(_ECHO, f"s{n}") for n in range(sessions)]
    await asyncio.gather(*(_talk(handle, max(2, before)) for handle in handles))
    with watch:
        await asyncio.gather(*(_talk(handle, operations // sessions) for handle in handles))


def _memory(sessions: int, before: int = 0) -> Run:
    async def run(watch: Stopwatch, operations: int) -> None:
        async with Runtime(counter=NoCounter()) as runtime:
            await _run(runtime, watch, operations, sessions, before)

    return lambda watch, operations: asyncio.run(run(watch, operations))


def _durable(sessions: int) -> Run:
    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        async with Runtime(path, counter=NoCounter()) as runtime:
            await _run(runtime, watch, operations, sessions, 0)

    def contend(watch: Stopwatch, operations: int) -> None:
        with directory() as path:
            asyncio.run(run(watch, operations, path))

    return contend


def _sqlite(sessions: int) -> Run:
    def commit(path: Path, session_id: str, carrier: Any) -> None:
        with sqlite3.connect(path, timeout=60) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(
                "INSERT INTO sessions VALUES (?, ?) "
                "ON CONFLICT (id) DO UPDATE SET carrier = excluded.carrier",
                (session_id, json.dumps(carrier)),
            )
        connection.close()

    async def talk(path: Path, session_id: str, turns: int) -> None:
        carrier = None
        for n in range(turns):
            carrier, _ = await _echo(n, carrier)
            await asyncio.to_thread(commit, path, session_id, carrier)

    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        with watch:
            await asyncio.gather(
                *(talk(path, f"s{n}", operations // sessions) for n in range(sessions))
            )

    def contend(watch: Stopwatch, operations: int) -> None:
        with directory() as folder:
            path = folder / "sessions.db"
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY, carrier TEXT)")
            connection.commit()
            connection.close()
            asyncio.run(run(watch, operations, path))

    return contend


def _rate(name: str, contender: str) -> Ratio:
    def value(results: Results) -> float | None:
        ours = results.get(contender)
        return 1e6 / ours.median(lambda s: s.wall_us) if ours and ours.samples else None

    return Ratio(name, value, f"{contender}: {{value}} {{unit}}s a second.")
