"""What a turn gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..stores.frozen import slot_setters
from .model import Usage
from .turn import Batch, TurnState

if TYPE_CHECKING:
    from ..stores.message import Message
    from .approval import PendingCall
    from .output import OutputForm

TurnStatus = Literal["completed", "paused", "failed", "limit", "cancelled", "abandoned", "running"]


@dataclass(frozen=True, slots=True, init=False)
class Step:
    """One model call ("model") or one tool call ("tool") of a turn, as it stands in the log.

    `number` is the n of the append id `turn_id/n`. `name` is the tool's, "" for a model. `error`
    is the type of a tool's error result (TL-4), else None.
    """

    number: int
    kind: Literal["model", "tool"]
    name: str = ""
    call_id: str = ""
    error: str | None = None

    # By hand, since every turn gives several: see `slot_setters`.
    def __init__(
        self,
        number: int,
        kind: Literal["model", "tool"],
        name: str = "",
        call_id: str = "",
        error: str | None = None,
    ) -> None:
        _set_number(self, number)
        _set_kind(self, kind)
        _set_name(self, name)
        _set_call(self, call_id)
        _set_error(self, error)


_set_number, _set_kind, _set_name, _set_call, _set_error = slot_setters(Step)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """A turn's outcome.

    `text`: the answer ("" while paused). `messages`: the turn's messages, the question first,
    results in call order. `usage`: the sum over its model calls (US-1). `status`: "completed", or
    "paused" with the calls that wait in `pending`. `output`: the answer's value if the agent has
    an `output=` form, else None. `agent`: the name of the agent that had the turn at its end.
    """

    text: str
    messages: tuple[Message, ...]
    usage: Usage
    turn_id: str
    steps: tuple[Step, ...]
    status: TurnStatus
    conversation_id: str = ""
    pending: tuple[PendingCall, ...] = field(default=())
    output: Any = None
    agent: str = ""


def turn_result(
    turn: TurnState, conversation_id: str, form: OutputForm | None = None, agent: str = ""
) -> TurnResult:
    """The result of a turn in this state. Pure: the same from the log as from memory (AG-6).

    An answer of an older time, when the agent asked for another form, has no output.
    """
    pending = turn.pending()
    if turn.ended is not None:
        status: TurnStatus = turn.ended  # type: ignore[assignment]  # only END_STATUSES are written
    else:
        status = "paused" if pending else "running"
    steps: list[Step] = []
    for number, entry in turn.entries():
        if isinstance(entry, Batch):
            steps.append(Step(number, "model"))
            steps.extend(
                Step(call.step, "tool", call.call.name, call.call.id, call.error)
                for call in entry.calls
                if call.result is not None
            )
        elif number:
            steps.append(Step(number, "model"))
    text = turn.answer.text if status == "completed" and turn.answer is not None else ""
    return TurnResult(
        text,
        tuple(turn.messages()),
        turn.usage,
        turn.turn_id,
        tuple(steps),
        status,
        conversation_id,
        pending,
        _output(form, text),
        agent,
    )


def _output(form: OutputForm | None, text: str) -> object:
    if form is None or not text:
        return None
    try:
        return form.read(text)
    except ValueError:
        return None
