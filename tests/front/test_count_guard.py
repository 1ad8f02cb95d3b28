"""What an append costs in counts, which a busy machine does not change: bounds for CI.

Times are guarded in `test_regression_guard.py`; growth with the length of a conversation, and of
the number of conversations, where the stores' tests count what an add and a read look at.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from keepwell.stores import DiskStore, NoCounter

pytestmark = pytest.mark.bench

CONVERSATIONS = 64
ROUNDS = 20
TEXT = "x" * 600


async def test_what_an_append_costs_in_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    woken = 0
    soon = loop.call_soon_threadsafe

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal woken
        woken += 1
        return soon(*args, **kwargs)

    store = await DiskStore(tmp_path, counter=NoCounter(), durability="process").spawn()
    message = [{"role": "user", "content": TEXT}]
    await asyncio.gather(*(store.add(f"c{n}", message) for n in range(CONVERSATIONS)))
    before = store.statistics()
    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    for turn in range(ROUNDS):
        await asyncio.gather(*(store.add(f"c{n}", message, append_id=f"t{turn}/0")
                               for n in range(CONVERSATIONS)))
    monkeypatch.undo()
    after = store.statistics()
    await store.stop()
    appends = CONVERSATIONS * ROUNDS
    commits = after["commits"] - before["commits"]
    assert after["requests"] - before["requests"] == appends
    # Appends that wait together are one transaction, and so one flush: mostly all 64 of a round.
    assert ROUNDS <= commits <= appends / 4
    # A commit wakes the loop once, however many it answers.
    assert woken <= commits + 2
    size = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())
    assert 600 <= size / (appends + CONVERSATIONS) <= 1_800
