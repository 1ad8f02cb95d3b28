"""DiskTable: growth, full disks, large rows, and calls beside each other."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from keepwell.actors import failpoint
from keepwell.stores import END_OF_TABLE, DiskTable, TableError
from keepwell.stores.lmdb_pages import LmdbPages
from keepwell.stores.table_file import TableFile

from .table_files import child, filled


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
