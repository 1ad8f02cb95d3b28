"""The event bus: who hears what, and that nobody who listens can do harm."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from keepwell.actors import telemetry


def listener() -> tuple[list[str], telemetry.Handler]:
    heard: list[str] = []

    def handler(event: str, fields: Mapping[str, Any]) -> None:
        heard.append(event)

    return heard, handler


def test_by_name_by_prefix_and_all() -> None:
    for pattern, expected in [
        ("keepwell.test.a", ["keepwell.test.a"]),
        ("keepwell.test.", ["keepwell.test.a", "keepwell.test.b.c"]),
        ("keepwell.test", []),
        ("", ["keepwell.test.a", "keepwell.test.b.c", "other"]),
    ]:
        heard, handler = listener()
        with telemetry.attach(pattern, handler):
            for event in ("keepwell.test.a", "keepwell.test.b.c", "other"):
                telemetry.emit(event)
        telemetry.emit("keepwell.test.a")
        assert heard == expected


def test_enabled_says_whether_anybody_listens() -> None:
    assert not telemetry.enabled("keepwell.test.x")
    attachment = telemetry.attach("keepwell.test.", lambda *_: None)
    assert telemetry.enabled("keepwell.test.x")
    assert not telemetry.enabled("keepwell.other")
    attachment.detach()
    attachment.detach()
    assert not telemetry.enabled("keepwell.test.x")


def test_each_attachment_is_one() -> None:
    heard, handler = listener()
    first, second = telemetry.attach("e", handler), telemetry.attach("e", handler)
    telemetry.emit("e")
    first.detach()
    first.detach()
    telemetry.emit("e")
    second.detach()
    telemetry.emit("e")
    assert heard == ["e"] * 3


@pytest.mark.parametrize("error", [ValueError("v"), SystemExit(1)])
def test_a_handler_that_raises_is_detached_and_the_others_hear(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def broken(event: str, fields: Mapping[str, Any]) -> None:
        calls.append(1)
        raise error

    heard, handler = listener()
    telemetry.attach("keepwell.", broken)
    telemetry.attach("keepwell.test", broken)
    with telemetry.attach("keepwell.test", handler):
        telemetry.emit("keepwell.test")
        telemetry.emit("keepwell.test")
    # It was called for both of its attachments, which had been looked up before the first call.
    assert len(calls) <= 2
    assert heard == ["keepwell.test"] * 2
    assert "is detached" in caplog.text
    assert not telemetry.enabled("keepwell.test")


def test_fields_may_have_any_name() -> None:
    told: list[Mapping[str, Any]] = []
    with telemetry.attach("e", lambda event, fields: told.append(fields)):
        telemetry.emit("e", event="shadow", handler=1)
    assert told == [{"event": "shadow", "handler": 1}]


def test_coming_and_going_while_events_flow() -> None:
    stop = threading.Event()

    def emit() -> None:
        while not stop.is_set():
            telemetry.emit("keepwell.busy")

    thread = threading.Thread(target=emit)
    thread.start()
    for _ in range(200):
        heard, handler = listener()
        with telemetry.attach("keepwell.", handler):
            telemetry.emit("keepwell.mine")
        assert "keepwell.mine" in heard
    stop.set()
    thread.join(10)
