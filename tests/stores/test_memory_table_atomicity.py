"""MemoryTable: calls from several threads at once, each whole or not at all."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from keepwell.stores import ANY, END_OF_TABLE, MemoryTable, TableError, Var

from .memory_tables import TYPES, filled
from .worker import end, run


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
