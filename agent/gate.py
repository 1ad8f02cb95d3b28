"""The approval gate: it sees every call of a reply once, before any of them runs (HP-1)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..actors import telemetry
from ..actors.errors import InvalidValue
from . import tool_result
from .approval import Allow, Approve, Ask, Decision, Deny, Verdict, verdict_to_plain
from .errors import InvalidArguments
from .turn import Batch, Call, TurnState
from .turn_action import Rules, skipped_from

if TYPE_CHECKING:
    from ..memory.call_threads import CallThreads
    from .model import Usage
    from .spec import AgentSpec
    from .tool_loop import ToolLoop


@dataclass(frozen=True, slots=True)
class GateCall:
    """A call as a gate sees it. `arguments` are the model's, unchecked."""

    conversation_id: str
    turn_id: str
    step: int
    call_id: str
    name: str
    arguments: Mapping[str, object] | str


async def ask_gate(
    spec: AgentSpec,
    tools: ToolLoop,
    turn: TurnState,
    batch: Batch,
    conversation_id: str,
    threads: CallThreads,
    rules: Rules,
    usage: Usage,
) -> list[dict[str, object]]:
    """The verdicts over a reply's calls in call order, in their plain form.

    A gate that raises, is late (the agent's `tool_timeout`) or returns anything but a verdict
    means Ask: never an allowance by accident. Calls beyond a limit are not asked about; `usage` is
    what the turn has cost, with this reply.
    """
    used_up = rules.used_up(usage, turn.before)
    over = skipped_from(turn.rounds + 1, turn.calls_counted, batch, rules, used_up=used_up)

    async def one(call: Call) -> Verdict:
        verdict: Verdict = Allow()
        if call.index >= over:
            return verdict
        if spec.gate is not None:
            verdict = await _ask(spec, call, turn, conversation_id, threads)
        tool = tools.by_name.get(call.call.name)
        if tool is not None and tool.ask_human and not isinstance(verdict, Deny):
            return Ask(verdict.reason if isinstance(verdict, Ask) else "", "human")
        return verdict

    verdicts = await asyncio.gather(*(one(call) for call in batch.calls))
    return [verdict_to_plain(verdict) for verdict in verdicts]


async def _ask(
    spec: AgentSpec, call: Call, turn: TurnState, conversation_id: str, threads: CallThreads
) -> Verdict:
    gate = spec.gate
    assert gate is not None
    seen = GateCall(
        conversation_id, turn.turn_id, call.step, call.call.id, call.call.name, call.call.arguments
    )
    try:
        async with asyncio.timeout(spec.tool_timeout):
            value: Any
            if inspect.iscoroutinefunction(gate):
                value = await gate(seen)
            else:
                value = await threads.run(lambda: gate(seen))
                if inspect.isawaitable(value):
                    value = await value
    except TimeoutError:
        value = Ask("the gate did not answer in time")
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        telemetry.emit("keepwell.agent.gate_failed", call=seen, error=error)
        value = Ask(f"the gate failed: {tool_result.error_message(error)}")
    if isinstance(value, Allow | Deny | Ask):
        return value
    return Ask(f"the gate returned {value!r}, which is no verdict")


def check_decision(tools: ToolLoop, call: Call, decision: Decision) -> None:
    """Refuse an approval whose arguments the tool would not take. Raises InvalidValue. HP-4."""
    if not isinstance(decision, Approve) or decision.arguments is None:
        return
    tool = tools.by_name.get(call.call.name)
    if tool is None:
        return
    try:
        tool.bind(decision.arguments)
    except InvalidArguments as error:
        raise InvalidValue(f"{decision!r} does not fit tool {tool.name!r}: {error}") from error
