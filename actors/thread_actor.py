"""An actor with a thread of its own, for owners of things that belong to a thread."""

from __future__ import annotations

import itertools
import logging
import threading
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any, ClassVar

from . import lifecycle, runner
from .actor import Actor
from .context import entered_system, running_actor
from .future import Future
from .ref import ActorRef
from .starting import open_mailbox, start_here

logger = logging.getLogger("keepwell.actors")
_numbers = itertools.count(1)


class ThreadActor(Actor):
    """An actor that runs all its hooks and handlers in one thread of its own."""

    __slots__ = ()

    _starts_in_caller: ClassVar[bool] = False

    def _launch(self, ref: ActorRef[Any], future: Future[Any], *, blocking: bool) -> None:
        if self.has_on_start:
            ref._get_life().starting = future
        ref._system.scheduler.add_thread(ref, lambda: start_here(ref, self, future))


def _over() -> bool:
    return False


def run_thread(ref: ActorRef[Any], start: Callable[[], bool]) -> None:
    """Start the thread of `ref`: it runs `start()`, then the actor until its end."""
    wake = allocate_lock()
    wake.acquire()

    def put(_: object) -> None:
        wake.release()  # at most once before it is acquired: only who claims `_idle` puts

    def live() -> None:
        nonlocal start
        entered_system.set(ref._system)
        started, start = start(), _over  # an error's frames lead here, and must not find the actor
        if not started:
            return
        open_mailbox(ref)
        while True:
            # Waits for `open_mailbox` or a sender to claim the actor for us.
            running_actor.set(None)
            while not wake.acquire(True, 60.0):
                if ref._finished:  # ended by another thread, which does not wake this one
                    return
            try:
                while runner.run(ref):
                    pass
            except BaseException as error:
                logger.exception("the thread of %s met an error of its own", ref)
                lifecycle.end(ref, error)
            if ref._finished:
                return

    ref._put = put
    name = f"{ref.actor_class.__name__}-{next(_numbers)}"
    threading.Thread(target=live, name=name, daemon=True).start()
