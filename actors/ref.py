"""The address of one incarnation of an actor; mailbox and address are one object.

The mailbox is a list: senders append to it, the one thread that runs the actor takes all of it at
once. No lock guards it. Two flags do:

- `_idle` is true while nobody runs the actor nor is about to. Whoever exchanges it from true to
  false (one statement, hence atomic under the GIL) owns the actor and schedules it. Who stops
  running the actor sets it and then looks at the queue once more.
- `_closed` is set at the actor's end, before the queue is drained for the last time. A sender looks
  at it again after it has appended, and drains too if it is set. `pop` hands every message to
  exactly one of the two, so that no ask is left without an answer (F52).

Beside the data queue there is the control lane (stop, exit signals, Down, suspend, …), a list that
most actors never need; it goes ahead of data.
"""

from __future__ import annotations

import logging
import threading
import weakref
from asyncio import _get_running_loop
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, cast, overload

import pykka

from . import telemetry
from .clock import limit_of
from .context import running_actor
from .errors import ActorDied, MailboxFull
from .exits import KILL, NOPROC, ExitReason, describe
from .future import Future, refuse_on_loop
from .inbox import Inbox
from .life import Life
from .process_bound import ProcessBound
from .propagation import type_name
from .request import AskedItself as AskedItself
from .request import Request as Request

if TYPE_CHECKING:
    from .inspection import Statistics, TraceHandler
    from .system import ActorSystem

A = TypeVar("A", bound="pykka.Actor")
AnyRef: TypeAlias = "pykka.ActorRef[Any]"

_Flag: TypeAlias = Any
"""A bool that other threads change: declared so that checkers do not take it for unchanged."""

CALL_TIMEOUT: Final = 5.0
"""Seconds that `call` waits by default, as gen_server:call does."""

logger = logging.getLogger("keepwell.actors")


class ActorRef(ProcessBound, pykka.ActorRef[A]):
    """The address of one actor; stays that actor's when a successor has been started (F70)."""

    __slots__ = (
        "_actor", "_batch", "_closed", "_control", "_finished", "_handled", "_idle", "_life",
        "_put", "_queue", "_reason", "_serving", "_started", "_system", "actor_class",
    )  # fmt: skip

    _instead_of_pickling = (
        "its actor lives in this process. Give the other one what it needs to start its own, or "
        "talk to this one through a socket or queue"
    )

    def __init__(self, actor: A, system: ActorSystem) -> None:
        self.actor_class = type(actor)
        self._actor: Any = actor
        self._system = system
        self._queue: list[Any] = []
        # What was taken from the queue and is not handled yet, newest first.
        self._batch: list[Any] = []
        self._control: list[tuple[Any, ...]] | None = None
        self._idle: _Flag = False  # nobody may run it before it has started
        self._closed: _Flag = False
        self._finished: _Flag = False
        self._handled = 0
        self._started = 0.0
        self._life: Life | None = None
        self._reason: ExitReason = None
        self._serving: Request | None = None
        self._put: Callable[[Any], object] = _never

    # -- sending ---------------------------------------------------------------------------------

    def tell(self, message: Any) -> None:
        """Send `message` and go on. To a dead actor it is dropped and counted as a dead letter."""
        # Nothing is looked at before: a closed mailbox is drained below, of this message too.
        self._queue.append(message)
        if self._idle:
            idle, self._idle = self._idle, False
            if idle:
                self._put(self)
        if self._closed:
            self._drain()

    @overload
    def ask(
        self, message: Any, *, block: Literal[False], timeout: float | None = None
    ) -> Future[Any]: ...
    @overload
    def ask(self, message: Any, *, block: Literal[True], timeout: float | None = None) -> Any: ...
    @overload
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any: ...

    def ask(  # pyright: ignore[reportIncompatibleMethodOverride]  # the future is ours
        self, message: Any, *, block: bool = True, timeout: float | None = None
    ) -> Any:
        """Send `message` and wait in this thread for the reply (pykka's way).

        Raises what the actor answers with; ActorDied if it ends before it answers, or is dead;
        CallTimeout after `timeout` seconds (None: waits for ever); AskedItself; BlockingOnLoop on
        an event-loop thread. With `block=False` returns the future, without a time limit; an actor
        may leave itself a request so, but AskedItself is raised if its handler waits for it.
        """
        if timeout is not None:
            timeout = limit_of(timeout)
        if block:
            refuse_on_loop("ask()", "await ref.call(message) instead")
        request = Request()
        request.message = message
        if running_actor.get() is self and self._in_handler():
            if block:
                raise AskedItself(self)
            request._guard = self._refuse_own_wait
        self._send(request)
        return request.get(timeout=timeout) if block else request

    def call(self, message: Any, *, timeout: float | None = CALL_TIMEOUT) -> Future[Any]:
        """Send `message`; the future gets the reply. `await` it, or `.get()` it in a thread.

        It fails with what the actor answers with; with ActorDied if the actor ends before it
        answers, or is dead (`noproc`, at once); with CallTimeout after `timeout` seconds (None: no
        limit; 0 is allowed), which leaves the actor alone, a late reply is dropped (CALL-4). Raises
        AskedItself at once.
        """
        if running_actor.get() is self and self._in_handler():
            raise AskedItself(self)
        if timeout is not CALL_TIMEOUT:
            timeout = limit_of(timeout)
        request = Request()
        request.message = message
        self._send(request)
        if timeout is not None and not request.done():
            self._system.deadlines.add(request, timeout, self)
        return request

    def _send(self, request: Request) -> None:
        if self._closed:
            request.fail(self._noproc())
            return
        self._queue.append(request)
        if self._idle:
            idle, self._idle = self._idle, False
            if idle:
                self._put(self)
        if self._closed:
            self._drain()

    def _in_handler(self) -> bool:
        # Asked when the context says that this actor runs. A coroutine has inherited the context:
        # handlers of this kind do not run on a loop.
        return _get_running_loop() is None

    def _refuse_own_wait(self) -> None:
        if running_actor.get() is self and self._in_handler():
            raise AskedItself(self)

    # -- the control lane ------------------------------------------------------------------------

    def _send_control(self, *item: Any) -> bool:
        """Put an item into the control lane; False if the actor has ended."""
        if self._closed:
            self._system.check_process()
            return False
        control = self._control
        if control is None:
            control = self._make_control()
        if item[0] == KILL_NOW:
            control.insert(0, item)
        else:
            control.append(item)
        idle, self._idle = self._idle, False
        if idle:
            self._put(self)
        else:
            self._attention()
        if self._closed:
            self._drain()
        return True

    def _make_control(self) -> list[tuple[Any, ...]]:
        with making:
            if self._control is None:
                self._control = []
            return self._control

    def _attention(self) -> None:
        """Called when an item was put into the control lane of an actor that is running."""

    def _is_running(self) -> bool:
        """Whether its code may be running or waiting to go on, seen from another thread."""
        return self._system.scheduler.is_running(self)

    def _abandon(self) -> None:
        """Called when it was ended by force, whatever its code does."""

    @overload
    def stop(
        self,
        *,
        block: Literal[True] = True,
        timeout: float | None = None,
        reason: ExitReason = "normal",
    ) -> bool: ...
    @overload
    def stop(
        self, *, block: Literal[False], timeout: float | None = None, reason: ExitReason = "normal"
    ) -> Future[bool]: ...
    @overload
    def stop(
        self, *, block: bool = True, timeout: float | None = None, reason: ExitReason = "normal"
    ) -> bool | Future[bool]: ...

    def stop(
        self, *, block: bool = True, timeout: float | None = None, reason: ExitReason = "normal"
    ) -> bool | Future[bool]:
        """Stop the actor after the message it is handling, ahead of what is queued (F54).

        True once it has ended, `on_stop` included; False if it was dead. Queued asks fail with
        ActorDied. With `block=False` returns a future of that. Raises CallTimeout after `timeout`
        seconds, AskedItself if an actor waits for its own end, BlockingOnLoop on a loop's thread.
        """
        timeout = limit_of(timeout)
        if block and not self._closed:
            refuse_on_loop("stop()", "await ref.stop(block=False) instead")
        future: Future[bool] = Future()
        if running_actor.get() is self and self._in_handler():
            if block and not self._closed:
                raise AskedItself(self)
            future._guard = self._refuse_own_wait
        if not self._system.scheduler.stop_idle(self, reason, future) and not self._send_control(
            STOP, reason, future
        ):
            future.complete(False)
        return future.get(timeout=timeout) if block else future

    def exit(self, reason: ExitReason) -> None:
        """Send an exit signal, as OTP's exit/2: `kill` cannot be trapped, others can (SIG-1..3)."""
        if reason == KILL and isinstance(reason, str):
            self.kill()
        else:
            self._send_control(SIGNAL, running_actor.get(), reason)

    def kill(self) -> None:
        """End the actor without any hook; peers see `killed`.

        A handler that is running and does not return within the grace time (0.1 s) is fenced: the
        mailbox is closed, its asker is failed, its thread abandoned and counted.
        """
        if self._send_control(KILL_NOW):
            self._system.scheduler.fence_later(self)

    def suspend(self) -> Future[None]:
        """Keep messages waiting, exits included, until `resume` (SYS-1)."""
        return self._system_call(SUSPEND)

    def resume(self) -> Future[None]:
        """Go on after `suspend`."""
        return self._system_call(RESUME)

    def get_state(self) -> Future[Any]:
        """What the actor's `get_state()` returns, even while it is suspended or has a queue."""
        return self._system_call(GET_STATE)

    def statistics(self) -> Future[Statistics]:
        """State, messages handled and waiting, uptime, links, monitors, last error; see Statistics.

        Between two messages, ahead of what waits. `inspection.statistics(ref)` looks without
        waiting for that, and at the dead too.
        """
        return self._system_call(STATISTICS)

    def trace(self, handler: TraceHandler | None) -> Future[None]:
        """Call `handler(TraceEvent)` as the actor receives and has handled each message.

        In the actor's thread: it must be quick. None ends the trace, another handler replaces it;
        one that raises is removed. Done when it is in force.
        """
        return self._system_call(TRACE, handler)

    def _system_call(self, kind: int, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if not self._send_control(kind, *arguments, future):
            future.fail(self._noproc())
        elif not future.done():
            self._system.deadlines.add(future, CALL_TIMEOUT, self)
        return future

    # -- looking ---------------------------------------------------------------------------------

    def is_alive(self) -> bool:
        """Whether the actor has not ended yet; it may be about to."""
        return not self._closed

    @property
    def mailbox_size(self) -> int:
        """How many messages wait."""
        return len(self._queue) + len(self._batch)

    @property
    def exit_reason(self) -> ExitReason:
        """Why the actor ended; None while it lives."""
        return self._reason

    @property
    def name(self) -> str | None:
        """The name it is registered under."""
        return self._life.name if self._life is not None else None

    @property
    def path(self) -> str | None:
        """Its supervisors' names for it from the root down, `Root/stores/writer`; None if none."""
        items: list[str] = []
        ref: Any = self
        while ref is not None:
            life = ref._life
            parent = None if life is None else life.parent
            if life is not None and parent is not None and life.child_id is not None:
                items.append(str(life.child_id))
            elif items:
                items.append(ref.name or ref.actor_class.__name__)
            ref = parent
        return "/".join(reversed(items)) if items else None

    @property
    def system(self) -> ActorSystem:
        """The actor system it belongs to."""
        return self._system

    @property
    def actor_urn(self) -> str:  # type: ignore[override]  # pykka's is a plain attribute
        """pykka's unique name of the actor; made when it is first asked for."""
        return self._get_life().get_urn()

    @property
    def actor_inbox(self) -> Inbox:  # type: ignore[override]  # pykka's is a plain attribute
        """pykka's view of the mailbox."""
        return Inbox(self)

    @property
    def actor_stopped(self) -> threading.Event:  # type: ignore[override]  # pykka's is one
        """pykka's event that is set at the actor's end; made when it is first asked for."""
        return self._get_life().get_stopped(self)

    @property
    def _actor_weakref(self) -> Any:  # type: ignore[override]  # pykka's is a plain attribute
        actor = self._actor
        return (lambda: None) if actor is None else weakref.ref(actor)

    def __str__(self) -> str:
        label = self.name or self.path
        if label is None:
            label = self._life.urn if self._life is not None and self._life.urn else f"{id(self):x}"
        return f"{self.actor_class.__name__} ({label})"

    def __repr__(self) -> str:
        return f"<ActorRef for {self}>"

    # -- the actor's end -------------------------------------------------------------------------

    def on_exit(self, callback: Callable[[ExitReason], object]) -> Callable[[], None]:
        """Call `callback(reason)` at the actor's end, before links and monitors are told.

        It runs once, in the thread that ends the actor, at once if it is dead (`noproc`). Returns a
        function that takes it back. For owners of resources: tables die with their owner so.
        """
        return self._get_life().add_exit_callback(self, callback)

    def ended(self) -> Future[ExitReason]:
        """Return a future of the exit reason, done when the end is over (F47).

        By then the hooks have run, the name is free again, and links and monitors have been told.
        At once for an actor that has ended.
        """
        future: Future[ExitReason] = Future()
        self._get_life().add_end_future(self, future)
        return future

    def _get_life(self) -> Life:
        life = self._life
        return new_life(self) if life is None else life

    def _noproc(self) -> ActorDied:
        self._system.check_process()
        return ActorDied(f"{self} not found", reason=NOPROC)  # pykka's words

    def _died(self) -> ActorDied:
        reason = self._reason
        return ActorDied(f"{self} ended before it replied: {describe(reason)}", reason=reason)

    def _dead_letter(self, message: Any) -> None:
        system = self._system
        system.check_process()
        system.dead_letters += 1
        if telemetry.enabled("keepwell.actor.dead_letter"):
            telemetry.emit(
                "keepwell.actor.dead_letter",
                ref=self, message_type=type_name(message), sender=running_actor.get(),
            )  # fmt: skip

    def unanswered(self) -> list[Request]:
        """The requests that wait for this actor's answer, in no particular order."""
        life = self._life
        taken = (*(life.batch or ()), *(life.deferred or ())) if life is not None else ()
        waiting = (*self._queue, *self._batch, self._serving, *taken)
        return [request for request in waiting if isinstance(request, Request)]

    def _drain(self) -> None:
        """Fail what is left in a closed mailbox. Any number of threads may do so at once."""
        for queue in (self._batch, self._queue):
            while queue:
                try:
                    message = queue.pop()
                except IndexError:
                    break
                if message.__class__ is Request:
                    message.fail(self._died())
                else:
                    self._dead_letter(message)
        control = self._control
        while control:
            try:
                item = control.pop()
            except IndexError:
                break
            if item[0] == STOP:
                if item[2] is not None:
                    item[2].complete(True)
            elif item[-1].__class__ is Future:
                item[-1].fail(self._died())


class Bounded(ActorRef[A]):
    """The ref of an actor whose class sets `max_mailbox`: full means MailboxFull."""

    __slots__ = ()

    def tell(self, message: Any) -> None:
        """Send as `ActorRef.tell`; raises MailboxFull if `max_mailbox` messages wait."""
        if self._closed:
            self._dead_letter(message)
        else:
            self._put_in(message)

    def _send(self, request: Request) -> None:
        if self._closed:
            request.fail(self._noproc())
            return
        try:
            self._put_in(request)
        except MailboxFull as full:
            request.fail(full)

    def _put_in(self, message: Any) -> None:
        capacity: int = cast("Any", self.actor_class).max_mailbox
        with counting:  # or several senders would each take the last place
            if len(self._queue) + len(self._batch) >= capacity:
                raise MailboxFull(str(self), capacity)
            self._queue.append(message)
        idle, self._idle = self._idle, False
        if idle:
            self._put(self)
        if self._closed:
            self._drain()


# Kinds of control items; what follows them in the tuple stands in `control.attend`.
STOP, SIGNAL, KILL_NOW, DELIVER, CONTINUE, START = range(6)
SUSPEND, RESUME, GET_STATE, STATISTICS, TRACE, IDLE_ARM, IDLE = range(6, 13)

making = threading.Lock()
counting = threading.Lock()


def _never(_ref: Any) -> None:
    raise AssertionError("an actor was scheduled before it was started")


def new_life(ref: ActorRef[Any]) -> Life:
    """Give `ref` its Life, the rarely needed part of an actor's state; at most one is made."""
    with making:
        life = ref._life
        if life is None:
            life = ref._life = Life()  # noqa: SLF001 - its own
            if ref._closed:  # looked at after the assignment: `end` looks for a Life after closing
                life.end_futures = ()
    return life
