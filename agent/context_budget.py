"""`context=`: a hard budget of tokens over what a model call is shown (design §6, F6…F14).

It works on what `prepare` and repair gave. The budget covers everything that is sent: tool schemas
and an eighth of it for the reply are taken off first, the system prompt, the announcement of what
is left out and a summary stand inside it. What does not fit is announced, never dropped silently.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ..actors import telemetry
from ..memory.budget import ContextTooLarge, Fit, fit_context
from ..memory.call_threads import call_threads
from ..memory.context import ContextReport, reported
from ..memory.recalled import is_recalled, without_marker, without_recalled
from ..memory.token_counter import token_counter
from ..memory.turn import CountTokens, Turn, TurnCost, message_turn, turn_messages
from ..stores.message import Message

if TYPE_CHECKING:
    from ..memory.context_policy import ContextPolicy
    from .tool import ToolSchema

REPLY_SHARE: Final = 8
"""One part in eight of the budget, at most 4,096 tokens, is kept for the reply."""
MAX_REPLY: Final = 4096


class ContextBudget:
    """Cuts the contexts of one conversation. Counts each message once, while it is shown."""

    def __init__(
        self,
        policy: ContextPolicy,
        schemas: Sequence[ToolSchema],
        count_tokens: CountTokens | None = None,
    ) -> None:
        self._policy = policy
        self._schemas = schemas
        self._count: CountTokens = token_counter() if count_tokens is None else count_tokens
        self._cost: TurnCost | None = None
        self._room = 0
        # Turns by the identity of their message, which is kept alive beside.
        self._turns: dict[int, tuple[Message, Turn]] = {}
        self._summary: tuple[Message, int, str] | None = None
        self._fitted: Fit | None = None

    async def fit(
        self, messages: Sequence[Message], turn: Sequence[Message], instructions: str
    ) -> tuple[Message, ...]:
        """The context of one model call: system prompt, announcement or summary, the rest.

        `messages` end with those of the running `turn`. Raises ContextTooLarge if system prompt,
        question and announcement alone do not fit.
        """
        if not self._policy.reads:
            head = (Message("system", instructions),) if instructions else ()
            return (*head, *turn)
        if self._cost is None:
            await call_threads().run(self._prepare)  # loading a vocabulary takes a second
        fitted, messages, turns = self._cut(messages, instructions)
        if self._policy.scope == "summary" and fitted.elided_count:
            fitted = await self._summarized(fitted, messages, turns)
        self._fitted = fitted
        own = {id(turn): message for message, turn in self._turns.values()}
        return tuple(own.get(id(one)) or turn_messages([one])[0] for one in fitted.shown)

    def report(
        self, shown: Sequence[Message], given: ContextReport | None, **where: Any
    ) -> ContextReport | None:
        """The report of the context made last; `given`: the provider's of what it was made of.

        None for a policy that does not read.
        """
        if self._fitted is None:
            return None
        if given is None:
            return reported(self._fitted, self._policy, **where)
        note = given.note
        recalled = given.recalled
        if recalled and not any(map(is_recalled, shown)):
            recalled, note = (), "what was recalled had no room in context="
        return reported(self._fitted, self._policy, recalled=recalled, note=note, **where)

    def _cut(
        self, messages: Sequence[Message], instructions: str
    ) -> tuple[Fit, Sequence[Message], list[Turn]]:
        """The cut context, and of which messages; a provider's announcement becomes part of ours.

        Recall is announced as a whole, and so it is shown whole or not at all.
        """
        messages, before = without_marker(messages)
        recalls = any(map(is_recalled, messages))
        try:
            fitted, turns = self._fit(messages, instructions, before)
            if not recalls or fitted.elided_count == before:
                return fitted, messages, turns
        except ContextTooLarge:
            if not recalls:
                raise
        messages, before = without_recalled(messages, before)
        fitted, turns = self._fit(messages, instructions, before)
        return fitted, messages, turns

    def _fit(
        self, messages: Sequence[Message], instructions: str, before: int
    ) -> tuple[Fit, list[Turn]]:
        turns = [self._turn(message) for message in messages]
        self._forget(messages)
        fitted = fit_context(
            turns, self._room, self._count, system=instructions or None, elided_before=before,
            reserve=self._policy.reserve,
        )  # fmt: skip
        return fitted, turns

    def _prepare(self) -> None:
        cost = TurnCost(self._count)
        schemas = [
            {"name": s.name, "description": s.description, "parameters": s.parameters}
            for s in self._schemas
        ]
        tools = cost.text(json.dumps(schemas, default=str)) if schemas else 0
        budget = self._policy.budget
        self._room = max(1, budget - tools - min(budget // REPLY_SHARE, MAX_REPLY))
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

    async def _summarized(
        self, fitted: Fit, messages: Sequence[Message], turns: Sequence[Turn]
    ) -> Fit:
        """The context with a summary of what was cut; with its marker if there is none (F13)."""
        summarizer: Any = self._policy.summarizer
        previous, done = None, 0
        if self._summary is not None:
            last, done, previous = self._summary
            if done > fitted.cut or messages[done - 1] is not last:
                previous, done = None, 0  # the history has been replaced
        new = [turn for turn in turns[done : fitted.cut] if turn["role"] != "system"]
        if new:
            try:
                text = summarizer(previous, new)
                if hasattr(text, "__await__"):
                    text = await text
            except Exception as error:
                telemetry.emit("keepwell.agent.summary_failed", error=error)
                return fitted if previous is None else fitted.with_summary(previous)
            if not isinstance(text, str) or not text.strip():
                telemetry.emit("keepwell.agent.summary_failed", error=None)
                return fitted if previous is None else fitted.with_summary(previous)
            self._summary = (messages[fitted.cut - 1], fitted.cut, text)
            previous = text
        return fitted if previous is None else fitted.with_summary(previous)
