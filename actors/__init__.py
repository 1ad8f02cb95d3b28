"""Actors, mailboxes, refs, futures, schedulers, exits, names, clock, telemetry (floor 1)."""

from . import failpoint, groups, names, registry, telemetry
from .actor import Actor, IdleTimeout
from .async_actor import AsyncActor
from .clock import Clock, SystemClock, Timer, VirtualClock
from .context import current_actor, current_system
from .errors import (
    ActorDied,
    CallTimeout,
    InvalidValue,
    KeepwellError,
    MailboxFull,
    RequestError,
    StartFailed,
    Unavailable,
)
from .exits import (
    Down,
    Exit,
    ExitActor,
    ExitReason,
    Ignore,
    Monitor,
    Reply,
    Shutdown,
    TableTransfer,
    is_orderly,
)
from .future import BlockingOnLoop, Future
from .inspection import Statistics, TraceEvent
from .names import NamedRef, NameTaken, NotRegistered
from .process_bound import NotPicklable
from .ref import ActorRef
from .request import AskedItself, Request
from .starting import AlreadyStarted
from .system import ActorSystem, ForkedProcess
from .thread_actor import ThreadActor

registry.install()

__all__ = [
    "Actor",
    "ActorDied",
    "ActorRef",
    "ActorSystem",
    "AlreadyStarted",
    "AskedItself",
    "AsyncActor",
    "BlockingOnLoop",
    "CallTimeout",
    "Clock",
    "Down",
    "Exit",
    "ExitActor",
    "ExitReason",
    "ForkedProcess",
    "Future",
    "IdleTimeout",
    "Ignore",
    "InvalidValue",
    "KeepwellError",
    "MailboxFull",
    "Monitor",
    "NameTaken",
    "NamedRef",
    "NotPicklable",
    "NotRegistered",
    "Reply",
    "Request",
    "RequestError",
    "Shutdown",
    "StartFailed",
    "Statistics",
    "SystemClock",
    "TableTransfer",
    "ThreadActor",
    "Timer",
    "TraceEvent",
    "Unavailable",
    "VirtualClock",
    "current_actor",
    "current_system",
    "failpoint",
    "groups",
    "is_orderly",
    "names",
    "telemetry",
]
