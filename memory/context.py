"""What one model call is shown of a transcript under a policy, and a report of it (F8…F14, E8).

Cutting is pure (`budget`); what is not pure stands here: the incremental summary. A summary covers
a prefix of the conversation's log, up to its watermark. When the cut moves on, the summarizer gets
the text so far and the turns since, each once; text and watermark are stored by compare-and-swap.
A summarizer that fails costs its call nothing but the summary: the marker stands in for it. What is
stored, and so what the summarizer is given the next time, is cut to the policy's `summary_tokens`:
however often a conversation is summarized, its summary stays within that (F25).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, Protocol

from ..actors import telemetry
from .budget import ELLIPSIS, Fit, fit_context
from .call_threads import CallThreads
from .context_policy import ContextPolicy, Summarizer
from .lazy_turns import LazyTurns
from .turn import CountTokens, Turn, TurnCost, system_turns

SUMMARY_SECONDS: Final = 60.0
"""How long one call of a summarizer may take; one that is late has failed (F13)."""

_MOST_CHARACTERS: Final = 64
"""More characters than this a token do not occur in texts that are worth keeping."""


class Summary(NamedTuple):
    """A stored summary: it covers the first `watermark` turns of the log in `epoch`."""

    watermark: int
    text: str


class SummaryStore(Protocol):
    """Keeps one summary a conversation and summarizer, for the conversation's present epoch."""

    def summary(self, conversation_id: str, summarizer: str, epoch: int) -> Any:
        """A future of the Summary, None if there is none for this epoch."""
        ...

    def swap_summary(
        self, conversation_id: str, summarizer: str, epoch: int, before: int, after: Summary
    ) -> Any:
        """A future of the Summary that is stored then: `after`, if the watermark was `before`."""
        ...


class MemorySummaries:
    """A SummaryStore for conversations that are not kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, int], Summary] = {}

    async def summary(self, conversation_id: str, summarizer: str, epoch: int) -> Summary | None:
        """See SummaryStore."""
        return self._kept.get((conversation_id, summarizer, epoch))

    async def swap_summary(
        self, conversation_id: str, summarizer: str, epoch: int, before: int, after: Summary
    ) -> Summary:
        """See SummaryStore."""
        key = (conversation_id, summarizer, epoch)
        known = self._kept.get(key)
        if (0 if known is None else known.watermark) == before:
            self._kept[key] = after
        return self._kept.get(key, after)


@dataclass(frozen=True, slots=True)
class Recalled:
    """A message that was left out by the budget and shown all the same, because it was retrieved.

    `seq` is its record's, `score` that of the hit that it came with, `tokens` what it costs.
    """

    seq: int
    score: float
    tokens: int


@dataclass(frozen=True, slots=True)
class ContextReport:
    """What one model call saw: for audits of context use.

    `by`: who made the call ("think", an agent's name). `kept` and `elided` are turns, announcement
    and system prompt not counted; `elided` is what the announcement says. `tokens`: the cost of all
    that was shown, at most `max_tokens`. `summarized`: a summary stood in for the marker.
    `recalled`: the messages among the kept ones that were retrieved; `note`: why there are none or
    may be too few, "" if nothing was wrong.
    """

    by: str
    scope: str
    kept: int
    elided: int
    tokens: int
    max_tokens: int | None
    summarized: bool = False
    conversation_id: str = ""
    turn_id: str = ""
    step: int = 0
    recalled: tuple[Recalled, ...] = ()
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the mark of a record."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Source:
    """Whose transcript it is: names the summary. `logged`: how many turns of it are in the log."""

    conversation_id: str
    epoch: int = 0
    logged: int = 0


async def cut_context(
    turns: Sequence[Turn],
    policy: ContextPolicy,
    count_tokens: CountTokens,
    *,
    system: str | Turn | None = None,
    reserved: int = 0,
    elided_before: int = 0,
    source: Source | None = None,
    summaries: SummaryStore | None = None,
    threads: CallThreads | None = None,
) -> Fit:
    """Cut `turns` to the policy's budget less `reserved`; scope "summary" puts its summary in.

    `turns` begins with the turns of the log (`source.logged` of them) and ends with what is not in
    it yet. `reserved`: tokens for what else the request carries (tool schemas, the reply). Raises
    ContextTooLarge (F9), and nothing for the summary's sake (F13).
    """
    budget = max(0, policy.budget - reserved)
    reserve = min(policy.reserve, budget)
    fit = fit_context(
        turns, budget, count_tokens, system=system, elided_before=elided_before, reserve=reserve
    )
    if policy.summarizer is None or not fit.elided_count or policy.scope != "summary":
        return fit
    where = source if source is not None else Source("", 0, len(turns))
    store = summaries if summaries is not None else MemorySummaries()
    try:
        return await _summarized(
            fit, turns, policy, policy.summarizer, count_tokens, where, store, threads
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the turn goes on with the marker
        _failed(where, error)
        return fit


async def _summarized(
    fit: Fit, turns: Sequence[Turn], policy: ContextPolicy, summarizer: Summarizer,
    count_tokens: CountTokens, source: Source, store: SummaryStore, threads: CallThreads | None,
) -> Fit:  # fmt: skip
    name = summarizer_name(summarizer)
    known = await store.summary(source.conversation_id, name, source.epoch)
    watermark, text = (0, None) if known is None else known
    goal = min(fit.cut, source.logged)
    while watermark < goal:
        chunk, end = _chunk(turns, watermark, goal, policy.budget, TurnCost(count_tokens))
        new: object = text
        if chunk:
            try:
                new = await _call(summarizer, text, chunk, threads)
            except Exception as error:  # noqa: BLE001 - F13
                _failed(source, error)
                break
        if isinstance(new, str):
            new = bounded_text(new, policy.reserve, TurnCost(count_tokens))
        if not isinstance(new, str) or not new.strip() or fit.with_summary(new) is fit:
            if chunk:
                _failed(source, None)
                break
            new = ""
        stored = await store.swap_summary(
            source.conversation_id, name, source.epoch, watermark, Summary(end, new)
        )
        if stored[0] <= watermark:
            break  # it was reset meanwhile
        watermark, text = stored
    return fit if watermark < goal or not text else fit.with_summary(text)


def _chunk(
    turns: Sequence[Turn], start: int, stop: int, budget: int, cost: TurnCost
) -> tuple[list[Turn], int]:
    """The next non-system turns of at most `budget` tokens (at least one), and their end."""
    chunk: list[Turn] = []
    spent = 0
    for place in range(start, stop):
        turn = turns[place]
        if turn["role"] == "system":
            continue
        spent += cost(turn)
        if chunk and spent > budget:
            return chunk, place
        chunk.append(turn)
    return chunk, stop


def bounded_text(text: str, max_tokens: int, cost: TurnCost) -> str:
    """A prefix of the text that costs at most `max_tokens`, with "…" if it was cut. F25.

    A text many times too long is cut by characters first, so that it is never counted whole.
    """
    most = max_tokens * _MOST_CHARACTERS
    if len(text) <= most and cost.text(text) <= max_tokens:
        return text
    low, high = 0, min(len(text), most) + 1  # the longest prefix known to fit, one that does not
    while high - low > 1:
        middle = (low + high) // 2
        if cost.text(text[:middle] + ELLIPSIS) <= max_tokens:
            low = middle
        else:
            high = middle
    return text[:low] + ELLIPSIS


async def _call(
    summarizer: Summarizer, previous: str | None, new: list[Turn], threads: CallThreads | None
) -> object:
    target = summarizer if inspect.isroutine(summarizer) else type(summarizer).__call__
    value: Any
    async with asyncio.timeout(SUMMARY_SECONDS):
        if threads is None or inspect.iscoroutinefunction(target):
            value = summarizer(previous, new)
        else:
            value = await threads.run(lambda: summarizer(previous, new))
        return await value if inspect.isawaitable(value) else value


def summarizer_name(summarizer: Summarizer) -> str:
    """What a summarizer's stored texts are found by: its `name`, else where it is defined."""
    name = getattr(summarizer, "name", None)
    if isinstance(name, str) and name:
        return name
    target: Any = summarizer if hasattr(summarizer, "__qualname__") else type(summarizer)
    return f"{target.__module__}.{target.__qualname__}"


def _failed(source: Source, error: BaseException | None) -> None:
    telemetry.emit(
        "keepwell.context.summary_failed", conversation_id=source.conversation_id, error=error
    )


def reported(
    fit: Fit, policy: ContextPolicy, *, by: str, announced: bool = True, **where: Any
) -> ContextReport:
    """The report of a call that was shown `fit`; telemetry gets it as `keepwell.context.shown`."""
    summarized = announced and any(
        turn["role"] == "system" and str(turn.get("content", "")).startswith("Summary of ")
        for turn in fit.shown
    )
    kept = sum(1 for turn in fit.shown if turn["role"] != "system")
    report = ContextReport(
        by, policy.scope, kept, fit.elided_count, fit.tokens, fit.max_tokens, summarized, **where
    )
    telemetry.emit("keepwell.context.shown", report=report)
    return report


class JoinedTurns(LazyTurns[Turn]):
    """Turns of a log, read lazily, and turns that follow them; contents behind refs are fetched.

    `fetch(ref)` gives a content, or raises: then the turn stays with its ref. Only turns that are
    touched are fetched, and are counted anew, by their content.
    """

    def __init__(
        self,
        first: Sequence[Turn],
        more: Sequence[Turn] = (),
        fetch: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__(first, more)
        self._fetch = fetch

    def systems(self) -> list[Turn]:
        """The system turns, in order, by the log's index."""
        return [*system_turns(self._first), *system_turns(self._more)]

    def _of_first(self, item: Turn) -> Turn:
        return self._whole(item)

    def _of_more(self, turn: Turn) -> Turn:
        return self._whole(turn)

    def _whole(self, turn: Turn) -> Turn:
        ref = turn.get("content_ref")
        if ref is None or self._fetch is None or "content" in turn:
            return turn
        try:
            content = self._fetch(ref)
        except Exception as error:  # noqa: BLE001 - a model is better off with a ref than not at all
            telemetry.emit("keepwell.context.not_fetched", ref=ref, error=error)
            return turn
        whole = {key: value for key, value in turn.items() if key not in ("tokens", "counter")}
        del whole["content_ref"]
        return {**whole, "content": content}
