"""What does an actor cost: its start, its stop, its memory, and its many idle neighbours?

How: keepwell starts 100,000 light actors a round where pykka, which gives each actor a thread,
starts 1,000; all figures are per actor. A start ends when the actor is ready for messages.

- `start`: one after another from one thread; the stop is not timed.
- `start_stop`: started, then all stopped and waited for.
- `idle`: growth of resident memory over that many idle actors, in a fresh process each time.
- `neighbours`: a tell to one actor beside 10 and beside 100,000 live ones.

What it does not say: what your own actor's state weighs, or how fast an actor starts that opens
files in `on_start`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pykka

from keepwell.actors import Actor

from .benchmark import Contender, Question, Scale, Stopwatch, faster, figure, growth
from .child import in_child
from .erlang import erlang
from .machine import resident_bytes
from .population import Counting, Latch, Ref, stop_all

_FEW = 10


class _Idle(Actor):
    def on_receive(self, message: Any) -> None: ...


class _PykkaIdle(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> None: ...


class _Counting(Counting, Actor): ...


def questions(scale: Scale) -> Sequence[Question]:
    """Return the four questions."""
    many = scale.pick(100_000, 10_000)
    threads = scale.pick(1_000, 200)
    crowd = f"{many:,} live"
    started = [figure("spawn_100k_seconds", "keepwell", "seconds",
                      "100,000 actors start in {value} s.")] if many == 100_000 else []
    return [
        Question(
            "start", "How long does it take to start an actor?", "start",
            [Contender("keepwell", _start(_Idle.start), many),
             Contender("pykka", _start(_PykkaIdle.start), threads, opponent=True),
             erlang("spawn.escript", "start", many)],
            [faster("spawn_vs_pykka", "keepwell", "pykka", floor=40),
             faster("spawn_vs_erlang", "keepwell", "erlang"), *started],
            rounds=scale.pick(5, 2)),
        Question(
            "start_stop", "And to start and stop it?", "start",
            [Contender("keepwell", _start_stop(_Idle.start), many),
             Contender("pykka", _start_stop(_PykkaIdle.start), threads, opponent=True),
             erlang("spawn.escript", "start_stop", many)],
            [faster("spawn_stop_vs_pykka", "keepwell", "pykka", floor=25),
             faster("spawn_stop_vs_erlang", "keepwell", "erlang")],
            rounds=scale.pick(5, 2)),
        Question(
            "idle", "How many bytes does an idle actor take?", "start",
            [Contender("keepwell", _in_child(idle), many, fresh=True),
             Contender("pykka", _in_child(idle_threads), threads, opponent=True, fresh=True),
             erlang("spawn.escript", "idle", many)],
            [figure("bytes_per_idle_actor", "keepwell", "bytes",
                    "An idle actor takes {value} bytes.", ceiling=1_000),
             figure("bytes_per_idle_pykka_actor", "pykka", "bytes",
                    "One of pykka's takes {value} bytes."),
             figure("bytes_per_idle_erlang_process", "erlang", "bytes",
                    "A process of Erlang's takes {value} bytes.")],
            rounds=3, chart="bytes"),
        Question(
            "neighbours", "Does a tell cost more when there are many actors?", "message",
            [Contender(f"{_FEW} live", _tell_beside(_FEW), scale.pick(100_000, 20_000)),
             Contender(crowd, _tell_beside(many), scale.pick(100_000, 20_000))],
            [growth("tell_growth_with_live_actors", f"{_FEW} live", crowd, ceiling=1.5)],
            rounds=scale.pick(5, 2)),
    ]


def idle(actors: int) -> dict[str, float]:
    """Return the resident bytes an idle light actor takes; for a fresh process."""
    return _growth(_Idle.start, actors)


def idle_threads(actors: int) -> dict[str, float]:
    """Return the resident bytes an idle pykka actor takes; for a fresh process."""
    return _growth(_PykkaIdle.start, actors)


def _growth(start: Callable[[], Ref], actors: int) -> dict[str, float]:
    # What the first actors bring along (pools, code, arenas) is no cost of the next one.
    first = [start() for _ in range(100)]
    gc.collect()
    before = resident_bytes()
    started = time.perf_counter()
    cpu = time.process_time()
    refs = [start() for _ in range(actors)]
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    grown = resident_bytes() - before
    stop_all([*first, *refs])
    return {"bytes": grown / actors, "wall": wall, "cpu": cpu}


def _in_child(
    function: Callable[[int], dict[str, float]],
) -> Callable[[Stopwatch, int], Mapping[str, float]]:
    def run(watch: Stopwatch, operations: int) -> Mapping[str, float]:
        figures = in_child(function, operations)
        watch.record(wall=figures.pop("wall"), cpu=figures.pop("cpu"))
        return figures

    return run


def _start(start: Callable[[], Ref]) -> Callable[[Stopwatch, int], Mapping[str, float]]:
    def run(watch: Stopwatch, operations: int) -> Mapping[str, float]:
        with watch:
            refs = [start() for _ in range(operations)]
        stop_all(refs)
        return {"seconds": watch.wall}

    return run


def _start_stop(start: Callable[[], Ref]) -> Callable[[Stopwatch, int], None]:
    def run(watch: Stopwatch, operations: int) -> None:
        with watch:
            stop_all([start() for _ in range(operations)])

    return run


def _tell_beside(live: int) -> Callable[[Stopwatch, int], None]:
    def run(watch: Stopwatch, operations: int) -> None:
        neighbours = [_Idle.start() for _ in range(live)]
        latch = Latch(1)
        ref = _Counting.start(operations, latch)
        with watch:
            for number in range(operations):
                ref.tell(number)
            latch.wait()
        stop_all([ref, *neighbours])

    return run
