"""A tiny HTTP server that answers with exactly the bytes a test gives it.

Mock servers speak a protocol well; endpoints in trouble do not. Here a response may stop in the
middle of a chunk, drip, close early or be no HTTP at all. Loopback only, any free port.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Pause:
    """A stop of `seconds` between two pieces of a response."""

    seconds: float


class Disconnect:
    """The connection is reset at this point of a response."""


@dataclass(slots=True)
class RawRequest:
    """What a client sent: first line, headers in lower case, body."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        """The body as JSON."""
        loaded: dict[str, object] = json.loads(self.body)
        return loaded


Piece = bytes | Pause | Disconnect


@dataclass(slots=True)
class RawServer:
    """Plays one response, a sequence of pieces, for each request; the last one again and again."""

    responses: Sequence[Sequence[Piece]]
    requests: list[RawRequest] = field(default_factory=list)
    url: str = ""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a request has come."""
    dropped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a client has gone before its response was complete."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            place = min(len(self.requests), len(self.responses) - 1)
            self.requests.append(request)
            self.asked.set()
            for piece in self.responses[place]:
                if isinstance(piece, Pause):
                    await asyncio.sleep(piece.seconds)
                elif isinstance(piece, Disconnect):
                    writer.transport.abort()
                    return
                else:
                    writer.write(piece)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.dropped.set()
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(*responses: Sequence[Piece]) -> AsyncIterator[RawServer]:
    """A server on a free port of the loopback address, for the time of the block."""
    served = RawServer(responses)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await served._serve(reader, writer)
        except asyncio.CancelledError:
            return  # the block has ended
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    served.url = f"http://{host}:{port}"
    try:
        yield served
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def http(
    body: bytes | str | object,
    *,
    status: str = "200 OK",
    content_type: str = "application/json",
    length: int | None = None,
    headers: Sequence[str] = (),
) -> list[Piece]:
    """A response with a whole body (a str, bytes, or JSON data); `length` may lie."""
    content = body if isinstance(body, bytes) else None
    if content is None:
        content = (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(content) if length is None else length}",
        "Connection: close",
        *headers,
    ]
    return ["\r\n".join(lines).encode() + b"\r\n\r\n", content]


def event_stream(
    *pieces: object, content_type: str = "text/event-stream", end: bool = True
) -> list[Piece]:
    """A chunked stream of server-sent events.

    A piece that is a dict is one `data:` event, with an `event:` line if it has a str "type";
    a str is sent as it is; Pause and Disconnect act. `end=False` leaves out the last chunk: the
    connection just closes.
    """
    sent: list[Piece] = [
        b"HTTP/1.1 200 OK\r\nContent-Type: "
        + content_type.encode()
        + b"\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    ]
    for piece in pieces:
        if isinstance(piece, Pause | Disconnect):
            sent.append(piece)
            continue
        text = piece if isinstance(piece, str) else _event(piece)
        data = text.encode()
        sent.append(b"%x\r\n" % len(data) + data + b"\r\n")
    if end:
        sent.append(b"0\r\n\r\n")
    return sent


def _event(data: object) -> str:
    kind = data.get("type") if isinstance(data, dict) else None
    head = f"event: {kind}\n" if isinstance(kind, str) else ""
    return f"{head}data: {json.dumps(data)}\n\n"


async def _read_request(reader: asyncio.StreamReader) -> RawRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.strip().split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (each.partition(":") for each in fields)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return RawRequest(line, headers, body)
