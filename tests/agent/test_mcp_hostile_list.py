"""A server whose list of tools never rests, or has no end, keeps nobody waiting for ever."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

import keepwell
from keepwell.agent.mcp_server import McpServer, McpUnavailable


class ToolListChangedNotification:
    """What the actor knows such a notification by: its name."""


class ListServer(McpServer):
    """Connects to a client in memory. `changes`: at every look; `ends`: there is a last page."""

    def __init__(self, *, changes: bool, ends: bool) -> None:
        super().__init__("restless", command=["none"], timeout=20.0)
        self._changes, self._ends = changes, ends
        self.pages = 0

    @contextlib.asynccontextmanager
    async def _connected(self, on_message: Any, on_end: Any) -> Any:
        async def list_tools(cursor: str | None) -> Any:
            self.pages += 1
            await asyncio.sleep(0)
            if self._changes:
                await on_message(ToolListChangedNotification())
            tool = SimpleNamespace(
                name="look", description="", input_schema={"type": "object"}, annotations=None
            )
            return SimpleNamespace(
                tools=[tool] if cursor is None else [], next_cursor=None if self._ends else "more"
            )

        yield SimpleNamespace(list_tools=list_tools)


async def test_tools_of_a_server_that_changes_them_at_every_look_can_be_used() -> None:
    server = ListServer(changes=True, ends=True)
    async with keepwell.Runtime() as runtime:
        await runtime.start_child(server.child_spec())
        assert [tool.name for tool in await server.tools()] == ["look"]
        read = server.pages
    assert read <= 6  # three times, and once more by the watch


async def test_a_list_of_tools_without_an_end_is_an_error_that_says_so() -> None:
    server = ListServer(changes=False, ends=False)
    server.timeout = 0.5
    async with keepwell.Runtime() as runtime:
        await runtime.start_child(server.child_spec())
        await server.settled()
        with pytest.raises(McpUnavailable, match="more than 1,000 pages"):
            await server.tools()
    assert server.current_tools() == ()
