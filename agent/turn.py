"""The durable turn: a pure state machine over the records of its log.

The log is the journal (AG-3). A turn writes, each step under the append id `turn_id/step`:

    step 0      the question (a user message)
    step n      a model's reply: an assistant message, its usage and verdicts in the mark
    n+1 … n+k   the results of its k calls, in call order (the log holds them in completion order)

and, without a step number, pure marks under `turn_id/mark/i`: `resumed`, `decision`,
`environment`, `ended`. The last record of a finished turn carries `ended`.

`TurnState` is what these records add up to. The runner feeds it the steps as it makes them; after
a crash `fold` feeds it the same records from the log. So both arrive at the same state, and
`next_action` decides from it alone what comes next: no clock, no I/O, no actor (RS-1…10).

The one thing the log cannot tell is whether a call without result had started. A folded call
counts as started (it may have been), a call of a reply that was just made does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from ..stores.message import Message, ToolCall
from . import tool_result
from .approval import (
    ALLOWED,
    Answer,
    Approve,
    Ask,
    Decision,
    Deny,
    PendingCall,
    Proceed,
    Reject,
    Retry,
    Verdict,
    decision_from_plain,
    verdict_from_plain,
)
from .model import NO_USAGE

if TYPE_CHECKING:
    from ..stores.record import Record

EndStatus = Literal["completed", "failed", "limit", "cancelled", "abandoned"]
END_STATUSES: Final[frozenset[str]] = frozenset(
    ("completed", "failed", "limit", "cancelled", "abandoned")
)


class Call:
    """One call of an assistant message, from its verdict to its result.

    `started`: it runs, or may have run before a crash. `environment`: the error text of a run that
    failed for its environment and awaits Retry or Proceed (HP-6).
    """

    __slots__ = (
        "call",
        "decision",
        "environment",
        "error",
        "index",
        "result",
        "started",
        "step",
        "verdict",
    )

    def __init__(self, call: ToolCall, index: int, step: int) -> None:
        self.call = call
        self.index = index
        self.step = step
        self.verdict: Verdict = ALLOWED
        self.decision: Decision | None = None
        self.environment: str | None = None
        self.result: Message | None = None
        self.error: str | None = None
        self.started = False

    @property
    def awaiting(self) -> bool:
        """True while a human must decide."""
        if self.result is not None:
            return False
        if self.environment is not None:
            return not isinstance(self.decision, Retry | Proceed)
        return isinstance(self.verdict, Ask) and self.decision is None

    def pending(self) -> PendingCall:
        """How a human is shown this call."""
        if self.environment is not None:
            return PendingCall(
                self.call.id, self.call.name, self.call.arguments, "environment", self.environment
            )
        verdict = self.verdict
        kind, reason = (verdict.kind, verdict.reason) if isinstance(verdict, Ask) else ("gate", "")
        return PendingCall(self.call.id, self.call.name, self.call.arguments, kind, reason)


class Batch:
    """An assistant message with calls, and its calls in call order."""

    __slots__ = ("calls", "message", "open", "step")

    def __init__(self, message: Message, step: int) -> None:
        self.message = message
        self.step = step
        self.calls = [Call(call, i, step + 1 + i) for i, call in enumerate(message.tool_calls)]
        self.open = len(self.calls)

    def open_calls(self) -> list[Call]:
        """Calls without result, in call order."""
        return [call for call in self.calls if call.result is None]


class TurnState:
    """What the records of one turn add up to.

    `next_step`: the number of the next step. `rounds`: model calls with a reply. `resumes`:
    `resumed` marks since the last step or ending. `usage`: the sum over the turn (US-1).
    """

    __slots__ = (
        "_entries",
        "_of_batch",
        "active",
        "answer",
        "batch",
        "before",
        "began",
        "calls_counted",
        "end",
        "ended",
        "first_seq",
        "marks",
        "next_step",
        "question",
        "resumes",
        "rounds",
        "turn_id",
        "usage",
    )

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.question: Message | None = None
        self.batch: Batch | None = None
        self.answer: Message | None = None
        self.ended: str | None = None
        self.end: Mapping[str, object] = {}
        self.next_step = 0
        self.rounds = 0
        self.calls_counted = 0
        self.usage = NO_USAGE
        self.marks = 0
        self.resumes = 0
        self.before = NO_USAGE
        """What the conversation had used before this turn; set by whoever runs it."""
        self.first_seq = 0
        self.began = ""
        """The member of the team that the turn began with (`handoff.py`); "": the first."""
        self.active: str | None = None
        """The member that it was handed to last, None if to none."""
        self._of_batch: str | None = None
        self._entries: list[tuple[int, Message | Batch]] = []

    # -- what happened -------------------------------------------------------------------------

    def ask(self, message: Message) -> None:
        """Step 0: the question."""
        self.question = message
        self._entries.append((0, message))
        self.next_step = 1

    def reply(self, message: Message, mark: Mapping[str, object] | None = None) -> Batch | None:
        """A model's reply, or the composed answer of a return-direct batch. Returns its batch."""
        self._reopen()
        step = self.next_step
        batch = None
        if message.tool_calls:
            batch = Batch(message, step)
            self.batch = batch
            self._of_batch = self.active
            self._entries.append((step, batch))
            self.next_step = step + 1 + len(batch.calls)
            verdicts = mark.get("verdicts") if mark else None
            if isinstance(verdicts, Sequence):
                for call, verdict in zip(batch.calls, verdicts, strict=False):
                    call.verdict = verdict_from_plain(verdict)
        else:
            self.batch = None
            self.answer = message
            self._entries.append((step, message))
            self.next_step = step + 1
        if not (mark and mark.get("direct")):
            self.rounds += 1
        self.resumes = 0
        if mark:
            self._mark(mark)
        return batch

    def result(self, call: Call, message: Message) -> None:
        """The result of a call of the current batch."""
        if call.result is None and self.batch is not None:
            self.batch.open -= 1
        call.result = message
        call.error = tool_result.error_type_of(message.content)
        if call.error != "skipped":
            self.calls_counted += 1
        self.resumes = 0

    def marked(self, mark: Mapping[str, object]) -> None:
        """A pure mark."""
        self.marks += 1
        self._mark(mark)

    def _mark(self, mark: Mapping[str, object]) -> None:
        usage = mark.get("usage")
        # A dict, as nearly all are, need not be held against the abstract class.
        if isinstance(usage, dict) or isinstance(usage, Mapping):  # noqa: SIM101 - in this order
            self.usage = self.usage.plus(usage)
        active = mark.get("active")
        if isinstance(active, str):
            self.active = active
        if "resumed" in mark:
            self._reopen()
            self.resumes += 1
        batch = self.batch
        if batch is not None and ("environment" in mark or "decision" in mark):
            environment = mark.get("environment")
            if isinstance(environment, Mapping):
                for key, text in environment.items():
                    if (call := _call_at(batch, key)) is not None:
                        call.environment, call.decision, call.started = str(text), None, False
            decided = mark.get("decision")
            if isinstance(decided, Mapping):
                for key, plain in decided.items():
                    decision = decision_from_plain(plain)
                    if decision is not None and (call := _call_at(batch, key)) is not None:
                        call.decision = decision
        ended = mark.get("ended")
        if isinstance(ended, str):
            self.ended, self.end = ended, mark

    def _reopen(self) -> None:
        if self.ended is not None:
            self.ended, self.end, self.resumes = None, {}, 0

    # -- what it adds up to --------------------------------------------------------------------

    def messages(self) -> list[Message]:
        """The turn so far, results in call order: what model and caller see."""
        out: list[Message] = []
        for _step, entry in self._entries:
            if isinstance(entry, Batch):
                out.append(entry.message)
                out.extend(call.result for call in entry.calls if call.result is not None)
            else:
                out.append(entry)
        return out

    def entries(self) -> Sequence[tuple[int, Message | Batch]]:
        """Question, batches and texts in order, each with its step."""
        return self._entries

    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that await a human, in call order."""
        if self.batch is None or self.ended is not None:
            return ()
        return tuple(call.pending() for call in self.batch.calls if call.awaiting)

    def decided(self) -> dict[str, Decision]:
        """Decisions of the turn by call id, so that a repeated one is known (HP-4)."""
        return {
            call.call.id: call.decision
            for _step, entry in self._entries
            if isinstance(entry, Batch)
            for call in entry.calls
            if call.decision is not None
        }

    @property
    def member(self) -> str:
        """The member of the team whose turn it is now."""
        return self.began if self.active is None else self.active

    @property
    def stepping(self) -> str:
        """The member that makes the next step: who made the calls that are open, else `member`."""
        if self.batch is not None and self.batch.open:
            return self.began if self._of_batch is None else self._of_batch
        return self.member

    def append_id(self, step: int) -> str:
        """The append id of a step. Rule: AG-3."""
        return f"{self.turn_id}/{step}"

    def mark_id(self) -> str:
        """The append id of the turn's next pure mark or closing batch."""
        return f"{self.turn_id}/mark/{self.marks}"


def _call_at(batch: Batch, key: object) -> Call | None:
    try:
        index = int(str(key))
    except ValueError:
        return None
    return batch.calls[index] if 0 <= index < len(batch.calls) else None


def fold(turn_id: str, records: Iterable[Record]) -> TurnState:
    """The state of a turn from its log.

    `records`: any records of the conversation in log order, from the turn's first one on; those of
    other turns, and messages added beside the turn, are passed over. Calls without result count as
    started unless a verdict or a missing decision kept them back.
    """
    turn = TurnState(turn_id)
    for record in records:
        if record.turn_id != turn_id:
            continue
        message, mark = record.message, record.mark
        if message is None:
            if mark:
                turn.marked(mark)
            continue
        if not turn.first_seq:
            turn.first_seq = record.seq
        if message.role == "user" and turn.question is None:
            turn.ask(message)
        elif message.role == "assistant":
            turn.reply(message, mark)
            continue
        elif message.role == "tool" and turn.batch is not None:
            turn._reopen()
            for call in turn.batch.calls:
                if call.result is None and call.call.id == message.tool_call_id:
                    turn.result(call, message)
                    break
        if mark:
            turn._mark(mark)
    if turn.batch is not None:
        for call in turn.batch.calls:
            if call.result is None and not call.awaiting and not isinstance(call.verdict, Deny):
                call.started = not isinstance(call.decision, Reject | Answer | Proceed)
    return turn


def call_arguments(call: Call) -> Mapping[str, object] | str:
    """What the call is run with: the human's arguments if an approval changed them."""
    if isinstance(call.decision, Approve) and call.decision.arguments is not None:
        return call.decision.arguments
    return call.call.arguments


def tool_message(call: Call, text: str) -> Message:
    """The result message of a call."""
    return Message(role="tool", content=text, tool_call_id=call.call.id)
