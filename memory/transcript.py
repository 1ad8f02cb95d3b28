"""Transcripts: what happened, as turns, from a run's trace or from a conversation's log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Protocol, TypeGuard

from ..stores.record import Log, Record
from .context_policy import ContextPolicy
from .turn import LogTurns, Turn, call_dict, record_turn

_SHOWN: Final = ("call", "sub")


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One step of a flow as its trace keeps it.

    `decision`: what kind of step; only "call" and "sub" appear in transcripts. `ref`: the tool or
    child called, `server/tool` for a tool of an MCP server. `step`: equal for parallel calls of one
    batch, None for a call on its own. `output_available`: whether `output` is the result (which
    may be None), else it stands behind `output_ref` or is not known. Rule: F13a.
    """

    decision: str
    ref: str
    call_id: str | None = None
    arguments: Any = None
    input_ref: str | None = None
    output_ref: str | None = None
    output: Any = None
    output_available: bool = False
    step: int | str | None = None


class HasTrace(Protocol):
    """What `transcript_for` reads of a run's state."""

    @property
    def trace(self) -> Sequence[TraceEntry]: ...


def transcript_for(
    state: HasTrace,
    policy: ContextPolicy,
    *,
    input: Any = None,  # noqa: A002 -- the contract's word
) -> list[Turn]:
    """The transcript of a run: its input as user turn, then each call with its result.

    Scopes that do not read give []. Linear, no I/O. Rules: E1...E5.
    """
    if not policy.reads:
        return []
    turns: list[Turn] = [{"role": "user", "content": input}]
    shown = (entry for entry in state.trace if entry.decision in _SHOWN)
    for batch in _batches(shown):
        if len(batch) > 1:
            turns.append(
                {
                    "role": "assistant",
                    "tool_calls": [call_dict(e.call_id or "", e.ref, e.arguments) for e in batch],
                }
            )
            turns.extend(map(_result, batch))
            continue
        turns += [_action(batch[0]), _result(batch[0])]
    return turns


def conversation_transcript(
    records: Log | Iterable[Record], policy: ContextPolicy
) -> Sequence[Turn]:
    """The transcript of a conversation's log: one turn for each message, of all its runs.

    Over a `Log` it is lazy: turns are made as they are touched, with the counts stored in the log.
    Scopes that do not read give []. Rules: E6, F14.
    """
    if not policy.reads:
        return []
    if _is_log(records):
        return LogTurns(records)
    return [record_turn(record) for record in records if record.message is not None]


def _is_log(records: object) -> TypeGuard[Log]:
    return hasattr(records, "systems") and hasattr(records, "cursor")


def _batches(entries: Iterable[TraceEntry]) -> Iterator[list[TraceEntry]]:
    """Successive entries of one step, if all have ids; all others alone. Rule: E4."""
    for step, group in groupby(entries, key=lambda entry: entry.step):
        batch = list(group)
        if step is not None and all(entry.call_id is not None for entry in batch):
            yield batch
        else:
            for entry in batch:
                yield [entry]


def _action(entry: TraceEntry) -> Turn:
    turn: Turn = {"role": "assistant", "ref": _ref(entry)}
    if entry.input_ref is not None:
        turn["content_ref"] = entry.input_ref
    if entry.call_id is not None:
        turn["tool_calls"] = [call_dict(entry.call_id, entry.ref, entry.arguments)]
    return turn


def _result(entry: TraceEntry) -> Turn:
    turn: Turn = {"role": "tool", "ref": _ref(entry)}
    if entry.output_ref is not None:
        turn["content_ref"] = entry.output_ref
    elif entry.output_available:
        turn["content"] = entry.output
    if entry.call_id is not None:
        turn["tool_call_id"] = entry.call_id
    return turn


def _ref(entry: TraceEntry) -> dict[str, str]:
    """What was called. Rule: E2."""
    if entry.decision == "sub":
        return {"kind": "sub", "ref": entry.ref}
    server, slash, tool = entry.ref.partition("/")
    if slash:
        return {"kind": "mcp", "server": server, "tool": tool}
    return {"kind": "native", "name": entry.ref}
