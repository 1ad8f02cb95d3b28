"""The contract suite over every backend."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue, RequestError
from keepwell.stores import DiskStore, MemoryStore, SimpleStore
from keepwell.stores.contract import TOKENS
from keepwell.testing.store_contract import CharacterCounter, StoreContract, users


class TestMemoryStore(StoreContract):
    @pytest.fixture
    async def store(self, memory_store: MemoryStore) -> MemoryStore:
        return memory_store


class TestDiskStore(StoreContract):
    @pytest.fixture
    async def store(self, disk_store: DiskStore) -> DiskStore:
        return disk_store


class TestDiskStoreWithoutCache(StoreContract):
    """Every record goes to its row at once and every read comes from the table."""

    @pytest.fixture
    async def store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[DiskStore]:
        monkeypatch.setattr("keepwell.stores.disk_engine.MOVE_BATCHES", 0)
        store = await DiskStore(tmp_path, counter=CharacterCounter(), cache_bytes=0,
                                durability="process", map_size=1 << 20).spawn()
        yield store
        await store.stop()


class Lists:
    """What `SimpleStore` adapts: plain methods over lists of dicts."""

    def __init__(self) -> None:
        self.kept: dict[str, list[dict[str, Any]]] = {}

    def get(self, conversation_id: str) -> list[dict[str, Any]]:
        return list(self.kept.get(conversation_id, ()))

    def add(self, conversation_id: str, messages: list[dict[str, Any]]) -> None:
        self.kept.setdefault(conversation_id, []).extend(messages)

    def clear(self, conversation_id: str) -> None:
        self.kept.pop(conversation_id, None)


class AsyncLists(Lists):
    async def get(self, conversation_id: str) -> list[dict[str, Any]]:  # type: ignore[override]  # the async form
        return super().get(conversation_id)

    async def add(self, conversation_id: str, messages: list[dict[str, Any]]) -> None:  # type: ignore[override]  # as above
        super().add(conversation_id, messages)

    async def clear(self, conversation_id: str) -> None:  # type: ignore[override]  # as above
        super().clear(conversation_id)


class TestSimpleStore(StoreContract):
    @pytest.fixture(params=[Lists, AsyncLists])
    def store(self, request: pytest.FixtureRequest) -> SimpleStore:
        return SimpleStore(request.param(), counter=CharacterCounter())

    async def test_what_it_cannot_promise_is_named_and_not_faked_cs22(self) -> None:
        store = SimpleStore(Lists(), counter=CharacterCounter())
        assert store.capabilities == {TOKENS}
        for _ in range(2):  # an append id has no effect, so nothing is said to be a replay
            assert not (await store.add("c", users("x"), append_id="k", epoch=7)).replayed
        assert len(await store.get("c")) == 2
        with pytest.raises(InvalidValue, match="cannot promise"):
            await store.add("c", users("x"), cursor=2)
        with pytest.raises(RequestError, match="cannot list"):
            await store.conversations()
        assert len(await store.get("c")) == 2
