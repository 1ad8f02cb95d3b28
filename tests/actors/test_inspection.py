"""Statistics, traces and trace contexts: what can be seen of actors, and that looking is cheap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from keepwell.actors import (
    Actor,
    ActorDied,
    ActorRef,
    RequestError,
    ThreadActor,
    TraceEvent,
    VirtualClock,
    inspection,
    telemetry,
)
from keepwell.actors.ref import Bounded
from keepwell.actors.request import Request

SOON = 10.0


def crashing(_actor: Any) -> None:
    raise ValueError("v")


# -- statistics --------------------------------------------------------------------------------


def test_statistics_of_the_living(spawn: Any, watcher: Any, gate: Any) -> None:
    ref = spawn(name="desk")
    watcher.ask(lambda actor: (actor.link(ref), actor.monitor(ref)), timeout=SOON)
    ref.tell("one")
    ref.ask("two", timeout=SOON)
    seen = ref.statistics().get(timeout=SOON)
    assert seen["state"] == "idle"
    assert (seen["name"], seen["path"]) == ("desk", None)
    assert (seen["handled"], seen["mailbox"], seen["monitors"]) == (2, 0, 1)
    assert seen["links"] == [watcher]
    assert seen["uptime"] >= 0
    assert (seen["last_error"], seen["suspended"]) == (None, False)

    ref.tell(gate)
    assert gate.entered.wait(SOON)
    ref.tell("waits")
    busy = inspection.statistics(ref)  # from outside, while its handler blocks
    assert (busy["state"], busy["mailbox"]) == ("busy", 1)
    gate.open.set()
    ref.suspend().get(timeout=SOON)
    assert ref.statistics().get(timeout=SOON)["state"] == "suspended"
    ref.resume().get(timeout=SOON)


def test_uptime_is_the_clocks(light: Any) -> None:
    from keepwell.actors import ActorSystem

    clock = VirtualClock()
    with ActorSystem(name="virtual", clock=clock):
        ref = light.start()
        clock.advance(90)
        assert ref.statistics().get(timeout=SOON)["uptime"] == 90


def test_the_last_error_and_the_end(spawn: Any) -> None:
    ref = spawn()

    def refuse(_actor: Any) -> None:
        raise RequestError("not today")

    with pytest.raises(RequestError):
        ref.ask(refuse, timeout=SOON)
    assert "not today" in str(ref.statistics().get(timeout=SOON)["last_error"])
    ref.tell(crashing)
    ref.ended().get(timeout=SOON)
    seen = inspection.statistics(ref)
    assert (seen["state"], seen["last_message"]) == ("ended", "function")
    assert seen["last_error"] == "ValueError('v')"
    other = spawn()
    other.stop()
    assert inspection.statistics(other)["last_error"] is None


# -- traces ------------------------------------------------------------------------------------


def kinds(events: list[TraceEvent]) -> list[tuple[str, str]]:
    return [(event.kind, event.message_type) for event in events]


def test_a_trace_shows_types_and_times_from_one_message_to_another(spawn: Any) -> None:
    ref, events = spawn(), list[TraceEvent]()
    ref.ask("before", timeout=SOON)
    ref.trace(events.append).get(timeout=SOON)
    ref.tell("told")
    ref.ask(3, timeout=SOON)
    ref.exit("normal")
    proxy = ref.proxy()
    assert proxy.seen.get(timeout=SOON) == ["before", "told", 3]
    ref.trace(None).get(timeout=SOON)
    ref.ask("after", timeout=SOON)
    assert kinds(events)[:4] == [
        ("received", "str"), ("handled", "str"), ("received", "int"), ("handled", "int"),
    ]  # fmt: skip
    assert ("handled", "ProxyGetAttr") in kinds(events)
    assert all((event.seconds is None) == (event.kind == "received") for event in events)
    assert all(event.ref is ref for event in events)
    assert "told" not in repr([event.message_type for event in events])


def test_a_trace_shows_what_is_trapped_and_what_fails(spawn: Any) -> None:
    ref, events = spawn(trap_exit=True), list[TraceEvent]()
    ref.trace(events.append).get(timeout=SOON)
    ref.exit("boom")
    with pytest.raises(ActorDied):
        ref.ask(crashing, timeout=SOON)
    assert kinds(events) == [
        ("received", "Exit"), ("handled", "Exit"), ("received", "function"), ("failed", "function"),
    ]  # fmt: skip
    assert isinstance(events[-1].error, ValueError)


def test_a_trace_handler_that_raises_is_removed(
    spawn: Any, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def broken(_: TraceEvent) -> None:
        calls.append(1)
        raise RuntimeError("an observer")

    ref = spawn()
    ref.trace(broken).get(timeout=SOON)
    assert ref.ask("one", timeout=SOON) == "one"
    told = len(calls)
    assert ref.ask("two", timeout=SOON) == "two"
    assert len(calls) == told <= 2
    assert "is removed" in caplog.text


def test_a_trace_keeps_what_the_actor_has_put_on_itself(spawn: Any) -> None:
    ref, events = spawn(), list[TraceEvent]()
    ref.ask(lambda actor: setattr(actor, "on_receive", lambda m: ("own", m)), timeout=SOON)
    first, second = list[TraceEvent](), list[TraceEvent]()
    ref.trace(first.append).get(timeout=SOON)
    ref.trace(second.append).get(timeout=SOON)
    assert ref.ask(1, timeout=SOON) == ("own", 1)
    ref.trace(None).get(timeout=SOON)
    assert ref.ask(1, timeout=SOON) == ("own", 1)
    assert (first, len(second), events) == ([], 2, [])


def test_a_batch_is_one_step(system: Any, gate: Any) -> None:
    class Batching(ThreadActor):
        def on_batch(self, requests: list[Request]) -> None:
            for request in requests:
                request.reply(gate() if request.message == "block" else request.message)

    events: list[TraceEvent] = []
    ref = Batching.start()
    ref.trace(events.append).get(timeout=SOON)
    ref.tell("block")
    assert gate.entered.wait(SOON)
    asked = [ref.call(number) for number in range(3)]
    gate.open.set()
    assert [future.get(timeout=SOON) for future in asked] == [0, 1, 2]
    assert ("received", "batch of 3") in kinds(events)


# -- contexts across mailboxes -----------------------------------------------------------------

span: ContextVar[str | None] = ContextVar("span", default=None)


@contextmanager
def activate(context: str) -> Iterator[None]:
    token = span.set(context)
    try:
        yield
    finally:
        span.reset(token)


@pytest.fixture
def propagated() -> Iterator[telemetry.Propagation]:
    with telemetry.propagate(span.get, activate) as propagation:
        yield propagation
    assert span.get() is None


def read(_actor: Any) -> str | None:
    return span.get()


@pytest.mark.usefixtures("propagated")
def test_what_is_sent_in_a_context_is_handled_in_it(spawn: Any) -> None:
    ref = spawn()
    with activate("outer"):
        assert ref.ask(read, timeout=SOON) == "outer"
        assert ref.call(read).get(timeout=SOON) == "outer"
        ref.tell(lambda actor: actor.seen.append(span.get()))
    assert ref.ask(read, timeout=SOON) is None
    assert ref.ask(lambda actor: actor.seen, timeout=SOON) == ["outer"]


@pytest.mark.usefixtures("propagated")
def test_it_goes_on_to_whom_the_handler_sends(spawn: Any, light: Any) -> None:
    ref, further = spawn(), light.start()
    with activate("trace 1"):
        ref.ask(lambda _: further.tell(lambda actor: actor.seen.append(span.get())), timeout=SOON)
        ref.ask(
            lambda actor: actor.continue_with(lambda actor: actor.seen.append(span.get())),
            timeout=SOON,
        )
    assert further.ask(lambda actor: actor.seen, timeout=SOON) == ["trace 1"]
    assert ref.ask(lambda actor: actor.seen, timeout=SOON) == ["trace 1"]


@pytest.mark.usefixtures("propagated")
def test_a_coroutine_has_it_to_its_end(kind: Any, system: Any) -> None:
    if not kind.awaits:
        return

    async def handler() -> list[Any]:
        first = span.get()
        await asyncio.sleep(0)
        return [first, span.get(), await asyncio.create_task(inner())]

    async def inner() -> Any:
        return span.get()

    ref = kind.start()
    with activate("outer"):
        future = ref.call(lambda _: handler())
    assert future.get(timeout=SOON) == ["outer"] * 3


@pytest.mark.usefixtures("propagated")
def test_a_message_to_oneself_later_has_it(light: Any) -> None:
    from keepwell.actors import ActorSystem

    clock = VirtualClock()
    with ActorSystem(name="virtual", clock=clock):
        ref = light.start()
        with activate("outer"):
            ref.ask(lambda actor: actor.send_after(5, lambda a: a.seen.append(span.get())))
        clock.advance(5)
        assert ref.ask(lambda actor: actor.seen, timeout=SOON) == ["outer"]


@pytest.mark.usefixtures("propagated")
def test_reports_and_proxies_see_through_it(spawn: Any, events: Any) -> None:
    ref = spawn()
    with activate("outer"):
        assert ref.proxy().seen.get(timeout=SOON) == []
        ref.tell(crashing)
        ref.ended().get(timeout=SOON)
        ref.tell({"to": "the dead"})
    told = {event: fields.get("message_type") for event, fields in events}
    assert told["keepwell.actor.crashed"] == "function"
    assert told["keepwell.actor.dead_letter"] == "dict"


@pytest.mark.usefixtures("propagated")
def test_a_batch_gets_each_messages_context(system: Any) -> None:
    class Batching(ThreadActor):
        def on_batch(self, requests: list[Request]) -> None:
            for request in requests:
                request.reply((request.message, request.context))

    ref = Batching.start()
    with activate("outer"):
        assert ref.ask("m", timeout=SOON) == ("m", "outer")


def test_only_one_pair_and_nothing_is_left_behind(light: Any, system: Any) -> None:
    before = {cls: dict(vars(cls)) for cls in (ActorRef, Bounded)}
    with telemetry.propagate(span.get, activate):
        with pytest.raises(RequestError, match="already"):
            telemetry.propagate(span.get, activate)
        with activate("outer"):
            ref = light.start()
            ref.suspend().get(timeout=SOON)
            late = ref.call(read)
    ref.resume().get(timeout=SOON)
    assert late.get(timeout=SOON) is None, "detached before it was handled"
    assert {cls: dict(vars(cls)) for cls in (ActorRef, Bounded)} == before


# -- what looking costs ------------------------------------------------------------------------


def test_telemetry_without_listeners_costs_a_tell_nothing(system: Any) -> None:
    """The issue's bound is 3 % of a tell. A tell asks the bus nothing at all: neither the code that
    sends nor the loop that handles may come to use it."""
    asked: list[str] = []

    class Counting(Actor):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def on_receive(self, message: Any) -> Any:
            self.count += 1
            return self.count

    ref = Counting.start()
    ref.ask("warm", timeout=SOON)
    emit, enabled = telemetry.emit, telemetry.enabled
    try:
        telemetry.emit = lambda event, /, **_: asked.append(event)  # type: ignore[assignment]  # counted here
        telemetry.enabled = lambda event: bool(asked.append(event))  # type: ignore[assignment]  # counted here
        for _ in range(1_000):
            ref.tell("m")
        assert ref.ask("m", timeout=SOON) == 1_002
    finally:
        telemetry.emit, telemetry.enabled = emit, enabled
    assert asked == []


def test_asking_whether_anybody_listens_is_cheap() -> None:
    """For what does ask: CPU time against that of an empty call, the best of several rounds."""

    def nothing(_event: str) -> bool:
        return False

    def cost(function: Any) -> float:
        best = float("inf")
        for _ in range(7):
            begin = time.process_time()
            for _ in range(20_000):
                function("keepwell.actor.ended")
            best = min(best, time.process_time() - begin)
        return best

    assert cost(telemetry.enabled) < 4 * cost(nothing)
