"""Sub-agents as tools: `delegate` and `fan_out` (SA-1, SA-2).

A child is an agent of its own, in a conversation whose id follows from the parent's conversation,
turn and call. So a call that is run again after a crash finds the child's turn where it stopped
(RS-9), and whoever ends the parent's turn knows which conversations to clear. Only the child's
answer enters the parent's log; its tokens are its own.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..actors import telemetry
from ..actors.errors import InvalidValue, KeepwellError
from .errors import InvalidArguments, ToolError
from .tool import Tool, parse_arguments
from .tool_context import ToolContext
from .tool_result import error_message
from .tool_schema import function_schema
from .turn import Batch, TurnState, call_arguments

if TYPE_CHECKING:
    from ..actors.future import Future
    from .agent import Agent
    from .result import TurnResult
    from .spec import AgentSpec

DELEGATE_SECONDS: Final = 60.0
MAX_DEPTH: Final = 3
"""How many delegations may be nested (SA-1)."""


class Host(Protocol):
    """What delegation needs of the runtime."""

    def child_agent(self, spec: AgentSpec, conversation_id: str, depth: int) -> Future[Agent]:
        """The child of a conversation, started if it is not there."""
        ...

    def clear_child(self, spec: AgentSpec, conversation_id: str) -> Awaitable[None]:
        """Clear the conversation of a child that has ended."""
        ...

    def end_child(self, spec: AgentSpec, conversation_id: str) -> Future[None]:
        """Stop the agents of a child's conversation, and clear it; from any thread."""
        ...

    def has_conversations(self, prefix: str) -> Awaitable[bool]:
        """Whether the default store has conversations whose ids begin so."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where code of a turn runs: its runtime, and how deeply its agent is nested."""

    host: Host
    depth: int = 0


running_place: contextvars.ContextVar[Place | None] = contextvars.ContextVar(
    "keepwell.agent.place", default=None
)


def child_id(context: ToolContext, number: int | None = None) -> str:
    """The conversation of a call's child; of a fan-out's children with their numbers."""
    base = f"{context.conversation_id}/child/{context.turn_id}/{context.call_id}"
    return base if number is None else f"{base}/{number}"


@dataclass(frozen=True)
class DelegateTool(Tool):
    """A tool that is a sub-agent. `spec`: the child's; `fans_out`: whether a call has several."""

    spec: Any = None
    fans_out: bool = False

    def children(self, context: ToolContext, arguments: object) -> list[str]:
        """The conversations of a call's children."""
        if not self.fans_out:
            return [child_id(context)]
        try:
            tasks = parse_arguments(arguments).get("tasks")  # type: ignore[arg-type]  # a call's
        except InvalidArguments:
            return []
        count = len(tasks) if isinstance(tasks, Sequence) and not isinstance(tasks, str) else 0
        return [child_id(context, number) for number in range(count)]


def delegate(
    spec: AgentSpec,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = DELEGATE_SECONDS,
) -> Tool:
    """A tool that hands a task to a sub-agent of `spec` and returns its answer.

    The child sees the task and the context that the calling model writes, nothing else; past
    `timeout` seconds it is stopped and the call ends `transient`. If it pauses, that is an error.
    Its own errors become the call's error result. `name` defaults to `ask_<spec.name>`.
    """
    _check(spec)

    async def ask(task: str, context: ToolContext, background: str = "") -> str:
        """Hand a task to another agent, which knows only what it is told here."""
        return await _run_child(spec, context, child_id(context), task, background)

    return _tool(ask, spec, name or f"ask_{spec.name}", description, timeout, fans_out=False)


def fan_out(
    spec: AgentSpec,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = DELEGATE_SECONDS,
) -> Tool:
    """A tool that hands several tasks to as many sub-agents at once.

    Results come in task order as JSON, `{"result": …}` or `{"error": …}` each, under one deadline.
    If all fail the call does; no task is `invalid_arguments`.
    """
    _check(spec)

    async def ask_all(tasks: list[str], context: ToolContext, background: str = "") -> Any:
        """Hand each task to an agent of its own; they work at the same time."""
        if not tasks:
            raise ToolError("tasks is empty: give at least one task", type="invalid_arguments")
        outcomes = await asyncio.gather(
            *(
                _run_child(spec, context, child_id(context, number), task, background)
                for number, task in enumerate(tasks)
            ),
            return_exceptions=True,
        )
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in errors:
            if not isinstance(error, Exception):
                raise error
        if len(errors) == len(outcomes):
            texts = "; ".join(dict.fromkeys(error_message(error) for error in errors))
            raise ToolError(f"all {len(errors)} tasks failed: {texts}")
        return [
            {"error": error_message(outcome)}
            if isinstance(outcome, BaseException)
            else {"result": outcome}
            for outcome in outcomes
        ]

    return _tool(ask_all, spec, name or f"ask_{spec.name}_all", description, timeout, fans_out=True)


def _check(spec: object) -> None:
    from .spec import AgentSpec  # noqa: PLC0415 - a spec may hold such a tool

    if not isinstance(spec, AgentSpec):
        raise InvalidValue(f"{spec!r} is no AgentSpec: pass the sub-agent's spec")


def _tool(
    fn: Any, spec: AgentSpec, name: str, description: str | None, timeout: float, *, fans_out: bool
) -> Tool:
    described = function_schema(fn)
    text = description or spec.description or described.description
    return DelegateTool(
        name=name, description=text, parameters=described.parameters, fn=fn,
        # A call that was interrupted is run again: it finds its child's turn (RS-9).
        idempotent=True, timeout=timeout, function=described, spec=spec, fans_out=fans_out,
    )  # fmt: skip


async def _run_child(
    spec: AgentSpec, context: ToolContext, conversation_id: str, task: str, background: str
) -> str:
    place = running_place.get()
    if place is None:
        raise ToolError("sub-agents need an agent in a runtime, and this call has none")
    if place.depth >= MAX_DEPTH:
        raise ToolError(f"sub-agents are nested at most {MAX_DEPTH} deep")
    agent = await place.host.child_agent(spec, conversation_id, place.depth + 1)
    question = f"{task}\n\n{background}" if background else task
    try:
        # Its turn has the id of its conversation: run twice, it is one turn.
        result: TurnResult = await agent.run(question, turn_id=conversation_id)
        if result.status == "paused":
            await agent.cancel()
            raise ToolError("the sub-agent stopped to ask a human, which it cannot do here")
        return result.text
    finally:
        # Also when the call is left at its deadline or with the parent's turn; what it has stored
        # stays until the parent's turn has ended, for a call that is run again.
        _ = agent.stop()


async def clear_children(
    turn: TurnState, tools: Mapping[str, Tool], conversation_id: str, agent: str, host: Host
) -> None:
    """Clear what the sub-agents of a turn that has ended wrote; what fails is reported. SA-1."""
    for _step, entry in turn.entries():
        for call in entry.calls if isinstance(entry, Batch) else ():
            tool = tools.get(call.call.name)
            if isinstance(tool, DelegateTool):
                context = ToolContext(conversation_id, turn.turn_id, call.step, call.call.id, agent)
                for child in tool.children(context, call_arguments(call)):
                    try:
                        await host.clear_child(tool.spec, child)
                    except KeepwellError as error:
                        telemetry.emit("keepwell.agent.child_left", child=child, error=error)
