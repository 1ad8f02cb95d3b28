"""How far is each hot path from its limit: a bare queue, a bare coroutine, the sum of its parts?

How: processor time an operation, ours beside what it cannot be faster than, and beside the parts
that it consists of, each measured alone in the same rounds.

- `tell`: a `deque` that one thread fills and another empties afterwards, a `SimpleQueue` between
  two threads, and a tell; the same method is called for each message.
- `call`: awaiting the coroutine method itself; a task for it that is started eagerly (Python 3.12
  and newer); one trip through the event loop (a future that is set soon); and a call.
- `append`: of one record, 64 conversations. Parts: `encode` (check, pack, hash the message),
  `queue and wake` (to the store's thread and back, with nothing done there), `commit` (a batch of
  64 in one flushed transaction). `raw put` is what LMDB takes of the commit.
- `turn`: 64 conversations, no window. Parts: `handlers` (the model and the tool, called directly),
  `appends` (the four that a turn makes), `history` (read once, from the store's cache), `call` (to
  an actor and back).

What it does not say: how long a caller waits. That is `append`, `turn` and their `_load`.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb

from keepwell.actors import Actor, AsyncActor
from keepwell.agent.model import ModelRequest
from keepwell.agent.spec import AgentSpec
from keepwell.runtime import Runtime
from keepwell.stores import DiskStore, Message, NewRecord, NoCounter, ToolCall
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.request import Append

from .adder import ANSWER, QUESTION, Adder, add, converse
from .append import acknowledge, rows
from .append_opponents import TEXT
from .benchmark import Contender, Question, Ratio, Results, Scale, Stopwatch
from .disk import described, directory
from .population import Counting, Latch, stop_all

Run = Callable[[Stopwatch, int], Mapping[str, float] | None]

_TASKS = 64
_OURS = "keepwell"


def questions(scale: Scale) -> Sequence[Question]:
    """Return the four questions."""
    tells, calls = scale.pick(100_000, 20_000), scale.pick(20_000, 4_000)
    appends, turns = _TASKS * scale.pick(50, 10), _TASKS * scale.pick(8, 2)
    eager = "" if sys.version_info >= (3, 12) else "Python 3.12 brought eager tasks"
    return [
        Question(
            "tell", "How far is a tell from a bare queue?", "message",
            [Contender("bare deque", _deque, tells, opponent=True),
             Contender("SimpleQueue", _simple_queue, tells, opponent=True,
                       note="between two threads"),
             Contender(_OURS, _tell, tells)],
            [_times("tell_over_bare_deque", "bare deque"),
             _times("tell_over_simple_queue", "SimpleQueue")], chart="cpu_us"),
        Question(
            "call", "How far is a call from a bare coroutine?", "call",
            [Contender("bare await", _on_loop(_bare), calls, opponent=True),
             Contender("eager task", _on_loop(_eager), calls, opponent=True, missing=eager),
             Contender("trip through the loop", _on_loop(_trip), calls, opponent=True),
             Contender(_OURS, _on_loop(_call), calls)],
            [_times("call_over_bare_await", "bare await"),
             _times("call_over_loop_trip", "trip through the loop")], chart="cpu_us"),
        Question(
            "append", "What does a durable append consist of?", "append",
            [Contender("encode", _encode, appends * 4),
             Contender("queue and wake", _acknowledge, appends * 4),
             Contender("commit", _commit, appends),
             Contender("raw put", _raw_put, appends, opponent=True),
             Contender(_OURS, _append, appends, note=described())],
            [_sum("append_over_sum_of_parts", ("encode", "queue and wake", "commit")),
             _times("append_over_raw_put", "raw put")],
            rounds=scale.pick(5, 2), chart="cpu_us"),
        Question(
            "turn", "What does a durable turn consist of?", "turn",
            [Contender("handlers", _handlers, turns * 10),
             Contender("appends", _in_conversations(_append_turn, 1), turns),
             Contender("history", _in_conversations(_read, 4), turns * 4),
             Contender("call", _on_loop(_call), turns * 10),
             Contender(_OURS, _turn, turns)],
            [_sum("turn_over_sum_of_parts", ("handlers", "appends", "history", "call"))],
            rounds=scale.pick(5, 2), chart="cpu_us"),
    ]  # fmt: skip


def _cpu(results: Results, name: str) -> float | None:
    result = results.get(name)
    return result.median(lambda s: s.cpu_us) if result is not None and result.samples else None


def _times(name: str, limit: str) -> Ratio:
    def value(results: Results) -> float | None:
        ours, theirs = _cpu(results, _OURS), _cpu(results, limit)
        return None if ours is None or theirs is None else ours / max(theirs, 1e-6)

    return Ratio(name, value, f"One {{unit}} takes {{value}} times the processor time of: {limit}.")


def _sum(name: str, parts: Sequence[str]) -> Ratio:
    def value(results: Results) -> float | None:
        ours = _cpu(results, _OURS)
        found = [cpu for part in parts if (cpu := _cpu(results, part)) is not None]
        return ours / sum(found) if ours is not None and len(found) == len(parts) else None

    return Ratio(name, value, "The whole takes {value} times the processor time of its parts "
                 f"alone ({', '.join(parts)}).")


def _noted(run: Callable[[Stopwatch, int], object]) -> Run:
    """With the processor time as a figure of its own, which is what the charts show."""

    def contend(watch: Stopwatch, operations: int) -> Mapping[str, float]:
        run(watch, operations)
        return {"cpu_us": watch.cpu / operations * 1e6}

    return contend


# -- tell ------------------------------------------------------------------------------------------


class _Counter(Counting):
    """The same handler without an actor."""


class _Counted(Counting, Actor): ...


@_noted
def _deque(watch: Stopwatch, operations: int) -> None:
    waiting: deque[int] = deque()
    counter = _Counter(operations, Latch(1))

    def empty() -> None:
        take, handle = waiting.popleft, counter.on_receive
        while waiting:
            handle(take())

    with watch:
        for number in range(operations):
            waiting.append(number)
        thread = threading.Thread(target=empty)
        thread.start()
        thread.join()


@_noted
def _simple_queue(watch: Stopwatch, operations: int) -> None:
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    counter = _Counter(operations, Latch(1))

    def handle_all() -> None:
        take, handle = waiting.get, counter.on_receive
        for _ in range(operations):
            handle(take())

    thread = threading.Thread(target=handle_all)
    thread.start()
    with watch:
        for number in range(operations):
            waiting.put(number)
        thread.join()


@_noted
def _tell(watch: Stopwatch, operations: int) -> None:
    latch = Latch(1)
    ref = _Counted.start(operations, latch)
    with watch:
        for number in range(operations):
            ref.tell(number)
        latch.wait()
    stop_all([ref])


# -- call ------------------------------------------------------------------------------------------


class _Echo(AsyncActor):
    async def on_receive(self, message: Any) -> Any:
        return message


class _Bare:
    async def on_receive(self, message: Any) -> Any:
        return message


def _on_loop(work: Callable[[Stopwatch, int], Awaitable[None]]) -> Run:
    async def run(watch: Stopwatch, operations: int) -> None:
        await work(watch, operations)

    return _noted(lambda watch, operations: asyncio.run(run(watch, operations)))


async def _bare(watch: Stopwatch, operations: int) -> None:
    bare = _Bare()
    with watch:
        for number in range(operations):
            await bare.on_receive(number)


async def _eager(watch: Stopwatch, operations: int) -> None:
    bare, loop = _Bare(), asyncio.get_running_loop()
    with watch:
        for number in range(operations):
            await asyncio.Task(bare.on_receive(number), loop=loop, eager_start=True)  # type: ignore[call-arg,unused-ignore]  # since 3.12


async def _trip(watch: Stopwatch, operations: int) -> None:
    loop = asyncio.get_running_loop()
    with watch:
        for number in range(operations):
            future = loop.create_future()
            loop.call_soon(future.set_result, number)
            await future


async def _call(watch: Stopwatch, operations: int) -> None:
    ref = await _Echo.spawn()
    with watch:
        for number in range(operations):
            await ref.call(number)
    await ref.stop(block=False)


# -- append ----------------------------------------------------------------------------------------


def _request(number: int) -> Append:
    return Append(f"conversation-{number % _TASKS}", [{"role": "user", "content": TEXT}],
                  append_id=f"turn-{number}/0", counter=NoCounter())


@_noted
def _encode(watch: Stopwatch, operations: int) -> None:
    with watch:
        for number in range(operations):
            _request(number)


@_noted
def _acknowledge(watch: Stopwatch, operations: int) -> None:
    made = [_request(number) for number in range(operations)]
    acknowledge(watch, operations, tasks=_TASKS, made=made)


@_noted
def _commit(watch: Stopwatch, operations: int) -> None:
    with directory() as path:
        engine = DiskEngine(path)
        for first in range(0, operations, _TASKS):
            batch = [_request(number) for number in range(first, first + _TASKS)]
            with watch:
                engine.commit(batch)
                engine.maintain()
        engine.close()


@_noted
def _raw_put(watch: Stopwatch, operations: int) -> None:
    batch = sorted(rows(_TASKS, _TASKS))
    with directory() as path, lmdb.open(str(path), map_size=1 << 34, max_dbs=1) as env:
        table = env.open_db(b"rows")
        with watch:
            for first in range(0, operations, _TASKS):
                with env.begin(write=True, db=table) as txn:
                    for key, value in batch:
                        txn.put(key + first.to_bytes(4, "big"), value)


@_noted
def _append(watch: Stopwatch, operations: int) -> None:
    async def one(store: DiskStore, conversation: int) -> None:
        for number in range(conversation, operations, _TASKS):
            await store.add(f"conversation-{conversation}", [{"role": "user", "content": TEXT}],
                            append_id=f"turn-{number}/0")

    async def run(path: Path) -> None:
        store = await DiskStore(path, counter=NoCounter()).spawn()
        try:
            with watch:
                await asyncio.gather(*(one(store, number) for number in range(_TASKS)))
        finally:
            await store.stop()

    with directory() as path:
        asyncio.run(run(path))


# -- turn ------------------------------------------------------------------------------------------


# A turn's records: the question, the call with its usage, the result, the answer with its ending.
_USAGE = {"input_tokens": 50, "output_tokens": 20, "cached_tokens": 0, "reasoning_tokens": 0,
          "estimated": False}  # fmt: skip
_CALL = Message("assistant", None, [ToolCall("c1", "add", {"a": 1, "b": 2})])
_RESULT = Message("tool", "3", tool_call_id="c1")
_RECORDS: Sequence[tuple[Message, Mapping[str, Any] | None]] = (
    (Message("user", QUESTION), None), (_CALL, {"usage": _USAGE}), (_RESULT, None),
    (Message("assistant", ANSWER), {"usage": _USAGE, "ended": "completed"}),
)  # fmt: skip


@_noted
def _handlers(watch: Stopwatch, operations: int) -> None:
    model = Adder()
    question = _RECORDS[0][0]
    first, second = ModelRequest((question,)), ModelRequest((question, _CALL, _RESULT), step=2)

    async def run() -> None:
        with watch:
            for _ in range(operations):
                await model.complete(first)
                assert await add(1, 2) == 3
                assert (await model.complete(second)).message.text == ANSWER

    asyncio.run(run())


async def _append_turn(store: Any, conversation: int, number: int) -> None:
    """The four appends of a turn; what stands before the tool and the answer is awaited there."""
    turn = f"{conversation}-turn-{number}"
    waiting = []
    for step, (message, mark) in enumerate(_RECORDS):
        record = NewRecord(message, turn_id=turn, mark=mark)
        waiting.append(store.add(f"c{conversation}", [record], append_id=f"{turn}/{step}",
                                 follows=f"{turn}/{step - 1}" if step else None, epoch=0))
        if step % 2:
            for each in waiting:
                await each
            waiting.clear()


async def _read(store: Any, conversation: int, _number: int) -> None:
    await store.read(f"c{conversation}")


def _in_conversations(work: Callable[[Any, int, int], Awaitable[None]], before: int) -> Run:
    """`work(store, conversation, number)` for all conversations at once, after `before` turns."""

    async def several(store: Any, conversation: int, of: Any, first: int, last: int) -> None:
        for number in range(first, last):
            await of(store, conversation, number)

    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        async with Runtime(path, counter=NoCounter()) as runtime:
            async def all_of(of: Any, first: int, last: int) -> None:
                await asyncio.gather(*(several(runtime.store, number, of, first, last)
                                       for number in range(_TASKS)))

            await all_of(_append_turn, 0, before)
            with watch:
                await all_of(work, before, before + max(1, operations // _TASKS))

    def contend(watch: Stopwatch, operations: int) -> None:
        with directory() as path:
            asyncio.run(run(watch, operations, path))

    return _noted(contend)


@_noted
def _turn(watch: Stopwatch, operations: int) -> None:
    async def run(path: Path) -> None:
        async with Runtime(path, counter=NoCounter()) as runtime:
            spec = AgentSpec(Adder(), tools=[add])
            agents = [await runtime.spawn(spec, f"c{number}") for number in range(_TASKS)]
            await asyncio.gather(*(converse(agent, 1) for agent in agents))
            with watch:
                await asyncio.gather(*(converse(agent, max(1, operations // _TASKS))
                                       for agent in agents))

    with directory() as path:
        asyncio.run(run(path))
