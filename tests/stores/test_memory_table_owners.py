"""MemoryTable: who owns it, and what becomes of it at their end (ETS-11 to 14)."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from keepwell.actors import Actor, Down, TableTransfer
from keepwell.stores import MemoryTable

from .memory_tables import filled, refused
from .worker import ENDS, Worker, end, leave, run


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
