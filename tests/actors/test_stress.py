"""Asks that race stops, crashes, kills and restarts: each is answered or failed rightly (F52).

A few thousand asks in the suite; a million with `-m soak`.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from keepwell.actors import (
    Actor,
    ActorDied,
    ActorSystem,
    AsyncActor,
    ExitActor,
    MailboxFull,
    RequestError,
    ThreadActor,
)

logger = logging.getLogger("keepwell.tests")
FEW, MANY = 5_000, 170_000  # for each of the five kinds, and for the one loop
THREADS = 6
BATCH = 10
SOON = 60.0


class Crash(Exception):
    """What a handler raises on request."""


class Target:
    """Answers with what it is asked, refuses, or ends in one of several ways."""

    def on_receive(self, message: Any) -> Any:
        kind, value = message
        if kind == "refuse":
            raise RequestError(str(value))
        if kind == "crash":
            raise Crash(value)
        if kind == "exit":
            raise ExitActor(("exit", value))
        if kind == "defer":
            self.defer().reply(value)  # type: ignore[attr-defined]  # of the class mixed with
            return "ignored"
        if kind == "stop":
            self.stop()  # type: ignore[attr-defined]  # of the class mixed with
        return value


class LightTarget(Target, Actor): ...


class BoundedTarget(Target, Actor):
    max_mailbox = 50


class ThreadTarget(Target, ThreadActor): ...


class LoopTarget(Target, AsyncActor): ...


class SuspendingTarget(Target, AsyncActor):
    async def on_receive(self, message: Any) -> Any:
        await asyncio.sleep(0)
        return super().on_receive(message)


KINDS = [LightTarget, BoundedTarget, ThreadTarget, LoopTarget, SuspendingTarget]
ANSWERING = ("answer", "defer", "stop")


def right_answer(sent: tuple[str, Any], get: Callable[[], Any]) -> str:
    """Check the end of one ask; returns what it was."""
    kind, value = sent
    try:
        answer = get()
    except MailboxFull:
        return "full"
    except RequestError as error:
        assert (kind, str(value)) == ("refuse", str(error))
        return "refused"
    except ActorDied as died:
        reason = died.reason
        if isinstance(reason, Crash):
            return "died"
        # In the queue when its actor ended, served when it was killed, or sent to the dead.
        assert reason in ("normal", "killed", "noproc", "signal") or reason[0] == "exit", reason
        return "died" if reason != "noproc" else "noproc"
    assert kind in ANSWERING
    assert answer == value
    return "answered"


class Place:
    """Where the current incarnation is: whoever finds it dead starts the next."""

    def __init__(self, kind: Any, system: ActorSystem) -> None:
        self.starter = kind.options(system=system)
        self.lock = threading.Lock()
        self.ref = self.starter.start()
        self.starts = 1

    def current(self) -> Any:
        if not self.ref.is_alive():
            with self.lock:
                if not self.ref.is_alive():
                    self.ref = self.starter.start()
                    self.starts += 1
        return self.ref


def disturb(place: Place, chance: random.Random) -> None:
    """End the current incarnation from outside, in one of the ways there are."""
    ref = place.ref
    way = chance.randrange(4)
    if way == 0:
        ref.stop(block=False)
    elif way == 1:
        ref.kill()
    elif way == 2:
        ref.exit("signal")
    else:
        ref.suspend()
        ref.resume()


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are thousands of crashes."""
    monkeypatch.setattr(logging.getLogger("keepwell.actors"), "disabled", True)


@pytest.mark.parametrize("kind", KINDS)
def test_every_ask_that_races_an_end_is_answered_or_failed_rightly(kind: Any) -> None:
    """F52: none hangs, none gets another's answer."""
    race(kind, FEW)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_many_asks_that_race_ends(kind: Any) -> None:
    race(kind, MANY)


async def test_the_same_from_coroutines_on_the_actors_own_loop() -> None:
    """Calls run an idle actor in place: the ways of ending meet the caller's own task."""
    await race_on_one_loop(FEW)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_many_from_coroutines_on_the_actors_own_loop() -> None:
    await race_on_one_loop(MANY)


def race(kind: Any, asks: int) -> None:
    """Ask from several threads while the actor ends and is started again, and check each answer."""
    system = ActorSystem(name="stress")
    place = Place(kind, system)
    ends: list[collections.Counter[str]] = []
    failures: list[BaseException] = []

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        counter: collections.Counter[str] = collections.Counter()
        ends.append(counter)
        try:
            for first in range(0, asks // THREADS, BATCH):
                waiting = []
                for number in range(first, first + BATCH):
                    if chance.random() < 0.005:
                        disturb(place, chance)
                    kinds = ("crash", "exit", *["refuse", "defer"] * 5, "stop", *["answer"] * 200)
                    sent = (chance.choice(kinds), (seed, number))
                    future = place.current().ask(sent, block=False)
                    waiting.append((sent, future))
                for sent, future in waiting:
                    counter[right_answer(sent, lambda f=future: f.get(timeout=SOON))] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON + asks / 1_000)
        assert not thread.is_alive(), "an ask hangs"
    system.close()
    if failures:
        raise failures[0]
    total = sum(ends, collections.Counter())
    assert sum(total.values()) == THREADS * -(-(asks // THREADS) // BATCH) * BATCH
    assert {"answered", "refused", "died"} <= set(total)
    assert place.starts > 20
    logger.info("%s: %s, %d incarnations", kind.__name__, dict(total), place.starts)


async def race_on_one_loop(asks: int) -> None:
    """The same by `call` from tasks on the loop that the actors live on."""
    system = ActorSystem(name="stress")
    chance = random.Random(7)
    refs = {
        kind: await kind.options(system=system).spawn() for kind in (LoopTarget, SuspendingTarget)
    }
    total: collections.Counter[str] = collections.Counter()

    async def ask(number: int) -> None:
        kind: Any = chance.choice([LoopTarget, SuspendingTarget])
        ref = refs[kind]
        if not ref.is_alive():
            refs[kind] = ref = await kind.options(system=system).spawn()
        word = chance.choice(("crash", "exit", "refuse", "stop", "defer", *["answer"] * 100))
        if chance.random() < 0.01:
            ref.exit("signal")
        future = ref.call((word, number), timeout=SOON)
        try:
            await future
        except (ActorDied, RequestError):
            pass
        total[right_answer((word, number), future.get)] += 1

    for first in range(0, asks, 200):
        async with asyncio.TaskGroup() as group:
            for number in range(first, first + 200):
                group.create_task(ask(number))
    assert sum(total.values()) == asks
    assert {"answered", "refused", "died"} <= set(total)
    logger.info("on one loop: %s", dict(total))
    await system.aclose()
