"""Files of a DiskStore that are foreign, older, newer, damaged (DS-6, fault F08)."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest

from keepwell.actors import failpoint as failpoints
from keepwell.cli import main
from keepwell.stores import DamagedStore, ForeignFormat, NewerFormat, ReadOnlyStore
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.integrity import DATA, WALK_BYTES, damage
from keepwell.stores.lmdb_pages import LmdbPages
from keepwell.stores.request import Append
from keepwell.testing.store_contract import users

from .store_files import ROOT, contents, fill, snapshot


@pytest.mark.parametrize("what", ["text", "short", "other lmdb", "sqlite"])
def test_a_foreign_file_is_left_alone_ds6(tmp_path: Path, what: str) -> None:
    if what == "other lmdb":
        with lmdb.open(str(tmp_path), max_dbs=4) as env, env.begin(write=True) as txn:
            txn.put(b"their", b"data", db=env.open_db(b"theirs", txn=txn))
    else:
        (tmp_path / "data.mdb").write_bytes(
            {
                "text": b"hello " * 5000,
                "short": b"hi",
                "sqlite": b"SQLite format 3\0" + bytes(8192),
            }[what]
        )
    before = snapshot(tmp_path)
    with pytest.raises(ForeignFormat):
        DiskEngine(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_newer_format_is_left_alone_ds6(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    with lmdb.open(str(tmp_path), max_dbs=64) as env, env.begin(write=True) as txn:
        txn.put(b"format", b"99", db=env.open_db(b"meta", txn=txn))
    before = snapshot(tmp_path)
    with pytest.raises(NewerFormat) as newer:
        DiskEngine(tmp_path)
    assert (newer.value.found, snapshot(tmp_path)) == (99, before)


def test_an_older_format_is_brought_to_the_present_one_ds6(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keepwell.stores import disk_engine

    fill(tmp_path, 50)
    expected = contents(tmp_path)
    now = disk_engine.FORMAT
    monkeypatch.setattr(disk_engine, "FORMAT", now + 2)
    with pytest.raises(ForeignFormat, match=f"format {now}"):
        DiskEngine(tmp_path)

    def note(name: bytes) -> Any:
        return lambda txn, tables: txn.put(name, b"done", db=tables.meta)

    monkeypatch.setitem(disk_engine.MIGRATIONS, now, note(b"first step"))
    monkeypatch.setitem(disk_engine.MIGRATIONS, now + 1, note(b"second step"))
    with pytest.raises(ReadOnlyStore, match=f"old format {now}"):
        DiskEngine(tmp_path, readonly=True)
    for hit in (1, 2):  # a crash in the middle leaves the old format, whole
        actions = {"store.migrate": failpoints.on_hit(hit, failpoints.raise_error)}
        with failpoints.active(actions), pytest.raises(failpoints.FailpointError):
            DiskEngine(tmp_path)
    for _ in range(2):
        assert contents(tmp_path) == expected
    engine = DiskEngine(tmp_path, readonly=True)
    with engine.environment.read() as txn:
        assert txn.get(b"format", db=engine.tables.meta) == b"%d" % (now + 2)
        assert txn.get(b"first step", db=engine.tables.meta) == b"done"
        assert txn.get(b"second step", db=engine.tables.meta) == b"done"
    engine.close()
    monkeypatch.setattr(disk_engine, "FORMAT", now)
    with pytest.raises(NewerFormat):
        DiskEngine(tmp_path)


def test_an_empty_directory_or_file_is_a_new_store_ds6(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"")
    fill(tmp_path, 10)
    assert len(contents(tmp_path)) == 7


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("clean", [True, False])
def test_a_file_cut_short_is_reported_and_kills_nothing_ds6(
    tmp_path: Path, keep: float, clean: bool
) -> None:
    fill(tmp_path, 2000, 300, map_size=1 << 28, durability="process")
    data = tmp_path / "data.mdb"
    os.truncate(data, int(data.stat().st_size * keep) // 4096 * 4096)
    if not clean:
        (tmp_path / "keepwell.lock").write_text("1 open\n")
    before = snapshot(tmp_path)
    try:
        engine = DiskEngine(tmp_path)
    except DamagedStore:
        assert snapshot(tmp_path) == before
    else:  # only free pages were cut off
        for info in engine.conversations(limit=1000):
            engine.get(info.conversation_id)
        engine.close()
        assert keep == 0.95


def test_a_large_file_cut_short_is_reported_and_kills_nothing_ds6(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beyond the size up to which all pages are always looked at: shortness alone makes it so."""
    script = """
import sys
from keepwell.stores import DamagedStore
from keepwell.stores.disk_engine import DiskEngine
for readonly in (True, False):
    try:
        DiskEngine(sys.argv[1], readonly=readonly).close()
    except DamagedStore as problem:
        print("damaged:", problem)
"""
    engine = DiskEngine(tmp_path, durability="process")
    for _ in range(3):
        engine.commit([Append("c", [{"role": "user", "content": "x" * (24 << 20)}],
                              max_message_bytes=1 << 30)])
    engine.commit([Append("d", users("last"))])
    engine.close()
    data = tmp_path / DATA
    size = data.stat().st_size
    assert size > WALK_BYTES
    (tmp_path / "keepwell.lock").write_text("1 open\n")
    DiskEngine(tmp_path).close()
    os.truncate(data, size - (1 << 20))
    (tmp_path / "keepwell.lock").write_text("1 open\n")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], text=True,
                          capture_output=True, timeout=50, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, (done.returncode, done.stderr[-1000:])
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["damaged:"] * 2
    assert data.stat().st_size == size - (1 << 20)
    assert main(["store", "verify", str(tmp_path)]) != 0
    assert "beyond the end" in capsys.readouterr().err


def looked_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many pages an open after an unclean end looks at."""
    pages = 0
    offset = LmdbPages._offset

    def counting(self: LmdbPages, number: int, kind: int) -> int:
        nonlocal pages
        pages += 1
        return offset(self, number, kind)

    with monkeypatch.context() as patch:
        patch.setattr(LmdbPages, "_offset", counting)
        assert damage(str(path)) == ""
    return pages


def test_what_is_looked_at_in_a_large_file_does_not_grow_with_it_ds2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, whole = [], []
    for name, records in (("small", 1_000), ("large", 30_000)):
        engine = DiskEngine(tmp_path / name, durability="process")
        for number in range(records // 1_000):
            engine.commit([Append(f"c{number}", users(*["text"] * 1_000))])
        engine.settle()
        engine.close()
        whole.append(looked_at(tmp_path / name, monkeypatch))
        with monkeypatch.context() as patch:
            patch.setattr("keepwell.stores.integrity.WALK_BYTES", 0)
            counts.append(looked_at(tmp_path / name, monkeypatch))
    assert whole[1] > 10 * whole[0]
    assert counts[1] < counts[0] + 20


@pytest.mark.parametrize("seed", range(12))
def test_what_opening_a_large_file_needs_is_looked_at_ds6(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A garbled page is reported, or it is none of those that are looked at in a large file."""
    fill(tmp_path, 800, 300, map_size=1 << 28, durability="process")
    data = tmp_path / DATA
    raw = bytearray(data.read_bytes())
    dice = random.Random(seed)
    at = dice.randrange(2, len(raw) // 4096) * 4096
    raw[at:at + 4096] = dice.randbytes(4096)
    data.write_bytes(raw)
    found = damage(str(tmp_path))
    monkeypatch.setattr("keepwell.stores.integrity.WALK_BYTES", 0)
    if damage(str(tmp_path)):
        assert found  # what the short look finds, the long one does
    assert damage(str(tmp_path), whole=True) == found


@pytest.mark.parametrize("seed", range(3))
def test_a_garbled_file_is_reported_and_kills_nothing_ds6(tmp_path: Path, seed: int) -> None:
    """Run in a child: what is tested is that it lives, and ends in a StoreError or the truth."""
    fill(tmp_path, 800, 300, map_size=1 << 28, durability="process")
    script = """
import random, sys
from pathlib import Path
from keepwell.stores import StoreError
from keepwell.stores.disk_engine import DiskEngine
dice = random.Random(int(sys.argv[2]))
data = Path(sys.argv[1]) / "data.mdb"
raw = bytearray(data.read_bytes())
for _ in range(dice.choice((1, 4, 30))):
    at = dice.randrange(len(raw) // 4096) * 4096
    raw[at:at + 4096] = dice.randbytes(4096)
data.write_bytes(raw)
try:
    engine = DiskEngine(sys.argv[1])
    for info in engine.conversations(limit=1000):
        try:
            got = [m.content[:6] for m in engine.get(info.conversation_id)]
            assert all(int(text) % 7 == int(info.conversation_id[1:]) for text in got), got
        except StoreError:
            pass
except StoreError as problem:
    print(type(problem).__name__)
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), str(seed)],
        text=True,
        capture_output=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-1000:])
    assert done.stdout.strip().endswith("alive")


def test_one_damaged_record_hides_only_itself_f08(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path)
    for i in range(1, 6):
        engine.commit([Append("c", users(f"text {i}")), Append("d", users(f"text {i}"))])
    engine.settle()
    engine.close()
    with lmdb.open(str(tmp_path), max_dbs=64) as env, env.begin(write=True) as txn:
        rows = env.open_db(b"rows", txn=txn)
        key, value = next(item for item in txn.cursor(db=rows) if b"text 3" in item[1])
        txn.put(key, value.replace(b"text", b"texT"), db=rows)  # in one of the two conversations
    engine = DiskEngine(tmp_path)
    damaged = []
    for name in ("c", "d"):
        try:
            assert len(engine.get(name)) == 5
        except DamagedStore as problem:
            damaged.append((problem.conversation_id, problem.seq))
            assert [m.content for m in engine.get(name, last=2)] == ["text 4", "text 5"]
            assert [r.seq for r in engine.span(name, 0, 1, 2)] == [1, 2]
            engine.commit([Append(name, users("goes on"))])
            assert engine.get(name, last=1)[0].content == "goes on"
    assert len(damaged) == 1
    assert damaged[0][1] == 3
    engine.close()
