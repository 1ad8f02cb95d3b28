"""Why an actor ended, and the messages that tell others of it.

An exit reason is a plain value: `"normal"`, `"shutdown"`, `Shutdown(detail)`, `"killed"`,
`"noproc"` (there was no such actor), any other word, or the exception that nobody caught.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from .ref import ActorRef, AnyRef

ExitReason: TypeAlias = Any
"""`"normal"`, `"shutdown"`, `Shutdown(x)`, `"killed"`, `"noproc"`, another word, an exception."""

NORMAL: Final = "normal"
SHUTDOWN: Final = "shutdown"
KILL: Final = "kill"
KILLED: Final = "killed"
NOPROC: Final = "noproc"

_DEEPEST: Final = 100
"""Reasons within reasons that are looked through: any object may be one, and refer to itself."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The exit reason `shutdown: detail`, OTP's `{shutdown, Detail}`: orderly, with a reason."""

    detail: Any

    def __str__(self) -> str:
        return f"shutdown: {self.detail}"


def is_orderly(reason: ExitReason) -> bool:
    """Whether a transient child that ended so stays down (TYPE-2)."""
    return reason in (NORMAL, SHUTDOWN) if isinstance(reason, str) else isinstance(reason, Shutdown)


def describe(reason: ExitReason) -> str:
    """Return `repr(reason)`; never raises, whatever object the reason is."""
    try:
        return repr(reason)
    except Exception as error:
        return f"<{type(reason).__name__}, whose repr raises {type(error).__name__}>"


def root_cause(reason: ExitReason) -> BaseException | None:
    """The exception that a reason comes from, however many supervisors it came through.

    `Shutdown(detail)` and details that have a `reason` of their own are looked through.
    """
    for _ in range(_DEEPEST):
        if isinstance(reason, BaseException):
            return reason
        reason = reason.detail if isinstance(reason, Shutdown) else getattr(reason, "reason", None)
    return None


class ExitActor(Exception):
    """Raise it in a hook or handler to end this actor; peers see `reason` itself."""

    def __init__(self, reason: ExitReason = NORMAL) -> None:
        super().__init__(reason)
        self.reason = reason


class Reply(Exception):
    """Raise `Reply(error)` in a handler: the asker gets `error`, the actor lives.

    For a tell, which has no asker, it is dropped.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class _Ignore:
    __slots__ = ()

    def __repr__(self) -> str:
        return "Ignore"


Ignore: Final[Any] = _Ignore()
"""What `on_start` returns to say: no actor is needed here, and that is no failure (INIT-3)."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A trapping actor's linked peer `ref` ended, or `ref` sent it an exit signal (LINK-2).

    `ref` is None for a signal that no actor sent.
    """

    ref: AnyRef | None
    reason: ExitReason


class Monitor:
    """A one-way watch on an actor or name, made by `Actor.monitor`; ends with its `Down`."""

    __slots__ = ("__weakref__", "active", "name", "ref", "watcher")

    def __init__(self, watcher: ActorRef[Any], ref: AnyRef | None, name: str | None) -> None:
        self.watcher = watcher
        self.ref = ref
        self.name = name
        # Cleared by demonitor and by delivery: a Down that is already queued is then dropped.
        self.active = True

    def __repr__(self) -> str:
        return f"<Monitor of {self.name or self.ref}>"


@dataclass(frozen=True, slots=True)
class Down:
    """The monitored actor ended, or was not there (`noproc`); `name` if it was watched by name."""

    monitor: Monitor
    ref: AnyRef | None
    name: str | None
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class TableTransfer:
    """A table is the receiver's now: as its heir, or because its owner gave it away (ETS-13)."""

    table: Any
    old_owner: AnyRef
    data: Any
