"""An actor that runs functions, and the ways in which it may end, for tests of tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from keepwell.actors import Actor, ExitActor


class Worker(Actor):
    """Runs functions as an actor, and keeps every other message."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox: list[Any] = []

    def on_receive(self, message: Any) -> Any:
        if callable(message):
            return message()
        if message == "inbox":
            return self.inbox
        self.inbox.append(message)
        return None


def run(worker: Any, work: Callable[[], Any]) -> Any:
    return worker.ask(work, timeout=10)


def leave(reason: Any) -> Callable[[], Any]:
    def work() -> None:
        raise ExitActor(reason)

    return work


def crash() -> None:
    raise ZeroDivisionError


ENDS: dict[str, Callable[[Any], Any]] = {
    "normal": lambda ref: ref.tell(leave("normal")),
    "boom": lambda ref: ref.tell(leave("boom")),
    "crash": lambda ref: ref.tell(crash),
    "stop": lambda ref: ref.tell(ref.stop(block=False)),
    "signal": lambda ref: ref.exit("boom"),
    "kill": lambda ref: ref.kill(),
}


def end(ref: Any, how: str = "kill") -> None:
    """Let an actor end; returns when it has."""
    ended = threading.Event()
    ref.on_exit(lambda _reason: ended.set())
    ENDS[how](ref)
    assert ended.wait(10)
