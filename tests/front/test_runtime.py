"""The runtime: coming and going, the default store, which one is meant (DF-1…4, F58, F67)."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import keepwell
from keepwell.actors import Actor, Future
from keepwell.actors.context import entered_system
from keepwell.actors.errors import ActorDied, InvalidValue, StartFailed
from keepwell.agent.scripted_model import Held, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.default_runtime import current_runtime, default_store
from keepwell.runtime import DEFAULT_STORE, Runtime
from keepwell.stores import DiskStore, ForeignFormat, MemoryStore, StoreHandle
from keepwell.supervision import ChildSpec

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_listed_once_and_is_there() -> None:
    assert len(keepwell.__all__) == len(set(keepwell.__all__))
    assert sorted(keepwell.__all__) == sorted([*keepwell._HOMES, "telemetry"])
    for name in keepwell.__all__:
        assert getattr(keepwell, name) is not None
    with pytest.raises(AttributeError):
        keepwell.no_such_name  # noqa: B018 - what is tested


def test_importing_keepwell_imports_no_floor() -> None:
    code = "import sys, keepwell; print([m for m in sys.modules if m.startswith('keepwell.')])"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_blocking_code_reads_the_same(tmp_path: Path) -> None:
    with Runtime(tmp_path) as runtime:
        agent = runtime.spawn(AgentSpec(ScriptedModel("one", "two")), "c").get()
        assert agent.run("q").get().text == "one"
        assert [type(e).__name__ for e in agent.stream("q")][-1] == "TurnEnded"
        assert len(agent.messages().get()) == 4
        agent.stop().get()
        with pytest.raises(ActorDied):
            agent.run("q").get()


async def test_with_on_a_loop_says_what_to_do() -> None:
    with pytest.raises(InvalidValue, match="async with"):
        Runtime().__enter__()


async def test_agents_live_on_the_callers_loop() -> None:
    loops: list[Any] = []

    async def reply(_request: Any) -> str:
        loops.append(asyncio.get_running_loop())
        return "x"

    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(keepwell.FunctionModel(reply)))
        await agent.run("q")
    assert loops == [asyncio.get_running_loop()]


async def test_df_1_the_default_store_is_disk_with_a_data_dir_else_memory(tmp_path: Path) -> None:
    async with Runtime() as runtime:
        assert isinstance(runtime.store, MemoryStore)
        await runtime.store.add("c", [{"role": "user", "content": "x"}])
        named = StoreHandle(DEFAULT_STORE)
        assert len(await named.get("c")) == 1
    async with Runtime(tmp_path) as runtime:
        assert isinstance(runtime.store, DiskStore)
    with pytest.raises(InvalidValue, match="pass one"):
        Runtime(tmp_path, store=MemoryStore())


async def test_df_2_a_killed_default_store_is_restarted_and_turns_go_on(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel(Held(gate, "done"))), "c")
        running = agent.run("q")
        while not (await runtime.store.info("c")).count:  # noqa: ASYNC110 - state, not an event
            await asyncio.sleep(0)
        assert runtime.store.port.ref is not None
        runtime.store.port.ref.kill()
        gate.set()
        assert (await running).text == "done"
        assert len(await runtime.store.get("c")) == 2


async def test_df_4_the_entered_runtime_else_the_only_one() -> None:
    async with Runtime(name="one") as one:
        assert current_runtime() is one
        async with Runtime(name="two") as two:
            assert current_runtime() is two
            found: list[Any] = []

            def elsewhere() -> None:
                with pytest.raises(InvalidValue, match="2 runtimes"):
                    current_runtime()
                found.append(True)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            await asyncio.to_thread(thread.join)
            assert found == [True]
        assert current_runtime() is one
        assert default_store() is one.store


def test_df_3_without_a_runtime_the_first_use_starts_one_with_one_warning() -> None:
    """D-6."""
    code = """
import asyncio, logging, threading
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from keepwell import default_store, current_runtime, Runtime
found = []
threads = [threading.Thread(target=lambda: found.append(default_store())) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(set(map(id, found))) == 1
found[0].add("c", [{"role": "user", "content": "x"}]).get()
async def later():
    async with Runtime() as runtime:
        assert current_runtime() is runtime
        assert await runtime.store.get("c") == ()
asyncio.run(later())
assert len(default_store().get("c").get()) == 1
print("fine")
"""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr
    assert done.stderr.count("Runtime(data_dir=…)") == 1


async def test_ds_5_a_directory_in_use_fails_the_start_and_names_the_owner(tmp_path: Path) -> None:
    async with Runtime(tmp_path):
        with pytest.raises(StartFailed) as caught:
            async with Runtime(tmp_path):
                pass
        assert "in use by this process" in str(caught.value)
    async with Runtime(tmp_path):
        pass  # and it is free again


def test_bad_directories_fail_the_start_and_are_left_alone(tmp_path: Path) -> None:
    not_a_directory = tmp_path / "file"
    not_a_directory.write_text("mine")
    with pytest.raises(StartFailed), Runtime(not_a_directory):
        pass
    assert not_a_directory.read_text() == "mine"


@pytest.mark.parametrize("conversation_id", ["", 5, b"x", "\ud800"])
async def test_bad_conversation_ids_are_refused_at_once(conversation_id: Any) -> None:
    async with Runtime() as runtime:
        with pytest.raises(InvalidValue):
            runtime.spawn(AgentSpec(ScriptedModel("x")), conversation_id)
        with pytest.raises(InvalidValue):
            runtime.spawn("no spec")  # type: ignore[arg-type]  # what is tested


async def test_f58_closing_one_runtime_leaves_the_other_alone() -> None:
    async with Runtime(name="one") as one:
        agent = await one.spawn(AgentSpec(ScriptedModel("x")), "c")
        async with Runtime(name="two") as two:
            await (await two.spawn(AgentSpec(ScriptedModel("y")), "c")).run("q")
        assert (await agent.run("q")).text == "x"
        with pytest.raises(ActorDied):
            await two.spawn(AgentSpec(ScriptedModel("z")))


async def test_f48_a_waiting_caller_gets_actor_died_when_the_runtime_closes() -> None:
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel(Held(asyncio.Event(), "x"))))
        running = agent.run("q")
        await asyncio.sleep(0)
    with pytest.raises(ActorDied):
        await running
    assert await runtime.ended == "shutdown"


class Dying(Actor):
    def on_start(self) -> None:
        self.actor_ref.tell("die")

    def on_receive(self, message: Any) -> Any:
        raise RuntimeError("always")


async def test_f67_when_the_root_gives_up_everyone_is_told(caplog: Any) -> None:
    with caplog.at_level(logging.CRITICAL):
        async with Runtime() as runtime:
            agent = await runtime.spawn(AgentSpec(ScriptedModel(Held(asyncio.Event(), "x"))))
            running = agent.run("q")
            _ = runtime.start_child(ChildSpec("dying", Dying))
            reason = await asyncio.wait_for(runtime.ended, 20)
            with pytest.raises(ActorDied):
                await running
            with pytest.raises(ActorDied):
                await runtime.spawn(AgentSpec(ScriptedModel("x")))
    assert reason == "shutdown"  # what an OTP supervisor exits with that has given up


async def test_start_child_and_the_tree() -> None:
    class Worker(Actor):
        def on_receive(self, message: Any) -> Any:
            return message * 2

    async with Runtime() as runtime:
        ref = await runtime.start_child(ChildSpec("worker", Worker))
        assert await ref.call(21) == 42
        ids = [child.id for child in await runtime.supervisor.which_children()]
        branches = ["sessions", "agents", "providers", "circuit_breakers"]
        assert ids == ["worker", *branches, ("store", DEFAULT_STORE)]


async def test_start_store_gives_a_named_handle(tmp_path: Path) -> None:
    async with Runtime() as runtime:
        handle = await runtime.start_store(DiskStore(tmp_path), name="archive")
        await handle.add("c", [{"role": "user", "content": "x"}])
        assert len(await StoreHandle("archive").get("c")) == 1
        with pytest.raises(InvalidValue):
            runtime.start_store("memory")  # type: ignore[arg-type]  # what is tested


async def test_a_runtime_is_entered_once() -> None:
    runtime = Runtime()
    with pytest.raises(InvalidValue, match="not running"):
        runtime.spawn(AgentSpec(ScriptedModel("x")))
    async with runtime:
        with pytest.raises(InvalidValue, match="entered before"):
            await runtime.__aenter__()
    assert isinstance(runtime.ended, Future)


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_start_that_fails_says_why_in_one_sentence_and_leaves_nothing(
    tmp_path: Path, blocking: bool
) -> None:
    """DS-5, DS-6: the sentence names the value and the remedy, the cause is the store's own."""
    taken = tmp_path / "file"
    taken.write_text("not a directory")

    def enter() -> None:
        with Runtime(taken):
            pytest.fail("it was entered")

    async def enter_async() -> None:
        async with Runtime(taken):
            pytest.fail("it was entered")

    with pytest.raises(StartFailed) as failed:
        await (asyncio.to_thread(enter) if blocking else enter_async())
    assert isinstance(failed.value.__cause__, ForeignFormat)
    assert str(failed.value).endswith(f"did not start: {failed.value.__cause__}")
    assert "Supervisor" not in str(failed.value)
    assert taken.read_text() == "not a directory"
    assert entered_system.get() is None
    async with Runtime() as runtime:
        assert current_runtime() is runtime
    assert entered_system.get() is None


def test_a_blocking_start_that_fails_is_not_the_current_runtime(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartFailed), Runtime(tmp_path / "file"):
        pass
    assert entered_system.get() is None
