"""Runtimes for sessions, in memory and on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepwell import NoCounter, Runtime

from .gate import Gate


@pytest.fixture(params=["memory", "disk"])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    data_dir = tmp_path / "data" if request.param == "disk" else None
    async with Runtime(data_dir, durability="process", counter=NoCounter()) as running:
        yield running


@pytest.fixture
async def memory_runtime() -> AsyncIterator[Runtime]:
    async with Runtime(counter=NoCounter()) as running:
        yield running


@pytest.fixture
def gate() -> Gate:
    return Gate()
