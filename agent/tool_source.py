"""Tools that may change while an agent uses them: those of a server.

A source stands among an agent's tools and is looked at before each step, so that a model is offered
what there is now, and a call finds what its model was offered, unless it has gone meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast

from ..actors import telemetry

if TYPE_CHECKING:
    from ..actors.system import ActorSystem
    from .tool import Tool

logger = logging.getLogger("keepwell.agent")


class ToolSource(Protocol):
    """Where tools come from, and change."""

    @property
    def name(self) -> str:
        """For errors and logs."""
        ...

    def current_tools(self) -> tuple[Tool, ...]:
        """The tools as last known; the same tuple as long as they have not changed. Never waits."""
        ...

    async def settled(self) -> None:
        """Return when `current_tools` is up to date, or it cannot be; soon in either case."""
        ...

    def is_started(self, system: ActorSystem) -> bool:
        """Whether somebody has started it in this actor system."""
        ...

    def spawn(self, system: ActorSystem) -> object:
        """Start its actor; returns the future of its ref. Called by a supervisor."""
        ...


def is_source(value: object) -> TypeGuard[ToolSource]:
    """Whether a value is a ToolSource."""
    return all(
        callable(getattr(value, method, None))
        for method in ("current_tools", "settled", "is_started", "spawn")
    ) and not isinstance(value, type)


class LiveTools:
    """Tools in the order given, those of sources as they are now.

    Of two tools of one name the first counts; the other is reported once, as
    `keepwell.tool.shadowed` (tool, source) and in the log.
    """

    def __init__(self, items: Iterable[Tool | ToolSource]) -> None:
        self._items = tuple(items)
        self.sources: tuple[ToolSource, ...] = tuple(one for one in self._items if is_source(one))
        self._seen: tuple[tuple[Tool, ...], ...] | None = None
        self._now: tuple[Tool, ...] = ()
        self._reported: set[tuple[str, str]] = set()

    async def settled(self) -> None:
        """Wait for sources that are about to know better."""
        for source in self.sources:
            await source.settled()

    def now(self) -> tuple[Tool, ...]:
        """The tools; the same tuple as long as nothing has changed."""
        seen = tuple(source.current_tools() for source in self.sources)
        if self._seen is None or any(a is not b for a, b in zip(seen, self._seen, strict=True)):
            self._seen, self._now = seen, self._merged(seen)
        return self._now

    def _merged(self, seen: tuple[tuple[Tool, ...], ...]) -> tuple[Tool, ...]:
        lists = iter(seen)
        # What is fixed goes first: it was there when the spec was checked.
        taken = {one.name for one in self._items if not is_source(one)}
        tools: list[Tool] = []
        for one in self._items:
            if not is_source(one):
                tools.append(cast("Tool", one))
                continue
            for tool in next(lists):
                if tool.name in taken:
                    self._report(tool.name, one.name)
                else:
                    taken.add(tool.name)
                    tools.append(tool)
        return tuple(tools)

    def _report(self, tool: str, source: str) -> None:
        if (tool, source) not in self._reported:
            self._reported.add((tool, source))
            telemetry.emit("keepwell.tool.shadowed", tool=tool, source=source)
            logger.warning(
                "the tool %r of %r is left out: another has its name; give one a prefix",
                tool, source,
            )  # fmt: skip


def tools_now(items: tuple[Tool | ToolSource, ...]) -> tuple[Tool, ...]:
    """The tools among `items`, and those of its sources as they are now."""
    fixed = tuple(cast("Tool", one) for one in items if not is_source(one))
    return fixed if len(fixed) == len(items) else LiveTools(items).now()
