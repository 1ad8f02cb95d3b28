"""An MCP server for the tests, run as a program: it notes its starts and can be told to die."""

from __future__ import annotations

import os
import sys
from pathlib import Path

folder = Path(sys.argv[1])
starts = folder / "starts"
with starts.open("a") as file:
    file.write(f"{os.getpid()}\n")
if (folder / "refuse").exists():
    sys.exit(3)

from mcp.server.mcpserver import (  # noqa: E402 -- late: a refused start is a quick one
    Context,
    MCPServer,
)
from mcp.server.mcpserver.exceptions import ToolError  # noqa: E402 -- likewise

server = MCPServer("demo")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(f"cannot: {why}")


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
async def wait(name: str) -> str:
    """Wait until a file is there."""
    import anyio

    (folder / f"{name}.asked").touch()
    while not (folder / name).exists():  # noqa: ASYNC110 -- another process tells
        await anyio.sleep(0.01)
    return f"{name} is there"


@server.tool()
async def learn(name: str, ctx: Context) -> str:
    """Learn to do something else, and forget how to fail."""

    def new() -> str:
        return f"{name} done"

    server.add_tool(new, name=name, description=f"Do {name}.")
    server.remove_tool("fail")
    await ctx.notify_tools_changed()  # to those who listen, by the newer protocol
    await ctx.session.send_tool_list_changed()  # to all, by the older one
    return f"{name} learned"


@server.tool()
def secret() -> str:
    """Tell the environment."""
    return os.environ.get("DEMO_SECRET", "none")


if len(sys.argv) > 2:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
else:
    server.run()
