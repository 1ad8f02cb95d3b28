"""What does reading the end of a conversation cost, and does its length matter?

How: one conversation of 100 and one of 100,000 messages (1,000 for `tail_within`), 400 characters
each, on disk; the table is in the file cache of the machine, as it is for a conversation in use.

- `uncached`: `get(last=50)` from LMDB, nothing kept in memory.
- `cached`: the same call, served from the hot tail; through the public handle, awaited.
- `tail_within`: as many newest records as fit 2,000 tokens, uncached.
- `sqlite`: the last 50 by an indexed query, decoded from JSON.

What it does not say: what a read from a cold disk takes.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from keepwell.stores import DiskStore, Message
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.request import Append

from .benchmark import Contender, Question, Scale, Stopwatch, cheaper, growth
from .disk import described

Run = Callable[[Stopwatch, int], Mapping[str, float] | None]

_TEXT = ("What is the weather like in Lisbon today, and what will it be like tomorrow? " * 6)[:400]
_TOKENS = 90


class _Flat:
    """A counter that says 90: what counts here is reading."""

    name = "flat"

    def count_message(self, message: Message) -> int:
        return _TOKENS

    def count_text(self, text: str) -> int:
        return _TOKENS


def questions(scale: Scale) -> Sequence[Question]:
    """Return the questions."""
    long = scale.pick(100_000, 5_000)
    reads = scale.pick(2_000, 300)
    at = f"at {long:,}"
    return [
        Question(
            "tail50", "Does the length of a conversation matter to its last 50?", "read",
            [Contender("at 100", _uncached(100, long), reads, note=described()),
             Contender(at, _uncached(long, long), reads),
             Contender("sqlite", _sqlite(long), reads, opponent=True, note=f"{at}, as JSON")],
            [growth("tail50_at_100k_vs_at_100", "at 100", at, ceiling=1.3),
             cheaper("tail50_vs_sqlite", at, "sqlite")]),
        Question(
            "tail50_cached", "How much does the cache of hot tails save?", "read",
            [Contender("cached", _public(long, cached=True), reads * 5),
             Contender("uncached", _public(long, cached=False), reads)],
            [cheaper("tail50_cached_vs_uncached", "cached", "uncached", floor=50)]),
        Question(
            "tail_within", "Does the length matter to the newest 2,000 tokens?", "read",
            [Contender("at 1,000", _within(1_000, long), reads),
             Contender(at, _within(long, long), reads)],
            [growth("tail_within_100k_vs_1k", "at 1,000", at, ceiling=1.3)]),
    ]


@cache
def _table(long: int) -> tuple[Path, TemporaryDirectory[str]]:
    """A store with conversations of 100, 1,000 and `long` messages, made once a process."""
    folder = TemporaryDirectory(prefix="keepwell-bench-")
    path = Path(folder.name)
    engine = DiskEngine(path, durability="process")
    for size in {100, 1_000, long}:
        for start in range(0, size, 1_000):
            engine.commit([Append(f"c{size}", [{"role": "user", "content": _TEXT}]
                                  * min(1_000, size - start), counter=_Flat())])
    engine.settle()
    engine.close()
    return path, folder


def _uncached(size: int, long: int) -> Run:
    def contend(watch: Stopwatch, operations: int) -> None:
        engine = DiskEngine(_table(long)[0], cache_bytes=0)
        name = f"c{size}"
        assert len(engine.get(name, last=50)) == 50
        with watch:
            for _ in range(operations):
                engine.get(name, last=50)
        engine.close()

    return contend


def _within(size: int, long: int) -> Run:
    def contend(watch: Stopwatch, operations: int) -> None:
        engine = DiskEngine(_table(long)[0], cache_bytes=0)
        name = f"c{size}"
        assert len(engine.tail_within(name, 2_000).records) == 2_000 // _TOKENS
        with watch:
            for _ in range(operations):
                engine.tail_within(name, 2_000)
        engine.close()

    return contend


def _public(long: int, *, cached: bool) -> Run:
    async def run(watch: Stopwatch, operations: int) -> None:
        settings: dict[str, Any] = {} if cached else {"cache_bytes": 0}
        store = await DiskStore(_table(long)[0], counter=_Flat(), **settings).spawn()
        name = f"c{long}"
        assert len(await store.get(name, last=50)) == 50
        with watch:
            for _ in range(operations):
                await store.get(name, last=50)
        await store.stop()

    return lambda watch, operations: asyncio.run(run(watch, operations))


def _sqlite(size: int) -> Run:
    def contend(watch: Stopwatch, operations: int) -> None:
        base = sqlite3.connect(":memory:")
        base.execute("CREATE TABLE log (conversation, seq, body, PRIMARY KEY (conversation, seq))")
        body = json.dumps({"role": "user", "content": _TEXT})
        base.executemany("INSERT INTO log VALUES ('c', ?, ?)",
                         ((seq, body) for seq in range(1, size + 1)))
        with watch:
            for _ in range(operations):
                rows = base.execute("SELECT body FROM log WHERE conversation = 'c' "
                                    "ORDER BY seq DESC LIMIT 50").fetchall()
                [json.loads(row[0]) for row in reversed(rows)]
        base.close()

    return contend
