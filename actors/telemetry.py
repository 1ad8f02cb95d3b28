"""One small event bus. Handlers attach by event name; without one, an event costs a dict look-up.

Event names are dotted words, `keepwell.actor.crashed`. A handler attached to a name that ends in
`.` gets all events below it, one attached to `""` gets everything. A handler that raises is
detached and logged: an observer must not hurt what it observes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .propagation import Activate, Capture, Propagation

Handler = Callable[[str, Mapping[str, Any]], None]
logger = logging.getLogger("keepwell.telemetry")

lock = threading.Lock()
_attached: dict[str, tuple[Handler, ...]] = {}
# event -> its handlers, filled on demand; cleared whenever a handler comes or goes.
_resolved: dict[str, tuple[Handler, ...]] = {}


class Attachment:
    """What `attach` returns; `detach()` ends it. Also a context manager."""

    def __init__(self, event: str, handler: Handler) -> None:
        self.event = event
        self.handler = handler
        self.attached = True

    def detach(self) -> None:
        """Stop calling the handler. Does nothing the second time."""
        if self.attached:
            self.attached = False
            _remove(self.event, self.handler)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()


def attach(event: str, handler: Handler) -> Attachment:
    """Call `handler(event, fields)` for `event`, or for all events below a name ending in `.`.

    Handlers run in the thread where the event happens: they must be quick and must not block.
    """
    with lock:
        _attached[event] = (*_attached.get(event, ()), handler)
        _resolved.clear()
    return Attachment(event, handler)


def propagate(capture: Capture, activate: Activate) -> Propagation:
    """Let a trace context cross mailboxes: `capture()` where a message is sent (None: nothing to
    carry), `with activate(context):` around its handling, in whatever thread or task that is.

    A coroutine handler runs wholly inside. Detach it to end it. Costs nothing while it is not in
    use. Raises RequestError if a pair is installed already.
    """
    from .propagation import install  # it needs refs, which need this module

    return install(capture, activate)


def _remove(event: str, handler: Handler) -> None:
    with lock:
        left = list(_attached.get(event, ()))
        if handler in left:
            left.remove(handler)  # one of them, if it was attached more than once
        if left:
            _attached[event] = tuple(left)
        else:
            _attached.pop(event, None)
        _resolved.clear()


def _resolve(event: str) -> tuple[Handler, ...]:
    with lock:
        handlers = tuple(
            handler
            for name, attached in _attached.items()
            if name == event or name == "" or (name.endswith(".") and event.startswith(name))
            for handler in attached
        )
        _resolved[event] = handlers
    return handlers


def enabled(event: str) -> bool:
    """Whether anyone listens to `event`: ask before computing costly fields."""
    if not _attached:
        return False
    handlers = _resolved.get(event)
    return bool(_resolve(event) if handlers is None else handlers)


def emit(event: str, /, **fields: Any) -> None:
    """Tell whoever listens to `event`. Never raises."""
    if not _attached:
        return
    handlers = _resolved.get(event)
    for handler in _resolve(event) if handlers is None else handlers:
        try:
            handler(event, fields)
        except BaseException:
            logger.exception("telemetry handler %r failed on %s; it is detached", handler, event)
            for name, attached in list(_attached.items()):
                for _ in range(attached.count(handler)):
                    _remove(name, handler)
