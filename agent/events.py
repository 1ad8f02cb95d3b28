"""What a stream shows of a turn, in this order (EV-1):

    TurnStarted, per step: ModelStarted, TextDelta…, ModelEnded, ToolStarted…, ToolEnded…;
    then Paused or TurnEnded, or the exception that `run` would raise.

`ModelEnded` and `ToolEnded` come after the commit of their record. The deltas of a step join to
the stored text; `StepRestarted` says that a model call is repeated and its deltas so far are void.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..stores.message import Message
    from .approval import PendingCall
    from .result import TurnResult


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The turn was admitted, or re-attached to."""

    conversation_id: str
    turn_id: str


@dataclass(frozen=True, slots=True)
class ModelStarted:
    """A model call begins; its reply becomes `step`."""

    step: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the reply's text. A slow reader gets merged pieces (EV-2)."""

    step: int
    text: str


@dataclass(frozen=True, slots=True)
class StepRestarted:
    """The model call of `step` is repeated: forget its deltas."""

    step: int


@dataclass(frozen=True, slots=True)
class ModelEnded:
    """The reply of `step` is stored."""

    step: int
    message: Message


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool call is about to run."""

    step: int
    call_id: str
    name: str
    arguments: Mapping[str, object] | str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """The call's result is stored; `error` is its type (TL-4) or None."""

    step: int
    call_id: str
    name: str
    content: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Paused:
    """Last event: calls wait for a human; `resume` goes on."""

    pending: tuple[PendingCall, ...]
    result: TurnResult


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """Last event: the turn has completed."""

    result: TurnResult


Event = (
    TurnStarted
    | ModelStarted
    | TextDelta
    | StepRestarted
    | ModelEnded
    | ToolStarted
    | ToolEnded
    | Paused
    | TurnEnded
)
