"""Look at a data file that may be damaged, in a process that may die of it.

LMDB maps its file. If the file was cut short, touching a page beyond its end kills the process
(SIGBUS), and the length alone proves nothing: a healthy file may be shorter than its header says,
when pages at its end are free. A garbled page may send LMDB anywhere. So after an unclean end, or
when a file is not as it was left, a child process walks it first. Run as a script, this file needs
the standard library and lmdb only: `python integrity.py DIRECTORY PAGES`.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys

DATA = "data.mdb"
MAGIC = 0xBEEFC0DE
PAGE = 4096
WALK_BYTES = 64 << 20
"""Up to this size every page is touched; of larger files, those that opening needs."""

TIMEOUT = 120.0


def look(directory: str) -> tuple[str, str]:
    """Read the header, unmapped: "empty", "foreign", "garbled", "short" or "whole"; and why."""
    path = os.path.join(directory, DATA)
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            head = file.read(PAGE * 2)
    except FileNotFoundError:
        return "empty", "there is no data file"
    if not size:
        return "empty", "the data file is empty"
    if len(head) < 64:
        return "foreign", f"{DATA} has {size} bytes"
    # Page header of 16 bytes, then magic and version (LMDB's mdb_meta).
    first = struct.unpack_from("=II", head, 16)
    second = struct.unpack_from("=II", head, PAGE + 16) if len(head) >= PAGE + 24 else (0, 0)
    if first[0] != MAGIC and second[0] != MAGIC:
        return "foreign", f"{DATA} does not begin like an LMDB file"
    if first[0] != MAGIC or second[0] != MAGIC:
        return "garbled", f"one of the two meta pages of {DATA} is unreadable or missing"
    pages = max(_last_page(head, 16), _last_page(head, PAGE + 16)) + 1
    if size < pages * PAGE:
        return "short", f"{DATA} has {size} bytes of {pages * PAGE}"
    return "whole", ""


def _last_page(head: bytes, offset: int) -> int:
    # mdb_meta: magic 4, version 4, address 8, mapsize 8, two mdb_db of 48 each, last page 8, txn 8.
    return int(struct.unpack_from("=Q", head, offset + 24 + 96)[0])


def survives(directory: str) -> tuple[bool, str]:
    """Walk the file in a child process. (True, "") if that ended well, else (False, why)."""
    if not sys.executable:
        return True, ""
    try:
        run = subprocess.run([sys.executable, "-I", __file__, directory], capture_output=True,
                             text=True, timeout=TIMEOUT, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return False, f"it could not be checked: {problem}"
    if run.returncode < 0:
        return False, f"reading it killed a process (signal {-run.returncode}); it was cut short"
    if run.returncode:
        return False, (run.stderr.strip().splitlines() or ["reading it failed"])[-1]
    return True, ""


def walk(directory: str) -> None:
    """Touch the pages of every table of the file; raises lmdb.Error if one cannot be read."""
    import lmdb

    whole = os.stat(os.path.join(directory, DATA)).st_size <= WALK_BYTES
    # `lock=False`: nobody writes meanwhile, the caller holds the directory's lock.
    with lmdb.open(directory, readonly=True, lock=False, max_dbs=64, create=False) as env, \
            env.begin(buffers=True) as txn:
        names = [bytes(name) for name, _ in txn.cursor()]
        for name in names:
            table = env.open_db(name, txn=txn, create=False)
            cursor = txn.cursor(db=table)
            left = -1 if whole or name == b"log" else 1000
            for _, value in cursor:
                sum(value[::PAGE])
                left -= 1
                if not left:
                    break


if __name__ == "__main__":
    try:
        walk(sys.argv[1])
    except Exception as problem:
        sys.exit(f"{type(problem).__name__}: {problem}")
