"""Full disks, growth of the map, readers (DS-7, fault F07)."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from keepwell.actors import failpoint as failpoints
from keepwell.stores import DiskFull, DiskStore, NoCounter, PredecessorMissing
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.request import Append
from keepwell.testing.store_contract import texts, users

from .store_files import ROOT, fill


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
