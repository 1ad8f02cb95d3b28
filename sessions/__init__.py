"""Channels, sessions, their events and durability, flows (floor 6)."""

from ..stores.plain import NotPlain, Plain, value_fingerprint
from ..stores.session_errors import (
    ChannelFull,
    EventsTrimmed,
    IdempotencyConflict,
    NotFound,
    SessionClosed,
    SessionCursorConflict,
    SessionFenced,
)
from ..stores.session_event import DeadLetter, SessionEvent
from ..stores.session_state import Ack
from .channel import Channel
from .coroutine_body import LiveSession
from .drive import SessionResult, drive_session, run_session
from .errors import (
    ChannelUndeclared,
    MaxTurnsExceeded,
    PayloadInvalid,
    PayloadTooLarge,
    RaceFailed,
    RecvTimeout,
    SessionConflict,
    SessionDefinitionError,
    SessionFailed,
    SessionTurnError,
    SessionValidationError,
    SubFailed,
    TurnOver,
)
from .finding import Finding
from .session import NO_OUTPUT, Session, loop, scan, session
from .session_handle import SessionHandle
from .session_view import Closed, SessionView, TurnOutcome
from .turn_context import Turn, current_turn

__all__ = [
    "NO_OUTPUT",
    "Ack",
    "Channel",
    "ChannelFull",
    "ChannelUndeclared",
    "Closed",
    "DeadLetter",
    "EventsTrimmed",
    "Finding",
    "IdempotencyConflict",
    "LiveSession",
    "MaxTurnsExceeded",
    "NotFound",
    "NotPlain",
    "PayloadInvalid",
    "PayloadTooLarge",
    "Plain",
    "RaceFailed",
    "RecvTimeout",
    "Session",
    "SessionClosed",
    "SessionConflict",
    "SessionCursorConflict",
    "SessionDefinitionError",
    "SessionEvent",
    "SessionFailed",
    "SessionFenced",
    "SessionHandle",
    "SessionResult",
    "SessionTurnError",
    "SessionValidationError",
    "SessionView",
    "SubFailed",
    "Turn",
    "TurnOutcome",
    "TurnOver",
    "current_turn",
    "drive_session",
    "loop",
    "run_session",
    "scan",
    "session",
    "value_fingerprint",
]
