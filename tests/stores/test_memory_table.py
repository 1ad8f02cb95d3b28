"""MemoryTable: who may do what, who owns it and what becomes of it, and what is copied."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from keepwell.actors import (
    Actor,
    ActorSystem,
    AsyncActor,
    Down,
    ExitActor,
    TableTransfer,
    ThreadActor,
)
from keepwell.stores import (
    ANY,
    END_OF_TABLE,
    ROW,
    MemoryTable,
    TableError,
    Var,
    never_changes,
)

TYPES = ("set", "ordered_set", "bag", "duplicate_bag")


class Worker(Actor):
    """Runs functions as an actor, and keeps every other message."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox: list[Any] = []

    def on_receive(self, message: Any) -> Any:
        if callable(message):
            return message()
        if message == "inbox":
            return self.inbox
        self.inbox.append(message)
        return None


def run(worker: Any, work: Callable[[], Any]) -> Any:
    return worker.ask(work, timeout=10)


@pytest.fixture
def system() -> Any:
    with ActorSystem() as system:
        yield system


@pytest.fixture
def owner(system: Any) -> Any:
    return Worker.start()


@pytest.fixture
def other(system: Any) -> Any:
    return Worker.start()


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(TableError) as error:
        call()
    assert error.value.code == "badarg"


READS: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda t: t.lookup(1),
    "lookup by tuple": lambda t: t.lookup((1,)),
    "member": lambda t: t.member(1),
    "member by tuple": lambda t: t.member((1,)),
    "lookup_element": lambda t: t.lookup_element(1, 1),
    "to_list": lambda t: t.to_list(),
    "first": lambda t: t.first(),
    "last": lambda t: t.last(),
    "next": lambda t: t.next(1),
    "prev": lambda t: t.prev(1),
    "match": lambda t: t.match((Var(1), ANY)),
    "match_object": lambda t: t.match_object(ANY),
    "match by key": lambda t: t.match((1, Var(1))),
    "select": lambda t: t.select([(ANY, [], [ROW])]),
    "select in chunks": lambda t: t.select([(ANY, [], [ROW])], 1),
    "select_count": lambda t: t.select_count([(ANY, [], [True])]),
    "len": len,
    "fix": lambda t: t.fix(),
    "unfix": lambda t: t.unfix(),
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "insert": lambda t: t.insert((1, 5)),
    "insert list": lambda t: t.insert([(1, 5)]),
    "insert by tuple": lambda t: t.insert(((1,), 5)),
    "insert mutable": lambda t: t.insert((1, [])),
    "insert_new": lambda t: t.insert_new((9, 9)),
    "update_counter": lambda t: t.update_counter(1, 1, (1, 0)),
    "update_element": lambda t: t.update_element(1, {1: 1}),
    "delete_object": lambda t: t.delete_object((1, 1)),
    "match_delete": lambda t: t.match_delete((77, ANY)),
    "select_delete": lambda t: t.select_delete([((77, ANY), [], [True])]),
    "delete": lambda t: t.delete(77),
    "take": lambda t: t.take(77),
    "rename": lambda t: t.rename("u"),
    "delete_all_objects": lambda t: t.delete_all_objects(),
    "drop": lambda t: t.drop(),
}


def filled(**options: Any) -> MemoryTable:
    table = MemoryTable("t", **options)
    table.insert([(1, 1), (2, 2)])
    return table


# -- access (ETS-10) -----------------------------------------------------------------------------


def outside(_worker: Any, work: Callable[[], Any]) -> Any:
    """As `run`, but outside of any actor."""
    return work()


STRANGERS = pytest.mark.parametrize("stranger", [run, outside], ids=["actor", "outside"])


@STRANGERS
@pytest.mark.parametrize("call", READS)
@pytest.mark.parametrize(
    ("protection", "allowed"), [("private", 0), ("protected", 1), ("public", 1)]
)
def test_reading(
    owner: Any, other: Any, protection: str, allowed: int, call: str, stranger: Any
) -> None:
    table = run(owner, lambda: filled(protection=protection))
    run(owner, lambda: READS[call](table))
    if allowed:
        stranger(other, lambda: READS[call](table))
    else:
        refused(lambda: stranger(other, lambda: READS[call](table)))


@STRANGERS
@pytest.mark.parametrize("call", WRITES)
@pytest.mark.parametrize(
    ("protection", "allowed"), [("private", 0), ("protected", 0), ("public", 1)]
)
def test_writing(
    owner: Any, other: Any, protection: str, allowed: int, call: str, stranger: Any
) -> None:
    table = run(owner, lambda: filled(protection=protection))
    if allowed:
        stranger(other, lambda: WRITES[call](table))
    else:
        refused(lambda: stranger(other, lambda: WRITES[call](table)))
        assert run(owner, table.to_list) == [(1, 1), (2, 2)]
        run(owner, lambda: WRITES[call](table))


@pytest.mark.parametrize("call", READS | WRITES)
def test_a_dropped_table_raises(call: str) -> None:
    """ETS-8."""
    table = filled(protection="public")
    table.drop()
    refused(lambda: (READS | WRITES)[call](table))
    assert table.info() is None
    assert table.info("size") is None


@pytest.mark.parametrize("protection", ["private", "protected", "public"])
def test_everybody_may_ask_for_facts(owner: Any, other: Any, protection: str) -> None:
    table = run(owner, lambda: filled(protection=protection, heir=(other, 1)))
    assert run(other, table.info) == table.info() == {
        "name": "t", "type": "set", "protection": protection, "keypos": 0, "named_table": False,
        "owner": owner, "heir": other, "size": 2, "safe_fixed": False,
    }  # fmt: skip


def test_outside_of_actors_one_is_the_owner_of_what_one_made(other: Any) -> None:
    table = filled(protection="private")
    assert table.info("owner") is None
    assert table.lookup(1) == [(1, 1)]
    refused(lambda: run(other, lambda: table.lookup(1)))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(table.lookup(2)))
    thread.start()
    thread.join()
    assert seen == [[(2, 2)]]


@pytest.mark.parametrize("kind", [Actor, ThreadActor])
def test_owners_of_each_kind(system: Any, kind: Any) -> None:
    class Owner(kind):  # type: ignore[misc]
        def on_start(self) -> None:
            self.table = filled(protection="private")

        def on_receive(self, _message: Any) -> Any:
            return self.table

    ref = Owner.start()
    table = ref.ask("table")
    assert table.info("owner") == ref
    refused(lambda: table.lookup(1))
    ref.stop()
    assert table.info() is None


async def test_an_async_owner(system: Any) -> None:
    class Owner(AsyncActor):
        async def on_start(self) -> None:
            self.table = filled(protection="private")

        async def on_receive(self, _message: Any) -> Any:
            await asyncio.sleep(0)
            return self.table, self.table.lookup(1)

    ref = await Owner.spawn()
    table, found = await ref.call("table")
    assert found == [(1, 1)]
    assert table.info("owner") == ref
    refused(lambda: table.lookup(1))
    await ref.stop(block=False)
    assert table.info() is None


def test_a_killed_actor_is_refused_from_its_next_call_on(system: Any, owner: Any) -> None:
    """The thread of a fenced actor goes on, its access is over."""
    entered, killed = threading.Event(), threading.Event()
    results: list[Any] = []
    done = threading.Event()
    public = run(owner, lambda: filled(protection="public"))
    protected = run(owner, lambda: filled())

    class Stubborn(Actor):
        def on_receive(self, _message: Any) -> None:
            own = filled()
            public.insert((3, "before"))
            entered.set()
            killed.wait(10)
            for call in (
                lambda: own.insert((1, 1)), lambda: own.lookup(1), lambda: public.insert((3, "x")),
                lambda: public.insert([(3, "x")]), lambda: public.lookup(3),
                lambda: protected.lookup(1), lambda: public.update_counter(1, 1),
                lambda: MemoryTable("new"), public.drop,
            ):  # fmt: skip
                try:
                    results.append(call())
                except TableError as error:
                    results.append(error.code)
            done.set()

    ref = Stubborn.start()
    ref.tell("go")
    assert entered.wait(10)
    monitor = threading.Event()
    ref.on_exit(lambda _reason: monitor.set())
    ref.kill()
    assert monitor.wait(10)
    killed.set()
    assert done.wait(10)
    assert results == ["badarg"] * 9
    assert public.lookup(3) == [(3, "before")]


# -- the owner's end (ETS-11 to 14) --------------------------------------------------------------


def leave(reason: Any) -> Callable[[], Any]:
    def work() -> None:
        raise ExitActor(reason)

    return work


def crash() -> None:
    raise ZeroDivisionError


ENDS: dict[str, Callable[[Any], Any]] = {
    "normal": lambda ref: ref.tell(leave("normal")),
    "boom": lambda ref: ref.tell(leave("boom")),
    "crash": lambda ref: ref.tell(crash),
    "stop": lambda ref: ref.tell(ref.stop(block=False)),
    "signal": lambda ref: ref.exit("boom"),
    "kill": lambda ref: ref.kill(),
}


def end(ref: Any, how: str) -> None:
    ended = threading.Event()
    ref.on_exit(lambda _reason: ended.set())
    ENDS[how](ref)
    assert ended.wait(10)


@pytest.mark.parametrize("how", ENDS)
def test_the_table_ends_with_its_owner(owner: Any, other: Any, how: str) -> None:
    table = run(owner, lambda: filled(protection="public", named=True))
    assert MemoryTable.whereis("t") is table
    end(owner, how)
    assert table.info() is None
    refused(lambda: table.lookup(1))
    assert MemoryTable.whereis("t") is None
    assert run(other, lambda: MemoryTable("t", named=True)).info("owner") == other


def test_the_table_is_gone_before_monitors_are_told(system: Any, owner: Any) -> None:
    table = run(owner, filled)
    facts: list[Any] = []
    told = threading.Event()

    class Watcher(Actor):
        def on_start(self) -> None:
            self.monitor(owner)

        def on_receive(self, message: Any) -> None:
            if isinstance(message, Down):
                facts.append(table.info())
                told.set()

    Watcher.start()
    owner.tell(leave("boom"))
    assert told.wait(10)
    assert facts == [None]


def test_the_stop_hook_still_has_the_table(system: Any) -> None:
    seen = []

    class Owner(Actor):
        def on_start(self) -> None:
            self.table = filled()

        def on_stop(self) -> None:
            self.table.insert((3, 3))
            seen.append(len(self.table))

    Owner.start().stop()
    assert seen == [3]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("named", [True, False])
def test_an_heir_takes_over(owner: Any, other: Any, how: str, named: bool) -> None:
    """ETS-13."""
    table = run(owner, lambda: filled(heir=(other, "data"), named=named))
    end(owner, how)
    assert other.ask("inbox") == [TableTransfer(table, owner, "data")]
    assert (table.info("owner"), table.info("heir")) == (other, other)
    run(other, lambda: table.insert((3, 3)))
    assert MemoryTable.whereis("t") is (table if named else None)
    end(other, "kill")
    assert table.info() is None
    assert MemoryTable.whereis("t") is None


def test_heirs_follow_one_another(system: Any) -> None:
    first, second, third = (Worker.start() for _ in range(3))
    table = run(first, lambda: filled(heir=(second, 1)))
    end(first, "boom")
    run(second, lambda: table.set_heir(third, 2))
    end(second, "kill")
    assert third.ask("inbox") == [TableTransfer(table, second, 2)]
    run(third, lambda: table.set_heir(None))
    end(third, "boom")
    assert table.info() is None


def test_a_dead_heir_is_none(owner: Any, other: Any) -> None:
    """ETS-13."""
    table = run(owner, lambda: filled(heir=(other, "data")))
    end(other, "boom")
    end(owner, "boom")
    assert table.info() is None


def test_set_heir(owner: Any, other: Any) -> None:
    table = run(owner, filled)
    refused(lambda: run(other, lambda: table.set_heir(other, 1)))
    for bad in ("ref", 1, (other, 1)):
        refused(lambda bad=bad: run(owner, lambda: table.set_heir(bad)))
    run(owner, lambda: table.set_heir(other, "late"))
    end(owner, "normal")
    assert other.ask("inbox") == [TableTransfer(table, owner, "late")]


def test_give_away(owner: Any, other: Any) -> None:
    """ETS-14."""
    table = run(owner, filled)
    run(owner, lambda: table.give_away(other, "gift"))
    assert other.ask("inbox") == [TableTransfer(table, owner, "gift")]
    refused(lambda: run(owner, lambda: table.insert((3, 3))))
    refused(lambda: run(owner, lambda: table.give_away(other)))
    assert run(owner, lambda: table.lookup(1)) == [(1, 1)]
    run(other, lambda: table.insert((3, 3)))
    end(owner, "boom")
    assert len(table) == 3
    end(other, "boom")
    assert table.info() is None


def test_give_away_refuses(owner: Any, other: Any) -> None:
    """ETS-14: to itself, by a stranger, to the dead, to what is no actor."""
    table = run(owner, filled)
    dead = Worker.start()
    dead.stop()
    for giver, taker in ((owner, owner), (other, other), (owner, dead), (owner, "q")):
        refused(lambda g=giver, t=taker: run(g, lambda: table.give_away(t)))
    assert table.info("owner") == owner
    assert other.ask("inbox") == []


def test_a_table_made_outside_can_be_given_to_an_actor(other: Any) -> None:
    table = filled()
    table.give_away(other, "gift")
    assert other.ask("inbox") == [TableTransfer(table, None, "gift")]
    end(other, "boom")
    assert table.info() is None


def test_owners_and_heirs_that_die_at_once_leave_no_ownerless_table(system: Any) -> None:
    for _ in range(50):
        owner, heir = Worker.start(), Worker.start()
        table = run(owner, lambda heir=heir: filled(heir=(heir, None)))
        owner.tell(leave("boom"))
        heir.tell(leave("boom"))
        owner.stop()
        heir.stop()
        assert table.info() is None


def test_a_table_without_owner_is_collected() -> None:
    table = weakref.ref(filled())
    gc.collect()
    assert table() is None


def test_a_former_owner_does_not_keep_the_table(owner: Any, other: Any) -> None:
    held = run(owner, lambda: weakref.ref(filled()))
    run(owner, lambda: held().give_away(other))
    end(other, "normal")
    gc.collect()
    assert held() is None


def test_an_ended_owner_is_not_kept_alive_by_its_table(owner: Any) -> None:
    table = run(owner, filled)
    end(owner, "normal")
    held = weakref.ref(table)
    del table
    gc.collect()
    assert held() is None


# -- names (ETS-12) ------------------------------------------------------------------------------


def test_names_are_unique(owner: Any, other: Any) -> None:
    table = run(owner, lambda: MemoryTable("named", named=True))
    assert repr(table) == "<MemoryTable 'named'>"
    assert table.info("named_table") is True
    assert run(other, lambda: MemoryTable.whereis("named")) is table
    refused(lambda: run(other, lambda: MemoryTable("named", named=True)))
    assert MemoryTable("named").info("named_table") is False
    assert MemoryTable.whereis("named") is table


def test_rename(owner: Any) -> None:
    def work() -> None:
        one, two = MemoryTable("one", named=True), MemoryTable("two", named=True)
        with pytest.raises(TableError, match="taken"):
            one.rename("two")
        with pytest.raises(TableError):
            one.rename(b"bytes")
        one.rename("one")
        one.rename("three")
        assert (one.name, MemoryTable.whereis("three"), MemoryTable.whereis("one")) == (
            "three", one, None,
        )  # fmt: skip
        two.rename("one")
        two.drop()
        assert MemoryTable.whereis("one") is None
        unnamed = MemoryTable("x")
        unnamed.rename("three")
        assert MemoryTable.whereis("three") is one

    run(owner, work)


def test_each_system_has_its_own_names() -> None:
    with ActorSystem(name="a"):
        one = MemoryTable("t", named=True)
        with ActorSystem(name="b"):
            assert MemoryTable.whereis("t") is None
            two = MemoryTable("t", named=True)
            assert MemoryTable.whereis("t") is two
        assert MemoryTable.whereis("t") is one


@pytest.mark.parametrize(
    "arguments",
    [
        {"type": "sett"}, {"type": None}, {"type": []}, {"protection": "open"}, {"keypos": -1},
        {"keypos": "1"}, {"keypos": True}, {"keypos": 1.0}, {"heir": "h"}, {"heir": (1, 2)},
        {"heir": ()}, {"name": b"bytes"}, {"name": None},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_options(arguments: dict[str, Any]) -> None:
    """ETS-17."""
    refused(lambda: MemoryTable(**{"name": "t", **arguments}))


# -- copies (ETS-16) -----------------------------------------------------------------------------

OUT: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda t: t.lookup(1)[0][1],
    "take": lambda t: t.take(1)[0][1],
    "lookup_element": lambda t: t.lookup_element(1, 1)
    if t.info("type").endswith("set")
    else t.lookup_element(1, 1)[0],
    "to_list": lambda t: t.to_list()[0][1],
    "match": lambda t: t.match((1, Var(1)))[0][0],
    "match all": lambda t: t.match((ANY, Var(1)))[0][0],
    "match row": lambda t: t.match(Var(1))[0][0][1],
    "match_object": lambda t: t.match_object(ANY)[0][1],
    "select": lambda t: t.select([((ANY, Var(1)), [], [[Var(1)]])])[0][0],
    "select row": lambda t: t.select([(ANY, [], [ROW])])[0][1],
    "in chunks": lambda t: t.match_object(ANY, 1)[0][0][1],
}


@pytest.mark.parametrize("read", OUT)
@pytest.mark.parametrize("type_", TYPES)
def test_rows_are_copied_in_and_out(type_: str, read: str) -> None:
    table = MemoryTable("t", type=type_)
    inner: list[Any] = ["x"]
    value = {"list": inner, "tuple": (inner,)}
    table.insert((1, value))
    inner.append("changed after insert")
    value["new"] = 1
    found = OUT[read](table)
    assert found == {"list": ["x"], "tuple": (["x"],)}
    if read == "take":
        return
    found["list"].append("changed after reading")
    found["tuple"][0].append("changed after reading")
    assert OUT[read](table) == {"list": ["x"], "tuple": (["x"],)}


@pytest.mark.parametrize("type_", TYPES)
def test_keys_are_copied(type_: str) -> None:
    table = MemoryTable("t", type=type_)
    key = [1, [2]]
    table.insert((key, "v"))
    key[1].append(3)  # type: ignore[attr-defined]
    for read in (table.first, table.last, lambda: table.match((Var(1), "v"))[0][0]):
        found = read()
        assert found == [1, [2]]
        found[1].append(4)
    assert table.lookup([1, [2]]) == [([1, [2]], "v")]
    assert table.next([1, [2]]) is END_OF_TABLE


@pytest.mark.parametrize("type_", ["set", "ordered_set"])
def test_what_updates_put_in_is_copied(type_: str) -> None:
    table = MemoryTable("t", type=type_)
    table.insert((1, 0, None))
    value: list[Any] = []
    table.update_element(1, {2: value})
    value.append("changed")
    default = (0, 0, value)
    table.update_counter(2, 1, default)
    value.append("again")
    assert table.lookup(1) == [(1, 0, [])]
    assert table.lookup(2) == [(2, 1, ["changed"])]


def test_what_never_changes_is_shared() -> None:
    table = MemoryTable("t")
    moment = datetime.datetime.now(datetime.UTC)
    row = (1, "a", 2.0, b"b", None, (1, ("x",)), frozenset({1}), moment)
    table.insert(row)
    assert table.lookup(1)[0] is row
    assert table.match_object(ANY)[0] is row


def test_classes_can_be_declared_immutable() -> None:
    @never_changes
    @dataclasses.dataclass(frozen=True)
    class Point:
        x: int

    @dataclasses.dataclass
    class Box:
        content: list[int]

    point, box = Point(1), Box([1])
    table = MemoryTable("t")
    table.insert([(1, point), (2, box), (Point(3), "as a key")])
    assert table.lookup(1)[0][1] is point
    box.content.append(2)
    found = table.lookup(2)[0][1]
    assert found == Box([1])
    assert found is not box
    assert table.lookup(Point(3)) == [(Point(3), "as a key")]


def test_what_cannot_be_copied_is_refused() -> None:
    table = MemoryTable("t")
    refused(lambda: table.insert((1, threading.Lock())))
    refused(lambda: table.insert((1, (x for x in "abc"))))
    cycle: list[Any] = []
    cycle.append(cycle)
    refused(lambda: table.insert((1, cycle)))
    assert len(table) == 0


def test_refs_are_shared(owner: Any) -> None:
    table = filled()
    table.insert((3, owner, [owner]))
    assert table.lookup(3)[0][1] is owner
    assert table.lookup(3)[0][2][0] is owner
    table.insert((owner, 1))
    assert table.lookup(owner) == [(owner, 1)]
    ordered = MemoryTable("o", type="ordered_set")
    ordered.insert([((), 1), (owner, 2), ("s", 3), (0, 4)])
    assert [value for _, value in ordered.to_list()] == [4, 2, 1, 3]


# -- atomic under concurrency --------------------------------------------------------------------


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    if errors:
        raise errors[0]


@pytest.mark.parametrize("type_", ["set", "ordered_set"])
def test_counters_lose_nothing(owner: Any, type_: str) -> None:
    table = run(owner, lambda: MemoryTable("t", type=type_, protection="public"))

    def work(_number: int) -> None:
        for _ in range(500):
            table.update_counter("n", 1, ("n", 0))

    in_threads(work)
    assert table.lookup("n") == [("n", 2000)]


def test_an_insert_is_not_lost_in_a_count(owner: Any) -> None:
    table = run(owner, lambda: MemoryTable("t", protection="public"))
    table.insert(("n", 0))
    finished = threading.Event()

    def work(number: int) -> None:
        if number:
            while not finished.is_set():
                table.update_counter("n", 1)
            return
        try:
            for base in range(0, 100_000 * 10**6, 10**6):
                table.insert(("n", base))
                assert table.lookup("n")[0][1] >= base
        finally:
            finished.set()

    in_threads(work, 3)


def test_insert_new_lets_one_win(owner: Any) -> None:
    table = run(owner, lambda: MemoryTable("t", protection="public"))
    won: list[Any] = []

    def work(number: int) -> None:
        for key in range(300):
            if table.insert_new((key, number)):
                won.append(key)
                if key % 7 == 0:
                    table.insert((key, number, "mine"))

    in_threads(work)
    assert sorted(won) == list(range(300))


@pytest.mark.parametrize("type_", TYPES)
def test_readers_beside_a_writer(owner: Any, type_: str) -> None:
    """Whole rows, no errors, traversals that end."""
    table = run(owner, lambda: MemoryTable("t", type=type_))
    finished = threading.Event()

    def write() -> None:
        try:
            for n in range(1500):
                table.insert((n % 97, n, n))
                if n % 3 == 0:
                    table.delete((n * 31) % 97)
        finally:
            finished.set()

    def read(_number: int) -> None:
        while not finished.is_set():
            for row in [*table.to_list(), *table.match_object((Var(1), Var(2), Var(2)))]:
                assert row[1] == row[2]
                assert row[1] % 97 == row[0]
            key, steps = table.first(), 0
            while key is not END_OF_TABLE and steps < 500:
                steps += 1
                try:
                    key = table.next(key)
                except TableError:  # it was deleted under way, and nobody fixed the table
                    break
            _, more = table.match_object((ANY, ANY, ANY), 10)
            while more is not END_OF_TABLE:
                _, more = table.match_object(more)

    owner.tell(write)
    in_threads(read, 2)


def test_fixes_end_with_their_actor(owner: Any, other: Any) -> None:
    table = run(owner, filled)
    run(other, table.fix)
    table.fix()
    assert sorted(times for _, times in table.info("safe_fixed")) == [1, 1]
    end(other, "kill")
    assert table.info("safe_fixed") == [(None, 1)]
    table.unfix()
    assert table.info("safe_fixed") is False


def test_emptying_a_large_set_by_first_is_linear() -> None:
    """A queue made of a set: looking at all keys each time would take minutes."""
    table = MemoryTable("t")
    table.insert([(n,) for n in range(100_000)])
    count = 0
    while (key := table.first()) is not END_OF_TABLE:
        table.delete(key)
        count += 1
        if count % 1000 == 0:
            table.insert((f"new {count}",))
    assert count == 100_100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused() -> None:
    table = filled()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            table.insert((3, 3))
        except TableError as error:
            status = 0 if str(os.getppid()) in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    table.insert((3, 3))
    assert len(table) == 3
