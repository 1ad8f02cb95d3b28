"""A provider that shows the newest of a conversation, and of the rest what bears on the question.

An example of a custom provider: storing is the `DefaultProvider`'s, only `prepare` is its own. Off
unless an agent is given one as `memory=`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ..actors import telemetry
from ..actors.errors import InvalidValue
from ..stores.errors import shown
from ..stores.message import Message
from .budget import (
    ContextTooLarge,
    Fit,
    check_results,
    elision_marker,
    fit_context,
    shows_results,
)
from .call_threads import call_threads
from .context import ContextReport, JoinedTurns, Recalled
from .default_provider import DefaultProvider
from .log_messages import LogMessages
from .prepared import Prepared
from .recalled import announced, as_recalled, choose_recalled, recall_marker
from .retriever import Retrieved
from .token_counter import token_counter
from .turn import CountTokens, LogTurns, Turn, TurnCost, message_turn

if TYPE_CHECKING:
    from ..stores.contract import ConversationStore
    from ..stores.record import Log
    from .retriever import Retriever

RETRIEVE_SECONDS: Final = 2.0
"""How long a retriever may take before the model is called without it."""


class RecallProvider(DefaultProvider):
    """Cuts a conversation to `max_tokens` and recalls, within them, what was left out and matters.

    While all of it fits nothing is recalled. Beyond that the newest groups are shown as by
    `fit_context` with `recall_tokens` (a quarter of the budget unless given) held free, and into
    these go the exchanges around at most `limit` hits of `retriever` for the question, whole
    tool-call groups, in their order, ahead of the rest. A system message says how many messages
    are recalled and another how many turns are still left out; each is counted inside the budget,
    and no message is shown twice. `count_tokens`: the store's counter unless given. Instructions,
    tool schemas and the reply are the agent's: leave them room, or use `context=` beside it.

    Whatever happens to the retriever (it raises, is down, takes over 2 s, finds nothing), the
    window alone is shown, with the whole budget; the note of the report says so. What is shown
    comes from the log, never from an index. Raises InvalidValue for bad numbers; `prepare` raises
    ContextTooLarge if the question and the system messages, or the last results, do not fit.
    """

    def __init__(
        self,
        store: ConversationStore,
        retriever: Retriever,
        max_tokens: int,
        *,
        recall_tokens: int | None = None,
        limit: int = 8,
        count_tokens: CountTokens | None = None,
    ) -> None:
        super().__init__(store)
        if recall_tokens is None and _positive(max_tokens):
            recall_tokens = max(1, max_tokens // 4)
        for name, value in (
            ("max_tokens", max_tokens), ("recall_tokens", recall_tokens), ("limit", limit),
        ):  # fmt: skip
            if not _positive(value):
                raise InvalidValue(f"{name} must be an int of at least 1, not {shown(value)}")
        if not callable(getattr(retriever, "retrieve", None)):
            raise InvalidValue(f"{shown(retriever)} is no Retriever: it has no retrieve method")
        assert recall_tokens is not None
        if recall_tokens >= max_tokens:
            raise InvalidValue(
                f"recall_tokens ({recall_tokens}) must be less than max_tokens ({max_tokens})"
            )
        self.retriever = retriever
        self.max_tokens, self.recall_tokens, self.limit = max_tokens, recall_tokens, limit
        self._count = count_tokens
        self._cost: TurnCost | None = None

    def __repr__(self) -> str:
        return f"RecallProvider({self.store!r}, {self.retriever!r}, {self.max_tokens})"

    async def prepare(  # type: ignore[override]  # PV-1: sync or async
        self, conversation_id: str, messages: Sequence[Message]
    ) -> Sequence[Message]:
        """What the model is shown of `messages`, with a report. Stores nothing. Rule: PV-3."""
        count, cost = await self._counted()
        if isinstance(messages, LogMessages):
            log: Log = messages.log
            turns = JoinedTurns(LogTurns(log), [message_turn(one) for one in messages.more])
        else:
            log = await self.store.read(conversation_id)
            turns = JoinedTurns([message_turn(one) for one in messages])
        try:
            fit = fit_context(turns, self.max_tokens, count, reserve=self.recall_tokens)
            tight = False
        except ContextTooLarge:
            fit, tight = fit_context(turns, self.max_tokens, count), True
        if not tight and not shows_results(turns, fit):
            fit, tight = fit_context(turns, self.max_tokens, count), True
        check_results(turns, fit, cost, self.max_tokens)
        chosen: dict[int, float] = {}
        note = "nothing was recalled: no room beside the question" if tight else ""
        if fit.elided_count and not tight:
            found = await self._retrieve(conversation_id, log, _question(turns), fit.cut)
            note = found.note
            hits = [hit for hit in found.hits if _is_same(log, messages, hit.place, fit.cut)]
            chosen = choose_recalled(
                turns, hits, shown=fit.places, fits=partial(self._fits, fit, turns, cost)
            )
            if hits and not chosen:
                note = note or "what was found had no room in recall_tokens"
            if not chosen:
                fit = fit_context(turns, self.max_tokens, count)
        return self._shown(conversation_id, messages, turns, fit, chosen, note, cost)

    async def clear(self, conversation_id: str) -> None:
        """Empty the conversation, and have the retriever forget it. Rule: CS-6."""
        await self.store.clear(conversation_id)
        forget = getattr(self.retriever, "forget", None)
        if callable(forget):
            try:
                forgotten = forget(conversation_id)
                if inspect.isawaitable(forgotten):
                    async with asyncio.timeout(RETRIEVE_SECONDS):
                        await forgotten
            except Exception as error:  # noqa: BLE001 - it is empty: an index is not worth an error
                telemetry.emit(
                    "keepwell.recall.failed", conversation_id=conversation_id, error=error
                )

    # -- the parts -------------------------------------------------------------------------------

    async def _counted(self) -> tuple[CountTokens, TurnCost]:
        if self._count is None:
            port = getattr(self.store, "port", None)
            self._count = token_counter() if port is None else port.counter()
        cost = self._cost
        if cost is None:
            cost = TurnCost(self._count)
            await call_threads().run(partial(cost.text, "one"))  # may load a vocabulary
            self._cost = cost
        return self._count, cost

    async def _retrieve(self, conversation_id: str, log: Log, query: str, cut: int) -> Retrieved:
        """What the retriever finds; nothing, with a note, whatever goes wrong."""
        upto = min(cut, len(log))
        if not upto or not query.strip():
            return Retrieved()
        try:
            async with asyncio.timeout(RETRIEVE_SECONDS):
                found: object = await self.retriever.retrieve(
                    conversation_id, log, query, upto=upto, limit=self.limit
                )
            if not isinstance(found, Retrieved):
                raise TypeError(f"retrieve gave {shown(found)}, no Retrieved")
        except TimeoutError:
            return Retrieved(note=f"nothing was recalled: no answer in {RETRIEVE_SECONDS:g} s")
        except Exception as error:  # noqa: BLE001 - whatever it is, the turn goes on without
            telemetry.emit("keepwell.recall.failed", conversation_id=conversation_id, error=error)
            return Retrieved(note=f"nothing was recalled: {type(error).__name__}: {error}"[:500])
        return found

    def _fits(self, fit: Fit, turns: Sequence[Turn], cost: TurnCost, places: list[int]) -> bool:
        recalled = _system(cost, recall_marker(len(places)))
        recalled += sum(cost(turns[place]) for place in places)
        others, rest = fit.tokens - cost(elision_marker(fit.elided_count)), 0
        if fit.elided_count > len(places):
            rest = cost(elision_marker(fit.elided_count - len(places)))
        return recalled <= self.recall_tokens and others + rest + recalled <= self.max_tokens

    def _shown(
        self, conversation_id: str, messages: Sequence[Message], turns: JoinedTurns, fit: Fit,
        chosen: dict[int, float], note: str, cost: TurnCost,
    ) -> Prepared:  # fmt: skip
        rest = fit.elided_count - len(chosen)
        out = [*_systems(messages)]
        tokens = fit.tokens
        if fit.elided_count:
            tokens -= cost(elision_marker(fit.elided_count))
        if rest:
            marker = elision_marker(rest)
            tokens += cost(marker)
            out.append(announced(marker["content"], elided=rest))
        recalled = []
        for place, score in chosen.items():
            turn = turns[place]
            recalled.append(Recalled(turn.get("seq") or place + 1, score, cost(turn)))
        if recalled:
            text = recall_marker(len(recalled))
            out.append(announced(text, recalled=len(recalled)))
            tokens += _system(cost, text) + sum(one.tokens for one in recalled)
            out += [as_recalled(messages[place]) for place in chosen]
        places = fit.places
        out += [messages[place] for place in places]
        report = ContextReport(
            "recall", "whole_session", len(places) + len(chosen), rest, tokens, self.max_tokens,
            conversation_id=conversation_id, recalled=tuple(recalled), note=note,
        )
        return Prepared(out, report)


def _is_same(log: Log, messages: Sequence[Message], place: int, cut: int) -> bool:
    """Whether a hit is a message of what is given, at its place: foreign code may say anything."""
    return 0 <= place < min(cut, len(log)) and log[place].message == messages[place]


def _question(turns: Sequence[Turn]) -> str:
    for turn in reversed(turns):
        if turn["role"] == "user":
            content = turn.get("content")
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, list) else []
            return " ".join(str(part.get("text", "")) for part in parts)
    return ""


def _systems(messages: Sequence[Message]) -> Sequence[Message]:
    if isinstance(messages, LogMessages):
        return messages.systems()
    return [message for message in messages if message.role == "system"]


def _system(cost: TurnCost, text: str) -> int:
    return cost({"role": "system", "content": text})


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
