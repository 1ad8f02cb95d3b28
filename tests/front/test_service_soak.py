"""A server under load from 200 clients with streams, terminated and killed in between.

One minute; KEEPWELL_SOAK=10 makes it ten. Each client keeps a conversation, checks the whole of it
against what it was answered, clears it and begins again. In the first half the server is restarted
every few seconds, by SIGTERM and SIGKILL in turn; in the second half it is watched for growth.
The append ids of what was cleared live for seconds here, not for an hour (CS-16), so that the file
can be seen to level off.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

APP = Path(__file__).with_name("service_app.py")
SECONDS = 60 * float(os.environ.get("KEEPWELL_SOAK", "1"))
CLIENTS = 200
TURNS = 6
"""Turns of a conversation before it is checked and cleared."""
LIFE = 5.0
"""Seconds between two restarts in the first half."""
GRACE = 10
"""Seconds that streams get to end, and again the turns, after SIGTERM."""

logger = logging.getLogger("soak")


class Gone(Exception):
    """The connection broke, or there was none."""


class Front:
    """The server of the moment, as its clients find it."""

    def __init__(self, serve: Callable[..., Any], folder: Path) -> None:
        self._serve, self._folder = serve, folder
        self.server: Any = None
        self._port = 0
        self._up = asyncio.Event()
        self.drains: list[float] = []
        self.kills = 0

    async def start(self) -> None:
        self.server = self._serve(APP, self._folder, PAUSE="0.02", GRACE=str(GRACE), ID_LIFE="5")
        url = await asyncio.to_thread(lambda: self.server.url)
        self._port = int(url.rpartition(":")[2])
        self._up.set()

    async def restart(self, number: signal.Signals) -> None:
        began = time.monotonic()
        self.server.signal(number)
        code = await asyncio.to_thread(self.server.wait, 2 * GRACE + 20)
        self._up.clear()
        if number is signal.SIGTERM:
            assert code in (0, -signal.SIGTERM), "".join(self.server.lines)[-2000:]
            self.drains.append(time.monotonic() - began)
        else:
            self.kills += 1
        await self.start()

    def rss(self) -> int:
        """Resident bytes of the server, without the pages of the data file that are mapped in:
        those grow with the file."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return 1024 * int(status.partition("RssAnon:")[2].split()[0])

    def disk(self) -> int:
        """Bytes on disk of the data directory."""
        files = (self._folder / "data").iterdir()
        return sum(file.stat().st_blocks * 512 for file in files if file.is_file())

    async def request(
        self, method: str, path: str, body: str = "", last: str = ""
    ) -> AsyncIterator[str]:
        """Send a request; the status, then the blocks of the body between empty lines.

        By hand, since a client library for 200 streams would take more of the machine than the
        server. Raises Gone.
        """
        await self._up.wait()
        writer = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            head += f"Content-Length: {len(body)}\r\n"
            if last:
                head += f"Last-Event-ID: {last}\r\n"
            writer.write(f"{head}\r\n{body}".encode())
            top = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            yield top.split(" ")[1]
            if "transfer-encoding: chunked" not in top:
                rest = await reader.read()
                size = top.partition("content-length: ")[2].partition("\r\n")[0]
                if len(rest) != int(size or 0):
                    raise Gone
                yield rest.decode()
                return
            text = ""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                text += (await reader.readexactly(size + 2))[:-2].decode()
                *blocks, text = text.split("\n\n")
                for block in blocks:
                    yield block
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Gone from error
        finally:
            if writer is not None:
                writer.close()

    async def call(self, method: str, path: str) -> str:
        """The body of the answer, asked for until there is one."""
        while True:
            try:
                async with aclosing(self.request(method, path)) as blocks:  # type: ignore[type-var]  # has aclose, as all async generators
                    status, body = [block async for block in blocks]
                if status.startswith("2"):
                    return body
            except (Gone, ValueError):
                pass
            await asyncio.sleep(random.uniform(0.05, 0.2))


class Client:
    """Talks, loses its connection now and then, and checks what it was told."""

    def __init__(self, front: Front, number: int, counts: Counter[str]) -> None:
        self._front, self._number, self._counts = front, number, counts
        self._random = random.Random(number)

    async def talk(self, until: float) -> None:
        round_ = 0
        while time.monotonic() < until:
            round_ += 1
            expected: list[tuple[str, str]] = []
            for turn in range(TURNS):
                question = f"question {self._number} {round_} {turn}"
                if self._random.random() < 0.3:
                    question += " look"
                answer = f"answer to {question} seeing {2 * turn + 1} messages"
                turn_id = f"{round_}.{turn}"
                assert await self._ask(turn_id, question) == answer
                expected.append(("user", question))
                if question.endswith("look"):
                    expected += [("assistant", "let me see"), ("tool", f"seen: {question}")]
                expected.append(("assistant", answer))
                if self._random.random() < 0.1:  # what was acknowledged is answered again
                    assert await self._ask(turn_id, question) == answer
                    self._counts["asked again"] += 1
            await self._check(expected)

    async def _check(self, expected: list[tuple[str, str]]) -> None:
        path = f"/conversations/{self._number}"
        stored = json.loads(await self._front.call("GET", f"{path}/messages"))
        assert [(message["role"], message["content"]) for message in stored] == expected
        self._counts["messages checked"] += len(expected)
        await self._front.call("DELETE", path)
        assert await self._front.call("GET", f"{path}/messages") == "[]"

    async def _ask(self, turn_id: str, question: str) -> str:
        path = f"/conversations/{self._number}/turns/{turn_id}"
        last, steps = "", dict[int, str]()
        names: Counter[str] = Counter()
        while True:
            leave = self._random.randrange(1, 20) if self._random.random() < 0.1 else 0
            try:
                async with aclosing(self._front.request("PUT", path, question, last)) as blocks:  # type: ignore[type-var]  # has aclose, as all async generators
                    assert await anext(blocks) == "200"
                    async for block in blocks:
                        fields = dict(line.split(": ", 1) for line in block.splitlines())
                        name = fields.get("event", "")
                        if not name:
                            continue
                        data, last = json.loads(fields["data"]), fields.get("id", last)
                        names[name] += 1
                        if name == "text_delta":
                            steps[data["step"]] = steps.get(data["step"], "") + data["text"]
                        elif name == "step_restarted":
                            steps[data["step"]] = ""
                        elif name == "turn_ended":
                            self._counts["turns"] += 1
                            assert steps[max(steps)] == data["text"]
                            calls = int(question.endswith("look"))
                            assert names["tool_ended"] == calls, "an event was lost or doubled"
                            assert names["model_ended"] == 1 + calls
                            return str(data["text"])
                        assert name != "turn_failed", data
                        leave -= 1
                        if leave == 0:
                            self._counts["left"] += 1
                            break
            except Gone:
                self._counts["connections lost"] += 1
                await asyncio.sleep(self._random.uniform(0.05, 0.2))


def steps_of(samples: list[int], steps: int = 10) -> list[float]:
    """Medians in MB of `steps` equal spans of the watched time, the earliest first."""
    size = max(1, len(samples) // steps)
    return [
        round(statistics.median(samples[at : at + size]) / 1e6, 1)
        for at in range(0, len(samples) - size + 1, size)
    ]


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 240)
async def test_nothing_is_lost_or_doubled_while_a_server_under_load_is_restarted(
    serve: Callable[..., Any], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    front = Front(serve, tmp_path)
    await front.start()
    counts: Counter[str] = Counter()
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        clients = [
            group.create_task(Client(front, n, counts).talk(began + SECONDS))
            for n in range(CLIENTS)
        ]
        number = signal.SIGTERM
        while time.monotonic() < began + SECONDS / 2:
            await asyncio.sleep(LIFE)  # the load's own time, nothing is waited for
            await front.restart(number)
            number = signal.SIGKILL if number is signal.SIGTERM else signal.SIGTERM
        watched = counts["turns"]
        rss, disk = [], []
        while not all(client.done() for client in clients):
            rss.append(front.rss())
            disk.append(front.disk())
            await asyncio.sleep(0.5)
    watched = counts["turns"] - watched
    seconds = time.monotonic() - began
    await front.restart(signal.SIGTERM)
    # Warm-up is over after a third of the server's last life.
    third = len(rss) // 3
    rss_growth = statistics.median(rss[-third:]) - statistics.median(rss[third : 2 * third])
    disk_growth = (disk[-1] - disk[third]) / max(1, watched * 2 / 3)
    figures = {
        **counts, "seconds": round(seconds), "SIGTERM": len(front.drains), "SIGKILL": front.kills,
        "longest drain s": round(max(front.drains), 2), "rss MB": round(rss[-1] / 1e6, 1),
        "rss growth MB": round(rss_growth / 1e6, 2), "disk MB": round(disk[-1] / 1e6, 1),
        "disk growth bytes a turn": round(disk_growth),
        "rss MB over time": steps_of(rss), "disk MB over time": steps_of(disk),
    }  # fmt: skip
    logger.info("%s", figures)
    record_property("figures", json.dumps(figures))
    assert min(len(front.drains), front.kills) >= 2
    assert counts["connections lost"] > 0
    assert counts["left"] > 0
    assert max(front.drains) < 2 * GRACE + 5
    assert rss_growth < 0.05 * rss[third] + 3e6
    # What was cleared is swept, the append ids of its records soon after (ID_LIFE).
    assert disk_growth < 300
