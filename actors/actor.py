"""What all kinds of actors share, and the light actor.

`Actor` is a `pykka.Actor`: the same hooks, the same proxies. It differs where a rule of OTP or of
the design says so: a message is handled after `on_start` has succeeded, an exception ends the actor
whether it came by tell or by ask, stop goes ahead of queued messages.
"""

from __future__ import annotations

import inspect
import logging
from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

import pykka
from pykka.messages import _ActorStop

from . import bonds, lifecycle, propagation, runner, starting
from .clock import checked_seconds, limit_of
from .context import current_system, starting_system
from .errors import RequestError, StartFailed
from .exits import NORMAL, ExitReason, Ignore, Monitor
from .future import Future, refuse_on_loop
from .ref import CONTINUE, IDLE_ARM, START, STOP, ActorRef, AnyRef, Bounded
from .request import Request

if TYPE_CHECKING:
    from .clock import Timer
    from .system import ActorSystem

logger = logging.getLogger("keepwell.actors")


class IdleTimeout:
    """The message of `Actor.idle_timeout`: none came in that time."""

    def __repr__(self) -> str:
        return "IdleTimeout()"


class Actor(pykka.Actor):
    """A light actor: many share a few threads, and a handler may block.

    Override `on_receive(message)`; what it returns is the reply of an ask. An exception ends the
    actor with itself as the reason, and the asker gets ActorDied; raise a RequestError, or
    `Reply(error)`, to answer with an error and live. Hooks: `on_start` (before any message; may
    return `Ignore`), `on_stop` (orderly end), `on_failure` (crash).
    """

    __slots__ = ("_actor_ref",)
    _actor_ref: ActorRef[Any]

    trap_exit: bool = False
    """Whether exit signals of linked actors come as `Exit` messages. May change at run time."""

    otp_shutdown: ClassVar[bool] = False
    """Whether only an actor that traps exits runs its hook on shutdown, as in OTP (SHUT-5)."""

    max_mailbox: ClassVar[int | None] = None
    """How many messages may wait before senders get MailboxFull; None: any number."""

    start_timeout: ClassVar[float | None] = None
    """Seconds that `on_start` may take; beyond, the actor is killed and the start has failed."""

    vital: ClassVar[bool] = False
    """Whether waits in its handlers do not count towards the bound of the pool's threads.

    For actors that others need in order to go on, as supervisors: were they to use the bound up,
    all waiting for children, no thread would be left in which a child could end.
    """

    exit_reason: ExitReason = None
    """Why the actor ends; set before `on_stop` or `on_failure` runs."""

    has_on_start: ClassVar[bool] = False
    has_on_stop: ClassVar[bool] = False
    has_on_batch: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.has_on_start = cls.on_start is not pykka.Actor.on_start
        cls.has_on_stop = cls.on_stop is not pykka.Actor.on_stop
        cls.has_on_batch = cls.on_batch is not Actor.on_batch

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        system = starting_system.get() or current_system()
        # Only ever a ref of ours, where pykka's may be any.
        self._actor_ref = (  # pyright: ignore[reportIncompatibleVariableOverride]
            self._make_ref(system)
        )

    def _make_ref(self, system: ActorSystem) -> ActorRef[Any]:
        return (ActorRef if self.max_mailbox is None else Bounded)(self, system)

    # -- starting --------------------------------------------------------------------------------

    @classmethod
    def start(  # pyright: ignore[reportIncompatibleMethodOverride]  # the ref is ours
        cls, *args: Any, **kwargs: Any
    ) -> ActorRef[Self]:
        """Start an actor and return its ref once `on_start` has succeeded.

        The arguments go to `__init__`, which runs here, in the caller's thread. `name=` registers
        the actor, unless `__init__` itself takes a `name`. Returns `Ignore` if `on_start` did.
        Raises StartFailed with the reason; BlockingOnLoop on an event-loop thread (use `spawn`).
        """
        if _get_running_loop() is not None:
            refuse_on_loop(f"{cls.__name__}.start()", f"await {cls.__name__}.spawn(...) instead")
        if "name" in kwargs and not takes_name(cls):
            return cls.options(name=kwargs.pop("name")).start(*args, **kwargs)
        if cls.start_timeout is not None or not cls._starts_in_caller:
            return cls.options().start(*args, **kwargs)
        try:
            actor = cls(*args, **kwargs)
            ref = actor._actor_ref
        except BaseException as error:
            failure = starting.fail_init(cls, error)
            raise failure from failure.__cause__
        system = ref._system
        ref._started = system.clock.monotonic()
        system.scheduler.add_light(ref)
        system.actors[ref] = None
        if system.closed:  # looked at after the entry, which closing looks for after the flag
            raise starting.refuse_closed(ref)
        if cls.has_on_start:
            try:
                ignored = starting.on_start(ref, actor) is Ignore
            except BaseException as error:
                failure = starting.fail_start(ref, error)
                raise failure from failure.__cause__
            if ref._finished:
                raise lifecycle.start_failed(ref, ref._reason)
            if ignored:
                starting.ignore_start(ref)
                return cast("ActorRef[Self]", Ignore)
        starting.open_mailbox(ref)
        return ref

    @classmethod
    def spawn(cls, *args: Any, **kwargs: Any) -> Future[ActorRef[Self]]:
        """Start an actor; the future gets its ref once `on_start` has succeeded. See `start`."""
        if "name" in kwargs and not takes_name(cls):
            return cls.options(name=kwargs.pop("name")).spawn(*args, **kwargs)
        return cls.options().spawn(*args, **kwargs)

    @classmethod
    def options(
        cls,
        *,
        name: str | None = None,
        timeout: float | None = None,
        link: ActorRef[Any] | None = None,
        parent: ActorRef[Any] | None = None,
        system: ActorSystem | None = None,
    ) -> Starter[Self]:
        """Return something with `start` and `spawn` that starts this class with options.

        name: registered before `on_start` runs; if it is taken the start fails with
        `already_started`. timeout: seconds for `on_start`, after which the actor is killed and the
        start fails with `timeout`. link: an actor to be linked with; parent: the same, and its exit
        signal ends this actor even if it traps exits. system: the actor system, else the current
        one.
        """
        return Starter(cls, name, timeout, link, parent, system)

    _starts_in_caller: ClassVar[bool] = True

    def _launch(self, ref: ActorRef[Any], future: Future[Any], *, blocking: bool) -> None:
        """Bring a registered actor up; `future` gets its ref, `Ignore`, or the failure."""
        ref._system.scheduler.add_light(ref)
        if not self.has_on_start:
            starting.open_mailbox(ref)
            future.complete(ref)
        elif blocking:
            if starting.start_here(ref, self, future):
                starting.open_mailbox(ref)
        else:
            # Not started, hence not idle: the runner finds the item, which goes first of all.
            ref._get_life().starting = future
            ref._make_control().insert(0, (START, future))
            ref._put(ref)

    # -- inside the actor ------------------------------------------------------------------------

    @property
    def system(self) -> ActorSystem:
        """The actor system this actor belongs to."""
        return self._actor_ref._system

    @property
    def actor_urn(self) -> str:  # type: ignore[override]  # pykka's is a plain attribute
        """pykka's unique name of this actor."""
        return self._actor_ref.actor_urn

    @property
    def actor_inbox(self) -> Any:  # type: ignore[override]  # pykka's is a plain attribute
        """pykka's view of the mailbox."""
        return self._actor_ref.actor_inbox

    @property
    def actor_stopped(self) -> Any:  # type: ignore[override]  # pykka's is a plain attribute
        """pykka's event that is set at the actor's end."""
        return self._actor_ref.actor_stopped

    def __str__(self) -> str:
        return str(self._actor_ref)

    def on_receive(self, message: Any) -> Any:
        """Handle a message; the return value answers an ask. The default logs its type."""
        logger.warning(
            "Unexpected message received by %s: a %s", self, type(message).__name__
        )

    def on_batch(self, requests: list[Request]) -> None:
        """Where a class defines it, it gets all waiting messages at once instead of `on_receive`.

        A tell comes as a Request too; `reply` and `fail` do nothing for it. Requests left
        unanswered are the actor's to answer later. If it raises, the actor crashes and all of them
        get ActorDied. Not for an AsyncActor.
        """
        raise NotImplementedError(f"{type(self).__name__} takes its messages one by one")

    def get_state(self) -> Any:
        """What `ref.get_state()` returns: a shallow copy of the actor's attributes. Override it."""
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def tree_note(self) -> str:
        """What the supervision tree shows of this actor beside the usual; nothing. Override it.

        Called from any thread while the actor may be busy: look only at what may be read then.
        """
        return ""

    def stop(self, reason: ExitReason = NORMAL) -> None:
        """End with `reason` after the message that is being handled."""
        self._actor_ref._send_control(STOP, reason, None)

    def defer(self) -> Request:
        """Take over the reply of the message being handled: what the handler returns is ignored.

        Answer later, from anywhere, with the handle's `reply(value)` or `fail(error)`, once. If
        the actor ends before, the asker gets ActorDied.
        """
        ref = self._actor_ref
        request = ref._serving
        if request is None or request.done():
            # A tell, or an asker that has given up: the reply goes nowhere.
            request = Request()
            request.message = None
            return request
        ref._serving = None
        runner.defer(ref, request)
        return request

    def continue_with(self, message: Any) -> None:
        """Handle `message` next, before everything that is queued (CONT-1).

        Several are handled in the order in which they were given.
        """
        control = self._actor_ref._make_control()
        place = 0
        while place < len(control) and control[place][0] == CONTINUE:
            place += 1
        control.insert(place, (CONTINUE, propagation.carry(message)))

    def send_after(self, seconds: float, message: Any) -> Timer:
        """Tell this actor `message` in `seconds`; the timer can be cancelled."""
        ref = self._actor_ref
        return ref._system.clock.call_later(seconds, ref.tell, propagation.carry(message))

    def idle_timeout(self, seconds: float, message: Any = None) -> None:
        """Handle `message` (an IdleTimeout) if none comes within `seconds` from now (TMO-1)."""
        seconds = checked_seconds(seconds, "seconds")
        life = self._actor_ref._get_life()
        life.idle_seconds = seconds
        life.idle_message = IdleTimeout() if message is None else message
        self._actor_ref._send_control(IDLE_ARM)

    def link(self, ref: AnyRef) -> None:
        """Bind this actor's end to the other's, both ways (LINK-1..4).

        A dead `ref` gives an Exit message if this actor traps exits, else raises (`noproc`). It may
        be a plain pykka actor, which knows no exit signals: one that would end it stops it by
        pykka's `stop`, behind what waits in its mailbox.
        """
        bonds.link(self._actor_ref, ref, traps=self.trap_exit)

    def unlink(self, ref: AnyRef) -> None:
        """Undo `link`, from either side."""
        bonds.unlink(self._actor_ref, ref)

    def spawn_link(self, cls: type[C], *args: Any, **kwargs: Any) -> ActorRef[C]:
        """Start an actor linked with this one from its first moment; waits for `on_start`."""
        return cls.options(link=self._actor_ref).start(*args, **kwargs)

    def monitor(self, target: AnyRef | str) -> Monitor:
        """Get a `Down` message when the actor or the name ends, at once if it is not there."""
        ref, name = bonds.as_ref(target, self.system)
        return bonds.monitor(self._actor_ref, ref, name)

    def demonitor(self, monitor: Monitor) -> bool:
        """End a monitor: no Down comes from it any more. False if it had ended."""
        return bonds.demonitor(monitor)

    # -- pykka's side ----------------------------------------------------------------------------

    @staticmethod
    def _create_future() -> Future[Any]:
        return Future()

    @staticmethod
    def _create_actor_inbox() -> Any:
        raise NotImplementedError("mailbox and ref are one object")

    def _start_actor_loop(self) -> None:
        raise NotImplementedError("started by its scheduler")

    def _handle_receive(self, message: Any) -> Any:
        if message.__class__ not in runner.SPECIAL:
            return self.on_receive(message)
        if message.__class__ is propagation.Carried:
            return propagation.handle(message, self._handle_receive)
        if isinstance(message, _ActorStop):
            return self.stop()
        return super()._handle_receive(message)

    def _stop(self) -> None:
        self.stop()


C = TypeVar("C", bound=Actor)


class Starter(Generic[C]):
    """An actor class with start options; made by `Actor.options`."""

    __slots__ = ("_cls", "_link", "_name", "_parent", "_system", "_timeout")

    def __init__(
        self,
        cls: type[C],
        name: str | None,
        timeout: float | None,
        link: ActorRef[Any] | None,
        parent: ActorRef[Any] | None,
        system: ActorSystem | None,
    ) -> None:
        self._cls = cls
        self._name = name
        self._timeout = limit_of(cls.start_timeout if timeout is None else timeout)
        self._link = link
        self._parent = parent
        self._system = system

    def start(self, *args: Any, **kwargs: Any) -> ActorRef[C]:
        """As `Actor.start`."""
        refuse_on_loop(
            f"{self._cls.__name__}.start()", f"await {self._cls.__name__}.spawn(...) instead"
        )
        future = self._begin(args, kwargs, blocking=self._timeout is None)
        return future.get()

    def spawn(self, *args: Any, **kwargs: Any) -> Future[ActorRef[C]]:
        """As `Actor.spawn`."""
        return self._begin(args, kwargs, blocking=False)

    def _begin(self, args: Any, kwargs: Any, *, blocking: bool) -> Future[ActorRef[C]]:
        cls = self._cls
        future: Future[ActorRef[C]] = Future()
        token = starting_system.set(self._system) if self._system is not None else None
        try:
            actor = cls(*args, **kwargs)
            ref = actor._actor_ref
        except BaseException as error:
            future.fail(starting.fail_init(cls, error))
            return future
        finally:
            if token is not None:
                starting_system.reset(token)
        system = ref._system
        ref._started = system.clock.monotonic()
        system.actors[ref] = None
        if system.closed:  # looked at after the entry, which closing looks for after the flag
            future.fail(starting.refuse_closed(ref))
            return future
        failure = self._bind(ref)
        if failure is not None:
            lifecycle.end(ref, NORMAL, report=False)
            future.fail(failure)
            return future
        if self._timeout is not None and cls.has_on_start:
            self._limit(ref, future, self._timeout)
        try:
            actor._launch(ref, future, blocking=blocking)
        except BaseException as error:  # no thread to be had, a loop that was closed meanwhile
            future.fail(starting.fail_start(ref, error))
        return future

    def _bind(self, ref: ActorRef[C]) -> StartFailed | None:
        """Name and link an actor before it starts; returns why that cannot be."""
        if self._name is not None:
            owner = bonds.register(ref, self._name, ref._system.names_table)
            if owner is not None:
                return starting.AlreadyStarted(self._name, owner)
        starters = [peer for peer in (self._parent, self._link) if peer is not None]
        if starters:
            life = ref._get_life()
            life.parent, life.starters = self._parent, tuple(starters)
            try:
                for peer in starters:
                    bonds.link(ref, peer, traps=False)
            except RequestError as error:
                return lifecycle.start_failed(ref, error.code)
        return None

    def _limit(self, ref: ActorRef[Any], future: Future[Any], timeout: float) -> None:
        def late() -> None:
            if future.fail(lifecycle.start_failed(ref, "timeout")):
                starting.unbind_starter(ref)
                ref._system.scheduler.fence(ref)

        timer = ref.system.clock.call_later(timeout, late)
        future.add_done_callback(lambda _: timer.cancel())


def takes_name(cls: type[Actor]) -> bool:
    """Whether `name=` is an argument of its `__init__`, and not the name to register (REG-1)."""
    known = _name_takers.get(cls)
    if known is None:
        known = _name_takers[cls] = "name" in inspect.signature(cls.__init__).parameters
    return known


_name_takers: dict[type[Actor], bool] = {}
