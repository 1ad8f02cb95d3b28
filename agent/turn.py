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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from ..stores.message import Message, ToolCall
from ..stores.record import NewRecord
from . import tool_result
from .approval import (
    ALLOWED,
    Allow,
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
from .model import Usage

if TYPE_CHECKING:
    from ..stores.record import Record

EndStatus = Literal["completed", "failed", "limit", "cancelled", "abandoned"]
END_STATUSES: Final[frozenset[str]] = frozenset(
    ("completed", "failed", "limit", "cancelled", "abandoned")
)
MAX_RESUMES: Final = 3  # RS-10


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
        "answer",
        "batch",
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
        self.usage = Usage()
        self.marks = 0
        self.resumes = 0
        self.first_seq = 0
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
        if isinstance(usage, Mapping):
            self.usage = self.usage + Usage.from_dict(usage)
        if "resumed" in mark:
            self._reopen()
            self.resumes += 1
        batch = self.batch
        if batch is not None:
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


# -- what next ---------------------------------------------------------------------------------


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
    delegates); `direct(name)`: the tool returns direct. `max_tool_calls` None: no limit.
    """

    max_rounds: int = 25
    max_tool_calls: int | None = None
    repeats: Callable[[str], bool] = field(default=_never)
    direct: Callable[[str], bool] = field(default=_never)


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
        return (
            CallModel(turn.next_step)
            if turn.rounds < rules.max_rounds
            else EndTurn("limit", "max_rounds")
        )
    if batch.open:
        return _open_batch(turn, batch, rules)
    if any(call.error == "skipped" for call in batch.calls):
        return EndTurn("limit", _limit(turn, rules))
    if _all_direct(batch, rules) and all(call.error is None for call in batch.calls):
        return ComposeAnswer(
            "\n".join(_text(call.result) for call in batch.calls if call.result is not None)
        )
    if turn.rounds >= rules.max_rounds:
        return EndTurn("limit", "max_rounds")
    return CallModel(turn.next_step)


def _open_batch(turn: TurnState, batch: Batch, rules: Rules) -> Action:
    run: list[Call] = []
    settle: list[tuple[Call, str]] = []
    done = sum(1 for call in batch.calls if call.result is not None and call.error != "skipped")
    over = skipped_from(turn.rounds, turn.calls_counted - done, batch, rules)
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


def skipped_from(rounds: int, counted: int, batch: Batch, rules: Rules) -> int:
    """The index in the batch from which on calls are beyond a limit and not run. Rule: LM-1.

    `rounds`: model calls so far, that of the batch included. `counted`: calls of earlier batches.
    """
    if rounds >= rules.max_rounds and not _all_direct(batch, rules):
        return 0
    if rules.max_tool_calls is None:
        return len(batch.calls)
    return max(0, rules.max_tool_calls - counted)


def _limit(turn: TurnState, rules: Rules) -> str:
    return "max_rounds" if turn.rounds >= rules.max_rounds else "max_tool_calls"


def _all_direct(batch: Batch, rules: Rules) -> bool:
    return all(rules.direct(call.call.name) for call in batch.calls)


def _text(message: Message | None) -> str:
    content = message.content if message is not None else None
    return content if isinstance(content, str) else ""


# -- how a turn is closed ----------------------------------------------------------------------


def call_arguments(call: Call) -> Mapping[str, object] | str:
    """What the call is run with: the human's arguments if an approval changed them."""
    if isinstance(call.decision, Approve) and call.decision.arguments is not None:
        return call.decision.arguments
    return call.call.arguments


def tool_message(call: Call, text: str) -> Message:
    """The result message of a call."""
    return Message(role="tool", content=text, tool_call_id=call.call.id)


def closing_records(
    turn: TurnState,
    status: EndStatus,
    *,
    mark: Mapping[str, object] | None = None,
    interrupted: bool = False,
    partial: str = "",
) -> list[NewRecord]:
    """One append that ends the turn: results for its open calls, the partial text, the mark.

    Open calls read "cancelled", with unknown outcome if they may have started; with `interrupted`
    (a crash, not a wish) "interrupted, outcome unknown". A call that failed for its environment
    keeps its real error (HP-6). The last record carries `ended`. Rules: AG-5, CN-1, HP-5.
    """
    ending: dict[str, object] = {"ended": status, **(mark or {})}
    records: list[NewRecord] = []
    if turn.batch is not None:
        records.extend(
            NewRecord(
                tool_message(call, _closing_text(call, interrupted, status)), turn_id=turn.turn_id
            )
            for call in turn.batch.open_calls()
        )
    if partial:
        records.append(
            NewRecord(
                Message(role="assistant", content=partial),
                turn_id=turn.turn_id,
                mark={**ending, "partial": True},
            )
        )
    elif records:
        last = records[-1]
        records[-1] = NewRecord(last.message, turn_id=turn.turn_id, mark=ending)
    else:
        records.append(NewRecord(None, turn_id=turn.turn_id, mark=ending))
    return records


def _closing_text(call: Call, interrupted: bool, status: EndStatus) -> str:
    if call.environment is not None:
        return call.environment
    if isinstance(call.verdict, Deny):
        return tool_result.denied(call.verdict.reason)
    if status == "limit" and not call.started:
        return tool_result.skipped("turn_timeout")
    if interrupted and call.started:
        return tool_result.interrupted()
    return tool_result.cancelled(started=call.started)


def open_turn(records: Sequence[Record]) -> str | None:
    """The id of the last turn in these records if it has not ended, else None.

    `records` (with marks, log order) must reach back to that turn's question.
    """
    for record in reversed(records):
        if record.turn_id is not None:
            return None if fold(record.turn_id, records).ended is not None else record.turn_id
    return None


def dangling_calls(records: Iterable[Record]) -> list[tuple[int, int, ToolCall]]:
    """Calls without a result as (seq of the assistant record, index in it, call), in log order.

    A result belongs to the nearest earlier message with an open call of its id (WN-2). Rule: CN-3.
    """
    opened: list[tuple[int, int, ToolCall]] = []
    for record in records:
        message = record.message
        if message is None:
            continue
        if message.role == "assistant":
            opened.extend((record.seq, i, call) for i, call in enumerate(message.tool_calls))
        elif message.role == "tool":
            newest = -1
            for at, (seq, _index, call) in enumerate(opened):
                if call.id == message.tool_call_id and (newest < 0 or seq > opened[newest][0]):
                    newest = at
            if newest >= 0:
                del opened[newest]
    return opened


def heal_records(records: Iterable[Record]) -> list[tuple[str, NewRecord]]:
    """The appends (id, record) that answer every dangling call; none if there is nothing to heal.

    The id is `heal/<seq>/<index>`, so healing twice writes once. Rule: CN-3.
    """
    return [
        (
            f"heal/{seq}/{index}",
            NewRecord(
                Message(
                    role="tool",
                    content=tool_result.interrupted(),
                    tool_call_id=call.id,
                )
            ),
        )
        for seq, index, call in dangling_calls(records)
    ]


__all__ = [
    "Action",
    "Allow",
    "AwaitDecision",
    "Batch",
    "Call",
    "CallModel",
    "ComposeAnswer",
    "EndTurn",
    "Ended",
    "Rules",
    "RunCalls",
    "StoreQuestion",
    "TurnState",
    "call_arguments",
    "closing_records",
    "dangling_calls",
    "fold",
    "heal_records",
    "next_action",
    "open_turn",
    "resume_action",
    "skipped_from",
    "tool_message",
]
