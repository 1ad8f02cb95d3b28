"""Bounded mailboxes and batches."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from keepwell.actors import (
    Actor,
    ActorDied,
    AsyncActor,
    MailboxFull,
    Request,
    RequestError,
    ThreadActor,
)

SOON = 10.0


@pytest.fixture
def bounded(kind: Any, system: Any) -> Any:
    return type("Bounded", (kind,), {"max_mailbox": 10})


def test_a_full_mailbox_refuses_until_it_has_drained(bounded: Any, gate: Any) -> None:
    ref = bounded.start()
    ref.tell(gate)
    assert gate.entered.wait(SOON)
    accepted = [ref.call(number, timeout=None) for number in range(5)]
    for number in range(5):
        ref.tell(number)
    with pytest.raises(MailboxFull) as full:
        ref.tell("one too many")
    assert (full.value.capacity, full.value.code) == (10, "mailbox_full")
    with pytest.raises(MailboxFull):
        ref.ask("one too many", timeout=SOON)
    with pytest.raises(RequestError):
        ref.call("one too many").get()
    assert ref.get_state() is not None  # the control lane is not bounded
    gate.open.set()
    assert [future.get(timeout=SOON) for future in accepted] == list(range(5))
    assert ref.ask("room again", timeout=SOON) == "room again"


def test_senders_in_many_threads_never_overshoot(bounded: Any, gate: Any) -> None:
    ref = bounded.start()
    ref.tell(gate)
    assert gate.entered.wait(SOON)
    accepted: list[int] = []
    start = threading.Barrier(8)

    def send() -> None:
        start.wait(SOON)
        for number in range(200):
            try:
                ref.tell(number)
            except MailboxFull:
                continue
            accepted.append(number)

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert len(accepted) == ref.mailbox_size == 10


def test_the_dead_refuse_nothing(bounded: Any) -> None:
    ref = bounded.start()
    ref.stop()
    for _ in range(20):
        ref.tell("silent")
    with pytest.raises(ActorDied):
        ref.ask("answered")


class Batching:
    """Takes what waits as one batch, as a store that commits once for all."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Any]] = []
        self.kept: list[Request] = []

    def on_batch(self, requests: list[Request]) -> None:
        self.batches.append([request.message for request in requests])
        for request in requests:
            if request.message == "boom":
                raise ValueError("boom")
            if callable(request.message):
                request.reply(request.message(self))
            elif request.message == "keep":
                self.kept.append(request)
            else:
                request.reply(request.message)


class LightBatching(Batching, Actor): ...


class ThreadBatching(Batching, ThreadActor): ...


@pytest.fixture(params=[LightBatching, ThreadBatching])
def batching(request: pytest.FixtureRequest, system: Any) -> Any:
    return request.param.start()


def fill(ref: Any, gate: Any, *messages: Any) -> list[Any]:
    """Send messages that come in one batch; returns the futures of their answers."""
    ref.tell(gate)
    assert gate.entered.wait(SOON)
    futures = [ref.call(message, timeout=None) for message in messages]
    gate.open.set()
    return futures


def test_what_waits_comes_as_one_batch_tells_included(batching: Any, gate: Any) -> None:
    batching.tell(gate)
    assert gate.entered.wait(SOON)
    asked = batching.call("asked")
    batching.tell("told")
    proxied = batching.proxy().kept
    gate.open.set()
    assert asked.get(timeout=SOON) == "asked"
    assert proxied.get(timeout=SOON) == []
    batches = batching.ask(lambda actor: actor.batches, timeout=SOON)
    assert ["asked", "told"] in [batch[:2] for batch in batches]


def test_a_batch_that_raises_fails_all_of_it(batching: Any, gate: Any) -> None:
    """F51: and those answered before keep their answers."""
    before, boom, after = fill(batching, gate, "before", "boom", "after")
    assert before.get(timeout=SOON) == "before"
    for future in (boom, after):
        with pytest.raises(ActorDied) as died:
            future.get(timeout=SOON)
        assert str(died.value.reason) == "boom"


def test_what_a_batch_left_unanswered_is_answered_later_or_fails_with_the_actor(
    batching: Any, gate: Any
) -> None:
    """F52."""
    first, second = fill(batching, gate, "keep", "keep")
    batching.ask(lambda actor: actor.kept[0].reply("late"), timeout=SOON)
    assert first.get(timeout=SOON) == "late"
    assert not second.done()
    batching.stop()
    with pytest.raises(ActorDied):
        second.get(timeout=SOON)


def test_a_busy_batching_actor_starves_no_other(system: Any) -> None:
    """It sends itself the next batch for as long as the other has not been served."""
    served = threading.Event()

    class Endless(LightBatching):
        def on_batch(self, requests: list[Request]) -> None:
            if not served.is_set():
                self.actor_ref.tell("again")

    class Other(Actor):
        def on_receive(self, message: Any) -> Any:
            served.set()

    Endless.start().tell("go")
    Other.start().ask("served?", timeout=SOON)


def test_an_async_actor_handles_one_message_at_a_time(system: Any) -> None:
    class Counting(AsyncActor):
        inside = 0
        most = 0

        async def on_receive(self, message: Any) -> int:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.inside -= 1
            return self.most

    ref = Counting.start()
    assert {future.get(timeout=SOON) for future in [ref.call(n) for n in range(50)]} == {1}
