"""What a session that is driven over messages shows, says and emits."""

from __future__ import annotations

from typing import Any

from keepwell.sessions import Session, SessionEvent, drive_session


async def events_of(defined: Session, *messages: Any, **options: Any) -> list[SessionEvent]:
    options.setdefault("max_consecutive_turn_errors", None)
    return [event async for event in drive_session(defined, list(messages), **options)]


async def errors_of(defined: Session, *messages: Any) -> list[str | None]:
    """What each failing turn says."""
    return [event.reason for event in await events_of(defined, *messages) if event.is_error()]


async def outputs_of(defined: Session, *messages: Any, channel: str = "out") -> list[Any]:
    events = await events_of(defined, *messages)
    return [event.payload for event in events if event.is_emit() and event.channel == channel]
