"""Tools from MCP servers: each server is a supervised child that keeps its connection alive.

The connection is kept by one task of the actor, because the client's scopes must be left in the
task that entered them. A server that dies, or cannot be reached, is tried again with growing
pauses; meanwhile calls become tool errors that a model can read, and agents live on. A call that
was under way is never sent again by us: nobody knows whether the server had served it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from ..actors import telemetry
from ..actors.async_actor import AsyncActor
from ..actors.errors import ActorDied, InvalidValue, Unavailable
from ..actors.ref import ActorRef
from ..supervision.child_spec import ChildSpec
from .endpoint_model import require
from .errors import ModelError, ToolError
from .tool import Tool
from .wire import clean_json, wire_name

_INVALID_PARAMS: Final = -32602
_TIMED_OUT: Final = -32001
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 30.0
_PING_SECONDS: Final = 30.0


class McpUnavailable(Unavailable):
    """The MCP server could not be reached in time; `reason` is what the last attempt met."""

    def __init__(self, server: str, reason: object) -> None:
        super().__init__(f"the MCP server {server!r} is not available: {reason}")
        self.server, self.reason = server, reason


class McpServer:
    """An MCP server to take tools from; needs the extra `mcp`.

    `command`: a program and its arguments, spoken to over its standard streams, with `env` added
    to a minimal environment and `cwd` as its folder; or `url`: an HTTP endpoint, with `headers`.
    `name` identifies it in errors and in the supervision tree; `prefix` stands before the names of
    its tools. `timeout`: seconds for a call, and for the wait for a connection. `stderr`: an open
    file for what the program writes there; dropped without.

        server = McpServer("time", command=[sys.executable, "-m", "mcp_server_time"])
        await runtime.start_child(server.child_spec())
        spec = AgentSpec(model, tools=await server.tools())

    Raises InvalidValue for a bad combination, ModelError "not_installed" without the extra.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        prefix: str = "",
        timeout: float = 30.0,
        stderr: Any = None,
    ) -> None:
        require("mcp", "mcp")
        if (command is None) == (url is None):
            raise InvalidValue(f"MCP server {name!r}: give either command or url")
        if command is not None and (isinstance(command, str) or not command):
            raise InvalidValue(
                f"MCP server {name!r}: command must be a list of a program and its arguments, "
                f"got {command!r}"
            )
        if not timeout > 0:
            raise InvalidValue(f"MCP server {name!r}: timeout must be positive, got {timeout!r}")
        self.name = name
        self.prefix = prefix
        self.timeout = timeout
        self._command = None if command is None else [os.fspath(part) for part in command]
        self._env = dict(env or {})
        self._cwd = None if cwd is None else os.fspath(cwd)
        self._url = url
        self._headers = dict(headers or {})
        self._stderr = stderr
        self._ref: ActorRef[Any] | None = None
        self._keeper: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        # Without env and headers: they hold secrets.
        return f"McpServer({self.name!r}, {self._command or self._url!r})"

    def child_spec(self) -> ChildSpec:
        """The child to start: `runtime.start_child(server.child_spec())`. Starting never waits."""
        return ChildSpec(("mcp", self.name), functools.partial(McpServerActor, self))

    async def tools(self) -> tuple[Tool, ...]:
        """The server's tools as they are now; waits for a connection, `timeout` seconds at most.

        A tool that the server calls idempotent or read-only is run again after a crash. Raises
        McpUnavailable. Tools taken earlier stay valid: they reach the server by this object, over
        its restarts and reconnections.
        """
        listed = await self._ask(ListTools())
        return tuple(self._tool(each) for each in listed)

    def _tool(self, listed: ListedTool) -> Tool:
        async def call(**arguments: object) -> object:
            return await self._ask(CallTool(listed.name, arguments))

        return Tool(
            name=wire_name(f"{self.prefix}{listed.name}"),
            description=listed.description,
            parameters=listed.parameters,
            fn=call,
            idempotent=listed.idempotent,
        )

    async def _ask(self, message: ListTools | CallTool) -> Any:
        ref = self._ref
        if ref is None:
            raise McpUnavailable(self.name, "it was not started: start its child_spec()")
        try:
            # A little longer than the actor's own deadline, which says more.
            return await ref.call(message, timeout=2 * self.timeout + 5)
        except ActorDied as error:
            raise McpUnavailable(self.name, f"its actor ended ({error.reason!r})") from error

    @asynccontextmanager
    async def _connected(self, on_message: Any) -> AsyncGenerator[Any]:
        """A client in a session with the server; must be left in the task that entered it."""
        mcp: Any = await asyncio.to_thread(importlib.import_module, "mcp")
        async with contextlib.AsyncExitStack() as stack:
            target: Any
            if self._command is not None:
                stdio: Any = importlib.import_module("mcp.client.stdio")
                errlog = self._stderr or stack.enter_context(_null())
                params = mcp.StdioServerParameters(
                    command=self._command[0],
                    args=self._command[1:],
                    env=self._env or None,
                    cwd=self._cwd,
                )
                target = stdio.stdio_client(params, errlog=errlog)
            else:
                http: Any = importlib.import_module("mcp.client.streamable_http")
                client = http.create_mcp_http_client(headers=self._headers)
                await stack.enter_async_context(client)
                target = http.streamable_http_client(self._url, http_client=client)
            yield await stack.enter_async_context(
                mcp.Client(
                    target,
                    read_timeout_seconds=self.timeout,
                    message_handler=on_message,
                    cache=None,
                )
            )


@dataclass(frozen=True, slots=True)
class ListTools:
    """Ask for the tools; the reply is a tuple of ListedTool."""


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
        self._tools: tuple[ListedTool, ...] = ()
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
        server._ref = ref
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
                    request.reply(self._tools)
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
        while self.actor_ref.is_alive():
            changed = asyncio.Event()
            self._broken.clear()
            try:
                async with self._server._connected(
                    functools.partial(_note_change, changed)
                ) as client:
                    await self._learn(client)
                    self._client = client
                    self._ready.set()
                    pause = _FIRST_PAUSE
                    telemetry.emit("keepwell.mcp.connected", server=self._server.name)
                    await self._watch(client, changed)
                    self._reason = "the connection broke"
            except Exception as error:
                self._reason = _reason(error)
            self._lose_client()
            telemetry.emit(
                "keepwell.mcp.disconnected", server=self._server.name, reason=str(self._reason)
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
            if changed.is_set():
                changed.clear()
                await self._learn(client)
            elif not done:  # quiet for long: is it still there?
                await self._learn(client)

    async def _learn(self, client: Any) -> None:
        """Read the list of tools, all pages."""
        tools: list[ListedTool] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += map(_listed, page.tools)
            cursor = page.next_cursor
            if not cursor:
                break
        self._tools = tuple(tools)


def _null() -> IO[str]:
    return Path(os.devnull).open("w")


async def _note_change(changed: asyncio.Event, message: Any) -> None:
    """The client's message handler: notes that the server's tools have changed."""
    if type(message).__name__ == "ToolListChangedNotification":
        changed.set()


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
