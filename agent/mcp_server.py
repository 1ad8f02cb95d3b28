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
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..actors import telemetry
from ..actors.errors import ActorDied, InvalidValue
from ..actors.future import Future
from ..actors.ref import ActorRef
from ..supervision.child_spec import ChildSpec
from .endpoint_model import require
from .mcp_server_actor import CallTool, ListedTool, ListTools, McpServerActor, McpUnavailable
from .tool import Tool
from .wire import wire_name

if TYPE_CHECKING:
    from ..actors.system import ActorSystem

__all__ = ["McpServer", "McpUnavailable"]


class McpServer:
    """An MCP server to take tools from; needs the extra `mcp`.

    `command`: a program and its arguments, spoken to over its standard streams, with `env` added
    to a minimal environment and `cwd` as its folder; or `url`: an HTTP endpoint, with `headers`.
    `name` identifies it in errors and in the supervision tree; `prefix` stands before the names of
    its tools. `timeout`: seconds for a call, and for the wait for a connection. `stderr`: an open
    file for what the program writes there; dropped without.

        server = McpServer("time", command=[sys.executable, "-m", "mcp_server_time"])
        agent = await runtime.spawn(AgentSpec(model, tools=[add, server]))

    Among an agent's tools it is a ToolSource: started with the first agent that has it, in the
    runtime's tree, and asked before each step what there is now. While it is away its tools stay,
    and their calls are `transient` errors.

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
        self._arrived: Future[None] = Future()
        self._keeper: asyncio.Task[None] | None = None
        self._listed: tuple[ListedTool, ...] = ()
        self._tools: tuple[Tool, ...] = ()
        # Pending until the first attempt to connect has ended, and while the list is read anew.
        self._known: Future[None] = Future()

    def __repr__(self) -> str:
        # Without env and headers: they hold secrets.
        return f"McpServer({self.name!r}, {self._command or self._url!r})"

    def child_spec(self) -> ChildSpec:
        """The child to start: `runtime.start_child(server.child_spec())`. Starting never waits."""
        return ChildSpec(("mcp", self.name), functools.partial(McpServerActor, self))

    def spawn(self, system: ActorSystem) -> object:
        """Start its actor, for a supervisor; the future gets its ref."""
        return McpServerActor.options(system=system).spawn(self)

    def is_started(self, system: ActorSystem) -> bool:
        """Whether it was started in this actor system, by whomever."""
        return self._ref is not None and self._ref.system is system

    async def tools(self) -> tuple[Tool, ...]:
        """The server's tools as they are now; waits for a connection, `timeout` seconds at most.

        A tool that the server calls idempotent or read-only is run again after a crash. Raises
        McpUnavailable. Tools taken earlier stay valid: they reach the server by this object, over
        its restarts and reconnections. This list is of one moment: give the server itself to an
        agent that is to see changes.
        """
        await self._ask(ListTools())
        return self._tools

    def current_tools(self) -> tuple[Tool, ...]:
        """The tools as last known, also while the server is away; () before the first connection.

        The same tuple as long as they have not changed. Never waits.
        """
        return self._tools

    async def settled(self) -> None:
        """Return when `current_tools` is up to date, or it cannot be.

        Waits for the first attempt to connect, and while a changed list is being read, `timeout`
        seconds at most; never for a server that is away. Raises McpUnavailable if nobody has
        started it.
        """
        if self._ref is None:
            raise self._not_started()
        if not self._known.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.timeout):
                    await self._known

    def learned(self, listed: tuple[ListedTool, ...]) -> None:
        """Its actor has read the list."""
        if listed != self._listed:
            self._listed = listed
            self._tools = tuple(self._tool(each) for each in listed)
            telemetry.emit(
                "keepwell.mcp.tools_changed", server=self.name, tools=[t.name for t in self._tools]
            )

    def settle(self, *, known: bool) -> None:
        """Its actor is done with reading the list, or has to read it anew."""
        if known:
            self._known.complete(None)
        elif self._known.done():
            self._known = Future()

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
        while True:
            arrived, ref = self._arrived, self._ref
            if ref is None:
                raise self._not_started()
            try:
                # A little longer than the actor's own deadline, which says more.
                return await ref.call(message, timeout=2 * self.timeout + 5)
            except ActorDied as error:
                ended = McpUnavailable(self.name, f"its actor ended ({error.reason!r})")
                if error.reason != "noproc" or ref.system.closed:
                    raise ended from error
            # It was not there any more, and so has not got the message: the next one gets it.
            if self._ref is ref:
                try:
                    async with asyncio.timeout(self.timeout):
                        await arrived
                except TimeoutError:
                    raise ended from None

    def moved_in(self, ref: ActorRef[Any]) -> None:
        """An incarnation of its actor has started."""
        self._ref = ref
        arrived, self._arrived = self._arrived, Future()
        arrived.complete(None)

    def _not_started(self) -> McpUnavailable:
        return McpUnavailable(
            self.name,
            "it was not started: give it to an agent, or start its child_spec() in a runtime",
        )

    @asynccontextmanager
    async def _connected(self, on_message: Any, on_end: Callable[[], None]) -> AsyncGenerator[Any]:
        """A client in a session with the server; must be left in the task that entered it.

        `on_end`: called when nothing more will come from the server, which a client tells only
        those who wait for a reply.
        """
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
                    _noticing(target, on_end),
                    read_timeout_seconds=self.timeout,
                    message_handler=on_message,
                    cache=None,
                )
            )


@asynccontextmanager
async def _noticing(transport: Any, on_end: Callable[[], None]) -> AsyncGenerator[Any]:
    """A transport whose end is noticed."""
    async with transport as (incoming, outgoing):
        yield _Incoming(incoming, on_end), outgoing


class _Incoming:
    """The stream of what comes from a server, as the client reads it."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _Incoming:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> _Incoming:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._on_end()
            raise


def _null() -> IO[str]:
    return Path(os.devnull).open("w")
