"""How a turn is closed and a log healed: the records to append, decided from the log alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..stores.message import Message, ToolCall
from ..stores.record import NewRecord
from . import tool_result
from .approval import Deny
from .turn import Call, TurnState, fold, tool_message

if TYPE_CHECKING:
    from ..stores.record import Record
    from .turn import EndStatus


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


def take_closing(turn: TurnState, records: Sequence[NewRecord]) -> None:
    """Bring the turn's state in line with its `closing_records`, which have been appended."""
    open_calls = turn.batch.open_calls() if turn.batch is not None else []
    for record in records:
        if record.message is None:
            continue
        if record.message.role == "tool":
            turn.result(open_calls.pop(0), record.message)
        else:
            turn.reply(record.message, {})
    turn.marked(records[-1].mark or {})


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
