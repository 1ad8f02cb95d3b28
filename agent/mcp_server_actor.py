"""The actor that keeps the connection to one MCP server, and serves calls over it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..actors import telemetry
from ..actors.async_actor import AsyncActor
from ..actors.errors import InvalidValue, Unavailable
from .errors import ModelError, ToolError
from .wire import clean_json

if TYPE_CHECKING:
    from .mcp_server import McpServer

logger = logging.getLogger("keepwell.agent")

_INVALID_PARAMS: Final = -32602
_TIMED_OUT: Final = -32001
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 30.0
_PING_SECONDS: Final = 30.0
_LISTEN_PAUSE: Final = 1.0
_READS: Final = 3
_PAGES: Final = 1000


class McpUnavailable(Unavailable):
    """The MCP server could not be reached in time; `reason` is what the last attempt met."""

    def __init__(self, server: str, reason: object) -> None:
        super().__init__(f"the MCP server {server!r} is not available: {reason}")
        self.server, self.reason = server, reason


@dataclass(frozen=True, slots=True)
class ListTools:
    """Ask for a connection over which the list of tools has been read; the reply is None."""


@dataclass(frozen=True, slots=True)
class CallTool:
    """Call a tool of the server; the reply is its output as text."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as the server describes it."""

    name: str
    description: str
    parameters: Mapping[str, object]
    idempotent: bool


class McpServerActor(AsyncActor):
    """Keeps the connection to one MCP server, and serves calls over it side by side."""

    def __init__(self, server: McpServer) -> None:
        super().__init__()
        self._server = server
        self._client: Any = None
        self._reason: object = "not connected yet"
        self._ready = asyncio.Event()
        self._broken = asyncio.Event()
        self._wanted = asyncio.Event()
        self._waiting = 0  # requests that wait for a client
        self._tasks: set[asyncio.Task[None]] = set()

    def on_start(self) -> None:
        """Begin to connect; nobody waits for it."""
        ref: Any = self.actor_ref  # pykka types it as its own
        server = self._server
        before = server._keeper
        if before is not None and not before.done():
            # Of an incarnation that was killed, and so could not end its connection itself.
            before.get_loop().call_soon_threadsafe(before.cancel)
        server.moved_in(ref)
        server._keeper = asyncio.get_running_loop().create_task(self._keep_connected())

    async def on_stop(self) -> None:  # type: ignore[override]  # an AsyncActor may await in it
        """End the calls under way and the connection; a program that was started ends too."""
        keeper = self._server._keeper
        tasks = [*self._tasks, *([] if keeper is None else [keeper])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def on_receive(self, message: object) -> None:
        """Serve a request beside those that are under way."""
        request = self.defer()

        async def serve() -> None:
            try:
                if isinstance(message, ListTools):
                    await self._client_ready()
                    request.reply(None)
                elif isinstance(message, CallTool):
                    request.reply(await self._call(message))
                else:
                    request.fail(InvalidValue(f"{message!r} is no request to an MCP server"))
            except Exception as error:
                request.fail(error)

        task = asyncio.get_running_loop().create_task(serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _client_ready(self) -> Any:
        """The client, once there is one. Raises McpUnavailable after the server's timeout."""
        self._wanted.set()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._server.timeout):
                while self._client is None:
                    await self._ready.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
        if self._client is None:
            raise McpUnavailable(self._server.name, self._reason)
        return self._client

    async def _call(self, message: CallTool) -> str:
        client = await self._client_ready()
        shared: Any = importlib.import_module("mcp.shared.exceptions")
        try:
            result = await client.call_tool(
                message.name,
                dict(message.arguments),
                read_timeout_seconds=self._server.timeout,
            )
        except shared.MCPError as error:
            raise self._tool_error(message, error) from error
        except TimeoutError as error:
            raise ToolError(
                f"{message.name}: no answer within {self._server.timeout:g} s; outcome unknown",
                type="transient",
            ) from error
        except Exception as error:
            self._lose_client()
            raise ToolError(
                f"{message.name}: the connection to the MCP server {self._server.name!r} broke "
                f"({type(error).__name__}: {error}); outcome unknown",
                type="transient",
            ) from error
        text = _output(result.content)
        if result.is_error:
            raise ToolError(text or f"{message.name} failed")
        return text

    def _tool_error(self, message: CallTool, error: Any) -> ToolError:
        if error.code == _INVALID_PARAMS:
            return ToolError(error.message, type="invalid_arguments")
        if error.code == _TIMED_OUT:
            return ToolError(
                f"{message.name}: no answer within {self._server.timeout:g} s; outcome unknown",
                type="transient",
            )
        if "closed" in error.message.lower() or error.code == -32000:
            self._lose_client()
            return ToolError(
                f"{message.name}: the MCP server {self._server.name!r} went away "
                f"({error.message}); outcome unknown",
                type="transient",
            )
        return ToolError(error.message)

    async def _keep_connected(self) -> None:
        pause = _FIRST_PAUSE
        logged = ""
        while self.actor_ref.is_alive():
            changed = asyncio.Event()
            self._broken.clear()
            try:
                async with self._server._connected(
                    functools.partial(self._note_change, changed), self._lose_client
                ) as client:
                    async with self._listening(client, changed):
                        await self._learn(client, changed)
                        self._client = client
                        self._ready.set()
                        pause = _FIRST_PAUSE
                        logged = ""
                        telemetry.emit("keepwell.mcp.connected", server=self._server.name)
                        await self._watch(client, changed)
                    self._reason = "the connection broke"
            except Exception as error:
                self._reason = _reason(error)
            self._lose_client()
            self._server.settle(known=True)  # as well as can be: nobody waits for one that is away
            telemetry.emit(
                "keepwell.mcp.disconnected", server=self._server.name, reason=str(self._reason)
            )
            if logged != str(self._reason):  # once, however often it is tried
                logged = str(self._reason)
                logger.warning(
                    "MCP server %r: %s; its tools are away until it can be reached",
                    self._server.name, logged,
                )
            # While someone asks the pauses are short, but there are some: a server that dies at
            # every start must not be started as fast as it is asked for.
            if not self._waiting:
                self._wanted.clear()
            await asyncio.sleep(min(pause, 1.0) * (0.5 + random.random() / 2))
            if pause > 1.0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause - 1.0):
                        await self._wanted.wait()
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _lose_client(self) -> None:
        """From now on calls wait for a new connection, and the keeper makes one."""
        self._client = None
        self._ready.clear()
        self._broken.set()

    async def _watch(self, client: Any, changed: asyncio.Event) -> None:
        """Refresh the tools when they change, until the connection is broken."""
        while self.actor_ref.is_alive():
            waits = [asyncio.ensure_future(event.wait()) for event in (self._broken, changed)]
            try:
                done, _ = await asyncio.wait(
                    waits, timeout=_PING_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                for wait in waits:
                    wait.cancel()
            if self._broken.is_set():
                return
            if changed.is_set() or not done:  # not done: quiet for long, is it still there?
                await self._learn(client, changed)
                if changed.is_set():
                    await asyncio.sleep(_LISTEN_PAUSE)

    async def _learn(self, client: Any, changed: asyncio.Event) -> None:
        """Read the list of tools, all pages, until it has not changed meanwhile.

        What a restless server says after three times counts; `changed` is set then. Raises
        McpUnavailable for a list without end.
        """
        tools: list[ListedTool] = []
        for _ in range(_READS):
            changed.clear()
            tools.clear()
            cursor: str | None = None
            for _ in range(_PAGES):
                page = await client.list_tools(cursor=cursor)
                tools += map(_listed, page.tools)
                cursor = page.next_cursor
                if not cursor:
                    break
            else:
                raise McpUnavailable(
                    self._server.name, f"its list of tools has more than {_PAGES:,} pages"
                )
            if not changed.is_set():
                break
        self._server.learned(tuple(tools))
        self._server.settle(known=True)

    async def _note_change(self, changed: asyncio.Event, message: Any) -> None:
        """The client's message handler: servers of the older protocol tell it by themselves."""
        if type(message).__name__ == "ToolListChangedNotification":
            self._change(changed)

    def _change(self, changed: asyncio.Event) -> None:
        self._server.settle(known=False)
        changed.set()

    @contextlib.asynccontextmanager
    async def _listening(self, client: Any, changed: asyncio.Event) -> AsyncGenerator[None]:
        """Servers of the newer protocol tell of changes only those who listen."""
        begun = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._listen(client, changed, begun))
        try:
            await begun.wait()  # before the list is read: what changes after that is heard of
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _listen(self, client: Any, changed: asyncio.Event, begun: asyncio.Event) -> None:
        listen = getattr(client, "listen", None)  # since 2.1 or so
        try:
            if listen is None:
                return
            subscriptions: Any = importlib.import_module("mcp.client.subscriptions")
            lost = (subscriptions.SubscriptionLost, TimeoutError)
            while True:
                with contextlib.suppress(*lost):
                    async with listen(tools_list_changed=True) as events:
                        if begun.is_set():  # nobody tells what changed while nobody listened
                            self._change(changed)
                        begun.set()
                        async for _ in events:
                            self._change(changed)
                begun.set()
                await asyncio.sleep(_LISTEN_PAUSE)
        except Exception as error:
            # An older protocol, or a server that tells nobody: then it is asked from time to time.
            telemetry.emit("keepwell.mcp.deaf", server=self._server.name, reason=_reason(error))
        finally:
            begun.set()


def _listed(tool: Any) -> ListedTool:
    hints = tool.annotations
    schema = clean_json(tool.input_schema)
    assert isinstance(schema, dict)  # the protocol's models see to it
    return ListedTool(
        tool.name,
        tool.description or "",
        schema,
        bool(hints and (hints.idempotent_hint or hints.read_only_hint)),
    )


def _output(content: Sequence[Any]) -> str:
    """The text of a result; what is no text is named."""
    parts: list[str] = []
    for block in content:
        text = getattr(block, "text", None)
        resource = getattr(block, "resource", None)
        if text is None and resource is not None:
            text = getattr(resource, "text", None)
        if isinstance(text, str):
            parts.append(text)
        else:
            media = getattr(block, "mime_type", None) or getattr(resource, "mime_type", None)
            where = getattr(block, "uri", None) or getattr(resource, "uri", None)
            parts.append(f"[{block.type}{': ' + str(where or media) if where or media else ''}]")
    return "\n".join(parts)


def _reason(error: BaseException) -> str:
    """The innermost cause of what a task group raised, in one line."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, ModelError):
        return str(error)
    return f"{type(error).__name__}: {error}"
