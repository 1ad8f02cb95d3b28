"""The deadline of model calls: late is late, cancelled is cancelled (LM-1, CN-1)."""

from __future__ import annotations

import asyncio

import pytest

from keepwell.agent.watchdog import Watchdog


async def watched(dog: Watchdog, seconds: float, work: float) -> str:
    dog.start(seconds)
    try:
        await asyncio.sleep(work)
        return "done"
    except asyncio.CancelledError:
        if dog.bit():
            return "late"
        raise
    finally:
        dog.stop()


async def test_one_timer_serves_many_calls() -> None:
    dog = Watchdog()
    for _ in range(5):
        assert await watched(dog, 5, 0) == "done"
    timer = dog._timer
    assert await watched(dog, 5, 0) == "done"
    assert dog._timer is timer
    assert await watched(dog, 0.02, 5) == "late"  # a nearer deadline than the timer's
    assert await watched(dog, 5, 0) == "done"


async def test_a_timer_that_fires_early_is_set_again() -> None:
    dog = Watchdog()
    assert await watched(dog, 0.02, 0) == "done"
    assert await watched(dog, 5, 0.05) == "done"  # the first timer fires meanwhile
    assert await watched(dog, 0.02, 5) == "late"


async def test_a_cancel_from_outside_stays_one() -> None:
    dog = Watchdog()
    task = asyncio.ensure_future(watched(dog, 5, 5))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_both_at_once_is_a_cancel() -> None:
    dog = Watchdog()

    async def work() -> str:
        dog.start(0.01)
        task = asyncio.current_task()
        assert task is not None
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            task.cancel()  # somebody cancels in the same moment
            if dog.bit():
                return "late"
            raise
        return "done"

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(work())
