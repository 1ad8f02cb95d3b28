"""Read-your-writes, monotonic reads and order, under crashes (RW-1…5)."""

import asyncio
import itertools
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors import failpoint as failpoints
from keepwell.stores import DiskStore, MemoryStore, NoCounter, Store
from keepwell.stores.record import Appended
from keepwell.supervision import ChildSpec, Supervisor
from keepwell.testing.history import Call, History

POINTS = ["store.commit.begin", "store.commit.planned", "store.commit.before_flush",
          "store.commit.after_flush", "store.publish", "store.commit.published",
          "store.acknowledge"]


async def clients(history: History, seed: int, rounds: int = 25, tasks: int = 10) -> None:
    """Tasks that add, read and clear a few conversations at random."""
    async def client(number: int) -> None:
        dice = random.Random(seed * 1000 + number)
        for turn in range(rounds):
            conversation = dice.choice("abc")
            what = dice.random()
            if what < 0.55:
                await history.add(conversation, [f"{seed}/{number}/{turn}/{i}"
                                                 for i in range(dice.choice((1, 1, 3)))])
            elif what < 0.97:
                await history.read(conversation)
            else:
                await history.clear(conversation)

    await asyncio.gather(*(client(number) for number in range(tasks)))


@pytest.mark.parametrize("kind", ["memory", "disk", "disk without cache"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_clients_see_their_writes_through_crashes_rw4(
    kind: str, seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """RW-1, RW-2, RW-3 and CS-4, as the checker asserts them over every recorded call."""
    caplog.set_level("CRITICAL")
    monkeypatch.setattr("keepwell.stores.disk_engine.MOVE_BATCHES", 4)
    store: Store = MemoryStore(counter=NoCounter()) if kind == "memory" else DiskStore(
        tmp_path, counter=NoCounter(), map_size=1 << 30, durability="process",
        cache_bytes=0 if "without" in kind else 1 << 20)
    supervisor = await Supervisor.spawn([ChildSpec("s", store.child_start())],
                                        max_restarts=1000, max_seconds=60)
    history = History(store)
    dice = random.Random(seed)

    def sometimes() -> None:
        if dice.random() < 0.05:
            failpoints.raise_error()

    with failpoints.active(dict.fromkeys(POINTS, sometimes)):
        elsewhere = threading.Thread(target=lambda: asyncio.run(clients(history, seed + 50, 15, 4)))
        elsewhere.start()
        await clients(history, seed)
        await asyncio.to_thread(elsewhere.join)
    for conversation in "abc":
        await history.read(conversation)
    assert history.violations() == []
    assert store.statistics()["crashes"] > 0
    done = [call for call in history.calls if call.kind == "add" and call.outcome == "done"]
    assert len(done) > 100
    await supervisor.stop(block=False)


# -- the checker itself (RW-5) --------------------------------------------------------------------


@dataclass
class Faulty:
    """A store of lists with one fault, which strikes from the tenth add on."""

    fault: str
    logs: dict[str, list[str]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    adds: int = 0
    late: list[tuple[str, list[str]]] = field(default_factory=list)

    async def add(self, conversation_id: str, messages: list[dict[str, Any]]) -> Appended:
        await asyncio.sleep(0)
        self.adds += 1
        strikes = self.adds == 10
        texts = [m["content"] for m in messages]
        log = self.logs.setdefault(conversation_id, [])
        first, epoch = len(log) + 1, self.epochs.get(conversation_id, 0)
        stored = texts
        if strikes and self.fault == "loses":
            stored = []
        elif strikes and self.fault == "tears":
            stored = texts[:1]
        elif strikes and self.fault == "doubles":
            stored = texts * 2
        elif strikes and self.fault == "acknowledges early":
            asyncio.get_running_loop().call_soon(
                lambda: asyncio.get_running_loop().call_later(0.003, log.extend, texts))
            stored = []
        elif strikes and self.fault == "reorders":
            log[-len(texts):] = texts + log[-len(texts):]
            stored = []
        log.extend(stored)
        return Appended(first, first + len(texts) - 1, epoch, len(texts))

    async def read(self, conversation_id: str) -> Any:
        log = list(self.logs.get(conversation_id, ()))
        epoch = self.epochs.get(conversation_id, 0)
        if self.fault == "reads stale" and self.adds % 7 == 5:
            log = log[:-2]
        records = [_Record(_Message(text)) for text in log]
        return _Log(records, epoch)

    async def clear(self, conversation_id: str) -> None:
        if self.fault != "forgets to clear":
            log = self.logs.pop(conversation_id, [])
            if self.fault == "resurrects":
                self.logs[conversation_id] = log[-1:]
        self.epochs[conversation_id] = self.epochs.get(conversation_id, 0) + (
            self.fault != "keeps the epoch")


@dataclass
class _Message:
    content: str


@dataclass
class _Record:
    message: _Message


class _Log(list[_Record]):
    def __init__(self, records: list[_Record], epoch: int) -> None:
        super().__init__(records)
        self.epoch = epoch


async def drive(store: Any) -> History:
    history = History(store)
    numbers = itertools.count()

    async def client(name: str) -> None:
        for turn in range(30):
            number = next(numbers)
            await history.add("c", [f"{name}{number}", f"{name}{number}+"])
            await history.read("c")
            if name == "x" and turn == 20:
                await history.clear("c")
                await history.read("c")
            await asyncio.sleep(0)

    await asyncio.gather(client("x"), client("y"))
    return history


@pytest.mark.parametrize("fault", ["loses", "tears", "doubles", "acknowledges early", "reorders",
                                   "reads stale", "resurrects", "forgets to clear",
                                   "keeps the epoch"])
async def test_the_checker_catches_faulty_stores_rw5(fault: str) -> None:
    assert (await drive(Faulty(fault))).violations()


async def test_the_checker_is_content_with_a_correct_store_rw5() -> None:
    assert (await drive(Faulty("none"))).violations() == []


@pytest.mark.parametrize(("calls", "wrong"), [
    ([Call("add", "c", 0, 1, "refused", ("a",)), Call("read", "c", 2, 3, "done", ("a",), 0, 0)],
     "refused"),
    ([Call("add", "c", 0, 1, "done", ("a",), 1, 0), Call("read", "c", 2, 3, "done", (), 0, 0)],
     "did not see"),
    ([Call("read", "c", 2, 3, "done", ("ghost",), 0, 0)], "nobody added"),
    ([Call("add", "c", 0, 1, "done", ("a",), 1, 0), Call("clear", "c", 2, 3, "done"),
      Call("read", "c", 4, 5, "done", ("a",), 0, 0)], "before"),
])
def test_single_violations_are_named(calls: list[Call], wrong: str) -> None:
    history = History(None, calls)
    assert any(wrong in problem for problem in history.violations())


def test_unknown_adds_may_show_or_not() -> None:
    """RW-3: whole, or never."""
    unknown = Call("add", "c", 0, texts=("a", "b"))
    for seen in ((), ("a", "b")):
        history = History(None, [unknown, Call("read", "c", 2, 3, "done", seen, 0, 0)])
        assert history.violations() == []
    torn = History(None, [unknown, Call("read", "c", 2, 3, "done", ("a",), 0, 0)])
    assert torn.violations()


