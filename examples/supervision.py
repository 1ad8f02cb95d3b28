"""Supervised actors without any model: one crashes, is restarted, and nobody else notices."""

import threading
from functools import partial
from typing import Any

from keepwell.actors import Actor, ActorDied, ActorRef
from keepwell.supervision import ChildSpec, Supervisor, which_children


class Counter(Actor):
    """Counts; dies of a message that it cannot count with."""

    def __init__(self, started: threading.Semaphore) -> None:
        super().__init__()
        self.started = started
        self.count = 0

    def on_start(self) -> None:
        self.started.release()

    def on_receive(self, message: int) -> int:
        self.count += message
        return self.count


def refs(supervisor: ActorRef[Any]) -> list[ActorRef[Any]]:
    """The addresses of the supervisor's children, as they are now."""
    children = [info.child for info in which_children(supervisor).get()]
    return [child for child in children if isinstance(child, ActorRef)]


started = threading.Semaphore(0)
counter = partial(Counter, started)
supervisor = Supervisor.start([ChildSpec("left", counter), ChildSpec("right", counter)])
left, right = refs(supervisor)
started.acquire()
started.acquire()

print("left counts:", left.ask(2), left.ask(3))
print("right counts:", right.ask(1))
try:
    left.ask("a word")
except ActorDied as died:
    print("left died of", repr(died.reason))

started.acquire()  # its successor has started
left_now, _ = refs(supervisor)
print("left counts again:", left_now.ask(1))
print("right went on:", right.ask(1))
supervisor.stop()
