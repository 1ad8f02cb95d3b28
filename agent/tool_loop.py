"""Runs the calls of one batch: in parallel, each isolated, each with a deadline (TL-1…5).

Nothing a tool does hurts its neighbours, its turn or the process: what it raises (SystemExit and
CancelledError too) becomes its result, and at its deadline it is left behind, whatever it does
about being cancelled. What it gives later is discarded.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..actors import telemetry
from ..actors.eager_task import start_now
from . import tool_result
from .errors import InvalidArguments
from .tool_context import ToolContext

if TYPE_CHECKING:
    from ..memory.call_threads import CallThreads
    from .tool import Tool

Arguments = Mapping[str, object] | str
_PLAIN = frozenset({str, int, float, bool, list, dict, type(None)})
"""What most calls give: none of it is awaitable, which is dear to find out by the protocol."""
Around = Callable[
    ["Tool", dict[str, object], ToolContext, Callable[..., Awaitable[object]]], Awaitable[object]
]
"""A filter chain around one call: (tool, arguments, context, run) gives the result."""


@dataclass(slots=True)
class ToolJob:
    """One call to run, never changed. `key` is given back with its result."""

    key: Any
    name: str
    arguments: Arguments
    context: ToolContext


class _Attempt:
    """One try of one call."""

    __slots__ = ("batch", "job", "kwargs", "left", "over", "task", "timer", "tool")

    def __init__(
        self, batch: RunningBatch, job: ToolJob, tool: Tool, kwargs: dict[str, Any], left: int
    ) -> None:
        self.batch = batch
        self.job = job
        self.tool = tool
        self.kwargs = kwargs
        self.left = left
        self.over = False
        self.task: asyncio.Task[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def start(self, *, again: bool = False) -> None:
        """Run the call; one that never suspends has its result on return.

        But for tries after the first, which go through the loop: each would be called by the last.
        """
        batch, tool = self.batch, self.tool
        loop = batch.loop
        seconds = tool.timeout if tool.timeout is not None else batch.tools.timeout
        deadline = loop.time() + seconds
        # In a task of its own, which can be left behind at the deadline, whatever it does then.
        call = batch.tools.invoke(tool, self.kwargs, self.job.context)
        if again:
            task = loop.create_task(call)
        else:
            task = start_now(loop, call, contextvars.copy_context())
        self.task = task
        if task.done():
            self.ended(task)
            return
        self.timer = loop.call_at(deadline, self.expire, seconds)
        task.add_done_callback(self.ended)

    def ended(self, task: asyncio.Task[Any]) -> None:
        if self.over:
            return  # late output is discarded
        self.over = True
        if self.timer is not None:
            self.timer.cancel()
        if task.cancelled():
            self.batch.give(
                self.job, tool_result.failed(asyncio.CancelledError("the tool cancelled itself"))
            )
            return
        text, transient = task.result()
        if transient and self.left > 0:
            self.batch.retry(self, self.left - 1)
        else:
            self.batch.give(self.job, text)

    def expire(self, seconds: float) -> None:
        if self.over:
            return
        self.over = True
        if self.task is not None:
            self.task.cancel()
        telemetry.emit(
            "keepwell.tool.abandoned", tool=self.tool.name, call=self.job.context.call_id
        )
        if self.left > 0:
            self.batch.retry(self, self.left - 1)
        else:
            self.batch.give(self.job, tool_result.timed_out(seconds))

    def abandon(self) -> None:
        if not self.over:
            self.over = True
            if self.timer is not None:
                self.timer.cancel()
            if self.task is not None:
                self.task.cancel()


class RunningBatch:
    """The calls of a batch that run, or wait for their turn in a serial one."""

    def __init__(
        self,
        tools: ToolLoop,
        jobs: Iterable[ToolJob],
        on_start: Callable[[ToolJob], object] | None,
        *,
        serial: bool,
    ) -> None:
        self.tools = tools
        self.loop = asyncio.get_running_loop()
        self._queue = deque(jobs)
        self._serial = serial
        self._on_start = on_start
        self._attempts: dict[int, _Attempt] = {}
        self._finished: deque[tuple[ToolJob, str]] = deque()
        self._left = len(self._queue)
        self._waiter: asyncio.Future[None] | None = None
        self._starting = False
        self._start_more()

    def _start_more(self) -> None:
        if self._starting:
            return  # a call has ended while it was started: who starts them goes on
        self._starting = True
        try:
            self._start_waiting()
        finally:
            self._starting = False

    def _start_waiting(self) -> None:
        while self._queue and not (self._serial and self._attempts):
            job = self._queue.popleft()
            tool = self.tools.by_name.get(job.name)
            if tool is None:
                self._finish(job, tool_result.unknown_tool(job.name, self.tools.by_name))
                continue
            try:
                kwargs = tool.bind(job.arguments, context=job.context)
            except InvalidArguments as error:
                self._finish(job, tool_result.invalid_arguments(str(error)))
                continue
            except BaseException as error:
                self._finish(job, tool_result.failed(error))
                continue
            if self._on_start is not None:
                self._on_start(job)
            retries = tool.retries if tool.idempotent else 0
            attempt = self._attempts[id(job)] = _Attempt(self, job, tool, kwargs, retries)
            attempt.start()

    def retry(self, attempt: _Attempt, left: int) -> None:
        """Try a transient failure of an idempotent tool again."""
        following = _Attempt(self, attempt.job, attempt.tool, attempt.kwargs, left)
        self._attempts[id(attempt.job)] = following
        following.start(again=True)

    def give(self, job: ToolJob, text: str) -> None:
        """A call has its result."""
        self._attempts.pop(id(job), None)
        self._finish(job, text)
        self._start_more()

    def _finish(self, job: ToolJob, text: str) -> None:
        self._finished.append((job, text))
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def next(self) -> tuple[ToolJob, str] | None:
        """The next result in order of completion; None when all are given."""
        if not self._left:
            return None
        while not self._finished:
            self._waiter = self.loop.create_future()
            await self._waiter
        self._left -= 1
        return self._finished.popleft()

    def abandon(self) -> None:
        """Leave what still runs to itself; no result of it is given any more."""
        self._queue.clear()
        for attempt in list(self._attempts.values()):
            attempt.abandon()
        self._attempts.clear()


class ToolLoop:
    """The tools of an agent or kernel, and how they are run.

    `timeout`: seconds for tools without one of their own. `parallel` False runs every batch in call
    order; so does one serial tool in it (TL-1). `most`: characters of a result.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        threads: CallThreads,
        *,
        timeout: float = 60.0,
        parallel: bool = True,
        around: Around | None = None,
        most: int = tool_result.MAX_RESULT_CHARACTERS,
    ) -> None:
        self.by_name: dict[str, Tool] = {}
        self.use(tools)
        self.timeout = timeout
        self._threads = threads
        self._parallel = parallel
        self._around = around
        self._most = most

    def use(self, tools: Sequence[Tool]) -> None:
        """Use these from now on; calls that run are not touched."""
        self.by_name.clear()
        self.by_name.update((tool.name, tool) for tool in tools)
        self.asks_human = any(tool.ask_human for tool in tools)
        self._is_async = {tool.name: tool.is_async for tool in tools}
        self.schemas = tuple(tool.schema for tool in tools)

    def run(
        self, jobs: Sequence[ToolJob], on_start: Callable[[ToolJob], object] | None = None
    ) -> RunningBatch:
        """Start a batch; `on_start(job)` is called just before a call runs.

        Unknown tools and bad arguments become results like any other (TL-4).
        """
        serial = not self._parallel or any(
            tool.serial for job in jobs if (tool := self.by_name.get(job.name)) is not None
        )
        return RunningBatch(self, jobs, on_start, serial=serial)

    async def invoke(
        self, tool: Tool, kwargs: dict[str, Any], context: ToolContext
    ) -> tuple[str, bool]:
        """Run one call to its text; the flag says whether trying again may help. Never raises
        but for a cancellation from outside."""
        try:
            if self._around is None:
                value = await self._call(tool, kwargs)
            else:
                value = await self._around(tool, kwargs, context, self._call)
            return tool_result.result_text(value, self._most), False
        except BaseException as error:
            return tool_result.failed(error), tool_result.classify(error) == "transient"

    async def _call(self, tool: Tool, kwargs: dict[str, Any]) -> object:
        known = self._is_async.get(tool.name)  # None: it has gone since the call began
        if tool.is_async if known is None else known:
            value: Any = tool.fn(**kwargs)
        else:
            fn = tool.fn
            value = await self._threads.run(lambda: fn(**kwargs))
        if value.__class__ in _PLAIN:
            return value
        return await value if inspect.isawaitable(value) else value


running_turn: contextvars.ContextVar[object | None] = contextvars.ContextVar(
    "keepwell.turn", default=None
)
"""The queue of the agent whose turn runs this code, so that it is not asked from inside itself."""
