"""Does a context cost more when the conversation is long?

How: a conversation of short messages in a `DiskStore`, with token counts stored at append. Sizes
differ, budgets do not, so the same number of turns is shown from each.

- `fit_context`: cutting a context of 2,000 tokens from a log of 1,000 and of 100,000 messages,
  from the read of the log to the turns for the model. Counts are stored ones.
- `transcript`: one whole turn of a flow session whose model call reads the conversation
  (`ContextPolicy("whole_session")`), at 100 and at 100,000 turns; the model answers at once.
  Questions and answers are as long as what was said before, so that every context shows as many.
- `summary`: a conversation that grows by a turn and is cut each time with scope "summary": how
  many turns the summarizer was passed, repeats included, for each turn that was left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keepwell import flow
from keepwell.agent.function_model import FunctionModel
from keepwell.memory.budget import fit_context
from keepwell.memory.context import MemorySummaries, Source, cut_context
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.transcript import conversation_transcript
from keepwell.memory.turn import Turn
from keepwell.runtime import Runtime
from keepwell.sessions import loop
from keepwell.stores import DiskStore, Message

from .benchmark import Contender, Question, Scale, Stopwatch, figure, growth
from .disk import directory

BUDGET = 2_000

Run = Callable[[Stopwatch, int], Mapping[str, float] | None]


class Quarter:
    """Counts four characters as a token: fast to prepare a long conversation with."""

    name = "quarter"

    def count_message(self, message: Message) -> int:
        """Tokens of a message."""
        return self.count_text(message.text)

    def count_text(self, text: str) -> int:
        """Tokens of a text."""
        return -(-len(text) // 4)


def questions(scale: Scale) -> Sequence[Question]:
    """Return the three questions."""
    long, middle = scale.pick(100_000, 10_000), scale.pick(1_000, 1_000)
    fits, turns = scale.pick(300, 60), scale.pick(150, 30)
    grown = scale.pick(2_000, 300)
    return [
        Question(
            "fit_context", "Does cutting a context cost more in a long log?", "context",
            [Contender(f"at {middle:,}", _fits(middle), fits),
             Contender(f"at {long:,}", _fits(long), fits)],
            [growth("fit_context_100k_vs_1k", f"at {middle:,}", f"at {long:,}", ceiling=1.3)],
            rounds=scale.pick(3, 2)),
        Question(
            "transcript", "Does a turn cost more in a long conversation?", "turn",
            [Contender("at 100", _turns(100), turns),
             Contender(f"at {long:,}", _turns(long), turns)],
            [growth("transcript_100k_incremental", "at 100", f"at {long:,}", ceiling=1.5)],
            rounds=scale.pick(5, 2)),
        Question(
            "summary", "How often is a turn passed to the summarizer?", "turn",
            [Contender("keepwell", _summaries, grown)],
            [figure("summarized_per_elided", "keepwell", "passed_per_elided",
                    "A turn that was left out was passed to the summarizer {value} times.",
                    ceiling=1.05)],
            rounds=1),
    ]  # fmt: skip


def _texts(length: int) -> list[dict[str, Any]]:
    return [
        {"role": "assistant" if n % 2 else "user", "content": _text(n)} for n in range(length)
    ]


def _text(n: int) -> str:
    return f"message {n % 1000:04d} " + "x" * 64


async def _fill(store: Any, length: int) -> None:
    texts = _texts(length)
    for start in range(0, length, 2_000):
        await store.add("c", texts[start : start + 2_000])


def _fits(length: int) -> Run:
    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        counter, policy = Quarter(), ContextPolicy("whole_session", BUDGET)
        store = await DiskStore(path, counter=counter, durability="process").spawn()
        await _fill(store, length)
        shown = set()
        with watch:
            for _ in range(operations):
                log = await store.read("c")
                fit = fit_context(conversation_transcript(log, policy), BUDGET, counter)
                shown.add((len(fit.shown), fit.elided_count, fit.tokens <= BUDGET))
        # The same context each time, and never above the budget.
        assert len(shown) == 1 and all(held for _, _, held in shown)
        await store.stop()

    return _in_a_directory(run)


def _turns(length: int) -> Run:
    model = FunctionModel(lambda request: _text(0))
    body = flow.seq(
        flow.recv("in"), flow.arr(_message),
        flow.think(model, "Answer.", ContextPolicy("whole_session", BUDGET)), flow.emit("out"),
        flow.arr(_nothing),
    )  # fmt: skip
    talking = loop(body)

    async def run(watch: Stopwatch, operations: int, path: Path) -> None:
        async with Runtime(path, counter=Quarter(), durability="process") as runtime:
            await _fill(runtime.store, length)
            handle = await runtime.open_session(talking, "s", conversation_id="c")
            for _ in range(5):
                await handle.request(_text(0))
            with watch:
                for n in range(operations):
                    outcome = await handle.request(_text(n))
                    assert outcome.outcome == "done", outcome

    return _in_a_directory(run)


async def _message(value: Any) -> Any:
    return value["msg"]


async def _nothing(_value: Any) -> None:
    return None


def _summaries(watch: Stopwatch, operations: int) -> Mapping[str, float]:
    passed = 0

    async def summarizer(previous: str | None, new: Sequence[Turn]) -> str:
        nonlocal passed
        passed += len(new)
        return f"{passed} turns so far"

    async def run() -> int:
        policy = ContextPolicy("summary", 400, summarizer, 60)
        counter, summaries, turns = Quarter(), MemorySummaries(), list[Turn]()
        elided = 0
        with watch:
            for text in _texts(operations):
                turns.append({"role": text["role"], "content": text["content"]})
                if text["role"] != "user":
                    continue
                source = Source("c", 0, len(turns))
                fit = await cut_context(
                    turns, policy, counter, source=source, summaries=summaries
                )
                elided = max(elided, fit.elided_count)
        return elided

    elided = asyncio.run(run())
    ratio = passed / elided if elided else 0.0  # a short conversation is shown whole
    return {"passed_per_elided": ratio, "passed": passed, "elided": elided}


def _in_a_directory(run: Callable[[Stopwatch, int, Path], Any]) -> Run:
    def contend(watch: Stopwatch, operations: int) -> None:
        with directory() as path:
            asyncio.run(run(watch, operations, path))

    return contend
