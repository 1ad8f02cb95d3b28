"""What is known of an actor from outside: its statistics, and a trace of what it handles."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from .exits import describe, is_orderly
from .propagation import Carried, type_name

if TYPE_CHECKING:
    from .ref import ActorRef, AnyRef

logger = logging.getLogger("keepwell.actors")


class Statistics(TypedDict):
    """What `ActorRef.statistics` gives; a snapshot."""

    state: Literal["idle", "busy", "suspended", "ended"]
    """busy: it handles a message, or some wait."""
    name: str | None
    path: str | None
    """Its place in the supervision tree, as `Root/stores/writer`."""
    handled: int
    """Messages so far, those that it trapped or got by monitors included."""
    mailbox: int
    """Messages that wait."""
    uptime: float
    """Seconds since its start."""
    restarts: int
    """How often its supervisor has started it again, this incarnation included."""
    suspended: bool
    links: list[AnyRef]
    monitors: int
    """How many watch it."""
    last_message: str | None
    """The type of the message that it crashed on."""
    last_error: str | None
    """The last error it answered with, or why it ended, as text."""


def statistics(ref: ActorRef[Any]) -> Statistics:
    """Return what is known of an actor, living or dead, without asking it."""
    life = ref._life
    suspended = bool(life and life.suspended)
    mailbox = ref.mailbox_size
    error = life.last_error if life else None
    if ref._closed:
        state: Literal["idle", "busy", "suspended", "ended"] = "ended"
        error = None if is_orderly(ref._reason) else describe(ref._reason)
    elif suspended:
        state = "suspended"
    else:
        state = "idle" if ref._idle and not mailbox else "busy"
    return {
        "state": state,
        "name": life.name if life else None,
        "path": ref.path,
        "handled": ref._handled,
        "mailbox": mailbox,
        "uptime": ref._system.clock.monotonic() - ref._started,
        "restarts": life.restarts if life else 0,
        "suspended": suspended,
        "links": list(life.links or ()) if life else [],
        "monitors": len(life.monitors or ()) if life else 0,
        "last_message": life.last_message if life else None,
        "last_error": error,
    }


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One step of a traced actor; tells the types of messages, never their contents.

    kind: `received`, and then `handled` or `failed` with its `error`. seconds: how long handling
    took, waits of a coroutine included; None for `received`. Several messages that come as one
    batch are one step, `batch of 3`.
    """

    ref: ActorRef[Any]
    kind: Literal["received", "handled", "failed"]
    message_type: str
    seconds: float | None = None
    error: BaseException | None = None


TraceHandler: TypeAlias = Callable[[TraceEvent], object]


def set_trace(ref: ActorRef[Any], actor: Any, handler: TraceHandler | None) -> None:
    """Trace an actor from its next message on, or no more; runs in the actor.

    Its receiving methods are wrapped on the one instance: who is not traced pays nothing.
    """
    life = ref._get_life()
    for name, before in (life.traced or {}).items():
        if before is None:
            vars(actor).pop(name, None)
        else:
            setattr(actor, name, before)
    life.traced = None
    if handler is None:
        return
    tracer = _Tracer(ref, actor, handler)
    wrapped = {"on_receive": tracer.wrap(actor.on_receive, type_name)}
    wrapped["_handle_receive"] = tracer.wrap_special(actor._handle_receive)
    if actor.has_on_batch:
        wrapped["on_batch"] = tracer.wrap(actor.on_batch, lambda batch: f"batch of {len(batch)}")
    life.traced = {name: vars(actor).get(name) for name in wrapped}
    for name, method in wrapped.items():
        setattr(actor, name, method)


class _Tracer:
    def __init__(self, ref: ActorRef[Any], actor: Any, handler: TraceHandler) -> None:
        self.ref, self.actor, self.handler = ref, actor, handler
        self.now = ref._system.clock.monotonic

    def tell(self, event: TraceEvent) -> None:
        try:
            self.handler(event)
        except BaseException:
            logger.exception("the trace handler of %s failed; it is removed", self.ref)
            set_trace(self.ref, self.actor, None)

    def wrap(
        self, method: Callable[[Any], Any], name_of: Callable[[Any], str]
    ) -> Callable[[Any], Any]:
        def traced(message: Any) -> Any:
            name, begin = name_of(message), self.now()
            self.tell(TraceEvent(self.ref, "received", name))
            try:
                value = method(message)
            except BaseException as error:
                self.tell(TraceEvent(self.ref, "failed", name, self.now() - begin, error))
                raise
            if value.__class__ is CoroutineType:
                return self.follow(value, name, begin)
            self.tell(TraceEvent(self.ref, "handled", name, self.now() - begin))
            return value

        return traced

    def wrap_special(self, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        from .runner import SPECIAL  # runners need this module

        traced = self.wrap(method, type_name)

        def special(message: Any) -> Any:
            # All others come to on_receive, sooner or later.
            kind = message.__class__
            return (traced if kind in SPECIAL and kind is not Carried else method)(message)

        return special

    async def follow(self, coroutine: Coroutine[Any, Any, Any], name: str, begin: float) -> Any:
        try:
            value = await coroutine
        except BaseException as error:
            self.tell(TraceEvent(self.ref, "failed", name, self.now() - begin, error))
            raise
        self.tell(TraceEvent(self.ref, "handled", name, self.now() - begin))
        return value
