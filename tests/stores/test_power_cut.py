"""Power cuts, by replaying the writes of a real run (DS-4, `durability="power"`).

strace records what a process writes to the data file, when it flushes, and when it acknowledges.
A power cut at some moment keeps what was flushed before it and any part of what was not: for cuts
at every flush, and between them with random parts of the unflushed writes, the file is put together
and opened. What was acknowledged before the cut must be there. (kill -9 cannot show this: the
operating system still has the writes.)
"""

import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.verify import verify

ROOT = Path(__file__).parents[2]

WRITER = """
import os, sys
from keepwell.stores import disk_engine
from keepwell.stores.request import Append, Clear
disk_engine.MOVE_BATCHES = 4
engine = disk_engine.DiskEngine(sys.argv[1], durability=sys.argv[2], map_size=1 << 24)
for i in range(30):
    engine.commit([Append(name, [{"role": "user", "content": f"{name}{i}"}], append_id=f"k{i}")
                   for name in "abc"])
    os.write(1, b"ack %d\\n" % i)
engine.close()
"""

CALL = re.compile(r'^\d+\s+(\w+)\((\d+|AT_FDCWD)(?:, (.*))?\)\s+= (-?\d+)')
HEX = re.compile(r"\\x([0-9a-f]{2})")


@dataclass
class Step:
    """A write (`data` at `offset`, `flushed` if the call itself flushes), a flush, or an ack."""

    kind: str
    data: bytes = b""
    offset: int = 0
    number: int = 0
    flushed: bool = False


@dataclass
class Trace:
    steps: list[Step] = field(default_factory=list)

    def flushes(self) -> list[int]:
        return [i for i, step in enumerate(self.steps) if step.kind == "flush" or step.flushed]


def text(quoted: str) -> bytes:
    return bytes.fromhex("".join(HEX.findall(quoted)))


def record(tmp_path: Path, durability: str) -> Trace:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = tmp_path / "trace"
    subprocess.run(
        ["strace", "-f", "-xx", "-s", "4000000", "-o", str(log), "-e",
         "trace=openat,close,pwrite64,pwritev,writev,lseek,write,fdatasync,fsync,msync",
         sys.executable, "-c", WRITER, str(tmp_path / "live"), durability],
        check=True, stdout=subprocess.DEVNULL, timeout=50,
        env={**os.environ, "PYTHONPATH": str(ROOT)})
    trace = Trace()
    files: dict[str, bool] = {}  # descriptors of the data file: whether each write is flushed
    places: dict[str, int] = {}
    for line in log.read_text().splitlines():
        found = CALL.match(line)
        if found is None:
            continue
        call, fd, rest, answer = found.groups()
        rest = rest or ""
        if call == "openat":
            if text(rest.split('"')[1]).endswith(b"/live/data.mdb"):
                files[answer] = "O_DSYNC" in rest or "O_SYNC" in rest
        elif call == "close":
            files.pop(fd, None)
        elif call == "write" and fd == "1" and text(rest).startswith(b"ack "):
            trace.steps.append(Step("ack", number=int(text(rest).split()[1])))
        elif fd not in files:
            continue
        elif call in ("fdatasync", "fsync", "msync"):
            trace.steps.append(Step("flush"))
        elif call == "lseek":
            places[fd] = int(answer)
        elif call in ("pwrite64", "pwritev"):
            trace.steps.append(Step("write", text(rest), int(rest.rsplit(", ", 1)[1]),
                                    flushed=files[fd]))
        elif call in ("write", "writev"):
            data = text(rest)
            trace.steps.append(Step("write", data, places.get(fd, 0), flushed=files[fd]))
            places[fd] = places.get(fd, 0) + len(data)
    assert any(step.kind == "ack" for step in trace.steps)
    return trace


def cut(trace: Trace, end: int, dice: random.Random | None) -> tuple[bytearray, int]:
    """The file after a cut at step `end`, and how many commits were acknowledged before it.

    Writes since the last flush survive at random, page by page; without `dice`, none does.
    """
    image = bytearray()
    waiting: list[Step] = []
    acknowledged = 0

    def keep(data: bytes, offset: int) -> None:
        if len(image) < offset + len(data):
            image.extend(bytes(offset + len(data) - len(image)))
        image[offset:offset + len(data)] = data

    for step in trace.steps[:end]:
        if step.kind == "ack":
            acknowledged = step.number + 1
        elif step.kind == "flush":
            for write in waiting:
                keep(write.data, write.offset)
            waiting = []
        elif step.flushed:
            keep(step.data, step.offset)
        else:
            waiting.append(step)
    if dice is not None:
        for write in waiting:
            for start in range(0, len(write.data), 4096):
                if dice.random() < 0.5:
                    keep(write.data[start:start + 4096], write.offset + start)
    return image, acknowledged


def survivors(folder: Path, image: bytearray) -> int:
    """How many commits a store of this file has; each whole, in order, and all sound."""
    folder.mkdir()
    (folder / "data.mdb").write_bytes(image)
    engine = DiskEngine(folder, durability="process", map_size=1 << 24)
    try:
        counts = set()
        for name in "abc":
            got = [message.content for message in engine.get(name)]
            assert got == [f"{name}{i}" for i in range(len(got))]
            counts.add(len(got))
        assert len(counts) == 1, "a commit is there in part"
        assert not verify(engine).problems
        return counts.pop()
    finally:
        engine.close()
        shutil.rmtree(folder)


def test_what_was_acknowledged_survives_a_power_cut_ds4(tmp_path: Path) -> None:
    """Fault F06, for the machine."""
    trace = record(tmp_path, "power")
    dice = random.Random(1)
    made = next(i for i, step in enumerate(trace.steps) if step.kind == "ack")
    cuts = [i for i in trace.flushes() if i >= made]
    assert len(cuts) >= 2 * 29  # two flushes a commit: data, then meta page
    for number, end in enumerate(cuts):
        for at, chance in ((end, None), (end + 1, None), (end, dice)):
            image, acknowledged = cut(trace, at, chance)
            kept = survivors(tmp_path / f"cut{number}", image)
            assert kept >= acknowledged, (at, kept, acknowledged)


def test_without_flushes_a_power_cut_does_lose_ds4(tmp_path: Path) -> None:
    """The counter-test: what "process" promises less, this way of looking does see."""
    trace = record(tmp_path, "process")
    image, acknowledged = cut(trace, len(trace.steps), None)
    assert acknowledged == 30
    assert len(image) < 8192 or b"c29" not in image
