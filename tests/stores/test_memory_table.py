"""MemoryTable: who may do what (ETS-10)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from keepwell.actors import Actor, AsyncActor, ThreadActor
from keepwell.stores import ANY, ROW, MemoryTable, TableError, Var

from .memory_tables import filled, refused
from .worker import run

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
    class Owner(kind):  # type: ignore[misc]  # a parameter
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
