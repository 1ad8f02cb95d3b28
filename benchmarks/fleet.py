"""What does a conversation weigh, live with an agent of its own, and passive?

How: agents that hold a conversation each, started and idle; and conversations of a fleet that
passivates them, so that a handle each is left while their logs are on disk. The model is scripted:
no HTTP client's buffers are in the figures.

- `agents`: live agents over a store in memory; what Python allocated for one of them, on average.
- `conversations`: what Python allocates for a handle, among 100,000 of them; and how much anonymous
  memory a fresh process gains with each conversation that was talked to and is passive again,
  with a tenth of them live at a time. That includes the tails that the store keeps hot, until its
  `cache_bytes` are used up.

What it does not say: what your tools and models keep.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path

from keepwell.agent.spec import AgentSpec
from keepwell.runtime import Runtime
from keepwell.stores import NoCounter

from .adder import QUESTION, Adder, add
from .benchmark import Contender, Question, Scale, Stopwatch, figure
from .child import in_child
from .disk import directory
from .machine import anonymous_bytes

_HANDLES = 100_000


def questions(scale: Scale) -> Sequence[Question]:
    """Return the two questions."""
    return [
        Question(
            "agents", "What does an agent take that is idle?", "agent",
            [Contender("keepwell", _idle_agents, scale.pick(2_000, 100))],
            [figure("agent_bytes_idle", "keepwell", "bytes_each",
                    "A live agent that waits for a question takes {value} bytes.")],
            rounds=1, chart="bytes_each"),
        Question(
            "conversations", "And a conversation of a fleet that is passive?", "conversation",
            [Contender("keepwell", _passive, scale.pick(5_000, 300), fresh=True)],
            [figure("fleet_100k_bytes_passive", "keepwell", "bytes_each",
                    "The handle of a passive conversation takes {value} bytes.", ceiling=2_000),
             figure("fleet_resident_bytes_passive", "keepwell", "resident_bytes_each",
                    "With its tail in the store's cache the process holds {value} bytes for it.")],
            rounds=1, chart="bytes_each"),
    ]  # fmt: skip


def _idle_agents(watch: Stopwatch, operations: int) -> Mapping[str, float]:
    async def run() -> float:
        async with Runtime(counter=NoCounter()) as runtime:
            spec = AgentSpec(Adder(), tools=[add])
            await runtime.spawn(spec)
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            with watch:
                agents = [await runtime.spawn(spec, f"c{n}") for n in range(operations)]
            gc.collect()
            after = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert len(agents) == operations
            return (after - before) / operations

    return {"bytes_each": asyncio.run(run())}


def _passive(watch: Stopwatch, operations: int) -> Mapping[str, float]:
    figures = in_child(passive, operations)
    watch.record(wall=figures.pop("wall"), cpu=figures.pop("cpu"))
    return figures


def passive(conversations: int) -> dict[str, float]:
    """Talk to `conversations`, and return what is left of a passive one; for a fresh process."""
    with directory() as path:
        return asyncio.run(_talked_to(path, max(10, conversations)))


async def _talked_to(path: Path, conversations: int) -> dict[str, float]:
    active = max(1, conversations // 10)
    async with Runtime(path, counter=NoCounter(), durability="process") as runtime:
        fleet = runtime.fleet(AgentSpec(Adder(), tools=[add]), max_active=active)

        async def talk(first: int, last: int) -> None:
            for start in range(first, last, active):
                handles = [fleet.agent(f"c{n}") for n in range(start, start + active)]
                await asyncio.gather(*(handle.run(QUESTION) for handle in handles))

        # What the first ones bring along (code, pools, as many live agents) is no cost of the next.
        await talk(0, 3 * active)
        gc.collect()
        before = anonymous_bytes()
        watch = Stopwatch()
        with watch:
            await talk(3 * active, conversations)
        gc.collect()
        grown = anonymous_bytes() - before
        tracemalloc.start()
        held = [fleet.agent(f"c{n}") for n in range(_HANDLES)]
        handles = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(held) == _HANDLES
        return {"bytes_each": handles / _HANDLES,
                "resident_bytes_each": max(0, grown) / (conversations - 3 * active),
                "wall": watch.wall, "cpu": watch.cpu}
