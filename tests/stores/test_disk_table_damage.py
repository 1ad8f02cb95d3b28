"""DiskTable: files that are not tables, or no longer (DETS-6)."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import lmdb
import pytest

from keepwell.stores import DiskTable

from .table_files import TYPES, child, file_error, filled

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
