"""The simulated scheduler: same steps from the same seed; a search for what chance hides."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from typing import Any

import pytest

from keepwell.actors import (
    Actor,
    ActorDied,
    AsyncActor,
    CallTimeout,
    Down,
    Exit,
    ExitActor,
    Future,
    MailboxFull,
    RequestError,
    ThreadActor,
)
from keepwell.testing.simulation import SimulatedScheduler, SimulationStuck, search_interleavings

SEEDS = int(os.environ.get("KEEPWELL_SEEDS", "400"))


class Echo(Actor):
    def on_receive(self, message: Any) -> Any:
        return message


class Journal(Actor):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_receive(self, message: Any) -> Any:
        if message == "seen":
            return list(self.seen)
        self.seen.append(message)
        return None


class Sender(Actor):
    """Tells `count` numbered messages to a target when asked to."""

    def on_receive(self, message: Any) -> Any:
        target, name, count = message
        for number in range(count):
            target.tell((name, number))


def orders(seed: int | None) -> list[Any]:
    with SimulatedScheduler(seed):
        journal = Journal.start()
        senders = [Sender.start() for _ in range(4)]
        for name, sender in enumerate(senders):
            sender.tell((journal, name, 1))
        for sender in senders:
            sender.ask((journal, "x", 0))
        return journal.ask("seen")


def test_a_seed_fixes_the_order_and_seeds_differ() -> None:
    assert orders(7) == orders(7)
    assert len({tuple(orders(seed)) for seed in range(20)}) > 3
    assert orders(None) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_time_moves_only_when_nobody_can_run() -> None:
    class Sleeper(AsyncActor):
        async def on_receive(self, message: float) -> float:
            await asyncio.sleep(message)
            return message

    with SimulatedScheduler(1) as simulation:
        sleeper = Sleeper.start()
        calls = [sleeper.call(3600.0, timeout=None), sleeper.call(60.0, timeout=None)]
        assert [call.get() for call in calls] == [3600.0, 60.0]
        assert simulation.clock.monotonic() == 3660.0
        late = sleeper.call(7.0)
        with pytest.raises(CallTimeout):
            late.get()
        assert simulation.clock.monotonic() == 3665.0


def test_a_blocked_handler_lets_others_run_and_a_hung_one_is_reported() -> None:
    class Asker(Actor):
        def on_receive(self, message: Any) -> Any:
            return message.ask("deep")

    class Hung(ThreadActor):
        def on_receive(self, message: Any) -> Any:
            return Future[Any]().get()

    before = threading.active_count()
    with SimulatedScheduler(3):
        assert Asker.start().ask(Echo.start()) == "deep"
        with pytest.raises(SimulationStuck, match="seed 3"):
            Hung.start().ask("anything")
    assert threading.active_count() <= before  # threads of earlier tests may end meanwhile


def test_coroutines_of_a_simulation_use_its_actors_and_its_time() -> None:
    async def conversation() -> list[Any]:
        echo = await Echo.spawn()
        async with asyncio.timeout(10):
            await asyncio.sleep(5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(60), 1)
        in_thread = await asyncio.to_thread(lambda: "from a thread")
        return [*await asyncio.gather(*(echo.call(n) for n in range(3))), in_thread]

    with SimulatedScheduler(2) as simulation:
        assert simulation.run(conversation()) == [0, 1, 2, "from a thread"]
        assert simulation.clock.monotonic() == 6.0


class LosesUpdates(AsyncActor):
    """A classic fault: reads, awaits, writes. Wrong only in some interleavings."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def on_receive(self, message: Any) -> Any:
        if message == "total":
            await asyncio.gather(*self.tasks)
            return self.total
        self.tasks.append(asyncio.create_task(self.add()))
        return None

    async def add(self) -> None:
        total = self.total
        await asyncio.sleep(0)
        self.total = total + 1


def loses_updates(simulation: SimulatedScheduler) -> None:
    actor = LosesUpdates.start()
    for _ in range(2):
        actor.tell("add")
    assert actor.ask("total") == 2


def test_a_search_finds_a_fault_names_its_seed_and_replays_it() -> None:
    with pytest.raises(AssertionError) as found:
        search_interleavings(loses_updates, 200)
    (note,) = found.value.__notes__
    seed = int(note.split("seed ")[1].split(",")[0])
    with pytest.raises(AssertionError) as again:
        search_interleavings(loses_updates, [seed])
    assert again.value.__notes__ == [note]


# -- the search: random programs of actors that ask, crash, stop, link and are killed --------------


class Server(Actor):
    """Does what the message says; each answered request is in `served`, in order."""

    def __init__(self, served: list[Any]) -> None:
        super().__init__()
        self.served = served

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, (Down, Exit)):
            return None
        kind, number, target = message
        self.served.append(number)
        if kind == "crash":
            raise ValueError(number)
        if kind == "exit":
            raise ExitActor("normal")
        if kind == "refuse":
            raise RequestError(f"no {number}")
        if kind == "stop":
            self.stop()
        if kind == "ask":
            try:
                return target.ask(("echo", number, None), timeout=1.0)
            except (ActorDied, CallTimeout, MailboxFull) as error:
                return type(error).__name__
        if kind == "defer":
            handle = self.defer()
            self.send_after(0.5, ("echo", number, None))
            self.system.clock.call_later(0.25, handle.reply, number)
            return None
        if kind == "monitor":
            self.monitor(target)
        if kind == "continue":
            self.continue_with(("echo", number, None))
        return number


class ThreadServer(Server, ThreadActor):
    pass


class BoundedServer(Server):
    max_mailbox = 3


class AsyncServer(AsyncActor):
    def __init__(self, served: list[Any]) -> None:
        super().__init__()
        self.served = served

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, (Down, Exit)):
            return None
        kind, number, target = message
        self.served.append(number)
        if kind == "crash":
            await asyncio.sleep(0)
            raise ValueError(number)
        if kind == "exit":
            raise ExitActor("normal")
        if kind == "refuse":
            raise RequestError(f"no {number}")
        if kind == "stop":
            self.stop()
        if kind == "ask":
            try:
                return await target.call(("echo", number, None), timeout=1.0)
            except (ActorDied, CallTimeout, MailboxFull) as error:
                return type(error).__name__
        if kind == "defer":
            await asyncio.sleep(0.1)
        return number


KINDS = ("echo", "echo", "echo", "ask", "ask", "refuse", "defer", "monitor", "continue", "crash",
         "exit", "stop")  # fmt: skip


def random_program(simulation: SimulatedScheduler) -> None:
    """Every ask ends, with the right answer or the right error, and in the order of its sender."""
    chance = random.Random(simulation.seed)
    classes = [Server, ThreadServer, AsyncServer, BoundedServer]
    served: list[list[Any]] = [[] for _ in range(4)]
    servers = [chance.choice(classes).start(served[n]) for n in range(4)]
    sent: list[list[int]] = [[] for _ in range(4)]
    calls: list[tuple[str, int, Future[Any]]] = []
    for number in range(chance.randrange(5, 30)):
        index = chance.randrange(4)
        kind = chance.choice(KINDS)
        other = servers[(index + 1 + chance.randrange(3)) % 4]
        what = chance.random()
        if what < 0.05:
            servers[index].kill()
        elif what < 0.08:
            servers[index].exit("boom")
        elif what < 0.11:
            calls.append(("stopped", number, servers[index].stop(block=False)))
        else:
            sent[index].append(number)
            calls.append((kind, number, servers[index].call((kind, number, other), timeout=20.0)))
        if chance.random() < 0.2:
            simulation.run_until_idle()
    for kind, number, call in calls:
        try:
            value = call.get()
        except ActorDied:
            continue
        except MailboxFull:
            continue
        except RequestError as error:
            assert kind == "refuse" and str(error) == f"no {number}"
        else:
            if kind == "stopped":
                assert value in (True, False)
            elif kind == "ask":
                assert value in (number, "ActorDied", "CallTimeout", "MailboxFull")
            else:
                assert kind not in ("crash", "exit"), kind
                assert value == number
    for index, server in enumerate(servers):
        order = [n for n in served[index] if n in sent[index]]
        first = list(dict.fromkeys(order))
        assert first == sorted(first), "messages of one sender overtook each other"
        server.stop()
        assert not server.is_alive()
    assert not simulation.system.actors
    assert not simulation.system.names_table


def test_random_programs_of_actors_lose_nothing() -> None:
    assert search_interleavings(random_program, SEEDS, seconds=20) > 50
