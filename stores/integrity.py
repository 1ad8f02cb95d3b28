"""Look at a data file that may be damaged, before LMDB maps it.

LMDB maps its file. If the file was cut short, touching a page beyond its end kills the process
(SIGBUS), and the length alone proves nothing: a healthy file may be shorter than its header says,
when pages at its end are free. A garbled page may send LMDB anywhere. So after an unclean end, or
when a file is not as it was left, its pages are read here first, without LMDB (`lmdb_pages`).
"""

from __future__ import annotations

import os
import struct

from .lmdb_pages import DamagedFile, ForeignFile, LmdbPages

DATA = "data.mdb"
MAGIC = 0xBEEFC0DE
PAGE = 4096
WALK_BYTES = 64 << 20
"""Up to this size every page is read; of larger files, those that opening needs."""

BOUNDED = (b"meta", b"log")
"""Tables that are small in a store of any size, and read whole when it is opened."""


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


def damage(directory: str, *, whole: bool = False) -> str:
    """What makes the data file unfit to be mapped, "" if nothing was found (or there is no store).

    With `whole` all that the newest state refers to is walked, which takes about half a second for
    a million records. Without, that is done for a file of up to `WALK_BYTES`, and for one that is
    shorter than its header says, since only a walk can tell free pages at its end from lost ones.
    Of any other it is what opening needs, in a time that does not depend on the file's size.
    """
    kind, _ = look(directory)
    if kind in ("empty", "foreign"):
        return ""
    path = os.path.join(directory, DATA)
    try:
        pages = LmdbPages(path)
    except (ForeignFile, DamagedFile, OSError) as problem:
        return str(problem)
    try:
        if whole or kind == "short" or os.path.getsize(path) <= WALK_BYTES:
            pages.check()
        else:
            pages.check_ends(BOUNDED)
    except DamagedFile as problem:
        return str(problem)
    finally:
        pages.close()
    return ""
