"""How a runtime's tree is entered and left: in a thread or on an event loop, once, whatever fails.

A runtime says what grows on the tree (its children and branches) and what is to be told at the end;
this is the actor system below it, the root supervisor, and the order in which they come and go.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any, Final

from .actors import ActorSystem, Future, telemetry
from .actors.context import entered_system
from .actors.errors import InvalidValue, StartFailed
from .supervision import ChildSpec, Supervisor

if TYPE_CHECKING:
    from .actors.clock import Clock
    from .actors.scheduler import Scheduler
    from .runtime import Runtime

CLOSE_SECONDS: Final = 10.0

logger = logging.getLogger("keepwell")

running_runtimes: dict[ActorSystem, Runtime] = {}
"""The runtimes that have been entered and have not ended, by their systems."""


class RuntimeTree:
    """The system and the root supervisor of one runtime.

    children: of the root, made when there is a system; if one does not start, entering fails.
    branches: what is started after them. on_end: called with the reason when the tree has ended; a
    second call must do nothing.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        clock: Clock | None,
        scheduler: Scheduler | None,
        children: Callable[[], Sequence[ChildSpec]],
        branches: Callable[[], Coroutine[Any, Any, None]],
        on_end: Callable[[Any], None],
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        self._scheduler = scheduler
        self._children = children
        self._branches = branches
        self._on_end = on_end
        self._system: ActorSystem | None = None
        self._supervisor: Any = None
        self._token: Token[Any] | None = None
        self.closing = False
        self.ended: Future[Any] = Future()

    @property
    def system(self) -> ActorSystem:
        """The actor system. Raises InvalidValue before the runtime is entered."""
        if self._system is None:
            raise self._not_running()
        return self._system

    @property
    def supervisor(self) -> Any:
        """The ref of the root supervisor. Raises InvalidValue before the runtime is entered."""
        if self._supervisor is None:
            raise self._not_running()
        return self._supervisor

    @property
    def stands(self) -> bool:
        """Whether the tree is there and not about to end."""
        return self._supervisor is not None and self._supervisor.is_alive() and not self.closing

    @property
    def has_ended(self) -> bool:
        """Whether the root has ended. Raises InvalidValue before the runtime is entered."""
        return self.system.closed or not self.supervisor.is_alive()

    # -- entering --------------------------------------------------------------------------------

    def enter(self) -> None:
        """Start the tree, on a loop of its own; blocks. Raises StartFailed with the cause."""
        if _get_running_loop() is not None:
            raise InvalidValue("`with Runtime()` blocks, and this thread runs an event loop: use "
                               "`async with Runtime()`")  # fmt: skip
        self._prepare()
        try:
            self._started(self._root().start(self._children()))
            self.system.run(self._branches()).get()
        except BaseException as problem:
            self.leave()
            raise self._not_entered(problem) from problem.__cause__

    async def aenter(self) -> None:
        """Start the tree on the running loop. Raises likewise."""
        self._prepare()
        self.system.adopt_loop(asyncio.get_running_loop())
        try:
            self._started(await self._root().spawn(self._children()))
            await self._branches()
        except BaseException as problem:
            await self.aleave()
            raise self._not_entered(problem) from problem.__cause__

    def _prepare(self) -> None:
        if self._system is not None:
            raise InvalidValue(f"{self._runtime!r} was entered before: make a new Runtime")
        self._system = ActorSystem(
            name=self._runtime.name, clock=self._clock, scheduler=self._scheduler
        )
        running_runtimes[self._system] = self._runtime
        self._token = entered_system.set(self._system)

    def _root(self) -> Any:
        return Supervisor.options(name=f"{self._runtime.name}.supervisor", system=self.system)

    def _started(self, supervisor: Any) -> None:
        self._supervisor = supervisor
        supervisor.on_exit(self._tree_ended)

    def _not_entered(self, problem: BaseException) -> BaseException:
        """The error of entering: says what was wrong, not which supervisors it came through."""
        if not isinstance(problem, StartFailed):
            return problem
        cause = problem.__cause__ or problem
        return StartFailed(f"{self._runtime!r} did not start: {cause}", reason=problem.reason)

    def _not_running(self) -> InvalidValue:
        return InvalidValue(
            f"{self._runtime!r} is not running: enter it with `async with` or `with`"
        )

    # -- leaving ---------------------------------------------------------------------------------

    def leave(self) -> None:
        """Make it no longer the current one, and close it; blocks."""
        self._reset()
        self.close()

    async def aleave(self) -> None:
        """Make it no longer the current one, and close it."""
        self._reset()
        await self.aclose()

    def close(self) -> None:
        """Stop the tree and wait for it, in a thread. Does nothing the second time."""
        self.closing = True
        supervisor, system = self._supervisor, self._system
        if system is None or system.closed:
            return
        if supervisor is not None and supervisor.is_alive():
            supervisor.stop(block=False, reason="shutdown").get(timeout=CLOSE_SECONDS)
        self._close_system("shutdown")

    async def aclose(self) -> None:
        """Stop the tree and wait for it, in the event loop. Does nothing the second time."""
        self.closing = True
        supervisor, system = self._supervisor, self._system
        if system is None or system.closed:
            return
        if supervisor is not None and supervisor.is_alive():
            await supervisor.stop(block=False, reason="shutdown")
        await asyncio.to_thread(self._close_system, "shutdown")

    def _reset(self) -> None:
        token, self._token = self._token, None
        if token is not None:
            try:
                entered_system.reset(token)
            except ValueError:
                pass  # left in another context than it was entered in: nothing is to be reset there

    def _tree_ended(self, reason: Any) -> None:
        self._on_end(reason)
        if not self.closing:
            # The root gave up: nobody restarts anything, and the process must be able to end.
            logger.critical("%r ended: %r", self._runtime, reason)
            telemetry.emit("keepwell.runtime.ended", runtime=self._runtime, reason=reason)
            threading.Thread(
                target=self._close_system, args=(reason,), name="keepwell-close", daemon=True
            ).start()

    def _close_system(self, reason: Any) -> None:
        self._on_end(reason)
        system = self.system
        system.close()
        running_runtimes.pop(system, None)
        self.ended.complete(reason)
