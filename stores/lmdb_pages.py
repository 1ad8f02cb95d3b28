"""Read an LMDB file without LMDB, to find out whether LMDB may be let near it.

LMDB maps its file and trusts it: a page that lies beyond the file's end kills the process (SIGBUS),
a garbled one can send it anywhere or make it abort. The file's length proves nothing, since a
healthy file may be shorter than its header says, when the pages at its end are free. So a file that
was not closed in an orderly way is walked first, here, page by page, in plain Python: every page
that the newest state refers to must lie in the file, be what it is taken for and be used once.

The layout (LMDB 0.9, `lmdb.c`): a page has a header of 16 bytes (number, padding, flags, lower and
upper bound of its free space; an overflow page has its page count in place of the bounds), then the
offsets of its nodes. A node is 8 bytes (two size halves, flags, key size), the key, and the data,
or the number of the overflow pages that hold it. Pages 0 and 1 are two alternating states of the
environment; the one with the higher transaction number is the newest.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

MAGIC: Final = 0xBEEFC0DE
DATA_VERSION: Final = 1
NO_PAGE: Final = 2**64 - 1
HEADER: Final = 16
MAX_DEPTH: Final = 32
"""LMDB's cursors have room for so many levels."""

_BRANCH, _LEAF, _OVERFLOW, _META = 0x01, 0x02, 0x04, 0x08
_KIND: Final = 0x0F
_BIG, _SUB = 0x01, 0x02
_FIXED_MAP: Final = 0x01

_PAGE = struct.Struct("=QHHHH")
_NODE = struct.Struct("=HHHH")
_TREE = struct.Struct("=IHHQQQQQ")
_META_HEAD = struct.Struct("=IIQQ")
_META_TAIL = struct.Struct("=QQ")
_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")


class ForeignFile(Exception):
    """The file is no LMDB environment."""


class DamagedFile(Exception):
    """The file is an LMDB environment that must not be mapped, with the reason."""


class Tree(NamedTuple):
    """The root of one table (mdb_db)."""

    padding: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


@dataclass(frozen=True)
class State:
    """One of the two states of the environment (mdb_meta)."""

    free: Tree
    main: Tree
    last_page: int
    transaction: int


class LmdbPages:
    """An LMDB file, open for looking at its pages. Raises ForeignFile, DamagedFile, OSError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with open(path, "rb") as file:
            self._size = os.fstat(file.fileno()).st_size
            if self._size < HEADER + _META_HEAD.size:
                raise ForeignFile(f"it has {self._size} bytes")
            # Mapped as far as the file goes: a look beyond raises here and cannot fault.
            self._map = mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ)
        try:
            self.page_size = 0
            first = self._state(0)
            self.page_size = first.free.padding
            if self.page_size not in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
                raise DamagedFile(f"a page size of {self.page_size}")
            second = self._state(self.page_size)
            self.state = first if first.transaction >= second.transaction else second
            self._used = bytearray(self._size // self.page_size + 1)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()

    def _state(self, offset: int) -> State:
        body = offset + HEADER
        tail = body + _META_HEAD.size + 2 * _TREE.size
        if self._size < tail + _META_TAIL.size:
            raise DamagedFile("it ends within its header")
        magic, version, _, _ = _META_HEAD.unpack_from(self._map, body)
        if magic != MAGIC:
            if not offset:
                raise ForeignFile("it does not begin like an LMDB file")
            raise DamagedFile("its second header is unreadable")
        if version != DATA_VERSION:
            raise DamagedFile(f"LMDB data version {version}, {DATA_VERSION} is known")
        if not _PAGE.unpack_from(self._map, offset)[2] & _META:
            raise DamagedFile("its header page is not marked as one")
        free = Tree(*_TREE.unpack_from(self._map, body + _META_HEAD.size))
        main = Tree(*_TREE.unpack_from(self._map, body + _META_HEAD.size + _TREE.size))
        if free.flags & _FIXED_MAP:
            raise DamagedFile("it asks for a fixed address")
        return State(free, main, *_META_TAIL.unpack_from(self._map, tail))

    # -- looking up ------------------------------------------------------------------------------

    def tables(self) -> dict[bytes, Tree]:
        """The named tables of the environment."""
        found: dict[bytes, Tree] = {}
        for key, value, flags in self.records(self.state.main):
            if flags & _SUB:
                if len(value) != _TREE.size:
                    raise DamagedFile("the root of a table is garbled")
                found[key] = Tree(*_TREE.unpack(value))
        return found

    def records(self, tree: Tree) -> Iterator[tuple[bytes, bytes, int]]:
        """The records of a small table: key, value, flags."""
        for page in self._leaves(tree, set()):
            for node in self._nodes(page):
                low, high, flags, key_size = _NODE.unpack_from(self._map, node)
                key = self._map[node + 8 : node + 8 + key_size]
                start = node + 8 + key_size
                if flags & _BIG:
                    number = _U64.unpack_from(self._map, start)[0]
                    start = self._offset(number, _OVERFLOW) + HEADER
                yield key, self._map[start : start + (low | high << 16)], flags

    # -- walking ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Walk everything that the newest state refers to. Raises DamagedFile."""
        used: set[int] = set()
        self._used[0:2] = b"\x01\x01"
        self._check_tree(self.state.main, used)
        for tree in self.tables().values():
            self._check_tree(tree, used)
        self._check_tree(self.state.free, used)
        for key, value, _ in self.records(self.state.free):
            if len(key) != 8:
                raise DamagedFile("a list of free pages has a garbled name")
            self._check_free(value)

    def check_ends(self, bounded: Collection[bytes]) -> None:
        """Look at the tables `bounded` as `check` does, at others from the root to two leaves.

        Takes the same time for a table of any size. The list of free pages is read whole. Raises
        DamagedFile.
        """
        used: set[int] = set()
        self._used[0:2] = b"\x01\x01"
        self._check_tree(self.state.main, used)
        for name, tree in self.tables().items():
            if name in bounded:
                self._check_tree(tree, used)
            else:
                for end in (0, -1):
                    self._check_path(tree, end)
        self._check_tree(self.state.free, used)
        for key, value, _ in self.records(self.state.free):
            if len(key) != 8:
                raise DamagedFile("a list of free pages has a garbled name")
            self._check_free(value)

    def _check_path(self, tree: Tree, end: int) -> None:
        """Check the first (0) or last (-1) page of each level of a tree."""
        if tree.root == NO_PAGE:
            return
        if not 1 <= tree.depth <= MAX_DEPTH:
            raise DamagedFile(f"a table is {tree.depth} levels deep")
        number = tree.root
        for _ in range(tree.depth - 1):
            offset = self._offset(number, _BRANCH)
            self._used[number] = 1
            low, high, flags, _ = _NODE.unpack_from(self._map, list(self._nodes(offset))[end])
            number = low | high << 16 | flags << 32
        for node in self._nodes(self._offset(number, _LEAF)):
            self._check_big(node, set())
        self._used[number] = 1

    def _check_tree(self, tree: Tree, used: set[int]) -> None:
        for page in self._leaves(tree, used):
            for node in self._nodes(page):
                self._check_big(node, used)

    def _check_big(self, node: int, used: set[int]) -> None:
        """Check the overflow pages of a node, if it has any."""
        low, high, flags, key_size = _NODE.unpack_from(self._map, node)
        if flags & _BIG:
            number = _U64.unpack_from(self._map, node + 8 + key_size)[0]
            self._check_overflow(number, low | high << 16, used)

    def _check_overflow(self, number: int, size: int, used: set[int]) -> None:
        offset = self._offset(number, _OVERFLOW)
        pages = _U32.unpack_from(self._map, offset + 12)[0]
        if pages < (HEADER - 1 + size) // self.page_size + 1:
            raise DamagedFile(f"the pages from {number} are too few for their value")
        if offset + HEADER + size > self._size or number + pages - 1 > self.state.last_page:
            raise DamagedFile(f"the pages from {number} lie beyond the end of the file")
        for page in range(number, number + pages):
            _use(page, used)
            if page < len(self._used):
                self._used[page] = 1

    def _check_free(self, value: bytes) -> None:
        """A list of free pages must not name one that is in use: it would be overwritten."""
        count = _U64.unpack_from(value)[0] if len(value) >= 8 else NO_PAGE
        if len(value) < 8 * (count + 1):
            raise DamagedFile("a list of free pages is garbled")
        for (number,) in _U64.iter_unpack(value[8 : 8 * (count + 1)]):
            if not 1 < number <= self.state.last_page:
                raise DamagedFile(f"page {number} is called free and does not exist")
            if number < len(self._used) and self._used[number]:
                raise DamagedFile(f"page {number} is called free and is in use")

    def _leaves(self, tree: Tree, used: set[int]) -> Iterator[int]:
        """The offsets of a tree's leaf pages, each checked, in the order of their keys."""
        if tree.root == NO_PAGE:
            return
        if not 1 <= tree.depth <= MAX_DEPTH:
            raise DamagedFile(f"a table is {tree.depth} levels deep")
        stack = [(tree.root, 1)]
        while stack:
            number, level = stack.pop()
            is_leaf = level == tree.depth
            offset = self._offset(number, _LEAF if is_leaf else _BRANCH)
            _use(number, used)
            self._used[number] = 1
            if is_leaf:
                yield offset
                continue
            nodes = list(self._nodes(offset))
            if len(nodes) < 2:
                raise DamagedFile(f"page {number} has one branch only")
            for node in reversed(nodes):
                low, high, flags, _ = _NODE.unpack_from(self._map, node)
                stack.append((low | high << 16 | flags << 32, level + 1))

    def _offset(self, number: int, kind: int) -> int:
        """Where a page lies that is of the kind and in the file."""
        offset: int = number * self.page_size
        length = HEADER if kind == _OVERFLOW else self.page_size
        if number < 2 or number > self.state.last_page or offset + length > self._size:
            raise DamagedFile(f"page {number} lies beyond the end of the file")
        found, _, flags, _, _ = _PAGE.unpack_from(self._map, offset)
        if found != number or flags & _KIND != kind:
            raise DamagedFile(f"page {number} is not what it is taken for")
        return offset

    def _nodes(self, offset: int) -> Iterator[int]:
        """The offsets of a page's nodes, each of which lies within the page."""
        number, _, flags, lower, upper = _PAGE.unpack_from(self._map, offset)
        if not HEADER < lower <= upper <= self.page_size:
            raise DamagedFile(f"page {number} is garbled")
        for (at,) in struct.iter_unpack("=H", self._map[offset + HEADER : offset + lower]):
            end = at + 8
            if at >= upper and end <= self.page_size:
                low, high, node_flags, key_size = _NODE.unpack_from(self._map, offset + at)
                end += key_size
                if flags & _LEAF:
                    end += 8 if node_flags & _BIG else low | high << 16
            if at < upper or end > self.page_size:
                raise DamagedFile(f"page {number} is garbled")
            yield offset + at


def _use(number: int, used: set[int]) -> None:
    if number in used:
        raise DamagedFile(f"page {number} is used twice")
    used.add(number)
