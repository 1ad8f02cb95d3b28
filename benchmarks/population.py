"""The actors a benchmark works with, ours or pykka's: waiting for them and stopping them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import pykka

TIMEOUT = 120.0

# What both libraries' refs are.
Ref: TypeAlias = pykka.ActorRef[Any]


class Latch:
    """Opens after `count` calls of `count_down`, from whatever threads."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()
        self._open = threading.Event()

    def count_down(self) -> None:
        """Count one; the last one opens the latch."""
        with self._lock:
            self._left -= 1
            if not self._left:
                self._open.set()

    def wait(self) -> None:
        """Wait until the latch is open; TimeoutError after `TIMEOUT` seconds."""
        if not self._open.wait(TIMEOUT):
            raise TimeoutError(f"messages were not processed within {TIMEOUT:g} s")


class Counting:
    """The handler of both: counts `quota` messages, then counts down the latch."""

    def __init__(self, quota: int, latch: Latch) -> None:
        super().__init__()
        self.left = quota
        self.latch = latch

    def on_receive(self, message: Any) -> None:
        self.left -= 1
        if not self.left:
            self.latch.count_down()


def stop_all(refs: Sequence[Ref]) -> None:
    """Stop all actors and wait until they have ended."""
    futures = [ref.stop(block=False) for ref in refs]
    for future in futures:
        future.get(timeout=TIMEOUT)
