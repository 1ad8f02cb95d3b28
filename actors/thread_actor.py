"""An actor with a thread of its own, for owners of things that belong to a thread."""

from __future__ import annotations

import itertools
import threading
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any, ClassVar

from . import runner
from .actor import Actor
from .context import entered_system, running_actor
from .future import Future
from .ref import ActorRef
from .starting import open_mailbox, start_here

_numbers = itertools.count(1)


class ThreadActor(Actor):
    """An actor that runs all its hooks and handlers in one thread of its own."""

    __slots__ = ()

    _starts_in_caller: ClassVar[bool] = False

    def _launch(self, ref: ActorRef[Any], future: Future[Any], *, blocking: bool) -> None:
        if self.has_on_start:
            ref._get_life().starting = future
        ref._system.scheduler.add_thread(ref, lambda: start_here(ref, self, future))


def run_thread(ref: ActorRef[Any], start: Callable[[], bool]) -> None:
    """Start the thread of `ref`: it runs `start()`, then the actor until its end."""
    wake = allocate_lock()
    wake.acquire()

    def put(_: object) -> None:
        wake.release()  # at most once before it is acquired: only who claims `_idle` puts

    def live() -> None:
        entered_system.set(ref._system)
        if not start():
            return
        open_mailbox(ref)
        while True:
            # Waits for `open_mailbox` or a sender to claim the actor for us.
            running_actor.set(None)
            while not wake.acquire(True, 60.0):
                if ref._finished:
                    return
            if ref._finished:
                return
            while runner.run(ref):
                pass
            if ref._finished:
                return

    ref._put = put
    name = f"{ref.actor_class.__name__}-{next(_numbers)}"
    threading.Thread(target=live, name=name, daemon=True).start()
