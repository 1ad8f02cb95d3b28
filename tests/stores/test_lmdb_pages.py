"""The reader of LMDB pages: what it takes for healthy, and each fault that it looks for."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepwell.stores import DiskTable
from keepwell.stores.lmdb_pages import DamagedFile, ForeignFile, LmdbPages

from .table_files import filled


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
