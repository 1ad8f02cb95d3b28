"""Summaries of what a budget leaves out: made once, kept beside the log, folded on.

A summary covers the turns before its watermark. When the cut moves on, only the turns between the
watermark and the cut are passed to the summarizer, with the previous summary. Text and watermark
are stored together by compare-and-swap, so that of two who summarise at once one wins and the
other takes the winner's text. The log and its cursor are not touched. Rules: F11 to F13, and F02,
F22, F25 of the fault list.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..actors import telemetry
from ..actors.errors import InvalidValue
from ..stores.errors import CursorConflict
from ..stores.session_store import SessionStore
from .budget import ELLIPSIS, Fit, fit_context, summary_turn
from .context_policy import ContextPolicy, Summarizer
from .turn import CountTokens, Turn, TurnCost


@dataclass(frozen=True, slots=True)
class Summary:
    """`text` covers the turns at places before `watermark` in the conversation's `epoch`.

    `revision` counts the writes of this summary, from 1; it is what the next write is based on.
    """

    text: str
    watermark: int
    epoch: int
    revision: int


class Summaries(Protocol):
    """Where summaries are kept: one for each conversation and summarizer."""

    async def load(self, conversation_id: str, summarizer: str) -> Summary | None:
        """The summary as last saved, of whatever epoch; None if there is none."""
        ...

    async def save(self, conversation_id: str, summarizer: str, summary: Summary) -> bool:
        """Save if `summary.revision` follows the stored one's (1 on nothing), else False."""
        ...


class MemorySummaries:
    """Summaries in this process, for memory stores and tests."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Summary] = {}

    async def load(self, conversation_id: str, summarizer: str) -> Summary | None:
        """See Summaries."""
        return self._kept.get((conversation_id, summarizer))

    async def save(self, conversation_id: str, summarizer: str, summary: Summary) -> bool:
        """See Summaries."""
        key = (conversation_id, summarizer)
        stored = self._kept.get(key)
        if summary.revision != (0 if stored is None else stored.revision) + 1:
            return False
        self._kept[key] = summary
        return True


class StoredSummaries:
    """Summaries in a session store: durable as its commits, in the same environment."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def load(self, conversation_id: str, summarizer: str) -> Summary | None:
        """See Summaries."""
        value: Any = await self._store.load_value(_session_id(conversation_id, summarizer))
        if not isinstance(value, Mapping):
            return None
        return Summary(value["text"], value["watermark"], value["epoch"], value["revision"])

    async def save(self, conversation_id: str, summarizer: str, summary: Summary) -> bool:
        """See Summaries. The session's cursor is the revision."""
        value = {
            "text": summary.text,
            "watermark": summary.watermark,
            "epoch": summary.epoch,
            "revision": summary.revision,
        }
        session_id = _session_id(conversation_id, summarizer)
        try:
            await self._store.commit_value(session_id, summary.revision - 1, value)
        except CursorConflict:
            return False
        return True


async def fit_with_summary(
    turns: Sequence[Turn],
    policy: ContextPolicy,
    count_tokens: CountTokens,
    *,
    summaries: Summaries,
    conversation_id: str,
    epoch: int = 0,
    system: str | Turn | None = None,
    elided_before: int = 0,
) -> Fit:
    """What a policy shows of a conversation's transcript, its summary brought up to date.

    With scope "summary" the turns that are newly cut are passed to the summarizer, in chunks of at
    most `max_tokens` (a larger turn is a chunk of its own), and its text stands in the marker's
    place. Where the summarizer raises, gives no text, or there is no room, the marker stands and
    telemetry says why (`keepwell.memory.summary.failed`); the watermark stays, so the same turns
    are passed again next time. A summary of an earlier `epoch`, from before a clear, is ignored.
    Raises ContextTooLarge as `fit_context` does. Rules: E8, F12, F13.
    """
    if not policy.reads:
        raise InvalidValue(f"scope {policy.scope!r} shows the direct input only: nothing to fit")
    fit = fit_context(
        turns,
        policy.budget,
        count_tokens,
        system=system,
        elided_before=elided_before,
        reserve=policy.reserve,
    )
    summarizer = policy.summarizer
    if policy.scope != "summary" or summarizer is None or fit.elided_count == 0:
        return fit
    if fit.with_summary("x") is fit:
        _failed(conversation_id, "no room for a summary", None)
        return fit
    name = summarizer_name(summarizer)
    cost = TurnCost(count_tokens)
    summary = await _current(summaries, conversation_id, name, epoch)
    revision = summary.revision
    while summary.watermark < fit.cut:
        chunk, end = _next_chunk(turns, summary.watermark, fit.cut, policy.budget, cost)
        text: object = summary.text
        if chunk:
            text = await _ask(summarizer, summary.text or None, chunk, conversation_id)
            if not isinstance(text, str):
                return fit
        assert isinstance(text, str)
        made = Summary(_within(text, policy.reserve, cost), end, epoch, revision + 1)
        if await summaries.save(conversation_id, name, made):
            summary = made
        else:  # someone else was faster: theirs it is, and what it lacks is added to it
            summary = await _current(summaries, conversation_id, name, epoch)
        revision = summary.revision
    return fit.with_summary(summary.text)


def summarizer_name(summarizer: Summarizer) -> str:
    """The name that a summarizer's texts are kept under: its `name`, or where it is defined."""
    name = getattr(summarizer, "name", None)
    if isinstance(name, str) and name:
        return name
    module = getattr(summarizer, "__module__", "")
    return f"{module}.{getattr(summarizer, '__qualname__', type(summarizer).__qualname__)}"


_PREFIX: Final = "keepwell:summary:"


def _session_id(conversation_id: str, summarizer: str) -> str:
    # The length keeps ids apart that hold the separator.
    return f"{_PREFIX}{len(summarizer)}:{summarizer}:{conversation_id}"


async def _current(summaries: Summaries, conversation_id: str, name: str, epoch: int) -> Summary:
    """The summary of this epoch; an empty one, on the stored revision, if there is none."""
    stored = await summaries.load(conversation_id, name)
    if stored is None:
        return Summary("", 0, epoch, 0)
    if stored.epoch != epoch:
        return Summary("", 0, epoch, stored.revision)
    return stored


def _next_chunk(
    turns: Sequence[Turn], start: int, cut: int, max_tokens: int, cost: TurnCost
) -> tuple[list[Turn], int]:
    """The non-system turns from `start` on that together cost at most `max_tokens`, at least one;
    and the place behind them."""
    chunk: list[Turn] = []
    spent = 0
    for place in range(start, cut):
        turn = turns[place]
        if turn["role"] == "system":
            continue
        spent += cost(turn)
        if chunk and spent > max_tokens:
            return chunk, place
        chunk.append(turn)
    return chunk, cut


async def _ask(
    summarizer: Summarizer, previous: str | None, chunk: list[Turn], conversation_id: str
) -> str | None:
    """The summarizer's text; None, with telemetry, if it gives none."""
    try:
        if inspect.iscoroutinefunction(summarizer):
            text: object = await summarizer(previous, chunk)
        else:
            text = await asyncio.to_thread(summarizer, previous, chunk)
            if isinstance(text, Awaitable):
                text = await text
    except Exception as error:
        _failed(conversation_id, f"the summarizer raised {type(error).__name__}: {error}", error)
        return None
    if not isinstance(text, str) or not text.strip():
        _failed(conversation_id, f"the summarizer gave no text but {text!r}"[:200], None)
        return None
    return text


def _within(text: str, room: int, cost: TurnCost) -> str:
    """The text cut to what a summary may cost, so that folded summaries do not grow. F25."""
    if cost(summary_turn(text)) <= room:
        return text
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if cost(summary_turn(text[:middle] + ELLIPSIS)) <= room:
            low = middle
        else:
            high = middle
    return text[:low] + ELLIPSIS


def _failed(conversation_id: str, why: str, error: BaseException | None) -> None:
    telemetry.emit(
        "keepwell.memory.summary.failed", conversation_id=conversation_id, why=why, error=error
    )
