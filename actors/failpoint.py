"""Named points at which tests make the product fail.

`failpoint("store.commit.before_flush")` does nothing in production but look at one global. A test
activates points with `active`, or a child process through the environment variable
KEEPWELL_FAILPOINTS (`name=kill`, `name=kill@3` for the third hit, `name=raise`, comma-separated).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

_Action = Callable[[], None]
_actions: dict[str, _Action] | None = None
_lock = threading.Lock()
hits: dict[str, int] = {}
"""How often each point was reached while any was active: shows a test that it tested something."""


class FailpointError(OSError):
    """Raised by a point set to `raise`."""


def failpoint(name: str) -> None:
    """Do what a test has asked for at `name`; nothing in production."""
    if _actions is not None:
        hits[name] = hits.get(name, 0) + 1
        action = _actions.get(name)
        if action is not None:
            action()


@contextmanager
def active(actions: Mapping[str, _Action]) -> Iterator[dict[str, int]]:
    """Activate points for the block; yields the counts of hits. Blocks may nest."""
    global _actions
    with _lock:
        before = _actions
        _actions = {**(before or {}), **actions}
        hits.clear()
    try:
        yield hits
    finally:
        with _lock:
            _actions = before


def kill_process() -> None:
    """End this process as `kill -9` does: no handler, no flush, no exit hook."""
    os.kill(os.getpid(), signal.SIGKILL)


def raise_error() -> None:
    """Raise FailpointError."""
    raise FailpointError("failpoint")


def on_hit(n: int, action: _Action) -> _Action:
    """Return an action that runs `action` at the `n`-th hit only (1 is the first)."""
    left = [n]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            action()

    return count


def parse(text: str) -> dict[str, _Action]:
    """Read the form of KEEPWELL_FAILPOINTS. Raises ValueError for an unknown action."""
    known: dict[str, _Action] = {"kill": kill_process, "raise": raise_error}
    actions: dict[str, _Action] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, word = item.partition("=")
        word, _, count = word.partition("@")
        if word not in known:
            raise ValueError(f"failpoint {item!r}: the action is one of {', '.join(known)}")
        actions[name] = on_hit(int(count), known[word]) if count else known[word]
    return actions


if _environment := os.environ.get("KEEPWELL_FAILPOINTS"):
    _actions = parse(_environment)
