"""The actor that owns a store's table and serves its port (group commit)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from ..actors import names, telemetry
from ..actors.failpoint import failpoint
from ..actors.future import wakes_held
from ..actors.thread_actor import ThreadActor
from .engine import Engine
from .errors import DiskFull, ReadOnlyStore
from .port import WAKE, Port
from .request import SETTLED, Request

logger = logging.getLogger("keepwell.stores")

GATHER_STEP = 0.0001
GATHER_STEPS = 10
"""After a commit of several requests their callers are about to send the next ones. Waiting up to
a millisecond for them, while they still come, fills the next commit; a commit costs as much for
one request as for sixty."""


class StoreActor(ThreadActor):
    """Owns one table at a time: opens it in `on_start`, closes it at its end.

    `open_table()` gives the engine, `close_table(engine)` takes it back; the port keeps the queue.
    A failed flush or any other surprise ends the actor; its supervisor starts the next one, which
    reads what is on disk before it serves (F51).
    """

    def __init__(self, port: Port, open_table: Callable[[Any], Engine],
                 close_table: Callable[[Engine], None], registered_as: str | None = None) -> None:
        super().__init__()
        self._registered_as = registered_as
        self.port = port
        self._open_table = open_table
        self._close_table = close_table
        self._engine: Engine | None = None
        self._sweep_timer: Any = None

    def on_start(self) -> None:
        """Open the table, settle what the last incarnation left, then let callers in."""
        failpoint("store.start")
        ref: Any = self.actor_ref
        if self._registered_as is not None:
            names.register(self._registered_as, ref)
        engine = self._engine = self._open_table(ref)
        # Before anything else: also an end that runs no hook (kill) must let go of the port.
        ref.on_exit(lambda reason: self._gone(ref, reason))
        try:
            for request in self.port.left_over():
                # One by one, so that only a poisonous one meets the second crash (SH-3).
                request.attempts += 1
                if not request.withdrawn:
                    self._commit_group(engine, [request])
                self.port.settle(request)
        except BaseException:
            self._let_go()
            raise
        failpoint("store.attach")
        self.port.attach(ref, engine)

    def on_receive(self, message: Any) -> Any:
        """Serve the port until nothing waits."""
        if message == WAKE:
            self._serve()
        else:
            logger.warning("the store %s got a message that it does not know: %s", self.port.name,
                           type(message).__name__)

    def on_stop(self) -> None:
        """Close the table in order: what waits in the batch log is moved, so opening is short."""
        engine = self._engine
        if engine is not None:
            try:
                engine.settle()
            except Exception:
                # It is all in the log, and the next open finds it there.
                logger.warning("the store %s could not be settled", self.port.name, exc_info=True)
        self._let_go()

    def on_failure(self, *_args: Any, **_named: Any) -> None:
        """Close the table; what was not acknowledged is with the port."""
        self._let_go()

    def get_state(self) -> dict[str, Any]:
        """What `get_state` and the tree show."""
        engine = self._engine
        return {"store": self.port.name, "waiting": len(self.port.queue),
                **({} if engine is None else engine.statistics())}

    # -- serving ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        engine = self._engine
        assert engine is not None
        port = self.port
        while batch := port.take():
            live = port.hold(batch)
            if not live:
                continue
            self._commit_group(engine, live)
            port.taken = []
            if len(live) > 1 and engine.gathers:
                self._gather(len(live))
        if engine.maintain():
            self.actor_ref.tell(WAKE)  # behind whatever has come meanwhile
        elif engine.sweep_due is not None and self._sweep_timer is None:
            delay = max(1.0, engine.sweep_due - self.system.clock.time())
            self._sweep_timer = self.system.clock.call_later(delay, self._wake_later)

    def _wake_later(self) -> None:
        self._sweep_timer = None
        self.actor_ref.tell(WAKE)

    def _gather(self, expected: int) -> None:
        queue = self.port.queue
        before = -1
        for _ in range(GATHER_STEPS):
            have = len(queue)
            if have >= expected or have == before:
                return
            before = have
            time.sleep(GATHER_STEP)

    def _commit_group(self, engine: Engine, requests: list[Request]) -> None:
        """Commit together; if there is no room for all, one by one, so that small ones pass."""
        try:
            answers = engine.commit(requests, self.actor_ref)
        except DiskFull as full:
            if len(requests) == 1:
                self._refuse(requests[0], full)
            else:
                for request in requests:
                    self._commit_group(engine, [request])
                    self.port.settle(request)
        except ReadOnlyStore as refusal:
            for request in requests:
                self._refuse(request, refusal)
        else:
            failpoint("store.acknowledge")
            with wakes_held():
                for request, answer in zip(requests, answers, strict=True):
                    # The table keeps the request until its records are moved: not the future too.
                    future, request.future = request.future, SETTLED
                    if isinstance(answer, BaseException):
                        future.fail(answer)
                    else:
                        future.complete(answer)
                if self.port.taken is requests:
                    self.port.taken = []  # before whoever waited can look
            if telemetry.enabled("keepwell.store.commit"):
                telemetry.emit("keepwell.store.commit", store=self.port.name, size=len(requests))

    def _refuse(self, request: Request, refusal: Exception) -> None:
        request.future.fail(refusal)
        telemetry.emit("keepwell.store.refused", store=self.port.name, error=refusal)

    # -- the end ----------------------------------------------------------------------------------

    def _let_go(self) -> None:
        engine, self._engine = self._engine, None
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if engine is not None:
            self.port.detach(self.actor_ref, self.exit_reason)
            self._close_table(engine)

    def _gone(self, ref: Any, reason: Any) -> None:
        """The actor has ended, whatever way; a killed one is fenced and closes nothing itself."""
        self.port.detach(ref, reason)
        engine = self._engine
        if engine is not None:
            engine.fence()
