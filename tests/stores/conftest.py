"""Stores, started and stopped around each test."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepwell.stores import DiskStore, MemoryStore
from keepwell.testing.store_contract import CharacterCounter


@pytest.fixture
async def memory_store() -> AsyncIterator[MemoryStore]:
    store = await MemoryStore(counter=CharacterCounter()).spawn()
    yield store
    await store.stop()


@pytest.fixture
async def disk_store(tmp_path: Path) -> AsyncIterator[DiskStore]:
    store = await disk(tmp_path / "data").spawn()
    yield store
    await store.stop()


def disk(path: Path, **settings: Any) -> DiskStore:
    return DiskStore(path, **{"counter": CharacterCounter(), "map_size": 1 << 30, **settings})
