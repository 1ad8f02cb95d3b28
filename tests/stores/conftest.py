"""Stores, started and stopped around each test, and what tests of tables are given."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors import ActorRef, ActorSystem
from keepwell.stores import DiskStore, MemoryStore
from keepwell.testing.store_contract import CharacterCounter

from .worker import Worker


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


@pytest.fixture
def system() -> Iterator[ActorSystem]:
    with ActorSystem() as system:
        yield system


@pytest.fixture
def owner(system: ActorSystem) -> ActorRef[Worker]:
    return Worker.start()


@pytest.fixture
def other(system: ActorSystem) -> ActorRef[Worker]:
    return Worker.start()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a disk table may be put."""
    return tmp_path / "t.dets"
