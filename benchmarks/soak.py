"""Does it stay as it is for hours: throughput, latency, memory and the size of its files?

How: one runtime lives through the whole run, by default half a minute; `--soak-seconds 3600` makes
it an hour. 64 conversations with an agent each, a window of 20 messages, durability "power". A
conversation is cleared after 25 turns, so that its messages have an upper bound. What still grows
is the memory of append ids: those of a cleared conversation are kept for an hour, so that a late
retry is recognised; the files are level after that. The run has ten slices, after one that is not
in the table. Each does a burst of turns as fast as it can (throughput, processor time), then turns
that arrive at random moments, 100 a second (latency from the moment at which a question was due),
and reads what memory and files are then. Memory is anonymous memory of the process: pages of the
mapped file are not in it.

What it does not say: what a leak of a few bytes a turn comes to, unless you let it run for long.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from keepwell.agent.spec import AgentSpec
from keepwell.memory.window import Window
from keepwell.runtime import Runtime
from keepwell.stores import NoCounter

from .adder import QUESTION, Adder, add
from .benchmark import Contender, Question, Ratio, Results, Scale, Stopwatch
from .disk import described, directory
from .machine import anonymous_bytes
from .open_loop import open_loop, precise_loop

SLICES = 10
_CONVERSATIONS = 64
_CLEARED_AFTER = 25
_RATE = 100


def questions(scale: Scale) -> Sequence[Question]:
    """Return the question."""
    seconds = scale.soak_seconds or scale.pick(30.0, 3.0)
    burst = _CONVERSATIONS * scale.pick(10, 2)
    soak = _Soak(max(0.1, seconds / SLICES - burst / 1_000), scale.pick(_CLEARED_AFTER, 1))
    slices = [
        Contender(f"from {number * seconds / SLICES:g} s", soak.slice(number), burst,
                  note=described() if not number else "")
        for number in range(SLICES)
    ]  # fmt: skip
    return [
        Question(
            "steady", f"What changes within {seconds:g} s of turns?", "turn", slices,
            [_later("soak_throughput_late_vs_early", "turns_per_s", "throughput",
                    floor=scale.pick(0.7, None)),
             _later("soak_p99_late_vs_early", "p99_ms", "p99 latency"),
             _later("soak_memory_late_vs_early", "anon_mib", "memory", ceiling=1.25),
             _file_growth("soak_file_bytes_per_turn", scale.pick(2_000.0, None))],
            rounds=1, chart="series", warm_up=False),
    ]  # fmt: skip


def _later(
    name: str, key: str, label: str, *, floor: float | None = None, ceiling: float | None = None
) -> Ratio:
    """The median of the last three slices over that of the second to the fourth."""

    def value(results: Results) -> float | None:
        found = [result.figures().get(key) for result in results.values() if result.samples]
        values = [each for each in found if each is not None]
        if len(values) < SLICES:
            return None
        return sorted(values[-3:])[1] / (sorted(values[1:4])[1] or 1e-9)

    return Ratio(name, value, f"At the end the {label} is {{value}} times that of the beginning.",
                 floor, ceiling)


def _file_growth(name: str, ceiling: float | None) -> Ratio:
    """What the files have grown by since the second slice, a turn."""

    def value(results: Results) -> float | None:
        found = [result.figures() for result in results.values() if result.samples]
        if len(found) < SLICES:
            return None
        first, last = found[1], found[-1]
        turns = last["turns"] - first["turns"]
        return max(0.0, last["file_mib"] - first["file_mib"]) * 2**20 / turns

    return Ratio(name, value, "Each {unit} lets the files grow by {value} bytes, until the ids of "
                 "cleared conversations are an hour old.", ceiling=ceiling)


class _Soak:
    """One runtime that lives from the first slice to the last; each slice may run once."""

    def __init__(self, seconds: float, before: int) -> None:
        self._seconds = seconds
        self._before = before
        self._runner = asyncio.Runner(loop_factory=precise_loop)
        self._open = AsyncExitStack()
        self._agents: list[Any] = []
        self._turns = [0] * _CONVERSATIONS
        self._path = Path()
        self._began = 0.0

    def slice(self, number: int) -> Callable[[Stopwatch, int], Mapping[str, float]]:
        """The contender of slice `number`."""

        def run(watch: Stopwatch, operations: int) -> Mapping[str, float]:
            try:
                if number == 0:
                    self._runner.run(self._start())
                figures = self._runner.run(self._slice(watch, operations, number))
            except BaseException:
                self._close()
                raise
            if number == SLICES - 1:
                self._close()
            return figures

        return run

    async def _start(self) -> None:
        self._path = self._open.enter_context(directory())
        runtime = await self._open.enter_async_context(Runtime(self._path, counter=NoCounter()))
        spec = AgentSpec(Adder(), tools=[add], memory=Window(20))
        self._agents = [await runtime.spawn(spec, f"c{n}") for n in range(_CONVERSATIONS)]
        # What the first turns bring along is no growth: on a full run each is cleared once.
        await self._burst(_CONVERSATIONS * self._before)
        self._began = time.monotonic()

    async def _slice(self, watch: Stopwatch, turns: int, number: int) -> Mapping[str, float]:
        with watch:
            await self._burst(turns)
        load = await open_loop(
            lambda each: self._turn(each % _CONVERSATIONS), rate=_RATE,
            count=max(1, round(self._seconds * _RATE)), seed=number)
        gc.collect()
        latencies = {key: value for key, value in load.figures().items() if key.endswith("_ms")}
        return {"at_s": time.monotonic() - self._began, "turns_per_s": turns / watch.wall,
                **latencies, "turns": sum(self._turns),
                "anon_mib": anonymous_bytes() / 2**20, "file_mib": _allocated(self._path) / 2**20}

    async def _burst(self, turns: int) -> None:
        async def several(conversation: int) -> None:
            for _ in range(turns // _CONVERSATIONS):
                await self._turn(conversation)

        await asyncio.gather(*(several(number) for number in range(_CONVERSATIONS)))

    async def _turn(self, conversation: int) -> None:
        agent = self._agents[conversation]
        await agent.run(QUESTION)
        self._turns[conversation] += 1
        if self._turns[conversation] % _CLEARED_AFTER == 0:
            await agent.clear()

    def _close(self) -> None:
        self._runner.run(self._open.aclose())
        self._runner.close()


def _allocated(path: Path) -> int:
    """Bytes on the disk of all files in `path`."""
    return sum(os.stat(each).st_blocks * 512 for each in path.rglob("*") if each.is_file())
