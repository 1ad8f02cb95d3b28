"""What a turn does next, decided from its state alone (RS-1…10, LM-1, TL-6, HP-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from . import tool_result
from .approval import Answer, Deny, PendingCall, Proceed, Reject
from .turn import Batch, Call, TurnState

if TYPE_CHECKING:
    from ..stores.message import Message
    from .model import Usage
    from .turn import EndStatus

MAX_RESUMES: Final = 3
"""Resumes after the same step before the turn is given up (RS-10)."""


@dataclass(frozen=True, slots=True)
class StoreQuestion:
    """Nothing is in the log yet: admit the turn and store its question (RS-1)."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model; its reply becomes `step` (RS-2, RS-4)."""

    step: int


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Run `run`; store for each of `settle` the text beside it, unrun (RS-3, RS-6)."""

    run: tuple[Call, ...] = ()
    settle: tuple[tuple[Call, str], ...] = ()


@dataclass(frozen=True, slots=True)
class AwaitDecision:
    """Calls wait for a human: the turn is paused (RS-5)."""

    pending: tuple[PendingCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ComposeAnswer:
    """All calls of the batch return direct: their results are the answer (TL-6)."""

    text: str


@dataclass(frozen=True, slots=True)
class EndTurn:
    """Close the turn without answer: append its mark, close its open calls."""

    status: EndStatus
    limit: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn has ended (RS-7)."""

    status: str


Action = StoreQuestion | CallModel | RunCalls | AwaitDecision | ComposeAnswer | EndTurn | Ended


def _never(_name: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Rules:
    """What `next_action` must know of the agent.

    `repeats(name)`: a call of this tool that may have started is run again (idempotent tools,
    delegates); `direct(name)`: the tool returns direct. A limit that is None is none.
    """

    max_rounds: int = 25
    max_tool_calls: int | None = None
    repeats: Callable[[str], bool] = field(default=_never)
    direct: Callable[[str], bool] = field(default=_never)
    max_tokens: int | None = None
    max_cost: float | None = None
    max_conversation_tokens: int | None = None
    max_conversation_cost: float | None = None

    def used_up(self, usage: Usage, before: Usage) -> str:
        """The name of the budget that is used up, "" if none.

        `usage`: of the turn; `before`: of the conversation before it.
        """
        if self.max_tokens is not None and usage.total_tokens >= self.max_tokens:
            return "max_turn_tokens"
        if self.max_cost is not None and usage.cost >= self.max_cost:
            return "max_turn_cost"
        tokens, cost = self.max_conversation_tokens, self.max_conversation_cost
        if tokens is not None and before.total_tokens + usage.total_tokens >= tokens:
            return "max_conversation_tokens"
        if cost is not None and before.cost + usage.cost >= cost:
            return "max_conversation_cost"
        return ""


def resume_action(turn: TurnState, rules: Rules) -> Action:
    """`next_action` for a turn found in the log: given up after too many resumes (RS-10)."""
    action = next_action(turn, rules)
    if turn.resumes >= MAX_RESUMES and not isinstance(
        action, Ended | AwaitDecision | StoreQuestion
    ):
        return EndTurn(
            "failed",
            message=f"its agent died {turn.resumes + 1} times after step {turn.next_step - 1}",
        )
    return action


def next_action(turn: TurnState, rules: Rules) -> Action:
    """What a turn in this state does next. Pure: the table of RS-1…9, LM-1, TL-6, HP-2."""
    if turn.ended is not None:
        return Ended(turn.ended)
    if turn.question is None:
        return StoreQuestion()
    batch = turn.batch
    if batch is None:
        return _call_model(turn, rules)
    if batch.open:
        return _open_batch(turn, batch, rules)
    if any(call.error == "skipped" for call in batch.calls):
        return EndTurn("limit", _limit(turn, rules))
    if _all_direct(batch, rules) and all(call.error is None for call in batch.calls):
        return ComposeAnswer(
            "\n".join(_text(call.result) for call in batch.calls if call.result is not None)
        )
    return _call_model(turn, rules)


def _call_model(turn: TurnState, rules: Rules) -> Action:
    limit = "max_rounds" if turn.rounds >= rules.max_rounds else _used_up(turn, rules)
    return EndTurn("limit", limit) if limit else CallModel(turn.next_step)


def _open_batch(turn: TurnState, batch: Batch, rules: Rules) -> Action:
    run: list[Call] = []
    settle: list[tuple[Call, str]] = []
    done = sum(1 for call in batch.calls if call.result is not None and call.error != "skipped")
    over = skipped_from(
        turn.rounds, turn.calls_counted - done, batch, rules, used_up=_used_up(turn, rules)
    )
    for call in batch.open_calls():
        if call.awaiting:
            continue
        if call.index >= over and not call.started and call.decision is None:
            settle.append((call, tool_result.skipped(_limit(turn, rules))))
        elif isinstance(call.verdict, Deny):
            settle.append((call, tool_result.denied(call.verdict.reason)))
        elif isinstance(call.decision, Reject):
            settle.append((call, tool_result.denied(call.decision.message)))
        elif isinstance(call.decision, Answer):
            settle.append((call, call.decision.text))
        elif isinstance(call.decision, Proceed) and call.environment is not None:
            settle.append((call, call.environment))
        elif call.started and not rules.repeats(call.call.name):
            settle.append((call, tool_result.interrupted()))
        else:
            run.append(call)
    if run or settle:
        return RunCalls(tuple(run), tuple(settle))
    return AwaitDecision(turn.pending())


def skipped_from(rounds: int, counted: int, batch: Batch, rules: Rules, *, used_up: str) -> int:
    """The index in the batch from which on calls are beyond a limit and not run. Rule: LM-1.

    `rounds`: model calls so far, that of the batch included. `counted`: calls of earlier batches.
    `used_up`: the budget that this model call has used up, "" if none.
    """
    if (rounds >= rules.max_rounds or used_up) and not _all_direct(batch, rules):
        return 0
    if rules.max_tool_calls is None:
        return len(batch.calls)
    return max(0, rules.max_tool_calls - counted)


def _limit(turn: TurnState, rules: Rules) -> str:
    if turn.rounds >= rules.max_rounds:
        return "max_rounds"
    return _used_up(turn, rules) or "max_tool_calls"


def _used_up(turn: TurnState, rules: Rules) -> str:
    return rules.used_up(turn.usage, turn.before)


def _all_direct(batch: Batch, rules: Rules) -> bool:
    return all(rules.direct(call.call.name) for call in batch.calls)


def _text(message: Message | None) -> str:
    content = message.content if message is not None else None
    return content if isinstance(content, str) else ""
