"""How long is a supervised actor away after a crash, alone and among 10,000 siblings?

How: one permanent child of a `one_for_one` supervisor is crashed again and again by a message; the
clock runs from that message to the first answer of the next incarnation. Its siblings are children
of the same supervisor, live and idle. Crash reports are switched off, for Erlang's supervisor in
`recovery.escript` too.

What it does not say: what the child's own `on_start` costs, which is all of it for an actor that
opens a store or replays a log.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from keepwell.actors import Actor
from keepwell.supervision import ChildSpec, Supervisor

from .benchmark import Contender, Question, Scale, Stopwatch, figure, growth
from .erlang import erlang
from .population import TIMEOUT, Ref

_FEW = 10


class _Sibling(Actor):
    def on_receive(self, message: Any) -> None: ...


class _Victim(Actor):
    """Tells each time it has started; crashes when told to."""

    def __init__(self, started: queue.SimpleQueue[Ref]) -> None:
        super().__init__()
        self.started = started

    def on_start(self) -> None:
        self.started.put(self.actor_ref)

    def on_receive(self, message: Any) -> Any:
        if message == "crash":
            raise _Crash
        return message


class _Crash(Exception):
    """What the victim dies of."""


def questions(scale: Scale) -> Sequence[Question]:
    """Return the question."""
    crashes = scale.pick(500, 50)
    many = scale.pick(10_000, 1_000)
    few_name, many_name = f"{_FEW} siblings", f"{many:,} siblings"
    return [
        Question(
            "restart", "How long from a crash to the first answer?", "restart",
            [Contender(few_name, _restarts(_FEW), crashes),
             Contender(many_name, _restarts(many), crashes),
             erlang("recovery.escript", str(many), crashes)],
            [figure("restart_p50_ms", many_name, "p50_ms",
                    f"Among {many:,} siblings half of the restarts take at most {{value}} ms."),
             figure("restart_p99_ms", many_name, "p99_ms", "99 of 100 take at most {value} ms."),
             figure("restart_p50_ms_erlang", "erlang", "p50_ms",
                    "With Erlang's supervisor half of them take at most {value} ms."),
             growth("restart_growth_with_siblings", few_name, many_name)],
            rounds=3, chart="p50_ms"),
    ]


def _restarts(siblings: int) -> Callable[[Stopwatch, int], Mapping[str, float]]:
    def run(watch: Stopwatch, operations: int) -> Mapping[str, float]:
        started: queue.SimpleQueue[Ref] = queue.SimpleQueue()
        children = [
            ChildSpec("victim", partial(_Victim, started)),
            *(ChildSpec(f"sibling {number}", _Sibling) for number in range(siblings)),
        ]
        with _no_crash_reports():
            supervisor = Supervisor.start(children, max_restarts=1_000_000, max_seconds=1)
            ref = started.get(timeout=TIMEOUT)
            times: list[float] = []
            with watch:
                for number in range(operations):
                    begin = time.perf_counter()
                    ref.tell("crash")
                    ref = started.get(timeout=TIMEOUT)
                    if ref.ask(number, timeout=TIMEOUT) != number:
                        raise AssertionError("the next incarnation answered something else")
                    times.append(time.perf_counter() - begin)
            supervisor.stop(timeout=TIMEOUT)
        times.sort()
        return {"p50_ms": _percentile(times, 0.5) * 1e3, "p99_ms": _percentile(times, 0.99) * 1e3}

    return run


def _percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[max(0, round(len(ordered) * part) - 1)]


@contextmanager
def _no_crash_reports() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
