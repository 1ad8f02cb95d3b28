"""Where a store's requests wait: what stays the same while the store's actor comes and goes.

The problem: an actor's mailbox ends with the actor, and with it every append that was on its way.
So the queue belongs to the port, not to the actor: callers put requests here and tell the actor to
look; the actor takes as many as it can commit at once. When it crashes, what it had taken is here
too, in order, and the next incarnation commits it first, one by one, under the same append ids
(SH-2, SH-3). Reads that find no table wait here as well.

A request is looked at by the timer only if it is still here at its deadline: nothing is paid for
deadlines while the store keeps up.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..actors import telemetry
from ..actors.context import current_system, default_system
from ..actors.errors import InvalidValue
from ..actors.future import Future
from .engine import Engine
from .errors import ForkedStore, Outcome, StoreNotStarted, StoreUnavailable
from .request import MAX_MESSAGE_BYTES, Append, Request, shown_id
from .token_counter import TokenCounter, default_counter

if TYPE_CHECKING:
    from ..actors.clock import Timer
    from ..actors.system import ActorSystem

WAKE = "keepwell.stores.wake"
"""The message that makes a store's actor look at its port."""

TIMEOUT = 30.0
"""Seconds that a request waits for its store (SH-1)."""

MAX_ATTEMPTS = 2
"""Incarnations that take a request up: after two crashes it is not sent again (SH-3)."""

ENDED = "the actor system that it belongs to has ended"
NOT_STARTED = "it has not been started"

BATCH_RECORDS = 4096
BATCH_BYTES = 8 << 20
"""Most records and bytes of one commit."""


_pid = os.getpid()
"""This process: noted once, as asking is a system call, and every request asks."""


def _after_fork() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork)


class Read:
    """A read that waits for the table."""

    __slots__ = ("deadline", "future", "withdrawn", "work")

    def __init__(self, work: Callable[[Engine], Any], deadline: float) -> None:
        self.work = work
        self.deadline = deadline
        self.future: Future[Any] = Future()
        self.withdrawn = False

    def run(self, engine: Engine) -> None:
        """Answer from `engine`."""
        try:
            answer = self.work(engine)
        except Exception as problem:
            self.future.fail(problem)
        else:
            self.future.complete(answer)


class Port:
    """One store's queue, and the table and actor that serve it now, if any."""

    def __init__(self, name: str, system: ActorSystem | None = None) -> None:
        self.name = name
        self.pid = _pid
        self.engine: Engine | None = None
        self.ref: Any = None
        self.system = system
        self.queue: deque[Request] = deque()
        self.taken: list[Request] = []
        """What an incarnation has taken up and not answered."""
        self.reads: list[Read] = []
        self.crashes = 0
        self.max_message_bytes = MAX_MESSAGE_BYTES
        self.lock = threading.Lock()
        """For handles: guards the lines of appends that wait for an encoding."""
        self.counting = False
        """Whether the counter has loaded what it needs; the first count may take a second."""
        self._counter: TokenCounter | None = None
        self._signalled = False
        self._lock = threading.Lock()
        self._timer: Timer | None = None
        self._due = float("inf")
        # Why nobody serves the port, nor is expected to; None while somebody does or may.
        self._unserved: str | None = None
        if system is not None:
            self._belong(system)

    def _belong(self, system: ActorSystem) -> None:
        """Take part in the life of an actor system: when it ends, nobody will serve the port."""
        if self.system is not system or system.closed or self.end not in system.at_close:
            self.system = system
            self._unserved = ENDED if system.closed else None
            system.at_close.append(self.end)

    def end(self) -> None:
        """Answer what waits: the actor system has ended, and its clock with it (F48)."""
        self._unserved = ENDED
        for request in [*self.taken, *self.queue]:
            request.withdrawn = True
            request.future.fail(self._unavailable(request, ENDED))
        self.queue.clear()
        self.taken = []
        with self._lock:
            reads, self.reads = self.reads, []
        for read in reads:
            read.withdrawn = True
            read.future.fail(StoreUnavailable(self.name, ENDED))

    def expect(self, *, start: bool = True) -> None:
        """Let callers wait for a store that is about to be started; without `start` refuse them."""
        if not start:
            self._unserved = NOT_STARTED
        elif self._unserved is NOT_STARTED:
            self._unserved = None

    def _refusal(self, request: Request | None = None) -> StoreUnavailable:
        append_id = _append_id_of(request)
        if self._unserved is NOT_STARTED:
            return StoreNotStarted(self.name, append_id=append_id)
        outcome: Outcome | None = None if request is None else "not written"
        return StoreUnavailable(self.name, ENDED, append_id=append_id, outcome=outcome)

    def configure(self, counter: TokenCounter | None, max_message_bytes: int) -> None:
        """Set what callers do before they submit."""
        self._counter = counter
        self.counting = counter is not None and not hasattr(counter, "load")
        self.max_message_bytes = max_message_bytes

    def counter(self) -> TokenCounter:
        """The store's token counter."""
        if self._counter is None:
            self._counter = default_counter()
        return self._counter

    # -- callers ----------------------------------------------------------------------------------

    def submit(self, request: Request, timeout: float = TIMEOUT) -> Future[Any]:
        """Queue a request; the future gets its answer, or `StoreUnavailable` at the deadline."""
        if _pid != self.pid:
            return Future.failed(ForkedStore(self.name, self.pid))
        if self._unserved is not None:
            return Future.failed(self._refusal(request))
        future: Future[Any] = Future()
        request.future = future
        deadline = request.deadline = time.monotonic() + timeout
        self.queue.append(request)
        if deadline < self._due:
            self._arm(deadline)
        if not self._signalled:
            self.signal()
        return future

    def signal(self) -> None:
        """Make the actor look, if there is one."""
        self._signalled = True
        ref = self.ref
        if ref is not None:
            ref.tell(WAKE)

    def read(self, work: Callable[[Engine], Any], timeout: float = TIMEOUT) -> Future[Any]:
        """Run `work(engine)` now, or as soon as there is a table."""
        if _pid != self.pid:
            return Future.failed(ForkedStore(self.name, self.pid))
        engine = self.engine
        if engine is not None:
            try:
                return Future.of(work(engine))
            except StoreUnavailable:
                pass  # it was closed under our hands: wait for the next one
            except Exception as problem:
                return Future.failed(problem)
        if self._unserved is not None:
            return Future.failed(self._refusal())
        read = Read(work, time.monotonic() + timeout)
        with self._lock:
            self.reads.append(read)
        self._arm(read.deadline)
        engine = self.engine
        if engine is not None:
            self._run_reads(engine)
        return read.future

    def is_mine(self) -> bool:
        """False in a forked child, which must not touch the parent's table."""
        return _pid == self.pid

    def table(self) -> Engine:
        """The table there is now; raises `StoreUnavailable` at once if there is none."""
        engine = self.engine
        if engine is None:
            raise StoreUnavailable(self.name)
        return engine

    # -- the actor --------------------------------------------------------------------------------

    def attach(self, ref: Any, engine: Engine) -> None:
        """Serve from `engine` from now on; what waited for a table is answered."""
        self._belong(ref.system)
        self.ref = ref
        self.engine = engine
        self._run_reads(engine)
        telemetry.emit("keepwell.store.opened", store=self.name, waiting=len(self.queue),
                       resent=len(self.taken))
        self.signal()

    def detach(self, ref: Any, reason: object = None) -> None:
        """The incarnation `ref` ended: callers wait for the next. Idempotent."""
        with self._lock:
            if self.ref is not ref:
                return
            self.ref = None
            self.engine = None
            self._signalled = False
            if isinstance(reason, BaseException):
                self.crashes += 1
        telemetry.emit("keepwell.store.closed", store=self.name, reason=reason,
                       waiting=len(self.queue), in_flight=len(self.taken))

    def left_over(self) -> list[Request]:
        """What the last incarnation left unanswered, in order, for the next to commit one by one.

        Requests that were in flight in two crashes are answered here: unknown (SH-3).
        """
        again = []
        for request in self.taken:
            if request.future.done():
                continue
            if request.attempts >= MAX_ATTEMPTS:
                request.future.fail(self._unavailable(
                    request, f"it went down {request.attempts} times with this request in flight"))
            else:
                again.append(request)
        self.taken = again
        return list(again)

    def hold(self, requests: list[Request]) -> list[Request]:
        """Note that these requests are being committed; withdrawn ones are left out."""
        self.taken = requests  # before counting: `_expire` looks here
        for request in requests:
            request.attempts += 1
        self.taken = live = [request for request in requests if not request.withdrawn]
        return live

    def settle(self, request: Request) -> None:
        """Note that one of the held requests has its answer."""
        self.taken = [other for other in self.taken if other is not request]

    def take(self) -> list[Request]:
        """Take the next batch from the queue, in order, within the bounds of one commit."""
        self._signalled = False  # first, so that whoever queues from here on signals again
        queue, records, size = self.queue, 0, 0
        batch: list[Request] = []
        pop, push = queue.popleft, batch.append
        while queue and records < BATCH_RECORDS and size < BATCH_BYTES:
            request = queue[0]
            if type(request) is Append:
                size += request.size
                if batch and size > BATCH_BYTES:
                    break
                records += len(request.parts)
            push(pop())
        return batch

    def _run_reads(self, engine: Engine) -> None:
        while self.reads:
            with self._lock:
                reads, self.reads = self.reads, []
            for read in reads:
                if not read.withdrawn:
                    read.run(engine)

    # -- deadlines --------------------------------------------------------------------------------

    def _arm(self, deadline: float) -> None:
        with self._lock:
            if deadline >= self._due:
                return
            self._due = deadline
            timer = self._timer
            if timer is not None:
                timer.cancel()
            clock = (self.system or _some_system()).clock
            self._timer = clock.call_later(max(0.0, deadline - time.monotonic()), self._expire)

    def _expire(self) -> None:
        """Answer what is overdue, and look again when the next may be."""
        now = time.monotonic()
        with self._lock:
            self._due = float("inf")
            self._timer = None
        left = float("inf")
        for request in [*self.taken, *self.queue]:
            if request.deadline > now:
                left = min(left, request.deadline)
            elif not request.future.done():
                request.withdrawn = True  # before looking at `attempts`: see `hold`
                request.future.fail(self._unavailable(request, "it did not answer in time"))
        for read in list(self.reads):
            if read.deadline > now:
                left = min(left, read.deadline)
            else:
                read.withdrawn = True
                read.future.fail(StoreUnavailable(self.name))
        with self._lock:
            self.reads = [read for read in self.reads if not read.withdrawn]
        if left < float("inf"):
            self._arm(left)

    def _unavailable(self, request: Request, problem: str) -> StoreUnavailable:
        return StoreUnavailable(self.name, problem, append_id=_append_id_of(request),
                                outcome="unknown" if request.attempts else "not written")


def _append_id_of(request: Request | None) -> str | None:
    given = request.append_id if isinstance(request, Append) else None
    return None if given is None else shown_id(given)


def _some_system() -> ActorSystem:
    try:
        return current_system()
    except InvalidValue:  # several run and none is entered: any clock will do
        return default_system()


_ports: WeakKeyDictionary[Any, dict[str, Port]] = WeakKeyDictionary()
_guard = threading.Lock()


def port_of(name: str, system: ActorSystem | None = None) -> Port:
    """The port of a store's name in an actor system; there is one whether the store runs or not."""
    system = system or current_system()
    with _guard:
        ports = _ports.setdefault(system, {})
        port = ports.get(name)
        if port is None:
            port = ports[name] = Port(name, system)
        return port

