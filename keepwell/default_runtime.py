"""Which runtime code means that names none (DF-3, DF-4)."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING

from .actors.context import entered_system
from .actors.errors import InvalidValue
from .runtime import Runtime
from .runtime_tree import running_runtimes

if TYPE_CHECKING:
    from .stores import StoreHandle

logger = logging.getLogger("keepwell")

_default_lock = threading.Lock()
_default_runtime: list[Runtime] = []


def current_runtime() -> Runtime:
    """The runtime entered in this context, else the only one running, else the process's default.

    The default one keeps conversations in memory, is started at the first use and ends with the
    process. Raises InvalidValue if several are running and none is entered. Rules: DF-3, DF-4.
    """
    system = entered_system.get()
    if system is not None and not system.closed and system in running_runtimes:
        return running_runtimes[system]
    mine = [rt for rt in running_runtimes.values() if rt not in _default_runtime]
    if len(mine) == 1:
        return mine[0]
    if mine:
        raise InvalidValue(f"{len(mine)} runtimes are running and none is entered here: call this "
                           "inside `with runtime:`")  # fmt: skip
    with _default_lock:
        if not _default_runtime or _default_runtime[0].system.closed:
            logger.warning("no Runtime is running: conversations are kept in memory and end with "
                           "this process; use Runtime(data_dir=…) to keep them")  # fmt: skip
            _default_runtime[:] = [_started_in_a_thread()]
        return _default_runtime[0]


def _started_in_a_thread() -> Runtime:
    """Enter a runtime on a loop of its own, wherever the caller is."""
    runtime = Runtime(name="default")
    failures: list[BaseException] = []

    def enter() -> None:
        try:
            runtime.__enter__()
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            failures.append(error)

    thread = threading.Thread(target=enter, name="keepwell-start")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return runtime


def default_store() -> StoreHandle:
    """The default store of the current runtime (DF-4)."""
    return current_runtime().store


def _close_default() -> None:
    for runtime in _default_runtime:
        runtime.close()


def _after_fork() -> None:
    _default_runtime.clear()
    running_runtimes.clear()


atexit.register(_close_default)
os.register_at_fork(after_in_child=_after_fork)
