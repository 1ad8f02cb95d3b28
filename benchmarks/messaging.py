"""How fast do messages travel: tell, ask, call and a ring, against plain pykka.

How: every contender does the same number of the same operations with the same handler, and a round
ends when the last message has been processed, not when it has been sent. pykka is
`pykka.ThreadingActor`, as its documentation shows it; keepwell is `Actor`, or `AsyncActor` on the
caller's own event loop for `call`. Erlang runs `messaging.escript` on two schedulers.

- `tell`: one sender, one actor.
- `tell_to_1000`: one sender, 1,000 actors in turn. Threads pay for each hand-over here.
- `ask_pipelined`: 100 asks outstanding, sent from a thread; compared by CPU time, since the wall
  time of two threads that hand over to each other is mostly the interpreter lock's.
- `call`: one request after another, `await ref.call(…)` against the blocking `ref.ask(…)`.
- `ring`: 1,000 actors pass one message on.
- `telemetry`: how often a tell and its handling look whether somebody listens, times the cost of
  looking, as a share of the tell.

What it does not say: what real handlers cost. A handler that takes a millisecond makes all
contenders equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from unittest import mock

import pykka

from keepwell.actors import Actor, AsyncActor, telemetry

from .benchmark import (
    Contender,
    Question,
    Scale,
    Stopwatch,
    cheaper,
    faster,
    figure,
    missing_module,
)
from .erlang import erlang
from .population import TIMEOUT, Counting, Latch, Ref, stop_all

_OUTSTANDING = 100
_MANY = 1_000


class _Echo:
    def on_receive(self, message: Any) -> Any:
        return message


class _Hop:
    """Passes a number on to the next in the ring, one less each time, until it is 0."""

    def __init__(self, latch: Latch) -> None:
        super().__init__()
        self.next: Ref | None = None
        self.latch = latch

    def on_receive(self, message: Any) -> None:
        if not isinstance(message, int):
            self.next = message
        elif not message:
            self.latch.count_down()
        elif self.next is not None:
            self.next.tell(message - 1)


class _KeepwellCounting(Counting, Actor): ...


class _PykkaCounting(Counting, pykka.ThreadingActor): ...


class _KeepwellEcho(_Echo, Actor): ...


class _PykkaEcho(_Echo, pykka.ThreadingActor): ...


class _KeepwellHop(_Hop, Actor): ...


class _PykkaHop(_Hop, pykka.ThreadingActor): ...


class _LoopEcho(AsyncActor):
    async def on_receive(self, message: Any) -> Any:
        return message


def questions(scale: Scale) -> Sequence[Question]:
    """Return the six questions."""
    # Long enough that the first hand-over to another thread, up to 5 ms, does not count for much.
    tells = scale.pick(200_000, 20_000)
    spread = scale.pick(20_000, 5_000)
    asks = scale.pick(20_000, 3_000)
    hops = scale.pick(30_000, 5_000)
    return [
        Question(
            "tell", "How many messages a second does one actor process?", "message",
            [Contender("keepwell", _tell(_KeepwellCounting.start), tells),
             Contender("pykka", _tell(_PykkaCounting.start), tells, opponent=True),
             erlang("messaging.escript", "tell", tells * 10)],
            [faster("tell_vs_pykka", "keepwell", "pykka", floor=20),
             faster("tell_vs_erlang", "keepwell", "erlang")]),
        Question(
            "tell_to_1000", "And if they go to 1,000 actors in turn?", "message",
            [Contender("keepwell", _tell(_KeepwellCounting.start, _MANY), spread),
             Contender("pykka", _tell(_PykkaCounting.start, _MANY), spread, opponent=True),
             erlang("messaging.escript", "tell_to_1000", spread * 10)],
            [faster("tell_to_1000_vs_pykka", "keepwell", "pykka", floor=100),
             faster("tell_to_1000_vs_erlang", "keepwell", "erlang")]),
        Question(
            "ask_pipelined", f"What does an ask cost with {_OUTSTANDING} outstanding?", "ask",
            [Contender("keepwell", _pipelined(_KeepwellEcho.start), asks),
             Contender("pykka", _pipelined(_PykkaEcho.start), asks, opponent=True),
             erlang("messaging.escript", "ask_pipelined", asks * 10)],
            [cheaper("ask_pipelined_vs_pykka_cpu", "keepwell", "pykka", floor=5),
             faster("ask_pipelined_vs_erlang", "keepwell", "erlang")]),
        Question(
            "call", "How many requests a second, one after another?", "call",
            [Contender("keepwell", _on_loop(asyncio.run), asks, note="same event loop"),
             Contender("keepwell, uvloop", _on_loop(_run_on_uvloop), asks,
                       missing=missing_module("uvloop"), note="same event loop"),
             Contender("keepwell, blocking", _asked(_KeepwellEcho.start), asks,
                       note="between threads"),
             Contender("pykka", _asked(_PykkaEcho.start), asks,
                       note="between threads", opponent=True),
             erlang("messaging.escript", "call", asks * 10)],
            [faster("call_same_loop_vs_pykka_ask", "keepwell", "pykka", floor=_call_floor()),
             faster("ask_blocking_vs_pykka", "keepwell, blocking", "pykka"),
             faster("call_same_loop_vs_erlang", "keepwell", "erlang")]),
        Question(
            "ring", f"How fast does a message go round {_MANY:,} actors?", "hop",
            [Contender("keepwell", _ring(_KeepwellHop.start), hops),
             Contender("pykka", _ring(_PykkaHop.start), hops, opponent=True),
             erlang("messaging.escript", "ring", hops * 10)],
            [faster("ring_vs_pykka", "keepwell", "pykka", floor=6),
             faster("ring_vs_erlang", "keepwell", "erlang")]),
        Question(
            "telemetry", "What does the event bus cost while nobody listens?", "message",
            [Contender("keepwell", _telemetry_share, tells)],
            [figure("telemetry_share_of_tell", "keepwell", "share",
                    "Looking whether somebody listens is {value} of the cost of a tell.",
                    ceiling=0.03)]),
    ]


def _call_floor() -> float:
    # Python 3.12 brought eager tasks, without which a coroutine costs a trip through the loop.
    return 8.0 if hasattr(asyncio, "eager_task_factory") else 3.0


def _tell(start: Callable[..., Ref], actors: int = 1) -> Callable[[Stopwatch, int], None]:
    def run(watch: Stopwatch, operations: int) -> None:
        each = max(1, operations // actors)
        latch = Latch(actors)
        refs = [start(each, latch) for _ in range(actors)]
        with watch:
            for number in range(each):
                for ref in refs:
                    ref.tell(number)
            latch.wait()
        stop_all(refs)

    return run


def _pipelined(start: Callable[..., Ref]) -> Callable[[Stopwatch, int], None]:
    def run(watch: Stopwatch, operations: int) -> None:
        ref = start()
        with watch:
            for first in range(0, operations, _OUTSTANDING):
                last = min(operations, first + _OUTSTANDING)
                futures = [ref.ask(number, block=False) for number in range(first, last)]
                answers = [future.get(timeout=TIMEOUT) for future in futures]
                if answers[-1] != last - 1:
                    raise AssertionError(f"{answers[-1]!r} is not the answer to {last - 1}")
        stop_all([ref])

    return run


def _asked(start: Callable[..., Ref]) -> Callable[[Stopwatch, int], None]:
    def run(watch: Stopwatch, operations: int) -> None:
        ref = start()
        with watch:
            for number in range(operations):
                ref.ask(number)
        stop_all([ref])

    return run


def _on_loop(
    run_loop: Callable[[Coroutine[Any, Any, None]], None],
) -> Callable[[Stopwatch, int], None]:
    async def calls(watch: Stopwatch, operations: int) -> None:
        ref = await _LoopEcho.spawn()
        with watch:
            for number in range(operations):
                await ref.call(number)
        await ref.stop(block=False)

    return lambda watch, operations: run_loop(calls(watch, operations))


def _run_on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def _telemetry_share(watch: Stopwatch, operations: int) -> dict[str, float]:
    tell = _tell(_KeepwellCounting.start)
    looks = 0
    enabled, emit = telemetry.enabled, telemetry.emit

    def counted_enabled(event: str) -> bool:
        nonlocal looks
        looks += 1
        return enabled(event)

    def counted_emit(event: str, /, **fields: Any) -> None:
        nonlocal looks
        looks += 1
        emit(event, **fields)

    with (mock.patch.object(telemetry, "enabled", counted_enabled),
          mock.patch.object(telemetry, "emit", counted_emit)):
        tell(Stopwatch(), operations)
    looking = Stopwatch()
    with looking:
        for _ in range(operations):
            telemetry.enabled("keepwell.benchmark")
    tell(watch, operations)
    return {"looks_per_message": looks / operations,
            "share": looks * (looking.cpu / operations) / watch.cpu}


def _ring(start: Callable[..., Ref]) -> Callable[[Stopwatch, int], None]:
    def run(watch: Stopwatch, operations: int) -> None:
        latch = Latch(1)
        refs = [start(latch) for _ in range(_MANY)]
        for ref, following in zip(refs, [*refs[1:], refs[0]], strict=True):
            ref.tell(following)
        with watch:
            refs[0].tell(operations)
            latch.wait()
        stop_all(refs)

    return run
