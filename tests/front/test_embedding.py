"""A runtime in somebody's service, over real HTTP with real server processes."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from keepwell import AgentSpec, FunctionModel, Runtime, service

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
APP = HERE / "service_app.py"
ENDED = (0, -signal.SIGTERM)
"""uvicorn ends in order and then dies of the signal that asked it to; older ones exit with 0."""

Frame = tuple[str, Any, str]


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        yield http


async def frames(
    client: httpx.AsyncClient, url: str, question: str, last: str = "", json_body: bool = False
) -> AsyncIterator[Frame]:
    """(event, data, id) of each frame of a turn."""
    headers = {"Last-Event-ID": last} if last else {}
    body: dict[str, Any] = {"json": {"text": question}} if json_body else {"content": question}
    async with client.stream("PUT", url, headers=headers, **body) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif not line and "event" in fields:
                yield fields["event"], json.loads(fields["data"]), fields.get("id", "")
                fields = {}


async def some(turn: AsyncIterator[Frame], until: Callable[[Frame], bool]) -> list[Frame]:
    """The frames up to the one that `until` is true of; then the connection is dropped."""
    got = []
    async with aclosing(turn):  # type: ignore[type-var]  # a generator
        async for frame in turn:
            got.append(frame)
            if until(frame):
                break
    return got


def text(got: list[Frame]) -> str:
    said = ""
    for name, data, _ in got:
        if name == "step_restarted":
            said = ""
        elif name == "text_delta":
            said += data["text"]
    return said


def says(word: str) -> Callable[[Frame], bool]:
    return lambda frame: frame[0] == "text_delta" and word in frame[1]["text"]


async def exists(path: Path) -> None:
    async with asyncio.timeout(30):
        while not path.exists():  # noqa: ASYNC110 -- another process tells
            await asyncio.sleep(0.01)


async def stored(client: httpx.AsyncClient, url: str) -> list[tuple[str, str]]:
    response = await client.get(f"{url}/messages")
    return [(message["role"], message["content"]) for message in response.json()]


@pytest.mark.parametrize("name", ["starlette_app.py", "fastapi_app.py"])
async def test_the_examples_stream_answers_that_can_be_taken_up_again(
    name: str, serve: Any, tmp_path: Path, client: httpx.AsyncClient
) -> None:
    server = serve(EXAMPLES / name, tmp_path)
    as_json = name == "fastapi_app.py"
    url = f"{server.url}/conversations/ada"
    first = [f async for f in frames(client, f"{url}/turns/1", "hello", json_body=as_json)]
    answer = first[-1][1]["text"]
    assert text(first) == answer == "You said: hello I see 1 messages."
    for at in (0, len(first) // 2, len(first) - 2):
        turn = frames(client, f"{url}/turns/1", "hello", first[at][2], as_json)
        assert text(first[: at + 1]) + text([frame async for frame in turn]) == answer
    second = frames(client, f"{url}/turns/2", "more", json_body=as_json)
    assert text([frame async for frame in second]).endswith("I see 3 messages.")
    assert await stored(client, url) == [
        ("user", "hello"), ("assistant", answer),
        ("user", "more"), ("assistant", "You said: more I see 3 messages."),
    ]  # fmt: skip
    body: Any = {"json": {"text": "x"}} if as_json else {"content": "x"}
    bad = await client.put(f"{url}/turns/3", headers={"Last-Event-ID": "bad"}, **body)
    assert bad.status_code == 400
    assert "last event" in bad.json()["error"]
    empty: Any = {"json": {"text": ""}} if as_json else {"content": " "}
    assert (await client.put(f"{url}/turns/4", **empty)).status_code in (400, 422)
    assert (await client.get(f"{server.url}/live")).status_code == 200
    assert (await client.get(f"{server.url}/ready")).status_code == 200
    server.signal(signal.SIGTERM)
    assert server.wait() in ENDED


async def test_a_lost_connection_is_taken_up_in_mid_sentence(
    serve: Any, tmp_path: Path, client: httpx.AsyncClient
) -> None:
    """EV-2: the turn runs on without a reader, and another reader sees all of it."""
    server = serve(APP, tmp_path)
    turn = f"{server.url}/conversations/c/turns/t"
    question = "hold open in the middle of this"
    first = await some(frames(client, turn, question), says("hold"))
    await exists(tmp_path / "open.held")
    rest = asyncio.create_task(anext_of(frames(client, turn, question, first[-1][2])))
    whole = asyncio.create_task(anext_of(frames(client, turn, question)))
    (tmp_path / "open").touch()
    answer = f"answer to {question} seeing 1 messages"
    assert text(first) + text(await rest) == answer
    assert text(await whole) == answer
    assert "step_restarted" not in [name for name, _, _ in [*first, *rest.result()]]
    assert await stored(client, f"{server.url}/conversations/c") == [
        ("user", question), ("assistant", answer),
    ]  # fmt: skip


async def anext_of(turn: AsyncIterator[Frame]) -> list[Frame]:
    return [frame async for frame in turn]


async def test_a_killed_server_resumes_the_turn_and_the_reader_goes_on(
    serve: Any, tmp_path: Path, client: httpx.AsyncClient
) -> None:
    server = serve(APP, tmp_path)
    path = "/conversations/c/turns/t"
    question = "hold open and look at this"
    got = await some(frames(client, server.url + path, question), lambda f: f[0] == "tool_ended")
    turn = frames(client, server.url + path, question, got[-1][2])
    got.append(await anext(turn))
    await exists(tmp_path / "open.held")
    while not says("hold")(got[-1]):
        got.append(await anext(turn))
    server.signal(signal.SIGKILL)
    with pytest.raises(httpx.TransportError):
        got += [frame async for frame in turn]
    assert server.wait() == -signal.SIGKILL

    (tmp_path / "open.held").unlink()
    server = serve(APP, tmp_path)
    _ = server.url
    await exists(tmp_path / "open.held")  # nobody has asked: the turn was found and goes on
    again = asyncio.create_task(anext_of(frames(client, server.url + path, question, got[-1][2])))
    (tmp_path / "open").touch()
    got += await again
    names = [name for name, _, _ in got if name != "text_delta"]
    assert names == [
        "turn_started", "model_started", "model_ended", "tool_started", "tool_ended",
        "model_started", "model_ended", "turn_ended",
    ]  # fmt: skip
    answer = f"answer to {question} seeing 1 messages"
    assert text(got) == f"let me see{answer}"
    assert [role for role, _ in await stored(client, f"{server.url}/conversations/c")] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip


async def test_sigterm_lets_running_turns_end_and_takes_no_new_ones(
    serve: Any, tmp_path: Path, client: httpx.AsyncClient
) -> None:
    server = serve(APP, tmp_path)
    turn = frames(client, f"{server.url}/conversations/c/turns/t", "hold open please")
    got = [await anext(turn)]
    await exists(tmp_path / "open.held")
    server.signal(signal.SIGTERM)
    async with asyncio.timeout(20):
        while True:
            try:
                await client.get(f"{server.url}/ready", headers={"Connection": "close"})
            except httpx.ConnectError:
                break
            except httpx.TransportError:
                continue  # it was accepted, and closed with the socket that listened
    assert server.process.poll() is None
    (tmp_path / "open").touch()
    got += [frame async for frame in turn]
    assert got[-1][0] == "turn_ended"
    assert server.wait() in ENDED


async def test_sigterm_ends_the_process_at_its_deadline_and_its_successor_goes_on(
    serve: Any, tmp_path: Path, client: httpx.AsyncClient
) -> None:
    server = serve(APP, tmp_path, GRACE="1")
    path = "/conversations/c/turns/t"
    turn = frames(client, server.url + path, "hold open please")
    got = await some(turn, says("hold"))
    await exists(tmp_path / "open.held")
    server.signal(signal.SIGTERM)
    # One second for streams, one for turns, and some for the machine to be slow.
    assert await asyncio.to_thread(server.wait, 15) in ENDED
    (tmp_path / "open").touch()
    server = serve(APP, tmp_path)
    got += await anext_of(frames(client, server.url + path, "hold open please", got[-1][2]))
    assert text(got) == "answer to hold open please seeing 1 messages"
    assert got[-1][0] == "turn_ended"


async def test_a_second_server_on_the_same_directory_is_refused(
    serve: Any, tmp_path: Path, client: httpx.AsyncClient
) -> None:
    """DS-5: one process per data directory."""
    server = serve(APP, tmp_path)
    assert (await client.get(f"{server.url}/live")).status_code == 200
    second = serve(APP, tmp_path)
    assert second.wait() not in ENDED
    assert "StoreInUse" in "".join(second.lines)
    assert str(server.process.pid) in "".join(second.lines)
    assert (await client.get(f"{server.url}/live")).status_code == 200


async def test_readiness_and_liveness_say_what_a_balancer_needs_to_know() -> None:
    app = SimpleNamespace(state=SimpleNamespace())
    starlette_app = _example("starlette_app")
    async with service.lifespan(Runtime, drain_timeout=5)(app):
        starlette_app.app.state.runtime = runtime = app.state.runtime
        transport = httpx.ASGITransport(starlette_app.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:

            async def seen() -> tuple[int, int]:
                live, ready = await client.get("/live"), await client.get("/ready")
                return live.status_code, ready.status_code

            await runtime.spawn(AgentSpec(FunctionModel(lambda request: "x")))
            assert await seen() == (200, 200)
            await runtime.drain(5)
            assert await seen() == (200, 503)
            assert (await client.get("/ready")).json() == ["the runtime is draining"]
            await runtime.aclose()
            assert await seen() == (503, 503)


def _example(name: str) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
