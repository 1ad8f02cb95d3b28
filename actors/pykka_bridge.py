"""Plain `pykka.ThreadingActor`s, unchanged, in links and monitors and as supervised children.

pykka tells nobody that an actor has ended, so a `Watch` listens at the points through which every
end passes: `_handle_failure` (a crash by tell, a failing `on_start` or `on_stop`), `on_stop`, and
`_actor_loop_teardown`, the last thing that the actor's thread does. They are wrapped on the one
instance; a child that a supervisor starts itself is watched before its thread starts, any other
from when it is first linked, monitored or adopted.

What cannot be seen: an exception in a handler under `ask`. pykka answers with it and the actor
lives on; so do those that are bound to it. A plain actor does not know exit signals: one that would
end it stops it by pykka's `stop`, behind the messages that wait in its mailbox. Killed, it is
fenced: it gets no message any more and counts as ended (`killed`), while its thread goes on until
its handler returns.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, cast

import pykka
from pykka._envelope import Envelope
from pykka.messages import ProxyGetAttr, _ActorStop

from . import telemetry
from .errors import ActorDied, StartFailed
from .exits import KILLED, NORMAL, Down, ExitReason, Monitor
from .future import Future
from .life import lock, making
from .ref import DELIVER, SIGNAL, ActorRef, AnyRef

_AnyActor = pykka.ThreadingActor


class Watch:
    """Watches one plain actor: `started` and `ended` are futures; made by `watch`."""

    def __init__(self, actor: _AnyActor) -> None:
        self.ref: AnyRef = actor.actor_ref
        self.started: Future[None] = Future()
        self.ended: Future[ExitReason] = Future()
        self._stop_reason: ExitReason = NORMAL
        self._failure: BaseException | None = None
        self._killed = False
        self._actor: _AnyActor | None = actor
        # Under the lock of bonds; over: its end has been told, and bonds come too late.
        self.over = False
        self.links: dict[ActorRef[Any], None] = {}
        self.monitors: dict[Monitor, None] = {}
        self.ended.add_done_callback(self._tell)
        vars(actor)[_OWN] = self
        self._wrap(actor)

    def _wrap(self, actor: _AnyActor) -> None:
        untyped = cast("Any", actor)
        setup, teardown = actor._actor_loop_setup, actor._actor_loop_teardown
        receive, handle_failure = actor._handle_receive, actor._handle_failure

        def watched_setup() -> None:
            setup()
            if self._failure is None:
                self.started.complete(None)

        def watched_teardown() -> None:
            try:
                teardown()
            finally:
                self._end()

        def watched_receive(message: Any) -> Any:
            if self._killed and not isinstance(message, _ActorStop):
                raise ActorDied(f"{self.ref} was killed", reason=KILLED)
            try:
                return receive(message)
            except Exception:
                raise
            except BaseException as error:
                # pykka would stop every actor of the process; only this one has crashed (F45).
                handle_and_note(type(error), error, error.__traceback__)
                raise ActorDied(f"{self.ref} crashed: {error!r}", reason=error) from error

        def handle_and_note(
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            first, self._failure = self._failure is None, self._failure or error
            if first and not self._killed:
                handle_failure(kind, error, traceback)

        untyped._actor_loop_setup = watched_setup
        untyped._actor_loop_teardown = watched_teardown
        untyped._handle_receive = watched_receive
        untyped._handle_failure = handle_and_note

    def _end(self) -> None:
        actor, self._actor = self._actor, None
        for name in (*_WRAPPED, _OWN) if actor is not None else ():
            vars(actor).pop(name, None)  # each wrapper holds what it wraps, and that the actor
        reason = KILLED if self._killed else self._failure or self._stop_reason
        if self._failure is not None and not self.started.done():
            self.started.fail(StartFailed(reason=reason))
        else:
            self.started.complete(None)
        self.ended.complete(reason)

    def _tell(self, ended: Future[ExitReason]) -> None:
        """Tell who is bound to it that it has ended."""
        reason = ended.get()
        with lock:
            self.over = True
            links, self.links = self.links, {}
            monitors, self.monitors = self.monitors, {}
            for ref in links:
                if ref._life is not None and ref._life.links is not None:
                    ref._life.links.pop(self.ref, None)
            for monitor in monitors:
                life = monitor.watcher._life
                if life is not None and life.watches is not None:
                    life.watches.pop(monitor, None)
        for ref in links:
            ref._send_control(SIGNAL, self.ref, reason, True)
        for monitor in monitors:
            monitor.watcher._send_control(DELIVER, Down(monitor, self.ref, monitor.name, reason))

    def signal(self, reason: ExitReason) -> None:
        """What an exit signal does to an actor that does not know them."""
        if isinstance(reason, str) and reason == KILLED:
            self.kill()
        elif not (isinstance(reason, str) and reason == NORMAL):
            self.stop(reason)

    def stop(self, reason: ExitReason) -> None:
        """Ask the actor to stop, after what waits in its mailbox; `reason` is its exit reason."""
        if self.ended.done():
            return
        self._stop_reason = reason
        try:
            _ = self.ref.stop(block=False)
        except pykka.ActorDeadError:
            pass  # it is on its way out by itself

    def kill(self) -> None:
        """Fence the actor: no hook, no further message; it counts as ended from now on."""
        actor = self._actor
        if actor is None or self.ended.done():
            return
        self._killed = True
        untyped = cast("Any", actor)
        untyped.on_stop = untyped.on_failure = _nothing
        pykka.ActorRegistry.unregister(self.ref)
        _fail_all(self.ref)
        self.ref.actor_stopped.set()
        self.ref.actor_inbox.put(_stop_envelope())  # wakes a thread that waits for a message
        telemetry.emit("keepwell.actor.fenced", ref=self.ref)
        self.ended.complete(KILLED)


def start_watched(actor_class: type[_AnyActor], args: Any, kwargs: Any) -> Watch:
    """Start a plain actor that is watched from its first moment; ends when `on_start` has returned.

    Raises StartFailed with the exception of `__init__` or `on_start` (F68).
    """
    try:
        _watched_class(actor_class).start(*args, **kwargs)
    except Exception as error:
        raise StartFailed(reason=error) from error
    watch: Watch = vars(_just_started).pop("watch")
    watch.started.get()
    return watch


def watch_running(ref: pykka.ActorRef[Any]) -> Watch:
    """Watch a plain actor that somebody else has started; waits until its `on_start` has returned.

    Raises StartFailed if it is dead already, or dies before that.
    """
    watch = watch_of(ref)
    if watch is None:
        raise StartFailed(reason="noproc")
    try:
        # A message that pykka itself answers, so the first one comes when `on_start` is over.
        ref.ask(ProxyGetAttr(attr_path=("actor_urn",)), block=True)
    except pykka.ActorDeadError:
        raise StartFailed(reason=watch._failure or "noproc") from None
    watch.started.complete(None)
    return watch


def watch_of(ref: AnyRef) -> Watch | None:
    """The watch of a plain actor, set up if there is none yet; None if the actor is dead."""
    actor = ref._actor_weakref()
    if actor is None or not ref.is_alive():
        return None
    with making:
        watch: Watch = vars(actor).get(_OWN) or Watch(actor)
    return watch if ref.is_alive() else None


# -- bonds with our actors ---------------------------------------------------------------------


def bind(ref: ActorRef[Any], plain: AnyRef) -> bool:
    """Note the link of one of ours with a plain actor if both live; whether the plain one does."""
    watch, life = watch_of(plain), ref._get_life()
    if watch is None:
        return False
    with lock:
        if not watch.over and not ref._closed:
            if life.links is None:
                life.links = {}
            life.links[plain] = watch.links[ref] = None
        return not watch.over


def observe(monitor: Monitor, plain: AnyRef) -> bool:
    """Note a monitor on a plain actor; whether that lives."""
    watch, life = watch_of(plain), monitor.watcher._get_life()
    if watch is None:
        return False
    with lock:
        if not watch.over:
            if life.watches is None:
                life.watches = {}
            life.watches[monitor] = watch.monitors[monitor] = None
        return not watch.over


def known_watch(plain: AnyRef) -> Watch | None:
    """The watch of a plain actor, if it has one."""
    actor = plain._actor_weakref()
    return None if actor is None else vars(actor).get(_OWN)


_OWN = "_keepwell_watch"
_just_started = threading.local()
_WRAPPED = ("_actor_loop_setup", "_actor_loop_teardown", "_handle_receive", "_handle_failure")


@functools.lru_cache(maxsize=1024)
def _watched_class(actor_class: type[_AnyActor]) -> type[_AnyActor]:
    """A subclass that differs in one thing: its actors are watched before their thread starts."""
    original: Callable[[Any], None] = actor_class._start_actor_loop

    def start_loop(self: Any) -> None:
        # An __init__ may start further actors in this thread; this is the outermost and last one.
        _just_started.watch = vars(self).get(_OWN) or Watch(self)
        original(self)

    names = {key: getattr(actor_class, key) for key in ("__module__", "__qualname__", "__doc__")}
    return type(actor_class.__name__, (actor_class,), {**names, "_start_actor_loop": start_loop})


def _nothing(*_: object) -> None:
    pass


def _stop_envelope() -> Envelope[Any]:
    return Envelope(_ActorStop())


def _fail_all(ref: pykka.ActorRef[Any]) -> None:
    """Fail the asks that wait in the mailbox of a killed actor."""
    inbox: Any = ref.actor_inbox
    while True:
        try:
            envelope = inbox.get_nowait()
        except queue.Empty:
            return
        if envelope.reply_to is None:
            continue
        if isinstance(envelope.message, _ActorStop):
            envelope.reply_to.set(None)
        else:
            died = ActorDied(f"{ref} was killed", reason=KILLED)
            envelope.reply_to.set_exception((ActorDied, died, None))
