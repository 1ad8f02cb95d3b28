"""A runtime inside a service: health, draining, signals, the service manager, ASGI lifespans."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from keepwell import AgentSpec, Runtime, ScriptedModel, service
from keepwell.agent.scripted_model import Held
from keepwell.health import Draining, Health, health

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("stands", "is_open", "draining", "expected"),
    [
        (True, True, False, Health(True, True)),
        (True, False, False, (True, False, "being restarted")),
        (True, True, True, (True, False, "draining")),
        (False, False, False, (False, False, "has ended")),
        (False, True, True, (False, False, "has ended")),
    ],
)
def test_health_is_judged_from_what_is_seen(
    stands: bool, is_open: bool, draining: bool, expected: object
) -> None:
    seen = health(tree_stands=stands, store_open=is_open, draining=draining)
    if isinstance(expected, Health):
        assert seen == expected
    else:
        assert isinstance(expected, tuple)
        assert (seen.live, seen.ready) == expected[:2]
        assert expected[2] in seen.reasons[0]


async def test_a_runtime_is_healthy_while_it_runs_and_not_before_or_after() -> None:
    runtime = Runtime()
    assert not runtime.health().live
    async with runtime:
        assert runtime.health() == Health(True, True)
    assert not runtime.health().live


async def test_draining_finishes_what_runs_and_refuses_what_is_new() -> None:
    go = asyncio.Event()
    async with Runtime() as runtime:
        spec = AgentSpec(ScriptedModel(Held(go, "done"), repeat=True))
        agent = await runtime.spawn(spec, "c")
        fleet = runtime.fleet(spec)
        running, waiting = agent.run("one", turn_id="t1"), agent.run("two")
        draining = runtime.drain(30)
        joined = agent.run("one", turn_id="t1")
        with pytest.raises(Draining):
            await agent.run("late")
        with pytest.raises(Draining):
            await runtime.spawn(spec, "other")
        with pytest.raises(Draining):
            await fleet.agent("third").run("hello")
        assert runtime.health().ready is False
        assert not draining.done()
        go.set()
        assert await draining is True
        results = await asyncio.gather(running, waiting, joined)
        assert [result.status for result in results] == ["completed"] * 3


async def test_a_drain_ends_at_its_deadline_and_leaves_the_turn_in_the_log(tmp_path: Path) -> None:
    spec = AgentSpec(ScriptedModel(Held(threading.Event(), "never")))
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec, "c")
        turn = agent.run("one", turn_id="t1")
        stream = agent.stream(turn_id="t1")
        await anext(stream)
        assert await runtime.drain(0.05) is False
    with pytest.raises(Exception, match="ended"):
        await turn
    async with Runtime(tmp_path) as runtime:
        assert [turn.turn_id for turn in await runtime.open_turns()] == ["t1"]
        again = await runtime.spawn(AgentSpec(ScriptedModel("an answer")), "c")
        assert (await again.run("one", turn_id="t1")).text == "an answer"


async def test_serving_ends_by_a_signal_and_takes_its_handlers_back() -> None:
    async with Runtime() as runtime:
        async with service.serving(runtime, drain_timeout=5) as running:
            os.kill(os.getpid(), signal.SIGTERM)
            await running.wait()
            assert running.signal is signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert runtime.health().ready is False


async def test_a_second_signal_ends_the_wait_for_running_turns() -> None:
    spec = AgentSpec(ScriptedModel(Held(threading.Event(), "never")))
    async with Runtime() as runtime:
        agent = await runtime.spawn(spec, "c")
        async with service.serving(runtime, drain_timeout=3600) as running:
            turn = agent.run("one")
            running.stop()
            await running.wait()
            running.stop()
    with pytest.raises(Exception, match="ended"):
        await turn


async def test_serving_ends_when_the_tree_ends() -> None:
    async with Runtime() as runtime:
        async with service.serving(runtime) as running:
            runtime.supervisor.exit("broken")
            runtime.supervisor.kill()
            await running.wait()
            assert running.signal is None
        assert not runtime.health().live


@pytest.fixture
def service_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


async def test_the_service_manager_is_told(
    service_manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    async with Runtime() as runtime, service.serving(runtime):
        heard = {service_manager.recv(64) for _ in range(1)}
        heard.add(await asyncio.to_thread(service_manager.recv, 64))
        assert heard == {b"READY=1", b"WATCHDOG=1"}
    assert service_manager.recv(64) == b"STOPPING=1"


async def test_a_lifespan_tells_it_too_until_the_tree_has_ended(
    service_manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    app = SimpleNamespace(state=SimpleNamespace())
    async with service.lifespan(Runtime, drain_timeout=5)(app):
        assert service_manager.recv(64) == b"READY=1"
        for _ in range(3):
            assert await asyncio.to_thread(service_manager.recv, 64) == b"WATCHDOG=1"
        runtime = app.state.runtime
        runtime.supervisor.kill()
        await runtime.ended
        looks = iter(range(3))
        looked = asyncio.Event()
        judge = runtime.health

        def count() -> Health:
            if next(looks, None) is None:
                looked.set()
            return judge()

        monkeypatch.setattr(runtime, "health", count)
        heard = _waiting(service_manager)
        await looked.wait()
        assert not _waiting(service_manager), "a dead tree must not be called alive"
        assert set(heard) <= {b"WATCHDOG=1"}
    assert _waiting(service_manager) == [b"STOPPING=1"]


def _waiting(channel: socket.socket) -> list[bytes]:
    """The datagrams that have come."""
    came = []
    channel.setblocking(False)
    while True:
        try:
            came.append(channel.recv(64))
        except BlockingIOError:
            return came


def test_nobody_is_told_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert service.notify("READY=1") is False
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    assert service.notify("READY=1") is False
    monkeypatch.setenv("WATCHDOG_USEC", "1000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert service.watchdog_seconds() is None


async def test_an_asgi_lifespan_runs_a_runtime() -> None:
    app = SimpleNamespace(state=SimpleNamespace())
    async with service.lifespan(Runtime, drain_timeout=5)(app):
        runtime = app.state.runtime
        agent = await runtime.spawn(AgentSpec(ScriptedModel("hello")), "c")
        assert (await agent.run("hi")).text == "hello"
    assert not runtime.health().live


def test_sigterm_lets_a_real_process_finish_its_turn_and_exit_0(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import asyncio, sys
        from keepwell import AgentSpec, FunctionModel, Runtime, service

        async def slow(request):
            print("asked", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            return "finished"

        async def main():
            async with Runtime(sys.argv[1]) as runtime, service.serving(runtime) as running:
                agent = await runtime.spawn(AgentSpec(FunctionModel(slow)), "c")
                turn = agent.run("work", turn_id="t")
                turn.add_done_callback(lambda done: print(done.get().text, flush=True))
                await running.wait()
                print("stopping", flush=True)

        asyncio.run(main())
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=REPO, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    with process, process.stdin, process.stdout:
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "finished\n"
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("timeout", [float("nan"), "1", True])
async def test_a_drain_that_could_not_end_is_refused_before_it_begins(timeout: object) -> None:
    async with Runtime() as runtime:
        with pytest.raises(ValueError, match="timeout"):
            runtime.drain(timeout)  # type: ignore[arg-type]  # is refused
        assert runtime.health().ready
