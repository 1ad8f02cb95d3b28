"""Runs the same actors in one seeded order, in virtual time: a test of what threads do by chance.

At each step the seed chooses among the actors that could run, and the chosen one handles one
message. Nothing waits in real time: when nobody can run, the clock moves to the next timer. A run
with the same seed takes the same steps, so a failing one can be looked at again.

Handlers may block as they do in production. A handler is run in a thread of the simulation, of
which exactly one runs at any time: it holds the baton. One that waits for a future passes the baton
on and gets it back, as one more choice among those that could run, when the future is done.
Coroutines run on an event loop without I/O, whose callbacks keep asyncio's order.
"""

from __future__ import annotations

import asyncio
import random
import threading
from _thread import allocate_lock
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, TypeVarTuple, Unpack

from . import runner
from .async_runner import MAX_DEPTH, AsyncRef, LoopRunner, pump
from .clock import VirtualClock
from .errors import KeepwellError
from .future import Future, set_waiter
from .scheduler import Scheduler
from .starting import open_mailbox
from .system import ActorSystem

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextvars import Context

    from .ref import ActorRef

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_FOREVER: Final = float("inf")


class SimulationStuck(KeepwellError, RuntimeError):
    """The simulation waits for something that nobody in it will ever do."""

    def __init__(self, waiting: int, seed: int | None) -> None:
        super().__init__(
            f"nothing is left to run and no timer is set, but the result is not there "
            f"({waiting} handlers wait; seed {seed})"
        )
        self.seed = seed


class _SimulationClosed(BaseException):
    """Raised in handlers that still wait when the simulation ends, so that their threads end."""


class _Worker:
    """A thread that runs handlers while it holds the baton."""

    def __init__(self, scheduler: SimulatedScheduler, number: int) -> None:
        self.scheduler = scheduler
        self.baton = allocate_lock()
        self.baton.acquire()
        self.thread = threading.Thread(
            target=self._live, name=f"keepwell-simulation-{number}", daemon=True
        )

    def _live(self) -> None:
        set_waiter(self)
        self.baton.acquire()
        self.scheduler.work(self)

    def wait(self, future: Future[Any], timeout: float | None) -> None:
        """Pass the baton on until the future is done or the virtual time is up."""
        self.scheduler.block(self, future, timeout)


class _Driver:
    """How the thread that drives the simulation waits: by driving it."""

    def __init__(self, scheduler: SimulatedScheduler) -> None:
        self.scheduler = scheduler

    def wait(self, future: Future[Any], timeout: float | None) -> None:
        self.scheduler.drive(future.done, _FOREVER if timeout is None else timeout)
        if timeout is None and not future.done():
            raise SimulationStuck(self.scheduler.blocked, self.scheduler.seed)


class _SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop without I/O: its callbacks are steps of the simulation, its time is virtual."""

    _ready: Any

    def __init__(self, scheduler: SimulatedScheduler) -> None:
        self._scheduler = scheduler
        super().__init__()

    def time(self) -> float:
        return self._scheduler.clock.monotonic()

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._scheduler.clock.call_later(when - self.time(), self._due, handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: Any) -> None:
        pass

    def is_running(self) -> bool:
        return self._scheduler.is_open

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                value = func(*args)
            except BaseException as error:  # noqa: BLE001 - it is the result
                self.call_soon_threadsafe(_set, future, None, error)
            else:
                self.call_soon_threadsafe(_set, future, value, None)

        self._scheduler.submit(work)
        return future


def _set(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


class SimulatedScheduler(Scheduler):
    """A seeded scheduler in virtual time; `with SimulatedScheduler(seed=1) as simulation: …`.

    Inside the block its actor system is the current one, and waiting (`ask`, `Future.get`, `start`)
    runs the simulation until the result is there. Raises SimulationStuck where it never would be.
    seed=None runs whoever has waited longest, without chance.
    """

    def __init__(self, seed: int | None = 0) -> None:
        self.seed = seed
        self.clock = VirtualClock()
        self.steps = 0
        self.is_open = True
        self._random = random.Random(seed)
        self._jobs: list[Callable[[], None] | _Worker] = []
        self._simulated_loop = _SimulatedLoop(self)
        self._until: Callable[[], bool] = lambda: False
        self._limit = 0.0
        self._parked: list[_Worker] = []
        self._blocked: dict[_Worker, None] = {}
        self._workers: list[_Worker] = []
        self._driver_baton = allocate_lock()
        self._driver_baton.acquire()
        self._closing = False
        self.system = ActorSystem(name=f"simulation {seed}", scheduler=self, clock=self.clock)

    # -- driving ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        set_waiter(_Driver(self))
        self.system.__enter__()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            error.add_note(f"in a simulation with seed {self.seed}, after {self.steps} steps")
        try:
            self.system.__exit__()
        finally:
            set_waiter(None)

    def run_until_idle(self) -> None:
        """Run until nobody can, without moving the clock."""
        self.drive(lambda: False, 0.0)

    def advance(self, seconds: float) -> None:
        """Run until nobody can before `seconds` of virtual time have passed."""
        self.drive(lambda: False, seconds)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the simulation's loop until it ends, and return its result."""
        return self.system.run(coroutine).get()

    @property
    def blocked(self) -> int:
        """How many handlers wait for a future."""
        return len(self._blocked)

    def drive(self, until: Callable[[], bool], seconds: float) -> None:
        """Run until `until()` is true, or nobody can run before `seconds` have passed."""
        if until():
            return
        self._until = until
        self._limit = self.clock.monotonic() + seconds
        self._pass_baton()
        self._driver_baton.acquire()

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job()` as a step of the simulation."""
        self._jobs.append(job)

    # -- the baton -------------------------------------------------------------------------------

    def work(self, me: _Worker) -> None:
        """Take steps while `me` holds the baton; ends with the simulation."""
        while not self._closing:
            job = self._choose()
            if job is None:
                self._park(me, self._driver_baton)
            elif isinstance(job, _Worker):
                self._park(me, job.baton)
            else:
                self.steps += 1
                job()

    def _park(self, me: _Worker, baton: Any) -> None:
        self._parked.append(me)
        baton.release()
        me.baton.acquire()

    def _pass_baton(self) -> None:
        if self._parked:
            self._parked.pop().baton.release()
            return
        worker = _Worker(self, len(self._workers) + 1)
        self._workers.append(worker)
        worker.thread.start()
        worker.baton.release()

    def block(self, me: _Worker, future: Future[Any], timeout: float | None) -> None:
        """Let others run while `me` waits."""
        waiting = True

        def resume(_: object = None) -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                self._jobs.append(me)

        self._blocked[me] = None
        future.add_done_callback(resume)
        timer = self.clock.call_later(timeout, resume) if timeout is not None else None
        self._pass_baton()
        me.baton.acquire()
        self._blocked.pop(me, None)
        if timer is not None:
            timer.cancel()
        if self._closing:
            raise _SimulationClosed

    def _choose(self) -> Any:
        """Return the next step, a worker to resume, or None when the driver must go on."""
        if self._until():
            return None
        jobs = self._jobs
        ready = self._simulated_loop._ready
        while not jobs and not ready:
            timer = self.clock.step_to(self._limit) if self.clock.next_due() is not None else None
            if timer is None:
                if self._limit != _FOREVER:
                    self.clock.step_to(self._limit)
                return None
            return timer.fire
        count = len(jobs) + bool(ready)
        index = 0 if self.seed is None else self._random.randrange(count)
        if index == len(jobs):
            return self._run_loop_callback
        return jobs.pop(index)

    def _run_loop_callback(self) -> None:
        handle = self._simulated_loop._ready.popleft()
        if not handle._cancelled:
            self._on_loop(handle._run)

    def _on_loop(self, function: Callable[..., object], *args: Any) -> None:
        in_place = self.seed is None or self._random.random() < 0.5
        self._home.depth = 0 if in_place else MAX_DEPTH
        asyncio._set_running_loop(self._simulated_loop)
        try:
            function(*args)
        finally:
            asyncio._set_running_loop(None)

    # -- the scheduler's side --------------------------------------------------------------------

    def bind(self, system: ActorSystem) -> None:
        """See Scheduler."""
        super().bind(system)
        self._home = LoopRunner(self._simulated_loop, system)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The simulated loop."""
        return self._simulated_loop

    def adopt_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Not possible: a simulation has a loop of its own."""
        raise KeepwellError(f"a simulation cannot run on {loop}: use simulation.run(coroutine)")

    def put(self, ref: ActorRef[Any]) -> None:
        """`ref` could run."""
        self._jobs.append(lambda: self._step(ref))

    def _step(self, ref: ActorRef[Any]) -> None:
        if runner.run(ref, 1):
            self.put(ref)

    def add_light(self, ref: ActorRef[Any]) -> None:
        """See Scheduler."""
        ref._put = self.put

    def add_thread(self, ref: ActorRef[Any], start: Any) -> None:
        """See Scheduler: a thread of its own makes no difference here."""
        ref._put = self.put

        def begin() -> None:
            if start():
                open_mailbox(ref)

        self._jobs.append(begin)

    def add_async(self, ref: AsyncRef[Any], loop: asyncio.AbstractEventLoop | None) -> None:  # noqa: ARG002 - one loop for all
        """See Scheduler."""
        ref._home = self._home
        ref._loop = self._simulated_loop
        ref._put = self._put_async

    def _put_async(self, ref: AsyncRef[Any]) -> None:
        # Not one of the loop's own callbacks: when a message arrives from outside is chance.
        self._jobs.append(lambda: self._on_loop(pump, ref, 1))

    def wait(self, future: Future[Any], timeout: float | None) -> None:
        """See Scheduler."""
        if not future.done():
            self.drive(future.done, _FOREVER if timeout is None else timeout)

    def close(self) -> None:
        """End the threads; handlers that still wait are unwound."""
        self._closing = True
        for worker in self._workers:
            # One at a time: an unwinding handler may still touch what it shares with others.
            worker.baton.release()
            worker.thread.join(5.0)
        self._simulated_loop._ready.clear()
        self.is_open = False
        self._simulated_loop.close()
