"""Ordering: who is first, and does anything overwrite anything; order is by seq, never by time."""

from __future__ import annotations

import asyncio
import threading
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.clock import SystemClock
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.kernel import Kernel
from keepwell.agent.memory_filter import memory_filter
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.turn_errors import Busy, Superseded
from keepwell.memory.context import Summary
from keepwell.memory.context_policy import ContextPolicy
from keepwell.runtime import Runtime
from keepwell.stores import NoCounter
from keepwell.stores.errors import CursorConflict, StaleEpoch
from keepwell.stores.message import Message, ToolCall
from keepwell.stores.session_errors import SessionFenced
from keepwell.stores.session_state import SessionState, TurnWrites
from keepwell.surroundings import session_store_of
from keepwell.testing.provider_rules import check_history


class FrozenClock(SystemClock):
    """Time of day stands still; everything is written within one tick."""

    def time(self) -> float:
        return 1_700_000_000.0


@pytest.mark.parametrize("on_busy", ["queue", "reject", "interrupt", "latest"])
async def test_fault_f01_turns_of_a_conversation_never_mix(on_busy: Any) -> None:
    """Two agents and a kernel on one conversation, all calling tools, all at once."""

    @tool
    async def look(what: str) -> str:
        """Look."""
        await asyncio.sleep(0)
        return f"saw {what}"

    def reply(request: Any) -> Any:
        check_history(m for m in request.messages if m.role != "system")
        if request.messages[-1].role == "user":
            return Message(
                "assistant", None, [ToolCall(f"c{n}", "look", {"what": "x"}) for n in (1, 2)]
            )
        return "an answer"

    model = FunctionModel(reply)
    async with Runtime(counter=NoCounter()) as runtime:
        spec = AgentSpec(model, tools=[look], on_busy=on_busy)
        agents = [await runtime.spawn(spec, "c") for _ in range(2)]
        kernel = Kernel(model, tools=[look], filters=[memory_filter(runtime.store)])
        runs = [agents[n % 2].run(f"question {n}") for n in range(10)]
        calls = [kernel.invoke(f"input {n}", conversation_id="c") for n in range(3)]
        done = await asyncio.gather(*runs, *calls, return_exceptions=True)
        refused = [one for one in done if isinstance(one, BaseException)]
        assert {type(error) for error in refused} <= {Busy, Superseded}
        assert bool(refused) == (on_busy != "queue")
        log = await runtime.store.read("c")
        check_history(record.message for record in log)
        turns = [turn for turn, _records in groupby(r.turn_id for r in log) if turn is not None]
        assert len(turns) == len(set(turns)), "a turn stands in two places"


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_fault_f02_our_own_housekeeping_makes_no_cursor_stale(
    where: str, tmp_path: Path
) -> None:
    """Faults F02, F22: summaries stand beside the log, the log keeps all and its cursor."""
    async with Runtime(tmp_path if where == "disk" else None, counter=NoCounter()) as runtime:
        policy = ContextPolicy("summary", 60, lambda _previous, new: f"S{len(new)}", 20)
        spec = AgentSpec(
            FunctionModel(lambda _r: "a" * 10), context=policy, count_tokens=lambda text: len(text)
        )
        agent = await runtime.spawn(spec, "c")
        for n in range(6):
            await agent.run(f"question {n}")
            assert len(await agent.messages()) == 2 * (n + 1)
        cursor = (await runtime.store.info("c")).cursor
        sessions = session_store_of(runtime)
        epoch = (await runtime.store.info("c")).epoch
        stored = await sessions.swap_summary("c", "ours", epoch, 0, Summary(8, "all about it"))
        assert stored == Summary(8, "all about it")
        appended = await runtime.store.add("c", [{"role": "user", "content": "x"}], cursor=cursor)
        assert appended.first_seq == cursor + 1
        assert (await sessions.summary("c", "ours", epoch)) == stored
        # Three of ten are read, the rest is summarised in what is shown: nothing of the log goes.
        assert len(await runtime.store.get("c", last=3)) == 3
        assert len(await runtime.store.get("c")) == 13


async def test_fault_f03_order_is_by_seq_when_time_stands_still(tmp_path: Path) -> None:
    names = ["c", "a", "b"]
    for start in range(0, 60, 20):
        async with Runtime(tmp_path, clock=FrozenClock(), counter=NoCounter()) as runtime:
            adds = [
                runtime.store.add(name, [{"role": "user", "content": str(n + i)} for i in range(2)])
                for n in range(start, start + 20, 2)
                for name in names
            ]
            await asyncio.gather(*adds)
            wanted = [str(n) for n in range(start + 20)]
            for name in names:
                for _ in range(30):
                    assert [m.content for m in await runtime.store.get(name)] == wanted
            log = await runtime.store.read("c")
            assert len({record.time for record in log}) == 1
            assert [r.seq for r in reversed(log)] == list(range(start + 20, 0, -1))
            pages = [i.conversation_id for i in await runtime.store.conversations(limit=2)]
            pages += [
                i.conversation_id for i in await runtime.store.conversations(after=pages[-1])
            ]
            assert sorted(pages) == sorted(names)


async def test_fault_f04_a_condition_that_fails_is_a_conflict_that_names_both(
    tmp_path: Path,
) -> None:
    async with Runtime(tmp_path, counter=NoCounter()) as runtime:
        store, user = runtime.store, [{"role": "user", "content": "x"}]
        for _ in range(3):
            await store.add("c", user)
        with pytest.raises(CursorConflict, match=r"cursor 1 .* head is 3") as cursor:
            await store.add("c", user, cursor=1)
        assert (cursor.value.given, cursor.value.head) == (1, 3)
        epoch = (await store.info("c")).epoch
        await store.clear("c")
        with pytest.raises(StaleEpoch, match=rf"{epoch} was given.*{epoch + 1}"):
            await store.add("c", user, epoch=epoch)
        assert await store.get("c") == ()

        sessions = session_store_of(runtime)
        await sessions.commit_value("s", 0, "first")
        with pytest.raises(CursorConflict, match="cursor 0, the head is 1"):
            await sessions.commit_value("s", 0, "other")
        old = await sessions.claim("s")
        new = await sessions.claim("s")
        with pytest.raises(SessionFenced) as fenced:
            await sessions.commit(
                "s", 1, SessionState("late"), None, writes=TurnWrites(epoch=old.epoch)
            )
        assert str(old.epoch) in str(fenced.value) and str(new.epoch) in str(fenced.value)
        assert await sessions.load_value("s") == "first"


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_fault_f05_a_long_walk_holds_nobody_up(where: str, tmp_path: Path) -> None:
    """One reader in the midst of a log, 8 tasks that add, then 8 threads that add at once."""
    async with Runtime(tmp_path if where == "disk" else None, counter=NoCounter()) as runtime:
        store = runtime.store
        size = 2_000
        for start in range(0, size, 500):
            await store.add(
                "c", [{"role": "user", "content": str(n)} for n in range(start, start + 500)]
            )
        walk = iter(await store.read("c"))
        seen = [next(walk).seq for _ in range(size // 2)]

        async def add(name: str) -> None:
            for n in range(20):
                await store.add("c", [{"role": "user", "content": f"{name} {n}"}])

        await asyncio.gather(*(add(f"task {n}") for n in range(8)))  # while the walk stands still
        failures: list[BaseException] = []

        def add_in_thread(name: str) -> None:
            try:
                for n in range(20):
                    store.add("c", [{"role": "user", "content": f"{name} {n}"}]).get(timeout=20)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=add_in_thread, args=(f"thread {n}",)) for n in range(8)]
        await asyncio.to_thread(_run_all, threads)
        assert failures == []
        seen += [record.seq for record in walk]
        assert seen == list(range(1, size + 1)), "the walk sees what it began with"
        log = await store.read("c", after=size)
        assert [r.seq for r in log] == list(range(size + 1, size + 321))
        by_writer: dict[str, list[int]] = {}
        for record in log:
            who, _, n = record.message.content.rpartition(" ")
            by_writer.setdefault(who, []).append(int(n))
        assert len(by_writer) == 16
        assert all(numbers == list(range(20)) for numbers in by_writer.values())


def _run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
