"""The session store contracts over every backend, one written elsewhere included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import pytest

from keepwell.stores import DiskStore
from keepwell.stores.blob_store import blob_ref, check_tenant, parse_ref
from keepwell.stores.conversation_id import conversation_key
from keepwell.stores.disk_session_store import DiskSessionStore
from keepwell.stores.memory_session_store import MemorySessionStore
from keepwell.stores.plain import canonical_json, copy_plain
from keepwell.stores.session_contract import SessionJournal, SessionStore
from keepwell.stores.session_errors import (
    BlobNotFound,
    CursorNotFound,
    FingerprintMismatch,
    SessionCursorConflict,
)
from keepwell.stores.session_rows import BLOB_DATA, Rows
from keepwell.stores.session_state import HEAD, SessionState
from keepwell.testing.session_store_contract import OwnSessionStoreContract, SessionStoreContract


@pytest.fixture
def damage(store: Any) -> Callable[[str], Awaitable[None]]:
    """Changes the stored bytes of all blobs behind the store's back."""

    async def spoil(_ref: str) -> None:
        def work(rows: Rows) -> None:
            for key, _ in list(rows.scan(BLOB_DATA, b"E")):
                rows.put(key, b"wrong")

        await store._write(work)

    return spoil


class TestMemorySessionStore(OwnSessionStoreContract):
    @pytest.fixture
    def store(self) -> MemorySessionStore:
        return MemorySessionStore()


class TestDiskSessionStore(OwnSessionStoreContract):
    @pytest.fixture
    async def store(self, disk_store: DiskStore) -> DiskSessionStore:
        return DiskSessionStore(disk_store)


class ForeignStore:
    """A session store as somebody else might write it: coroutines over dicts, no journal."""

    def __init__(self) -> None:
        self.chains: dict[str, list[tuple[str, str]]] = {}
        self.blobs: dict[tuple[str, bytes], bytes] = {}

    async def load(self, session_id: str, cursor: Any = HEAD) -> SessionState:
        conversation_key(session_id)
        chain = self.chains.get(session_id, [])
        if cursor is HEAD:
            cursor = len(chain)
        self._check(cursor)
        if cursor == 0:
            return SessionState()
        oldest = max(1, len(chain) - 15)
        if not oldest <= cursor <= len(chain):
            raise CursorNotFound(session_id, cursor, oldest if chain else 0)
        return SessionState(**json.loads(chain[cursor - 1][1]))

    async def commit(
        self, session_id: str, base: int, state: SessionState, fingerprint: str | None, *,
        writes: Any = None,
    ) -> int:
        carrier = copy_plain(state.carrier)
        self._check(base)
        actual = sha256(canonical_json(carrier)).hexdigest()
        if fingerprint is not None and fingerprint != actual:
            raise FingerprintMismatch(fingerprint, actual)
        await asyncio.sleep(0)
        chain = self.chains.setdefault(session_id, [])
        if max(0, len(chain) - 16) <= base < len(chain) and chain[base][0] == actual:
            return base + 1
        if base != len(chain):
            raise SessionCursorConflict(session_id, base, len(chain))
        fields = {
            "carrier": carrier, "turn": state.turn, "position": state.position,
            "sequences": dict(state.sequences), "consecutive_errors": state.consecutive_errors,
        }
        chain.append((actual, json.dumps(fields)))
        return len(chain)

    async def load_value(self, session_id: str, cursor: Any = HEAD) -> Any:
        return (await self.load(session_id, cursor)).carrier

    async def commit_value(
        self, session_id: str, base: int, value: Any, fingerprint: str | None = None
    ) -> int:
        before = await self.load(session_id)
        state = SessionState(
            value, before.turn, before.position, before.sequences, before.consecutive_errors
        )
        return await self.commit(session_id, base, state, fingerprint)

    async def put_blob(self, tenant: str, value: Any) -> str:
        data = canonical_json(copy_plain(value))
        digest = sha256(data).digest()
        self.blobs[check_tenant(tenant), digest] = data
        return blob_ref(tenant, digest)

    async def get_blob(self, tenant: str, ref: str) -> Any:
        found = self.blobs.get((tenant, parse_ref(tenant, ref)))
        if found is None:
            raise BlobNotFound(ref)
        return json.loads(found)

    @staticmethod
    def _check(cursor: object) -> None:
        if type(cursor) is not int or cursor < 0:
            from keepwell.actors.errors import InvalidValue

            raise InvalidValue(f"bad cursor {cursor!r}")


class TestForeignStore(SessionStoreContract):
    @pytest.fixture
    def store(self) -> ForeignStore:
        return ForeignStore()


def test_protocols_are_recognised() -> None:
    store = MemorySessionStore()
    assert isinstance(store, SessionStore) and isinstance(store, SessionJournal)
    assert isinstance(ForeignStore(), SessionStore)
    assert not isinstance(ForeignStore(), SessionJournal)


def test_c11_the_empty_value_is_the_stores_and_copied() -> None:
    store = MemorySessionStore(empty_value={"n": []})
    store.load_value("s").get()["n"].append(1)  # type: ignore[index, union-attr, call-overload]  # a Plain
    assert store.load_value("s", 0).get() == {"n": []}


def test_c12_retain_revisions_is_at_least_1() -> None:
    for bad in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="retain_revisions"):
            MemorySessionStore(retain_revisions=bad)  # type: ignore[arg-type]  # is refused
    store = MemorySessionStore(retain_revisions=1)
    for base in range(3):
        store.commit_value("s", base, base).get()
    assert store.load_value("s").get() == 2
    with pytest.raises(CursorNotFound):
        store.load_value("s", 2).get()


async def test_what_was_acknowledged_is_there_after_reopening(tmp_path: Any) -> None:
    disk = await DiskStore(tmp_path, map_size=1 << 20).spawn()
    store = DiskSessionStore(disk)
    claim = await store.claim("s")
    await store.accept("s", "in", "x" * 300_000, key="k")
    await store.accept("s", "in", "y" * 900_000)  # the map grows on the way
    await store.commit_value("s", 0, {"a": 1})
    await disk.stop()
    disk = await DiskStore(tmp_path, map_size=1 << 20).spawn()
    store = DiskSessionStore(disk)
    assert [len(m.payload) for m in await store.read("s", "inbox")] == [300_000, 900_000]
    assert await store.load_value("s") == {"a": 1}
    assert (await store.claim("s")).epoch == claim.epoch + 1
    assert (await store.accept("s", "in", "x" * 300_000, key="k")).duplicate
    await disk.stop()
