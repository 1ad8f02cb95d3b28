"""`context=`: a hard budget of tokens over what a model call is shown (design §6, F6…F14).

The budget covers everything that is sent: tool schemas and an eighth of it for the reply are taken
off first, the system prompt, the announcement of what is left out and a summary stand inside it.
What does not fit is announced, never dropped silently.

Over one of our stores the context is cut from the log itself, by its stored counts: what is not
shown is not read, and the summary is kept beside the log. Behind a window or a custom provider it
is cut from what those gave, and the summary lives as long as the agent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..actors import telemetry
from ..memory.budget import ContextTooLarge, check_results, fit_context
from ..memory.call_threads import call_threads
from ..memory.context import (
    ContextReport,
    Recalled,
    Source,
    Summary,
    SummaryStore,
    cut_context,
    reported,
)
from ..memory.recalled import is_recalled, without_marker, without_recalled
from ..memory.repair import in_call_order, repair
from ..memory.token_counter import token_counter
from ..memory.turn import CountTokens, Turn, TurnCost, message_turn
from ..stores.message import Message
from .context_turns import ContextTurns

if TYPE_CHECKING:
    from ..memory.budget import Fit
    from ..memory.context_policy import ContextPolicy
    from ..stores.record import Log
    from .tool import ToolSchema
    from .turn import TurnState

REPLY_SHARE: Final = 8
"""One part in eight of the budget, at most 4,096 tokens, is kept for the reply."""
MAX_REPLY: Final = 4096

Shown = tuple[tuple[Message, ...], ContextReport]
"""A context, and the report of it."""


class ContextBudget:
    """Cuts the contexts of one conversation. Counts each message once, while it is shown.

    `by`: the agent's name, for reports. `shown(message)`: what of a message of the log is shown.
    """

    def __init__(
        self,
        policy: ContextPolicy,
        schemas: Sequence[ToolSchema],
        count_tokens: CountTokens | None = None,
        *,
        by: str = "agent",
        conversation_id: str = "",
        shown: Callable[[Message], Message] = lambda message: message,
    ) -> None:
        self._policy = policy
        self._schemas = schemas
        self._count: CountTokens = token_counter() if count_tokens is None else count_tokens
        self._by = by
        self._id = conversation_id
        self._shown = shown
        self._cost: TurnCost | None = None
        self._reserved = 0
        # Turns by the identity of their message, which is kept alive beside.
        self._turns: dict[int, tuple[Message, Turn]] = {}
        self._summary = _LastSummary()

    def offer(self, schemas: Sequence[ToolSchema]) -> None:
        """From now on these tools are sent, and take their part of the budget."""
        self._schemas = schemas
        self._cost = None

    @property
    def reads(self) -> bool:
        """Whether the policy shows more than the running turn."""
        return self._policy.reads

    async def of_log(
        self,
        log: Log,
        turn: TurnState,
        instructions: str,
        summaries: SummaryStore,
    ) -> Shown:
        """The context of one model call, cut from the log before the running turn and its messages.

        System prompt, announcement or summary, the rest. Raises ContextTooLarge if system prompt,
        question and announcement alone do not fit, or what the last calls of the turn gave does
        not; and what the log raises.
        """
        await self._prepare()
        own = turn.messages()
        more = [(message, self._turn(message)) for message in map(self._shown, own)]
        self._forget([message for message, _ in more])
        turns = ContextTurns(log, more, self._shown)
        fit = await self._cut(turns, instructions, Source(self._id, log.epoch, len(log)), summaries)
        assert self._cost is not None
        check_results(turns, fit, self._cost, self._policy.budget, self._reserved)
        # Groups stand whole and in order; their results as they arrived.
        messages = in_call_order(repair(map(turns.message_of, fit.shown)))
        return messages, self._report(fit, turn)

    async def of_messages(
        self,
        messages: Sequence[Message],
        turn: TurnState,
        instructions: str,
        given: ContextReport | None = None,
    ) -> Shown:
        """The same, cut from what a window or a custom provider gave (the turn's messages last).

        `given`: the provider's report of it. Its announcement becomes part of ours; recall is
        announced as a whole, and so it is shown whole or not at all.
        """
        await self._prepare()
        messages, before = without_marker(messages)
        recalled: tuple[Recalled, ...] = () if given is None else given.recalled
        note = "" if given is None else given.note
        if any(map(is_recalled, messages)) and not self._fits(messages, instructions, before):
            messages, before = without_recalled(messages, before)
            recalled, note = (), "what was recalled had no room in context="
        turns = self._turns_of(messages)
        self._forget(messages)
        self._summary.follow(messages)
        source = Source(self._id, 0, len(messages))
        fit = await self._cut(turns, instructions, source, self._summary, before)
        assert self._cost is not None
        check_results(turns, fit, self._cost, self._policy.budget, self._reserved)
        report = self._report(fit, turn, recalled=recalled, note=note)
        return tuple(map(turns.message_of, fit.shown)), report

    def _turns_of(self, messages: Sequence[Message]) -> ContextTurns:
        more = [(message, self._turn(message)) for message in messages]
        return ContextTurns((), more, self._shown)

    def _fits(self, messages: Sequence[Message], instructions: str, before: int) -> bool:
        """Whether nothing need be left out."""
        try:
            fit = fit_context(
                self._turns_of(messages), max(0, self._policy.budget - self._reserved), self._count,
                system=instructions or None, elided_before=before, reserve=self._policy.reserve,
            )  # fmt: skip
        except ContextTooLarge:
            return False
        return fit.elided_count == before

    async def of_turn(self, turn: TurnState, instructions: str) -> Shown:
        """The context of a policy that shows no more than the running turn."""
        await self._prepare()
        assert self._cost is not None
        own = list(map(self._shown, turn.messages()))
        self._forget(own)
        tokens = sum(self._cost(self._turn(message)) for message in own)
        head = (Message("system", instructions),) if instructions else ()
        tokens += sum(self._cost(message_turn(message)) for message in head)
        policy = self._policy
        report = ContextReport(
            self._by, policy.scope, len(own), 0, tokens, policy.max_tokens,
            conversation_id=self._id, turn_id=turn.turn_id, step=turn.next_step,
        )  # fmt: skip
        telemetry.emit("keepwell.context.shown", report=report)
        return (*head, *own), report

    async def _cut(
        self, turns: Sequence[Turn], instructions: str, source: Source, summaries: SummaryStore,
        before: int = 0,
    ) -> Fit:  # fmt: skip
        return await cut_context(
            turns, self._policy, self._count, system=instructions or None, elided_before=before,
            reserved=self._reserved, source=source, summaries=summaries, threads=call_threads(),
        )  # fmt: skip

    def _report(self, fit: Fit, turn: TurnState, **more: Any) -> ContextReport:
        return reported(
            fit, self._policy, by=self._by, conversation_id=self._id, turn_id=turn.turn_id,
            step=turn.next_step, **more,
        )  # fmt: skip

    async def _prepare(self) -> None:
        if self._cost is None:
            await call_threads().run(self._load)  # loading a vocabulary takes a second

    def _load(self) -> None:
        cost = TurnCost(self._count)
        schemas = [
            {"name": s.name, "description": s.description, "parameters": s.parameters}
            for s in self._schemas
        ]
        tools = cost.text(json.dumps(schemas, default=str)) if schemas else 0
        if self._policy.reads:
            budget = self._policy.budget
            self._reserved = min(budget - 1, tools + min(budget // REPLY_SHARE, MAX_REPLY))
        else:
            cost.text("")
        self._cost = cost

    def _turn(self, message: Message) -> Turn:
        known = self._turns.get(id(message))
        if known is not None:
            return known[1]
        turn = message_turn(message)
        cost = self._cost
        assert cost is not None
        if isinstance(cost.name, str):
            per_turn = getattr(self._count, "per_turn", 0)
            turn["tokens"] = cost(turn) - (per_turn if isinstance(per_turn, int) else 0)
            turn["counter"] = cost.name
        self._turns[id(message)] = (message, turn)
        return turn

    def _forget(self, messages: Sequence[Message]) -> None:
        if len(self._turns) > 2 * len(messages) + 64:
            shown = {id(message) for message in messages}
            self._turns = {key: kept for key, kept in self._turns.items() if key in shown}


class _LastSummary:
    """The SummaryStore of messages that have no place in a log: in memory, one summary.

    Its watermark is the message that it ends with, found again among those given next. If that is
    not among them any more, a window has moved past it: the text is kept, and what follows is new.
    """

    def __init__(self) -> None:
        self._messages: Sequence[Message] = ()
        self._last: Message | None = None
        self._kept = Summary(0, "")

    def follow(self, messages: Sequence[Message]) -> None:
        """These are the messages now."""
        self._messages = messages
        if self._last is None:
            return
        place = self._kept.watermark
        if not (0 < place <= len(messages) and messages[place - 1] == self._last):
            places = range(len(messages), 0, -1)
            place = next((at for at in places if messages[at - 1] == self._last), 0)
            self._kept = Summary(place, self._kept.text)

    async def summary(self, conversation_id: str, summarizer: str, epoch: int) -> Summary | None:
        """See SummaryStore."""
        return self._kept if self._last is not None else None

    async def swap_summary(
        self, conversation_id: str, summarizer: str, epoch: int, before: int, after: Summary
    ) -> Summary:
        """See SummaryStore."""
        self._kept, self._last = after, self._messages[after.watermark - 1]
        return after
