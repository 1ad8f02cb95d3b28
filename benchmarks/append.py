"""How many durable appends a second, beside what LMDB itself can do?

How: as many tasks as there are conversations, each awaiting its append before the next; messages
of 600 characters with append ids; durability "power"; token counting excluded (it costs the same
everywhere). All on the disk that the table names.

- `raw`: LMDB alone. One thread puts the same records' rows, encoded beforehand and sorted, as many
  a transaction as keepwell had in its mean commit just before, flushed as safely.
- `transaction per append`: LMDB, one such row a transaction.
- `sqlite`: WAL, synchronous FULL, one transaction an append, one writer thread for all tasks; and
  NORMAL, which is weaker: a power cut may undo what was acknowledged.
- `redis`: a list a conversation on a private server that flushes before it answers.
- `openai-agents session`: its `SQLiteSession`; `dets`: Erlang's disk table, synced each time.
- `at 100,000`: one conversation that has none, or 100,000 records before.
- `acknowledge`: the way of a request to the store's thread and back, without the table.

What it does not say: what a model call or counting tokens adds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import pykka

from keepwell.stores import DiskStore, Message, NoCounter
from keepwell.stores.codec import encode_body
from keepwell.stores.engine import Engine
from keepwell.stores.memory_store import MemoryStore
from keepwell.stores.request import Append, Request
from keepwell.stores.row import HEADER, ROW_KEY

from .append_opponents import TEXT, opponents
from .benchmark import Contender, Question, Ratio, Results, Scale, Stopwatch, faster, growth
from .disk import SLOW_ENOUGH, commit_seconds, described, directory

Run = Callable[[Stopwatch, int], Mapping[str, float] | None]

# The mean size of keepwell's commits in the last round, by conversations: what `raw` uses.
_mean_batch: dict[int, float] = {}


def questions(scale: Scale) -> Sequence[Question]:
    """Return the questions."""
    fast = "" if commit_seconds() >= SLOW_ENOUGH else (
        f"the disk is too fast for this ratio ({described()})")
    each = scale.pick(100, 25)
    found: list[Question] = []
    for tasks in (64, 512):
        appends = tasks * (each if tasks == 64 else max(8, each // 5))
        others = [] if tasks == 512 else [
            Contender("transaction per append", _single, scale.pick(400, 100), opponent=True),
            *opponents(tasks, scale.pick(640, 64))]
        ratios = [faster(f"append_{tasks}_vs_raw_lmdb", "keepwell", "raw", floor=0.6)]
        if tasks == 64:
            ratios += [faster("append_64_vs_txn_per_append", "keepwell", "transaction per append",
                              floor=5),
                       faster("append_64_vs_sqlite_full", "keepwell", "sqlite", floor=6),
                       faster("append_64_vs_sqlite_normal", "keepwell", "sqlite normal"),
                       faster("append_64_vs_redis_always", "keepwell", "redis"),
                       faster("append_64_vs_openai_agents_session", "keepwell",
                              "openai-agents session"),
                       faster("append_64_vs_dets", "keepwell", "dets"),
                       _cpu_over_raw("append_cpu_over_raw_us", ceiling=35)]
        found.append(Question(
            f"append_{tasks}", f"How many durable appends a second, {tasks} conversations?",
            "append",
            [Contender("keepwell", _keepwell(tasks), appends, note=described()),
             Contender("raw", _raw(tasks), appends, opponent=True, missing=fast), *others],
            ratios))
    full = scale.pick(100_000, 5_000)
    found.append(Question(
        "append_long", "Does an append cost more in a long conversation?", "append",
        [Contender("at 0", _long(0), scale.pick(1_500, 300)),
         Contender(f"at {full:,}", _long(full), scale.pick(1_500, 300))],
        [growth("append_at_100k_vs_at_0", "at 0", f"at {full:,}", ceiling=1.2)]))
    found.append(Question(
        "acknowledge", "What does the way to the store's thread and back cost?", "request",
        [Contender("keepwell", acknowledge, scale.pick(20_000, 4_000)),
         Contender("pykka ask", _pykka_ask, scale.pick(20_000, 4_000), opponent=True)],
        [_cost("acknowledge_vs_pykka_ask", "keepwell", "pykka ask", ceiling=0.3)]))
    return found


def _cpu_over_raw(name: str, ceiling: float) -> Ratio:
    def value(results: Results) -> float | None:
        ours, raw = results.get("keepwell"), results.get("raw")
        if ours is None or raw is None or not ours.samples or not raw.samples:
            return None
        return ours.median(lambda s: s.cpu_us) - raw.median(lambda s: s.cpu_us)

    return Ratio(name, value, "An acknowledged append takes {value} µs more processor time than a "
                 "raw put.", ceiling=ceiling)


def _cost(name: str, ours: str, theirs: str, ceiling: float) -> Ratio:
    def value(results: Results) -> float | None:
        mine, other = results.get(ours), results.get(theirs)
        if mine is None or other is None or not mine.samples or not other.samples:
            return None
        return mine.median(lambda s: s.cpu_us) / other.median(lambda s: s.cpu_us)

    return Ratio(name, value, f"One {{unit}} with {ours} takes {{value}} times the processor time "
                 f"of one with {theirs}.", ceiling=ceiling)


async def _started(path: Path) -> DiskStore:
    return await DiskStore(path, counter=NoCounter()).spawn()


def _keepwell(tasks: int) -> Run:
    async def converse(store: DiskStore, name: str, first: int, each: int) -> None:
        for number in range(first, first + each):
            await store.add(name, [{"role": "user", "content": TEXT}],
                            append_id=f"turn-{number}/0")

    async def run(watch: Stopwatch, operations: int, path: Path) -> dict[str, float]:
        store = await _started(path)
        try:
            names = [f"conversation-{number}" for number in range(tasks)]
            await asyncio.gather(*(converse(store, name, 0, 3) for name in names))
            before = store.statistics()
            with watch:
                await asyncio.gather(
                    *(converse(store, name, 3, max(1, operations // tasks)) for name in names))
            after = store.statistics()
        finally:
            await store.stop()
        mean = (after["requests"] - before["requests"]) / (after["commits"] - before["commits"])
        _mean_batch[tasks] = mean
        return {"mean_batch": mean}

    def contend(watch: Stopwatch, operations: int) -> dict[str, float]:
        with directory() as path:
            return asyncio.run(run(watch, operations, path))

    return contend


def rows(operations: int, tasks: int) -> list[tuple[bytes, bytes]]:
    """The rows of the records that keepwell stores, in the order in which they come."""
    body = encode_body(Message("user", TEXT), None, None)
    return [(ROW_KEY.pack(number % tasks + 1, 0, number // tasks + 1),
             HEADER.pack(0, 1, 1, 0, 1, 0, 0) + body) for number in range(operations)]


def _raw(tasks: int) -> Run:
    def contend(watch: Stopwatch, operations: int) -> dict[str, float]:
        batch = max(1, round(_mean_batch.get(tasks, tasks / 2)))
        found = rows(operations, tasks)
        batches = [sorted(found[start:start + batch]) for start in range(0, operations, batch)]
        with directory() as path, lmdb.open(str(path), map_size=1 << 34, max_dbs=1) as env:
            table = env.open_db(b"rows")
            with watch:
                for some in batches:
                    with env.begin(write=True, db=table) as txn:
                        for key, value in some:
                            txn.put(key, value)
        return {"mean_batch": batch}

    return contend


def _single(watch: Stopwatch, operations: int) -> None:
    with directory() as path, lmdb.open(str(path), map_size=1 << 34, max_dbs=1) as env:
        table = env.open_db(b"rows")
        found = rows(operations, 64)
        with watch:
            for key, value in found:
                with env.begin(write=True, db=table) as txn:
                    txn.put(key, value)


def _long(length: int) -> Run:
    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        store = await _started(path)
        try:
            for start in range(0, length, 1000):
                size = min(1000, length - start)
                await store.add("c", [{"role": "user", "content": TEXT}] * size)
            with watch:
                for number in range(operations):
                    await store.add("c", [{"role": "user", "content": TEXT}],
                                    append_id=f"turn-{number}/0")
        finally:
            await store.stop()

    def contend(watch: Stopwatch, operations: int) -> None:
        with directory() as path:
            asyncio.run(run(watch, operations, path))

    return contend


class _Echo:
    """A table that answers without doing anything."""

    gathers = False
    sweep_due = None

    def commit(self, requests: Sequence[Request], owner: object = None) -> list[Any]:
        return [None] * len(requests)

    def maintain(self) -> bool:
        return False

    def fence(self) -> None: ...

    def settle(self) -> None: ...

    def statistics(self) -> dict[str, Any]:
        return {}


def acknowledge(
    watch: Stopwatch, operations: int, *, tasks: int = 100, made: Sequence[Append] = ()
) -> None:
    """Send requests to a store's thread that does nothing with them, from `tasks` at once.

    `made` holds `operations` requests; without them making one is a part of each operation.
    """

    async def one(store: MemoryStore, first: int) -> None:
        for number in range(first, operations, tasks):
            await store.port.submit(made[number] if made else Append("c", [_MESSAGE]))

    async def run() -> None:
        store = await MemoryStore(counter=NoCounter()).spawn()
        actor = store.port.ref._actor
        echo: Any = _Echo()
        engine: Engine = echo
        actor._engine = engine
        with watch:
            await asyncio.gather(*(one(store, number) for number in range(tasks)))
        await store.stop()

    asyncio.run(run())


_MESSAGE = Message("user", "And tomorrow?")


class _PykkaEcho(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Any:
        return None


def _pykka_ask(watch: Stopwatch, operations: int) -> None:
    ref = _PykkaEcho.start()
    with watch:
        for _ in range(operations):
            ref.ask({"message": "And tomorrow?"})
    ref.stop()


