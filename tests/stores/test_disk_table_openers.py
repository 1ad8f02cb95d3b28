"""DiskTable: actors that share one table, and what their ends do to it (DETS-5)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors import Actor, ActorSystem, ExitActor, failpoint
from keepwell.stores import DiskTable, TableError

from .table_files import file_error, refused
from .worker import Worker, end, run


def test_openers_share_one_table(system: Any, path: Path) -> None:
    one, two = Worker.start(), Worker.start()
    table = run(one, lambda: DiskTable.open("t", path))
    run(one, lambda: table.insert((1, "a")))
    assert run(two, lambda: table.lookup(1)) == [(1, "a")]
    refused("not_owner", lambda: run(two, table.close))
    assert run(two, lambda: DiskTable.open("t", path)) is table
    run(one, table.close)
    refused("not_owner", lambda: run(one, table.close))
    assert run(two, lambda: table.lookup(1)) == [(1, "a")]
    run(two, table.close)
    assert table.info() is None
    refused("badarg", lambda: run(two, lambda: table.lookup(1)))


def test_whoever_opens_twice_closes_twice(system: Any, path: Path) -> None:
    one = Worker.start()
    table = run(one, lambda: DiskTable.open("t", path))
    run(one, lambda: DiskTable.open("t", path))
    run(one, table.close)
    assert table.info("size") == 0
    run(one, table.close)
    assert table.info() is None


@pytest.mark.parametrize("how", ["normal", "boom", "kill"])
def test_the_end_of_the_last_opener_closes(system: Any, path: Path, how: str) -> None:
    """DETS-5: properly, and nothing is lost."""

    def leave() -> None:
        raise ExitActor(how)

    one, two = Worker.start(), Worker.start()
    table = run(one, lambda: DiskTable.open("t", path))
    run(two, lambda: DiskTable.open("t", path))
    run(one, lambda: table.insert((1, "a")))
    ended = [threading.Event(), threading.Event()]
    for ref, event in zip((one, two), ended, strict=True):
        ref.on_exit(lambda _reason, event=event: event.set())
    one.kill() if how == "kill" else one.tell(leave)
    assert ended[0].wait(10)
    assert table.info("size") == 1
    two.kill() if how == "kill" else two.tell(leave)
    assert ended[1].wait(10)
    assert table.info() is None
    assert (path.parent / "t.dets-owner").read_text().startswith("closed ")
    with DiskTable.open("t", path) as table:
        assert table.lookup(1) == [(1, "a")]


def test_incompatible_openings(system: Any, path: Path) -> None:
    with DiskTable.open("t", path):
        other = path.with_name("other")
        for call in (
            lambda: DiskTable.open("t", other),
            lambda: DiskTable.open("t", path, "bag"),
            lambda: DiskTable.open("t", path, keypos=1),
        ):
            file_error("incompatible_arguments", call)
        file_error("in_use", lambda: DiskTable.open("u", path), path)
        link = path.with_name("link")
        link.symlink_to(path)
        file_error("in_use", lambda: DiskTable.open("u", link))
        with DiskTable.open("t", link, access="read") as again:
            assert again.info("access") == "read_write"


def test_the_end_of_a_system_frees_its_files(path: Path) -> None:
    """F58: its names and tables go, those of another system stay."""
    with ActorSystem(name="other"):
        kept = DiskTable.open("kept", path.with_name("kept"))
        with ActorSystem(name="short"):
            table = DiskTable.open("t", path)
            table.insert((1, "a"))
        with DiskTable.open("t", path) as again:
            assert again is not table
            assert again.to_list() == [(1, "a")]
        assert table.info() is None
        assert kept.info("size") == 0
        kept.close()


def test_fixes_of_an_ended_opener_end(system: Any, path: Path) -> None:
    with DiskTable.open("t", path) as table:
        one = Worker.start()
        run(one, lambda: DiskTable.open("t", path))
        run(one, table.fix)
        assert table.info("safe_fixed") == [(one, 1)]
        end(one)
        assert table.info("safe_fixed") is False


def test_a_killed_actor_is_refused_from_its_next_call_on(system: Any, path: Path) -> None:
    entered, killed, done = threading.Event(), threading.Event(), threading.Event()
    results: list[Any] = []
    with DiskTable.open("t", path) as table:

        class Stubborn(Actor):
            def on_receive(self, _message: Any) -> None:
                table.insert((1, "before"))
                entered.set()
                killed.wait(10)
                for call in (
                    lambda: table.insert((1, "after")), lambda: table.lookup(1),
                    lambda: DiskTable.open("t", path),
                ):  # fmt: skip
                    try:
                        results.append(call())
                    except TableError as error:
                        results.append(error.code)
                done.set()

        ref = Stubborn.start()
        ref.tell("go")
        assert entered.wait(10)
        end(ref)
        killed.set()
        assert done.wait(10)
        assert results == ["badarg"] * 3
        assert table.to_list() == [(1, "before")]


def test_a_write_that_hangs_keeps_the_file_and_says_so(system: Any, path: Path) -> None:
    """A killed actor stuck in a commit: others are told, and the file closes when it is through."""
    entered, go_on = threading.Event(), threading.Event()

    def stall() -> None:
        entered.set()
        go_on.wait(20)

    one = Worker.start()
    table = run(one, lambda: DiskTable.open("t", path))
    with failpoint.active({"table.write.before_commit": stall}):
        one.tell(lambda: table.insert((1, "late")))
        assert entered.wait(10)
        end(one)
        assert table.info() is None
        file_error("in_use", lambda: DiskTable.open("t", path), path)
        go_on.set()
        with DiskTable.open("t", path) as again:
            assert again.to_list() in ([], [(1, "late")])
