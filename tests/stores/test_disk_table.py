"""DiskTable: opening and sharing, what a kill leaves, and files that are not as they should be."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepwell.actors import Actor, ActorSystem, ExitActor, failpoint
from keepwell.stores import (
    ANY,
    END_OF_TABLE,
    DiskTable,
    MemoryTable,
    StoreError,
    TableError,
    TableFileError,
    Var,
)
from keepwell.stores.lmdb_pages import DamagedFile, ForeignFile, LmdbPages
from keepwell.stores.table_file import TableFile

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("set", "ordered_set", "bag", "duplicate_bag")


class Worker(Actor):
    """Runs functions as an actor."""

    def on_receive(self, message: Any) -> Any:
        return message()


def run(worker: Any, work: Callable[[], Any]) -> Any:
    return worker.ask(work, timeout=10)


def end(ref: Any) -> None:
    ended = threading.Event()
    ref.on_exit(lambda _reason: ended.set())
    ref.kill()
    assert ended.wait(10)


@pytest.fixture
def system() -> Iterator[ActorSystem]:
    with ActorSystem() as system:
        yield system


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.dets"


def file_error(code: str, call: Callable[[], Any], path: Path | None = None) -> TableFileError:
    with pytest.raises(TableFileError) as refused:
        call()
    assert refused.value.code == code
    assert isinstance(refused.value, StoreError)
    if path is not None:
        assert refused.value.path == str(path)
    return refused.value


def refused(code: str, call: Callable[[], Any]) -> None:
    with pytest.raises(TableError) as error:
        call()
    assert error.value.code == code


# -- open and close (DETS-1, 2, 4, 7, 10) --------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("durability", ["power", "process"])
def test_data_is_there_after_close_and_reopen(path: Path, type_: str, durability: str) -> None:
    """DETS-1."""
    rows = [(1, "a"), (2.0, ["b", (None,)]), ("k" * 600, {"x": 1})]
    with DiskTable.open("t", path, type_, durability=durability) as table:
        table.insert(rows)
        kept = table.to_list()
    with DiskTable.open("t", str(path), type_, durability=durability) as table:
        assert table.to_list() == kept
        assert sorted(map(repr, kept)) == sorted(map(repr, rows))
        assert (table.info("size"), table.info("durability")) == (3, durability)
        assert table.verify() == 3
        table.sync()


def test_files_are_for_the_owner_only(path: Path) -> None:
    with DiskTable.open("t", path):
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    names = {file.name for file in path.parent.iterdir()}
    assert names == {"t.dets", "t.dets-lock", "t.dets-owner"}


@pytest.mark.parametrize("type_", TYPES)
def test_the_file_fixes_the_type(path: Path, type_: str) -> None:
    """DETS-2."""
    with DiskTable.open("t", path, type_) as table:
        table.insert((1, "a"))
    for other in TYPES:
        if other != type_:
            file_error("type_mismatch", lambda other=other: DiskTable.open("t", path, other), path)
    file_error("keypos_mismatch", lambda: DiskTable.open("t", path, type_, keypos=1), path)
    with DiskTable.open("t", path, type_, access="read") as table:
        assert table.to_list() == [(1, "a")]


CALLS: dict[str, Callable[[Any], Any]] = {
    "insert": lambda t: t.insert((1, 1)),
    "insert_new": lambda t: t.insert_new((9, 1)),
    "delete": lambda t: t.delete(1),
    "delete_object": lambda t: t.delete_object((1, 1)),
    "delete_all_objects": lambda t: t.delete_all_objects(),
    "match_delete": lambda t: t.match_delete(ANY),
    "select_delete": lambda t: t.select_delete([(ANY, [], [True])]),
    "take": lambda t: t.take(1),
    "update_counter": lambda t: t.update_counter(1, 1),
    "update_element": lambda t: t.update_element(1, {1: 2}),
    "from_memory": lambda t: t.from_memory(MemoryTable("m")),
}
READS: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda t: t.lookup(1),
    "member": lambda t: t.member(1),
    "lookup_element": lambda t: t.lookup_element(1, 1),
    "to_list": lambda t: t.to_list(),
    "len": len,
    "first": lambda t: t.first(),
    "last": lambda t: t.last(),
    "next": lambda t: t.next(1),
    "prev": lambda t: t.prev(1),
    "match": lambda t: t.match((Var(1), ANY)),
    "match_object": lambda t: t.match_object(ANY, 1),
    "select": lambda t: t.select([(ANY, [], [1])]),
    "select_count": lambda t: t.select_count([(ANY, [], [True])]),
    "to_memory": lambda t: t.to_memory(MemoryTable("m")),
    "sync": lambda t: t.sync(),
    "fix": lambda t: t.fix(),
    "unfix": lambda t: t.unfix(),
    "verify": lambda t: t.verify(),
}


@pytest.mark.parametrize("call", CALLS | READS)
def test_a_closed_table_raises(path: Path, call: str) -> None:
    """DETS-4."""
    table = DiskTable.open("t", path)
    table.close()
    refused("badarg", lambda: (CALLS | READS)[call](table))
    assert table.info() is None
    assert table.info("size") is None
    refused("not_owner", table.close)


def test_access_read(path: Path) -> None:
    """DETS-7."""
    error = file_error("file_error", lambda: DiskTable.open("t", path, access="read"), path)
    assert error.reason == "enoent"
    assert not list(path.parent.iterdir())
    with DiskTable.open("t", path) as table:
        table.insert((1, 1))
    with DiskTable.open("t", path, access="read") as table:
        for call in CALLS.values():
            with pytest.raises(TableError) as error:
                call(table)
            assert (error.value.code, error.value.path) == ("access_mode", str(path))
        for call in READS.values():
            call(table)
        assert table.to_list() == [(1, 1)]
        assert table.info("access") == "read"


def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "t"
    error = file_error("file_error", lambda: DiskTable.open("t", missing), missing)
    assert error.reason == "enoent"
    assert file_error("file_error", lambda: DiskTable.open("t", tmp_path)).reason == "eisdir"


@pytest.mark.parametrize(
    "arguments",
    [
        {"type": "sett"}, {"access": "write"}, {"keypos": -1}, {"keypos": True}, {"name": b"t"},
        {"path": 1}, {"path": ""}, {"path": "a\0b"}, {"path": b"t"}, {"durability": "none"},
    ],
    ids=repr,
)  # fmt: skip
def test_bad_arguments(path: Path, arguments: dict[str, Any]) -> None:
    refused("badarg", lambda: DiskTable.open(**{"name": "t", "path": path, **arguments}))
    assert not list(path.parent.iterdir())
    with pytest.raises(TypeError):
        DiskTable()


# -- openers (DETS-5) ----------------------------------------------------------------------------


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


# -- memory tables (DETS-8) ----------------------------------------------------------------------


@pytest.mark.parametrize("type_", TYPES)
def test_to_and_from_memory(path: Path, type_: str) -> None:
    with DiskTable.open("t", path, type_) as table:
        table.insert([(1, "a"), (2, "b")])
        memory = MemoryTable("m", type=type_)
        assert table.to_memory(memory) is memory
        assert sorted(memory.to_list()) == [(1, "a"), (2, "b")]
        memory.delete(1)
        memory.insert([(3, ["c"])])
        table.from_memory(memory)
        assert table.to_list() == [(2, "b"), (3, ["c"])]
        memory.insert((4, object()))
        refused("badarg", lambda: table.from_memory(memory))
        refused("badarg", lambda: table.from_memory(table))
        refused("badarg", lambda: table.to_memory(table))
        assert len(table) == 2


# -- files that are not tables, or no longer (DETS-6) --------------------------------------------


def filled(path: Path, rows: int = 300, type_: str = "set") -> Path:
    """A table file that was written in several transactions and closed."""
    with DiskTable.open("t", path, type_, durability="process") as table:
        for start in range(0, rows, 50):
            table.insert([(n, "v" * (n % 90)) for n in range(start, min(start + 50, rows))])
        table.insert((-1, "long" * 3000))
        table.delete(rows // 2)
        table.insert((rows // 2, "again"))
    return path


FOREIGN = {
    "text": b"not a table\n",
    "one byte": b"x",
    "zeros": bytes(9000),
    "noise": random.Random(1).randbytes(20_000),
    "sqlite": b"SQLite format 3\0" + bytes(5000),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("access", ["read", "read_write"])
def test_foreign_files_are_left_alone(path: Path, content: bytes, access: str) -> None:
    path.write_bytes(content)
    file_error("not_a_dets_file", lambda: DiskTable.open("t", path, access=access), path)
    assert DiskTable.is_table_file(path) is False
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_another_lmdb_file_is_foreign(path: Path) -> None:
    env = lmdb.open(str(path), subdir=False, max_dbs=3)
    with env.begin(write=True, db=env.open_db(b"rows")) as txn:
        txn.put(b"k", b"v")
    env.close()
    (path.parent / "t.dets-lock").unlink()
    before = path.read_bytes()
    file_error("not_a_dets_file", lambda: DiskTable.open("t", path), path)
    assert DiskTable.is_table_file(path) is False
    assert path.read_bytes() == before


def test_is_table_file(path: Path) -> None:
    assert file_error("file_error", lambda: DiskTable.is_table_file(path)).reason == "enoent"
    path.touch()
    assert DiskTable.is_table_file(path) is False
    file_error("not_a_dets_file", lambda: DiskTable.open("t", path, access="read"), path)
    with DiskTable.open("t", path) as table:
        assert DiskTable.is_table_file(path) is True
        table.insert((1, 1))
    assert DiskTable.is_table_file(path) is True


def test_a_newer_format_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepwell.stores.table_file.FORMAT", 2)
    DiskTable.open("t", path).close()
    monkeypatch.undo()
    before = path.read_bytes()
    file_error("newer_format", lambda: DiskTable.open("t", path), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("type_", TYPES)
def test_a_copy_made_while_open_opens(path: Path, type_: str) -> None:
    """DETS-6."""
    copy = path.with_name("copy")
    with DiskTable.open("t", path, type_) as table:
        table.insert([(n, "v") for n in range(100)])
        shutil.copyfile(path, copy)
        table.delete_all_objects()
        with DiskTable.open("c", copy, type_) as copied:
            assert (len(copied), copied.verify()) == (100, 100)


OPEN_AND_READ = """
    import sys
    from keepwell.stores import DiskTable, TableFileError
    for path in sys.argv[1:]:
        try:
            with DiskTable.open("t", path, access="read") as table:
                rows = table.to_list()
                table.verify()
            print("rows", len(rows))
        except TableFileError as error:
            print(error.code, error.problem)
"""


def child(program: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=50, env=environment, **options,
    )  # fmt: skip


def outcomes(paths: list[Path]) -> list[str]:
    """What reading each file comes to; by a child process, which may not die of it."""
    done = child(OPEN_AND_READ, *paths)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"died at {paths[len(lines)]}: {done.returncode} {done.stderr}"
    assert len(lines) == len(paths)
    return lines


def test_a_shortened_file_is_an_error_and_never_a_death(tmp_path: Path) -> None:
    """DETS-6: cut anywhere, a file opens whole or not at all."""
    whole = filled(tmp_path / "t.dets").read_bytes()
    paths = []
    sizes = {len(whole) - cut for cut in (1, 700, 4095, 4096, 8192)}
    sizes |= set(range(4096, len(whole), 4096)) | {24, 100, 152, 153, 4000, 4200, 8191}
    for size in sorted(sizes):
        path = tmp_path / f"cut-{size}"
        path.write_bytes(whole[:size])
        paths.append(path)
    found = outcomes(paths)
    assert {line.split()[0] for line in found} <= {"rows", "damaged", "not_a_dets_file"}
    assert all(line == "rows 301" for line in found if line.startswith("rows"))
    assert sum(line.startswith("damaged") for line in found) > len(found) / 2


def test_a_shortened_file_that_was_open_is_checked(path: Path) -> None:
    """The note of an orderly close does not vouch for a file that changed since."""
    filled(path)
    os.truncate(path, path.stat().st_size - 4096 * 3)
    before = path.read_bytes()
    file_error("damaged", lambda: DiskTable.open("t", path), path)
    file_error("damaged", lambda: DiskTable.open("t", path, access="read"), path)
    assert path.read_bytes() == before


def test_flipped_bits_are_an_error_and_never_a_death(tmp_path: Path) -> None:
    """DETS-6: any byte of the file may change; what is read then is right, or is refused."""
    whole = filled(tmp_path / "t.dets").read_bytes()
    chance = random.Random(7)
    paths = []
    for number in range(250):
        content = bytearray(whole)
        # Half of them in page headers, where it is dangerous.
        page = chance.randrange(len(whole) // 4096) * 4096
        at = page + chance.randrange(60) if number % 2 else chance.randrange(len(whole))
        for _ in range(chance.choice([1, 1, 8])):
            content[min(at + chance.randrange(8), len(content) - 1)] ^= 1 << chance.randrange(8)
        path = tmp_path / f"flip-{number}"
        path.write_bytes(content)
        paths.append(path)
    found = outcomes(paths)
    assert {line.split()[0] for line in found} <= {
        "rows", "damaged", "not_a_dets_file", "type_mismatch", "keypos_mismatch", "newer_format",
        "file_error",
    }  # fmt: skip
    assert sum(line.startswith("damaged") for line in found) > 25


def test_pages_of_another_place_are_found_out(tmp_path: Path) -> None:
    whole = filled(tmp_path / "t.dets").read_bytes()
    chance = random.Random(3)
    paths = []
    for number in range(60):
        content = bytearray(whole)
        source, target = (chance.randrange(2, len(whole) // 4096) * 4096 for _ in range(2))
        content[target : target + 4096] = whole[source : source + 4096]
        path = tmp_path / f"page-{number}"
        path.write_bytes(content)
        paths.append(path)
    assert {line.split()[0] for line in outcomes(paths)} <= {"rows", "damaged"}


def test_verify_finds_a_row_under_another_key(path: Path) -> None:
    filled(path, 10)
    with lmdb.open(str(path), subdir=False, max_dbs=2) as env:
        rows = env.open_db(b"rows", create=False)
        with env.begin(write=True, db=rows) as txn:
            cursor = txn.cursor()
            cursor.first()
            txn.put(cursor.key() + b"x", cursor.value())
    with DiskTable.open("t", path) as table:
        file_error("damaged", table.verify, path)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9000)), max_size=40))
def test_the_page_reader_agrees_with_lmdb(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    """Every healthy file passes the check; its records are those that LMDB shows."""
    path = tmp_path / f"{random.randrange(10**12)}"
    with lmdb.open(str(path), subdir=False, max_dbs=2, sync=False) as env:
        table = env.open_db(b"rows")
        for key, size in changes:
            with env.begin(write=True, db=table) as txn:
                name = key.to_bytes(2, "big") * 30
                if size % 5:
                    txn.put(name, bytes(size))
                else:
                    txn.delete(name)
        with env.begin(db=table) as txn:
            expected = [(bytes(key), bytes(value)) for key, value in txn.cursor()]
        pages = LmdbPages(path)
        pages.check()
        found = [(key, value) for key, value, _ in pages.records(pages.tables()[b"rows"])]
        pages.close()
        assert found == expected


def test_the_page_reader_refuses_what_is_not_its(path: Path) -> None:
    path.write_bytes(b"x" * 10_000)
    with pytest.raises(ForeignFile):
        LmdbPages(path)
    with lmdb.open(str(path.with_name("l")), subdir=False):
        pass
    content = bytearray(path.with_name("l").read_bytes())
    # The version, the page size, the magic number of the second header.
    for at, value in ((20, 9), (41, 1), (4096 + 16, 0)):
        damaged = bytearray(content)
        damaged[at] = value
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile):
            LmdbPages(path)


def pages_of(path: Path) -> tuple[bytearray, LmdbPages]:
    return bytearray(path.read_bytes()), LmdbPages(path)


def refuses(path: Path, content: bytearray, problem: str) -> None:
    path.write_bytes(content)
    pages = LmdbPages(path)
    try:
        with pytest.raises(DamagedFile, match=problem):
            pages.check()
    finally:
        pages.close()


def test_what_the_page_reader_looks_for(path: Path) -> None:
    """The faults that no checksum and no length shows, each by itself."""
    filled(path, 2000)
    content, pages = pages_of(path)
    root = pages.tables()[b"rows"].root * 4096
    lists = list(pages._leaves(pages.state.free, set()))
    pages.close()
    lower = int.from_bytes(content[root + 12 : root + 14], sys.byteorder)
    nodes = [
        root + int.from_bytes(content[root + at : root + at + 2], sys.byteorder)
        for at in range(16, lower, 2)
    ]
    assert len(nodes) > 2
    child = content[nodes[0] : nodes[0] + 6]

    twice = bytearray(content)
    twice[nodes[1] : nodes[1] + 6] = child
    refuses(path, twice, "used twice")

    beyond = bytearray(content)
    beyond[nodes[1] : nodes[1] + 4] = b"\xff\xff\xff\x00"
    refuses(path, beyond, "beyond the end")

    itself = bytearray(content)
    itself[nodes[1] : nodes[1] + 4] = (root // 4096).to_bytes(4, sys.byteorder)
    refuses(path, itself, "not what it is taken for")

    lonely = bytearray(content)
    lonely[root + 12 : root + 14] = (18).to_bytes(2, sys.byteorder)
    refuses(path, lonely, "one branch only")

    # The first list of free pages: node header, a key of eight bytes, a count, the pages.
    leaf = lists[0]
    node = leaf + int.from_bytes(content[leaf + 16 : leaf + 18], sys.byteorder)
    number = int.from_bytes(child[:4], sys.byteorder).to_bytes(8, sys.byteorder)
    in_use = bytearray(content)
    in_use[node + 24 : node + 32] = number
    refuses(path, in_use, "called free and is in use")
    absent = bytearray(content)
    absent[node + 24 : node + 32] = (10**6).to_bytes(8, sys.byteorder)
    refuses(path, absent, "called free and does not exist")
    endless = bytearray(content)
    endless[node + 16 : node + 24] = b"\xff" * 8
    refuses(path, endless, "list of free pages is garbled")

    path.write_bytes(content)
    with DiskTable.open("t", path) as table:
        assert table.verify() == 2001


# -- kills (DETS-6, 9) ---------------------------------------------------------------------------

WRITER = """
    import sys
    from keepwell.stores import DiskTable
    table = DiskTable.open("t", sys.argv[1], sys.argv[2], durability=sys.argv[3])
    print("open", flush=True)
    start = 1 + max((key for key, _ in table.to_list()), default=-1)
    for n in range(start, start + int(sys.argv[4])):
        table.insert([(n, "a" * (n % 500)), (n + 0.5, n)])
        print(n, flush=True)
        if n % 7 == 3:
            table.delete(n)
            print("deleted", n, flush=True)
    table.close()
    print("closed", flush=True)
"""


def check_after_kill(path: Path, type_: str, output: str) -> None:
    """What was acknowledged is there, each insert is there whole or not at all."""
    acknowledged = [int(line) for line in output.splitlines() if line.isdigit()]
    deleted = {int(line.split()[1]) for line in output.splitlines() if line.startswith("deleted")}
    with DiskTable.open("t", path, type_) as table:
        table.verify()
        keys = {key for key, _ in table.to_list()}
        for n in acknowledged:
            assert n + 0.5 in keys
            assert n in keys or n in deleted or n == acknowledged[-1]
        assert not deleted & {key for key in keys if type(key) is int}
        halves = {int(key - 0.5) for key in keys if type(key) is float}
        whole = {key for key in keys if type(key) is int}
        assert whole <= halves
        assert all(n % 7 == 3 for n in halves - whole)
        assert len(halves) <= len(acknowledged) + 1
        table.insert((10**6, "goes on"))


@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize(
    "point",
    [
        "table.open.before_header", "table.write.before_commit", "table.write.before_commit@5",
        "table.write.after_commit", "table.write.after_commit@8", "table.close.before_note",
    ],
)  # fmt: skip
def test_killed_at_a_failpoint(path: Path, point: str, durability: str) -> None:
    name, _, count = point.partition("@")
    what = f"{name}=kill" + (f"@{count}" if count else "")
    done = child(WRITER, path, "set", durability, 9, env={"KEEPWELL_FAILPOINTS": what})
    assert done.returncode == -signal.SIGKILL, done.stderr
    check_after_kill(path, "set", done.stdout)


@pytest.mark.parametrize("type_", TYPES)
def test_killed_at_any_moment(path: Path, type_: str) -> None:
    chance = random.Random(type_)
    output = ""
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(path), type_, "process", "100000"],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 120)):
                output += process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            output += process.stdout.read()
        output = output[: output.rfind("\n") + 1]
    with DiskTable.open("t", path, type_) as table:
        table.verify()
        keys = {key for key, _ in table.to_list()}
    acknowledged = [int(line) for line in output.splitlines() if line.isdigit()]
    assert acknowledged
    assert {n + 0.5 for n in acknowledged} <= keys


def test_one_process_writes(path: Path) -> None:
    """Another process may read meanwhile, and write when the owner has ended, however."""
    program = """
        import sys
        from keepwell.stores import DiskTable, TableFileError
        try:
            DiskTable.open("t", sys.argv[1])
        except TableFileError as error:
            print(error.code, sys.argv[2] in error.problem)
        with DiskTable.open("t", sys.argv[1], access="read") as table:
            print(table.to_list())
    """
    with DiskTable.open("t", path) as table:
        table.insert((1, "a"))
        done = child(program, path, os.getpid())
        assert done.stdout.splitlines() == ["in_use True", "[(1, 'a')]"], done.stderr
        table.insert((2, "b"))
        assert len(table) == table.verify() == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(path: Path) -> None:
    with DiskTable.open("t", path) as table:
        pid = os.fork()
        if pid == 0:
            codes = []
            for call in (lambda: table.insert((1, 1)), lambda: table.lookup(1)):
                try:
                    call()
                except TableFileError as error:
                    codes.append(error.code)
            try:
                DiskTable.open("t", path)
            except TableFileError as error:
                codes.append(error.code)
            os._exit(0 if codes == ["forked", "forked", "in_use"] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        table.insert((2, 2))
        assert table.to_list() == [(2, 2)]


# -- room ----------------------------------------------------------------------------------------


def test_the_map_grows_beside_readers(path: Path) -> None:
    """Growing loses no work, waits for the readers that are inside, and disturbs none of them."""
    file = TableFile(str(path), "set", 0, durability="process", map_size=1 << 20)
    grows, done = threading.Event(), threading.Event()
    errors: list[BaseException] = []
    rounds = [0, 0]

    def read(number: int) -> None:
        try:
            while not done.is_set():
                with file.reading() as txn:
                    rows = txn.cursor(db=file.rows).iternext()
                    next(rows, None)
                    if number == 0 and grows.is_set():
                        grows.clear()
                        inside.set()
                        while not file._excluders:  # until the growth waits for this reader
                            time.sleep(0)
                        sizes.append(file._map_size)
                    for key, value in rows:
                        assert value == bytes(key) * 5000
                rounds[number] += 1
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
            inside.set()

    inside = threading.Event()
    sizes: list[int] = []

    def growing() -> None:
        inside.clear()
        grows.set()
        assert inside.wait(20) and not errors

    readers = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    # Readers that compute keep a writer waiting for the interpreter's lock, an interval at a time.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    try:
        with failpoint.active({"table.grow.begin": growing}) as hits:
            for reader in readers:
                reader.start()
            for number in range(200):
                key = number.to_bytes(4, "big")
                file.change(lambda txn, key=key: txn.put(key, key * 5000, db=file.rows))
            grown = hits.get("table.grow.end", 0)
    finally:
        sys.setswitchinterval(interval)
        done.set()
        for reader in readers:
            reader.join()
    assert not errors
    assert sizes == [(1 << 20) << n for n in range(grown)], "a map changes under no reader"
    assert grown >= 2 and all(rounds)
    with file.reading() as txn:
        assert txn.stat(file.rows)["entries"] == 200
    assert file.close()


def test_a_change_that_raises_changes_nothing(path: Path) -> None:
    with DiskTable.open("t", path) as table:
        table.insert((1, "a"))
        with failpoint.active({"table.write.before_commit": failpoint.raise_error}):
            with pytest.raises(failpoint.FailpointError):
                table.insert((1, "b"))
            with pytest.raises(failpoint.FailpointError):
                table.delete_all_objects()
        assert table.to_list() == [(1, "a")]
        table.insert((2, "b"))
        assert len(table) == 2


def test_a_full_disk_is_an_error_and_the_table_lives(path: Path) -> None:
    program = """
        import resource, signal, sys
        from keepwell.stores import DiskTable, TableFileError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        table = DiskTable.open("t", sys.argv[1], durability="process")
        table.insert((0, "kept"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        try:
            for n in range(1, 1000):
                table.insert((n, "x" * 5000))
        except TableFileError as error:
            print(error.code, error.reason, n > 10)
        print(len(table) == n, table.lookup(0), table.lookup(n))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        table.insert((n, "now"))
        print(table.lookup(n), table.verify() == n + 1)
        table.close()
    """
    done = child(program, path)
    lines = done.stdout.splitlines()
    # LMDB reports a write that was cut short by its limit as an input/output error.
    assert lines[0] in ("file_error eio True", "file_error efbig True"), done.stderr
    assert lines[1].startswith("True [(0, 'kept')] []")
    assert lines[2].endswith("True")


def test_a_row_may_be_large_but_not_endless(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepwell.stores.table_codec.MAX_ROW_BYTES", 10_000)
    with DiskTable.open("t", path, durability="process") as table:
        table.insert((1, "x" * 9_000))
        with pytest.raises(TableError, match="bytes"):
            table.insert([(2, "fine"), (3, "x" * 10_001)])
        assert len(table) == 1


def test_an_orderly_close_spares_the_next_open_the_check(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    checks: list[int] = []
    check = LmdbPages.check
    monkeypatch.setattr(LmdbPages, "check", lambda self: (checks.append(1), check(self)))
    DiskTable.open("t", path).close()
    assert checks == []
    os.utime(path)
    DiskTable.open("t", path).close()
    assert checks == [1]
    DiskTable.open("t", path).close()
    assert checks == [1]


def test_readers_beside_a_writer(path: Path) -> None:
    """Each call sees the table before or after a change, never in between."""
    with DiskTable.open("t", path, "ordered_set", durability="process") as table:
        table.insert([(n, 0) for n in range(20)])
        stop = threading.Event()
        errors: list[BaseException] = []

        def read() -> None:
            try:
                while not stop.is_set():
                    assert len({value for _, value in table.to_list()}) == 1
                    key = table.first()
                    while key is not END_OF_TABLE:
                        key = table.next(key)
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for value in range(200):
            table.insert([(n, value) for n in range(20)])
        stop.set()
        for reader in readers:
            reader.join()
        if errors:
            raise errors[0]


def test_counters_lose_nothing(path: Path) -> None:
    with DiskTable.open("t", path, durability="process") as table:
        threads = [
            threading.Thread(
                target=lambda: [table.update_counter("n", 1, ("", 0)) for _ in range(200)]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert table.lookup("n") == [("n", 800)]
