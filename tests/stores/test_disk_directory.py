"""The directory of a DiskStore: its making, its reopening, its one owner, forks (DS-1…5)."""

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue, StartFailed
from keepwell.stores import (
    DiskStore,
    ForeignFormat,
    ForkedStore,
    NoCounter,
    ReadOnlyStore,
    StoreInUse,
    StoreUnavailable,
)
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.message import Message
from keepwell.stores.request import Append, Clear
from keepwell.testing.store_contract import CharacterCounter, users

from .store_files import ROOT, contents, fill


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
