"""Directories, locks, formats, damage, full disks, growth, forks (DS-1…7, F06…F08)."""

import asyncio
import errno
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest

from keepwell.actors import failpoint as failpoints
from keepwell.actors.errors import InvalidValue, StartFailed
from keepwell.cli import main
from keepwell.stores import (
    DamagedStore,
    DiskFull,
    DiskStore,
    ForeignFormat,
    ForkedStore,
    NewerFormat,
    NoCounter,
    PredecessorMissing,
    ReadOnlyStore,
    StoreInUse,
    StoreUnavailable,
)
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.integrity import DATA, WALK_BYTES, damage
from keepwell.stores.lmdb_pages import LmdbPages
from keepwell.stores.message import Message
from keepwell.stores.request import Append, Clear
from keepwell.testing.store_contract import CharacterCounter, texts, users

ROOT = Path(__file__).parents[2]


def fill(path: Path, records: int = 300, size: int = 50, **settings: Any) -> None:
    engine = DiskEngine(path, **settings)
    for i in range(records):
        engine.commit([Append(f"c{i % 7}", users(f"{i:06}" + "x" * size), append_id=f"k{i}")])
    engine.close()


def contents(path: Path, **settings: Any) -> dict[str, list[Any]]:
    engine = DiskEngine(path, **settings)
    try:
        return {
            info.conversation_id: [m.content for m in engine.get(info.conversation_id)]
            for info in engine.conversations(limit=1000)
        }
    finally:
        engine.close()


def snapshot(path: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name != "lock.mdb" and p.name != "keepwell.lock"
    }


# -- the directory --------------------------------------------------------------------------------


def test_made_with_parents_and_closed_to_others_ds1(tmp_path: Path) -> None:
    odd = tmp_path / "a b" / "é\n" / "data 100%"
    before = os.umask(0o000)
    try:
        DiskEngine(odd).close()
    finally:
        os.umask(before)
    for directory in (odd, odd.parent, odd.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    files = list(odd.iterdir())
    assert {f.name for f in files} == {"data.mdb", "lock.mdb", "keepwell.lock"}
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_other_files_are_ignored_and_a_stopped_store_may_be_copied_ds1(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "notes.txt").write_text("mine")
    fill(tmp_path / "one", 30)
    expected = contents(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "one").rename(tmp_path / "three")
    assert contents(tmp_path / "two") == contents(tmp_path / "three") == expected
    assert (tmp_path / "three" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("bad", ["", None, 5, b""])
def test_bad_paths_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidValue):
        DiskStore(bad)


@pytest.mark.parametrize("bad", ["", "Power", None, True, "none"])
def test_bad_durability_is_refused_ds4(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(InvalidValue, match=r'"power" or "process"'):
        DiskStore(tmp_path, durability=bad)
    with pytest.raises(InvalidValue):
        DiskEngine(tmp_path, durability=bad)


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises((ForeignFormat, ReadOnlyStore)):
            DiskEngine(path)
    assert (tmp_path / "file").read_text() == "x"


def test_a_read_only_directory_is_refused_ds5() -> None:
    """In a child process without privileges if this one is root, which may write anywhere."""
    script = (
        "import os, sys\n"
        "from keepwell.stores import ReadOnlyStore\n"
        "from keepwell.stores.disk_engine import DiskEngine\n"
        "if os.geteuid() == 0:\n"
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        DiskEngine(path).close()\n"
        "        print('opened')\n"
        "    except ReadOnlyStore as refusal:\n"
        "        print('refused', refusal)\n"
    )

    def opened(*paths: Path) -> list[str]:
        run = subprocess.run([sys.executable, "-c", script, *map(str, paths)], timeout=60,
                             capture_output=True, text=True, check=False,
                             env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert run.returncode == 0, run.stderr
        return [line.split()[0] for line in run.stdout.splitlines()]

    # Not below `tmp_path`, whose parents are closed to other users.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        parent = Path(name)
        parent.chmod(0o777)
        directory = parent / "data"
        assert opened(directory) == ["opened"]
        owner = directory.stat().st_uid
        before = {path.name: path.read_bytes() for path in directory.iterdir()}
        directory.chmod(0o500)
        parent.chmod(0o555)
        assert opened(directory, directory / "below" / "it", parent / "other") == ["refused"] * 3
        parent.chmod(0o755)
        directory.chmod(0o700)
        assert directory.stat().st_uid == owner
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_power_flushes_before_it_acknowledges_and_process_does_not_ds4(tmp_path: Path) -> None:
    """Counted, as kill -9 does not tell the two apart."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    counts = {}
    for durability in ("power", "process"):
        script = (
            "import sys; from keepwell.stores.disk_engine import DiskEngine as E\n"
            "from keepwell.stores.request import Append\n"
            "e = E(sys.argv[1], durability=sys.argv[2])\n"
            "for i in range(20): e.commit([Append('c', [{'role': 'user', 'content': 'x'}])])\n"
            "import os; os._exit(0)"
        )
        trace = tmp_path / f"{durability}.trace"
        subprocess.run(
            [
                "strace",
                "-f",
                "-e",
                "trace=fdatasync,fsync,msync",
                "-o",
                str(trace),
                sys.executable,
                "-c",
                script,
                str(tmp_path / durability),
                durability,
            ],
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=50,
        )
        counts[durability] = trace.read_text().count("sync(")
    assert 20 <= counts["power"] <= 2 * 20 + 16  # at most two a commit, and those of opening
    assert counts["process"] <= 2


# -- reopening ------------------------------------------------------------------------------------


def test_reopen_gives_the_same_history_cursors_epochs_and_append_ids_ds2(tmp_path: Path) -> None:
    for _ in range(3):
        engine = DiskEngine(tmp_path)
        if engine.info("c").cursor == 0:
            engine.commit([Append("d", users("gone")), Clear("d"), Clear("never")])
            for i in range(150):
                engine.commit([Append("c", users(str(i)), append_id=f"k{i}")])
        assert [m.content for m in engine.get("c")] == [str(i) for i in range(150)]
        (answer,) = engine.commit([Append("c", users("7"), append_id="k7")])
        assert (answer.replayed, answer.first_seq) == (True, 8)
        assert (engine.info("d").epoch, engine.info("never").epoch) == (1, 1)
        assert [info.conversation_id for info in engine.conversations()] == ["c"]
        engine.close()


def test_times_of_records_survive_a_reopen_f44(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path)
    engine.commit([Append("c", users("1"))])
    before = engine.span("c", 0, 1, 1)[0].time
    engine.close()
    engine = DiskEngine(tmp_path)
    engine.commit([Append("c", users("2"))])
    one, two = (record.time for record in engine.span("c", 0, 1, 2))
    assert before == one <= two
    assert one.utcoffset() is not None
    engine.close()


def test_the_cost_of_an_add_does_not_grow_fault_f09(tmp_path: Path) -> None:
    """Old records are not read, encoded or counted again: the same work at 100 and at 10,000.

    Work is counted, not timed: the calls of functions during 200 appends, and counts of tokens.
    """
    work: list[int] = []
    counted: list[Message] = []

    class Counter(CharacterCounter):
        def count_message(self, message: Message) -> int:
            counted.append(message)
            return super().count_message(message)

    engine = DiskEngine(tmp_path, durability="process", map_size=1 << 28)
    for length in (100, 10_000):
        have = engine.info("c").cursor
        engine.commit([Append("c", users(*(f"old {n}" for n in range(have, length))))])
        engine.settle()
        calls = 0

        def seen(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        requests = [Append("c", users(f"new {n}"), counter=Counter()) for n in range(200)]
        sys.setprofile(seen)
        try:
            for request in requests:
                engine.commit([request])
        finally:
            sys.setprofile(None)
        work.append(calls)
    assert len(counted) == 400
    assert work[1] <= 1.1 * work[0], work
    engine.close()


# -- one owner ------------------------------------------------------------------------------------


def test_a_second_owner_is_told_who_the_first_is_ds5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = DiskEngine(tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "data", "data", "./data/../data", tmp_path / "link"):
        with pytest.raises(StoreInUse) as taken:
            DiskEngine(path)
        assert taken.value.pid == os.getpid()
    script = (
        "import sys; from keepwell.stores.disk_engine import DiskEngine as E\n"
        "from keepwell.stores import StoreInUse\n"
        "try: E(sys.argv[1])\nexcept StoreInUse as e: print(e.pid)"
    )
    other = subprocess.run(
        [sys.executable, "-c", script, "data"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=50,
        check=True,
    )
    assert other.stdout.strip() == str(os.getpid())
    engine.commit([Append("c", users("still mine"))])
    engine.close()
    DiskEngine(tmp_path / "data").close()


async def test_starting_a_taken_directory_fails_with_the_cause_ds5(tmp_path: Path) -> None:
    store = await DiskStore(tmp_path, counter=NoCounter()).spawn()
    with pytest.raises(StartFailed) as failed:
        await DiskStore(tmp_path, counter=NoCounter()).spawn()
    assert isinstance(failed.value.__cause__, StoreInUse)
    await store.stop()


def test_eight_processes_race_and_one_wins_ds5(tmp_path: Path) -> None:
    script = (
        "import sys; from keepwell.stores.disk_engine import DiskEngine as E\n"
        "from keepwell.stores import StoreInUse\n"
        "sys.stdin.readline()\n"
        "try: E(sys.argv[1]); print('won', flush=True); sys.stdin.readline()\n"
        "except StoreInUse: print('lost', flush=True)"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(8)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outcomes = [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]
    for racer in racers:
        racer.kill()
        racer.communicate()
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]
    DiskEngine(tmp_path).close()  # the killed winner's lock does not block


def test_read_only_sees_what_the_owner_acknowledged_ds5(tmp_path: Path) -> None:
    owner = DiskEngine(tmp_path)
    owner.commit([Append("c", users("1"))])
    script = (
        "import sys; from keepwell.stores.disk_engine import DiskEngine as E\n"
        "from keepwell.stores.request import Append, Clear\n"
        "from keepwell.stores import ReadOnlyStore\n"
        "e = E(sys.argv[1], readonly=True)\n"
        "for line in sys.stdin:\n"
        "    print([m.content for m in e.get('c')], len(e.conversations()), flush=True)\n"
        "    try: e.commit([Append('c', [{'role': 'user', 'content': 'x'}])])\n"
        "    except ReadOnlyStore: print('refused', flush=True)\n"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    for number in range(2, 100):
        if number % 32 == 0 or number == 2:
            reader.stdin.write("\n")
            reader.stdin.flush()
            expected = [str(i) for i in range(1, number)]
            assert reader.stdout.readline().strip() == f"{expected} 1"
            assert reader.stdout.readline().strip() == "refused"
        owner.commit([Append("c", users(str(number)))])
    reader.stdin.close()
    assert reader.wait(20) == 0
    reader.stdout.close()
    owner.close()


async def test_a_read_only_store_refuses_writes_ds5(tmp_path: Path) -> None:
    fill(tmp_path, 20)
    store = await DiskStore(tmp_path, readonly=True, counter=NoCounter()).spawn()
    assert len(await store.get("c0")) == 3
    for write in (store.add("c0", users("x")), store.clear("c0")):
        with pytest.raises(ReadOnlyStore):
            await write
    assert store.statistics()["crashes"] == 0
    await store.stop()


# -- formats and damage ---------------------------------------------------------------------------


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


# -- full disks, growth, readers ------------------------------------------------------------------


def no_space() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_full_disk_refuses_that_batch_only_ds7(tmp_path: Path) -> None:
    store = await DiskStore(tmp_path, counter=NoCounter()).spawn()
    await store.add("c", users("1"), append_id="k1")
    with failpoints.active({"store.commit.before_flush": no_space}):
        refused = await asyncio.gather(
            store.add("c", users("2"), append_id="k2"),
            store.add("c", users("3"), append_id="k3", follows="k2"),
            store.add("d", users("other")),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in refused] == [DiskFull, PredecessorMissing, DiskFull]
        assert await texts(store) == ["1"]  # reads go on, and show nothing of it
        assert await store.get("d") == ()
    assert store.statistics()["crashes"] == 0
    assert not (await store.add("c", users("2"), append_id="k2")).replayed
    assert (await store.add("c", users("3"), append_id="k3", follows="k2")).cursor == 3
    assert await texts(store) == ["1", "2", "3"]
    await store.stop()


async def test_what_fits_is_stored_beside_what_does_not_ds7(tmp_path: Path) -> None:
    store = await DiskStore(tmp_path, counter=NoCounter()).spawn()
    gate = threading.Event()
    with failpoints.active(
        {
            "store.commit.begin": failpoints.on_hit(1, lambda: gate.wait(20) or None),
            "store.commit.before_flush": failpoints.on_hit(2, no_space),
        }
    ):
        first = store.add("a", users("1"))
        group = [store.add(name, users("x")) for name in ("b", "c", "d")]
        gate.set()
        await first
        assert [added.cursor for added in await asyncio.gather(*group)] == [1, 1, 1]
    await store.stop()


def test_a_really_full_disk_ds7(tmp_path: Path) -> None:
    """A limit on file size stands in for the disk: the same write fails in the same place."""
    script = """
import resource, signal, sys
from keepwell.stores import DiskFull
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.request import Append
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
engine = DiskEngine(sys.argv[1])
def add(i):
    engine.commit([Append("c", [{"role": "user", "content": f"{i:05}" + "x" * 3000}])])
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
stored = full = 0
for i in range(2000):
    try:
        add(stored); stored += 1
    except DiskFull:
        full += 1
        if full > 3: break
assert full > 3, stored
assert [m.content[:5] for m in engine.get("c")] == [f"{i:05}" for i in range(stored)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
add(stored); stored += 1
engine.close()
engine = DiskEngine(sys.argv[1])
assert [m.content[:5] for m in engine.get("c")] == [f"{i:05}" for i in range(stored)]
print("stored", stored)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        text=True,
        capture_output=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_map_grows_under_readers_f07(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path, map_size=1 << 20, cache_bytes=0, durability="process")
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            try:
                got = [m.content[:5] for m in engine.get("c")]
                assert got == [f"{i:05}" for i in range(len(got))]
            except BaseException as problem:
                failures.append(problem)
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    with failpoints.active({}) as hits:
        for reader in readers:
            reader.start()
        for i in range(150):
            engine.commit([Append("c", users(f"{i:05}" + "x" * 20_000))])
        stop.set()
        for reader in readers:
            reader.join(20)
        assert hits["store.resize.end"] >= 2
    assert not failures
    assert len(engine.get("c")) == 150
    engine.close()


def test_dead_readers_are_cleared_at_open_f07(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    script = (
        "import lmdb, os, sys\n"
        "e = lmdb.open(sys.argv[1], max_dbs=64, max_readers=1024, readonly=True)\n"
        "held = [e.begin() for _ in range(127)] if False else [e.begin()]\n"
        "os.kill(os.getpid(), 9)"
    )
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], check=False, timeout=50
        )
        assert done.returncode == -signal.SIGKILL
    engine = DiskEngine(tmp_path)
    engine.commit([Append("c", users("x"))])
    readers = engine.environment.env.readers()
    assert readers.count("\n") <= 2, readers
    engine.close()


# -- fork, close ----------------------------------------------------------------------------------


async def test_a_forked_child_is_refused_f07(tmp_path: Path) -> None:
    store = await DiskStore(tmp_path, counter=NoCounter()).spawn()
    await store.add("c", users("1"))
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            outcomes: list[str] = []
            calls = (store.get("c"), store.add("c", users("x")), store.info("c"), store.clear("c"))
            outcomes += [type(call.error()).__name__ for call in calls]
            try:
                DiskEngine(tmp_path)
            except StoreInUse as taken:
                outcomes.append(str(taken.pid == os.getppid()))
            os.write(into, " ".join(outcomes).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        assert pipe.read() == "ForkedStore ForkedStore ForkedStore ForkedStore True"
    await asyncio.to_thread(os.waitpid, pid, 0)
    assert issubclass(ForkedStore, Exception)
    assert (await store.add("c", users("2"))).cursor == 2
    await store.stop()


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path)
    engine.commit([Append("c", users("1"))])
    engine.close()
    engine.close()
    with pytest.raises(StoreUnavailable):
        engine.commit([Append("c", users("2"))])
    with pytest.raises(StoreUnavailable):
        engine.get("unseen")
