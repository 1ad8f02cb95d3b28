"""The nodes of flows that combine others, and the plain leaves (D1…D5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..actors.errors import RequestError
from ..agent.errors import InvalidArguments
from ..agent.tool import Tool, as_tool
from ..agent.tool_context import ToolContext
from ..stores.errors import shown
from .errors import RaceFailed, SessionDefinitionError
from .flow_run import FlowRun
from .node import Node
from .plain_call import call as call_plainly
from .plain_call import check_takes


class _Unset:
    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()


def check_nodes(kind: str, nodes: Sequence[object]) -> tuple[Node, ...]:
    """The nodes of a combinator. Raises SessionDefinitionError for what is none."""
    for place, node in enumerate(nodes):
        if isinstance(node, list | tuple):
            raise SessionDefinitionError(
                f"{kind}: argument {place} is a {type(node).__name__}: pass its nodes one by one, "
                f"flow.{kind}(*nodes)"
            )
        if not isinstance(node, Node):
            raise SessionDefinitionError(
                f"{kind}: argument {place} is {shown(node)}, no flow node: wrap a function in "
                "flow.arr, a tool in flow.call"
            )
    return tuple(nodes)  # type: ignore[arg-type]  # all were checked


class Seq(Node):
    """One node after another; each gets what the one before gives."""

    kind = "seq"

    def __init__(self, nodes: Sequence[object]) -> None:
        self._nodes = check_nodes("seq", nodes)

    @property
    def children(self) -> tuple[Node, ...]:
        """See Node."""
        return self._nodes

    async def run(self, value: Any, run: FlowRun) -> Any:
        """See Node."""
        for node in self._nodes:
            value = await node.run(value, run)
        return value


class Parallel(Node):
    """Base of par and race: all branches get the same input.

    A branch that reads a transcript makes it serial: what it sees must not depend on who is faster.
    """

    def __init__(self, nodes: Sequence[object]) -> None:
        self._nodes = check_nodes(self.kind, nodes)
        if not self._nodes:
            raise SessionDefinitionError(f"{self.kind} needs at least one branch")
        self.serial = any(reads(node) for node in self._nodes)

    @property
    def children(self) -> tuple[Node, ...]:
        """See Node."""
        return self._nodes

    async def _guarded(self, node: Node, value: Any, run: FlowRun) -> tuple[Any, Any]:
        # Errors are values here: asyncio would end the loop for a task that raises SystemExit.
        try:
            return await node.run(value, run), None
        except BaseException as error:  # noqa: BLE001 - see above
            return None, error


class Par(Parallel):
    """All branches at once; a list of what they give, in branch order.

    The first failure cancels the rest, waits for them, and is raised. Rules: D1, D3.
    """

    kind = "par"

    async def run(self, value: Any, run: FlowRun) -> Any:
        """See Node."""
        if self.serial:
            return [await node.run(value, run) for node in self._nodes]
        before = len(run.trace)
        runs = [run.branch() for _ in self._nodes]
        tasks = [
            asyncio.ensure_future(self._guarded(node, value, branch))
            for node, branch in zip(self._nodes, runs, strict=True)
        ]
        failure: BaseException | None = None
        try:
            waiting = set(tasks)
            while waiting and failure is None:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task in done and failure is None:
                        failure = task.result()[1]
        finally:
            await _cancel(tasks)
        for branch in runs:
            run.join(branch, before)
        if failure is not None:
            raise failure
        return [task.result()[0] for task in tasks]


class Race(Parallel):
    """All branches at once; what the first to succeed gives. Losers are cancelled and waited for.

    Raises RaceFailed if all fail. Rules: D2, D3.
    """

    kind = "race"

    async def run(self, value: Any, run: FlowRun) -> Any:
        """See Node."""
        if self.serial:
            return await self._one_by_one(value, run)
        before = len(run.trace)
        runs = [run.branch() for _ in self._nodes]
        tasks = [
            asyncio.ensure_future(self._guarded(node, value, branch))
            for node, branch in zip(self._nodes, runs, strict=True)
        ]
        winner: int | None = None
        try:
            waiting = set(tasks)
            while waiting and winner is None:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                winner = next(
                    (i for i, task in enumerate(tasks) if task.done() and task.result()[1] is None),
                    None,
                )
        finally:
            await _cancel(tasks)
        if winner is None:
            for branch in runs:
                run.join(branch, before)
            raise RaceFailed([task.result()[1] for task in tasks])
        run.join(runs[winner], before)
        for place, branch in enumerate(runs):
            if place != winner:
                run.usage = run.usage + branch.usage  # what the losers have cost
        return tasks[winner].result()[0]

    async def _one_by_one(self, value: Any, run: FlowRun) -> Any:
        errors: list[BaseException] = []
        for node in self._nodes:
            result, error = await self._guarded(node, value, run)
            if error is None:
                return result
            if isinstance(error, asyncio.CancelledError):
                raise error
            errors.append(error)
        raise RaceFailed(errors)


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel those that go on, and wait for all, even if the waiting task is cancelled itself."""
    waiting = {task for task in tasks if not task.done()}
    for task in waiting:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while waiting:
        try:
            _, waiting = await asyncio.wait(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class Call(Node):
    """A tool, called with the value that comes in (D5)."""

    kind = "call"

    def __init__(self, tool: Tool | Callable[..., Any]) -> None:
        self.tool = as_tool(tool)

    async def run(self, value: Any, run: FlowRun) -> Any:
        """See Node."""
        tool = self.tool
        call_id = f"call_{run.next_number()}"
        arguments = tool_arguments(tool, value)
        context = ToolContext(run.services.conversation_id, run.turn_id, 0, call_id, "flow")
        try:
            result = await self._called(arguments, context)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await run.note("call", tool.name, call_id, arguments, None, error)
            raise
        await run.note("call", tool.name, call_id, arguments, result)
        return result

    async def _called(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        tool = self.tool
        keywords = tool.bind(arguments, context=context)
        tries = 1 + (tool.retries if tool.idempotent else 0)
        while True:
            tries -= 1
            try:
                async with asyncio.timeout(tool.timeout):
                    return await call_plainly(tool.fn, **keywords)
            except Exception as error:
                if not tries or getattr(error, "type", None) != "transient":
                    raise


def tool_arguments(tool: Tool, value: Any) -> Mapping[str, Any]:
    """The arguments of a call: the value itself if it is a mapping of them, else the only one.

    A mapping whose keys are not the tool's parameters goes to its only parameter. Raises
    InvalidArguments if there is none to take it.
    """
    properties = tool.parameters.get("properties")
    names = list(properties) if isinstance(properties, Mapping) else []
    if isinstance(value, Mapping) and (not names or set(value) <= set(names)):
        if value or not names:
            return value
    if len(names) == 1:
        return {names[0]: value}
    if value is None and not names:
        return {}
    if isinstance(value, Mapping):
        return value
    raise InvalidArguments(
        f"tool {tool.name!r} takes {', '.join(names) or 'no arguments'}: give it a mapping of "
        f"them, not {shown(value)}"
    )


class Arr(Node):
    """A function of the value; sync ones run in a pool thread."""

    kind = "arr"

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise SessionDefinitionError(f"arr takes a function, not {shown(function)}")
        check_takes(function, "value")
        self._function = function

    async def run(self, value: Any, run: FlowRun) -> Any:  # noqa: ARG002 - see Node
        """See Node."""
        return await call_plainly(self._function, value)


class Ident(Node):
    """Gives what it gets."""

    kind = "ident"

    async def run(self, value: Any, run: FlowRun) -> Any:  # noqa: ARG002 - see Node
        """See Node."""
        return value


class Recv(Node):
    """The message of the turn: `{"carrier": input, "msg": message}`. Reserved for sessions (D4)."""

    kind = "recv"

    def __init__(self, channel: str, timeout: float | None = None) -> None:
        if not isinstance(channel, str) or not channel:  # type: ignore[redundant-expr]  # untyped
            raise SessionDefinitionError(f"recv takes a channel's name, not {shown(channel)}")
        if timeout is not None and (type(timeout) not in (int, float) or not timeout > 0):
            raise SessionDefinitionError(
                f"recv's timeout must be positive seconds or None, not {shown(timeout)}"
            )
        self.channel = channel
        self.timeout = timeout

    async def run(self, value: Any, run: FlowRun) -> Any:
        """See Node."""
        _ = run.session_turn  # raises outside of a session
        return {"carrier": value, "msg": run.message}


class Emit(Node):
    """Emits its input, or `value`; gives its input. Reserved for sessions (D4)."""

    kind = "emit"

    def __init__(self, channel: str, value: Any = UNSET) -> None:
        if not isinstance(channel, str) or not channel:  # type: ignore[redundant-expr]  # untyped
            raise SessionDefinitionError(f"emit takes a channel's name, not {shown(channel)}")
        self.channel = channel
        self.value = value

    async def run(self, value: Any, run: FlowRun) -> Any:
        """See Node."""
        run.session_turn.emit(value if self.value is UNSET else self.value, self.channel)
        return value


class Loop(Node):
    """The loop around a session's body, as a node; only at the root of a flow.

    Fields: body, channels, state_schema, split. Others are kept, and reported by `validate`.
    """

    kind = "loop"

    def __init__(self, body: object = None, **fields: object) -> None:
        self.body = body
        self.fields = fields

    @property
    def children(self) -> tuple[Node, ...]:
        """See Node."""
        return (self.body,) if isinstance(self.body, Node) else ()

    async def run(self, value: Any, run: FlowRun) -> Any:
        """A loop has no end, so it has no value: sessions run its body."""
        raise RequestError("a LOOP is run by a session, not inside a flow")


def reads(node: Node) -> bool:
    """Whether a node, or one at any depth inside it, reads a transcript (D3)."""
    policy = getattr(node, "policy", None)
    if policy is not None and policy.reads:
        return True
    return any(reads(child) for child in node.children)
