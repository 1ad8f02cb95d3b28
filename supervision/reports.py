"""What a supervisor tells the log and telemetry.

The crash of a child is reported once, by the actor itself; here follows what comes of it. Reports
name the child's spec, the reason, and the type of the message that was being handled, never its
content.
"""

from __future__ import annotations

import logging
from typing import Any

from ..actors import telemetry
from ..actors.exits import ExitReason, Shutdown
from ..actors.ref import AnyRef
from .children import ChildRecord
from .restart import Decision, Verdict
from .settings import FailedToStartChild, Settings

logger = logging.getLogger("keepwell.supervision")

CHILD_STARTED = "keepwell.supervisor.child_started"
CHILD_ENDED = "keepwell.supervisor.child_ended"
CHILD_GIVEN_UP = "keepwell.supervisor.child_given_up"
START_FAILED = "keepwell.supervisor.start_failed"
SHUTDOWN_ERROR = "keepwell.supervisor.shutdown_error"
GAVE_UP = "keepwell.supervisor.gave_up"
AUTO_SHUTDOWN = "keepwell.supervisor.auto_shutdown"


def child_started(supervisor: AnyRef, record: ChildRecord) -> None:
    """A child has an actor: at the supervisor's start, on request, or again."""
    if telemetry.enabled(CHILD_STARTED):
        _emit(CHILD_STARTED, supervisor, record, restarts=record.restarts)


def child_ended(supervisor: AnyRef, record: ChildRecord, decision: Decision) -> None:
    """A child has ended by itself, and what follows (`verdict`)."""
    if telemetry.enabled(CHILD_ENDED):
        _emit(CHILD_ENDED, supervisor, record, verdict=decision.verdict.value, **_why(record))


def child_restarted(supervisor: AnyRef, record: ChildRecord) -> None:
    """A child is up again."""
    logger.info("%s has restarted %s", supervisor, record.spec)


def start_failed(supervisor: AnyRef, record: ChildRecord, reason: ExitReason) -> None:
    """A child did not start. This is the only report of it.

    Nor is there another line for each supervisor that does not start because of it: the one next to
    the child has logged it, and the starter of the first gets the error.
    """
    if not (isinstance(reason, Shutdown) and isinstance(reason.detail, FailedToStartChild)):
        error = reason if isinstance(reason, BaseException) else None
        logger.error("%s could not start %s: %r", supervisor, record.spec, reason, exc_info=error)
    _emit(START_FAILED, supervisor, record, reason=reason, tries=record.tries + 1)


def shutdown_error(supervisor: AnyRef, record: ChildRecord, reason: ExitReason) -> None:
    """A child that was stopped ended with another reason than the one it was given."""
    logger.warning("%s: %s ended with %r when stopped", supervisor, record.spec, reason)
    _emit(SHUTDOWN_ERROR, supervisor, record, reason=reason)


def supervisor_ends(
    supervisor: AnyRef, record: ChildRecord, decision: Decision, settings: Settings
) -> None:
    """The supervisor ends because of this child: too many restarts, or a significant one's end."""
    if decision.verdict is Verdict.AUTO_SHUTDOWN:
        logger.info("%s ends because %s has ended for good", supervisor, record.spec)
        _emit(AUTO_SHUTDOWN, supervisor, record, **_why(record))
        return
    logger.error("%s gives up: %s", supervisor, _too_often(record, settings))
    _emit(GAVE_UP, supervisor, record, restarts=len(decision.window.restarts), **_why(record))


def child_given_up(
    supervisor: AnyRef, record: ChildRecord, ref: AnyRef | None, settings: Settings
) -> None:
    """One child of many is given up; the supervisor and the others go on."""
    told = _too_often(record, settings)
    logger.error("%s gives up one child, %s: %s; the others go on", supervisor, ref, told)
    _emit(CHILD_GIVEN_UP, supervisor, record, last_ref=ref, **_why(record))


def _too_often(record: ChildRecord, settings: Settings) -> str:
    handling = f" while handling a {record.last_message}" if record.last_message else ""
    return (
        f"{record.spec} ended with {record.last_reason!r}{handling}, and more than "
        f"{settings.max_restarts} restarts within {settings.max_seconds} s are too many"
    )


def _why(record: ChildRecord) -> dict[str, Any]:
    return {"reason": record.last_reason, "message_type": record.last_message}


def _emit(event: str, supervisor: AnyRef, record: ChildRecord, **fields: Any) -> None:
    telemetry.emit(event, supervisor=supervisor, spec=record.spec, ref=record.ref, **fields)
