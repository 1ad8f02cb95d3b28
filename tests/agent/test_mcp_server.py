"""MCP servers as supervised children: a third-party server, one that dies, and one over HTTP."""

from __future__ import annotations

import array
import asyncio
import fcntl
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import keepwell
from keepwell.actors import telemetry
from keepwell.actors.errors import InvalidValue
from keepwell.agent.errors import ModelError, ToolError
from keepwell.agent.mcp_server import McpServer, McpUnavailable
from keepwell.agent.scripted_model import Call
from keepwell.supervision import tree

DEMO = Path(__file__).with_name("mcp_demo_server.py")


@pytest.fixture
async def runtime():
    async with keepwell.Runtime() as running:
        yield running


def demo(folder: Path, **options) -> McpServer:
    command = [sys.executable, str(DEMO), str(folder)]
    return McpServer("demo", command=command, **{"timeout": 20.0} | options)


def programs(folder: Path) -> list[int]:
    """The process ids of the demo servers started so far."""
    return [int(line) for line in (folder / "starts").read_text().split()]


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 -- another thread's work
            await asyncio.sleep(0.002)


async def ended_program(process: int) -> None:
    """Wait until a process is gone (or only waits to be collected)."""
    while True:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state in "ZX":
            return
        await asyncio.sleep(0.02)


def stopped(process: int) -> bool:
    """Whether all threads of a process have come to a stop."""
    stats = Path(f"/proc/{process}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)


def unread(process: int) -> int:
    """Bytes that wait in the pipes of a process."""
    total = 0
    for end in Path(f"/proc/{process}/fd").iterdir():
        if str(end.readlink()).startswith("pipe:"):
            size = array.array("i", [0])
            with end.open("rb") as pipe:
                fcntl.ioctl(pipe, termios.FIONREAD, size)
            total += size[0]
    return total


async def started(runtime, server: McpServer) -> dict[str, keepwell.Tool]:
    await runtime.start_child(server.child_spec())
    return {tool.name: tool for tool in await server.tools()}


async def test_a_third_party_servers_tools_serve_an_agent(runtime):
    server = McpServer("time", command=[sys.executable, "-m", "mcp_server_time"], timeout=20.0)
    tools = await started(runtime, server)
    assert set(tools) == {"get_current_time", "convert_time"}
    assert "timezone" in tools["get_current_time"].parameters["properties"]
    zones = {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}
    model = keepwell.ScriptedModel(
        [Call("convert_time", zones), Call("convert_time", {**zones, "time": "25:99"})],
        "Three in the morning.",
    )
    agent = await runtime.spawn(keepwell.AgentSpec(model, tools=tools.values()))
    result = await agent.run("What is noon in Tokyo in UTC?")
    assert result.text == "Three in the morning."
    good, bad = (m.text for m in result.messages if m.role == "tool")
    assert json.loads(good)["target"]["datetime"].split("T")[1].startswith("03:00")
    assert json.loads(bad)["error"]["type"] in ("semantic", "invalid_arguments")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into a pipe by /proc")
async def test_a_third_party_server_is_killed_in_the_middle_of_a_call(runtime, tmp_path):
    """It is stopped first, so that the call has been sent and cannot have been answered."""
    program = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); "
    program += "os.execv(sys.executable, [sys.executable, '-m', 'mcp_server_time'])"
    command = [sys.executable, "-c", program, str(tmp_path / "pid")]
    server = McpServer("time", command=command, timeout=20.0)
    tools = await started(runtime, server)
    first = int((tmp_path / "pid").read_text())
    os.kill(first, signal.SIGSTOP)
    while not stopped(first):  # noqa: ASYNC110 -- a thread that still reads would take the call
        await asyncio.sleep(0.01)
    calling = asyncio.create_task(tools["get_current_time"].fn(timezone="UTC"))
    while not unread(first):  # noqa: ASYNC110 -- another process has it
        await asyncio.sleep(0.01)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(ToolError, match="outcome unknown") as caught:
        await calling
    assert caught.value.type == "transient"
    answer = await tools["get_current_time"].fn(timezone="UTC")
    assert json.loads(answer)["timezone"] == "UTC"
    assert int((tmp_path / "pid").read_text()) != first


async def test_calls_side_by_side_errors_and_a_server_that_dies(runtime, tmp_path):
    """The call under way is a transient error and not sent again; the next one works."""
    server = demo(tmp_path, prefix="d_", env={"DEMO_SECRET": "s3cret"})
    tools = await started(runtime, server)
    assert set(tools) == {"d_add", "d_fail", "d_die", "d_wait", "d_secret", "d_learn"}
    assert await tools["d_add"].fn(a=1, b=2) == "3"
    assert await tools["d_secret"].fn() == "s3cret"
    assert "s3cret" not in repr(server)
    assert "s3cret" not in repr(server.child_spec())
    with pytest.raises(ToolError, match="cannot: rain") as caught:
        await tools["d_fail"].fn(why="rain")
    assert caught.value.type == "semantic"
    with pytest.raises(ToolError) as caught:
        await tools["d_add"].fn(a="x")
    assert caught.value.type in ("semantic", "invalid_arguments")
    waiting = asyncio.create_task(tools["d_wait"].fn(name="go"))
    assert await tools["d_add"].fn(a=2, b=2) == "4"  # beside the one that waits
    (tmp_path / "go").touch()
    assert await waiting == "go is there"
    with pytest.raises(ToolError, match="outcome unknown") as caught:
        await tools["d_die"].fn()
    assert caught.value.type == "transient"
    assert await tools["d_add"].fn(a=1, b=2) == "3"
    assert len(programs(tmp_path)) == 2


async def test_a_dead_server_is_a_tool_error_and_no_dead_agent(runtime, tmp_path):
    server = demo(tmp_path)
    tools = await started(runtime, server)
    (tmp_path / "refuse").touch()
    server.timeout = 1.0
    model = keepwell.ScriptedModel(Call("die"), Call("add", {"a": 1, "b": 2}), "It is down.")
    agent = await runtime.spawn(keepwell.AgentSpec(model, tools=tools.values()))
    result = await agent.run("Add.")
    assert result.text == "It is down."
    errors = [json.loads(m.text)["error"] for m in result.messages if m.role == "tool"]
    assert [error["type"] for error in errors] == ["transient", "transient"]
    assert "not available" in errors[1]["message"]
    server.timeout = 20.0
    (tmp_path / "refuse").unlink()  # and when it is back, so are its tools
    assert await tools["add"].fn(a=1, b=2) == "3"


async def test_a_killed_actor_is_restarted_and_the_program_ends_with_the_runtime(tmp_path):
    again = asyncio.Event()
    loop = asyncio.get_running_loop()

    def connected(event, fields):
        loop.call_soon_threadsafe(again.set)

    async with keepwell.Runtime() as running:
        server = demo(tmp_path)
        ref = await running.start_child(server.child_spec())
        tools = {tool.name: tool for tool in await server.tools()}
        with telemetry.attach("keepwell.mcp.connected", connected):
            ref.kill()
            await asyncio.wait_for(again.wait(), 20)
        assert await tools["add"].fn(a=1, b=2) == "3"
        first, second = programs(tmp_path)
        await ended_program(first)
        waiting = asyncio.create_task(tools["wait"].fn(name="never"))
        while not (tmp_path / "never.asked").exists():  # noqa: ASYNC110 -- another process tells
            await asyncio.sleep(0.01)
    await ended_program(second)
    with pytest.raises((ToolError, McpUnavailable)):
        await waiting
    with pytest.raises(McpUnavailable):
        await tools["add"].fn(a=1, b=2)


async def test_over_http_and_back_after_a_restart(runtime, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def serve() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(DEMO), str(tmp_path), str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    process = serve()
    try:
        server = McpServer("web", url=f"http://127.0.0.1:{port}/mcp", timeout=20.0)
        tools = await started(runtime, server)
        assert await tools["add"].fn(a=1, b=2) == "3"
        waiting = asyncio.create_task(tools["wait"].fn(name="never"))
        while not (tmp_path / "never.asked").exists():  # noqa: ASYNC110 -- another process tells
            await asyncio.sleep(0.01)
        process.kill()  # in the middle of a call
        process.wait()
        with pytest.raises(ToolError, match="outcome unknown") as caught:
            await waiting
        assert caught.value.type == "transient"
        server.timeout = 1.0
        with pytest.raises((ToolError, McpUnavailable)):
            await tools["add"].fn(a=1, b=2)
        server.timeout = 20.0
        process = serve()
        assert await tools["add"].fn(a=2, b=2) == "4"
    finally:
        process.kill()
        process.wait()


def offered(request) -> dict[str, keepwell.agent.tool.ToolSchema]:
    return {schema.name: schema for schema in request.tools}


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_an_agent_sees_at_its_next_step_what_has_changed(
    runtime, tmp_path, monkeypatch, protocol
):
    """Within the turn: what it is offered, what it may call, and what has gone."""
    import mcp

    monkeypatch.setattr(mcp, "Client", functools.partial(mcp.Client, mode=protocol))
    server = demo(tmp_path)
    both = [Call("dance"), Call("fail", {"why": "x"})]
    model = keepwell.ScriptedModel(Call("learn", {"name": "dance"}), both, "Done.")
    spec = keepwell.AgentSpec(model, tools=[server])
    agent = await runtime.spawn(spec, "c")  # starts the server
    result = await agent.run("Dance!")
    results = [m.text for m in result.messages if m.role == "tool"]
    assert results[:2] == ["dance learned", "dance done"]
    assert json.loads(results[2])["error"]["type"] == "unknown_tool"
    before, after = offered(model.requests[0]), offered(model.requests[1])
    assert "fail" in before and "dance" not in before
    assert "dance" in after and "fail" not in after
    other = await runtime.spawn(spec, "d")  # shares the server
    await other.run("Can you dance?")
    assert "dance" in offered(model.requests[-1])
    assert len(programs(tmp_path)) == 1


async def test_after_a_reconnection_an_agent_sees_what_a_third_party_server_has_then(
    runtime, tmp_path
):
    """The time server names its own time zone in the schemas of its tools."""
    (tmp_path / "zone").write_text("Asia/Tokyo")
    program = "import os, pathlib, sys; home = pathlib.Path(sys.argv[1]); "
    program += "(home / 'pid').write_text(str(os.getpid())); os.execv(sys.executable, "
    program += "[sys.executable, '-m', 'mcp_server_time', "
    program += "'--local-timezone', (home / 'zone').read_text()])"
    command = [sys.executable, "-c", program, str(tmp_path)]
    server = McpServer("time", command=command, timeout=20.0)
    model = keepwell.ScriptedModel("one", "two", shared=True)
    spec = keepwell.AgentSpec(model, tools=[server])
    agent = await runtime.spawn(spec, "c")
    await agent.run("What time is it?")
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(event, fields):
        loop.call_soon_threadsafe(changed.set)

    (tmp_path / "zone").write_text("Europe/Lisbon")
    with telemetry.attach("keepwell.mcp.tools_changed", note):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        await asyncio.wait_for(changed.wait(), 30)
    await agent.run("And now?")
    zones = [str(offered(request)["get_current_time"].parameters) for request in model.requests]
    assert "Asia/Tokyo" in zones[0]
    assert "Europe/Lisbon" in zones[1] and "Asia/Tokyo" not in zones[1]


async def test_a_server_that_is_away_keeps_no_agent_waiting(runtime, tmp_path):
    """Not at its start, when nothing is known of it, and not later, when its tools are kept."""
    (tmp_path / "refuse").touch()
    server = demo(tmp_path)
    model = keepwell.ScriptedModel("without", Call("die"), Call("add", {"a": 1, "b": 2}), "with")
    spec = keepwell.AgentSpec(model, tools=[server])
    agent = await runtime.spawn(spec, "c")
    assert (await agent.run("q")).text == "without"
    assert model.requests[0].tools == ()
    (tmp_path / "refuse").unlink()
    await server.tools()
    (tmp_path / "refuse").touch()  # it will not come back from its death
    server.timeout = 0.5
    result = await agent.run("q")
    errors = [json.loads(m.text)["error"]["type"] for m in result.messages if m.role == "tool"]
    assert errors == ["transient", "transient"]
    assert {"add", "die"} <= set(offered(model.requests[-1]))


async def test_the_server_of_an_agent_is_supervised(tmp_path):
    async with keepwell.Runtime() as running:
        server = demo(tmp_path)
        again = keepwell.ScriptedModel("one", Call("add", {"a": 1, "b": 2}), "three")
        agent = await running.spawn(keepwell.AgentSpec(again, tools=[server]), "c")
        await agent.run("q")
        (branch,) = (n for n in tree(running.supervisor).children if n.id == "tool_sources")
        server_actor = branch.children[0].ref
        branch.ref.kill()
        await until(lambda: not server_actor.is_alive())
        await server.tools()
        result = await agent.run("q")
        assert [m.text for m in result.messages if m.role == "tool"] == ["3"]
        last = programs(tmp_path)[-1]
    await ended_program(last)


async def test_whoever_waits_does_not_wait_for_a_long_pause(runtime, tmp_path, monkeypatch):
    monkeypatch.setattr("keepwell.agent.mcp_server_actor._FIRST_PAUSE", 60.0)
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()

    def disconnected(event, fields):
        loop.call_soon_threadsafe(refused.set)

    (tmp_path / "refuse").touch()
    server = demo(tmp_path)
    with telemetry.attach("keepwell.mcp.disconnected", disconnected):
        await runtime.start_child(server.child_spec())
        asking = asyncio.create_task(server.tools())
        await asyncio.wait_for(refused.wait(), 20)
    (tmp_path / "refuse").unlink()
    assert {tool.name for tool in await asking} >= {"add", "die"}


async def test_what_was_not_started_says_so(tmp_path):
    with pytest.raises(McpUnavailable, match="child_spec"):
        await demo(tmp_path).tools()


async def test_a_program_that_is_not_there(runtime, caplog):
    server = McpServer("none", command=["/no/such/program"], timeout=0.5)
    await runtime.start_child(server.child_spec())
    with pytest.raises(McpUnavailable, match="no/such/program"):
        await server.tools()
    (logged,) = [record for record in caplog.records if "'none'" in record.getMessage()]
    assert "no/such/program" in logged.getMessage()


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"command": ["a"], "url": "http://x"},
        {"command": "python -m x"},
        {"command": []},
        {"url": "http://x", "timeout": 0},
    ],
)
def test_bad_options_are_refused(bad):
    with pytest.raises(InvalidValue, match="'s'"):
        McpServer("s", **bad)


def test_without_the_extra_it_is_named(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"keepwell\[mcp\]"):
        McpServer("s", url="http://x")
