"""`Future`: one value, awaited on any loop, got in any thread, composed as pykka's."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pykka
import pytest

from keepwell.actors import (
    Actor,
    ActorDied,
    AskedItself,
    BlockingOnLoop,
    CallTimeout,
    Future,
    VirtualClock,
)
from keepwell.actors.deadlines import Deadlines

SOON = 10.0


class Answering(Actor):
    def on_receive(self, message: Any) -> Any:
        return message


def completed_elsewhere(value: Any = None, error: BaseException | None = None) -> Future[Any]:
    """A future that another thread completes once somebody waits for it."""
    future: Future[Any] = Future()

    def complete() -> None:
        while not future._waiters:
            waiting.wait(0.001)
        if error is None:
            future.set(value)
        else:
            future.set_exception(error)

    waiting = threading.Event()
    threading.Thread(target=complete, daemon=True).start()
    return future


# -- awaiting ----------------------------------------------------------------------------------


Await = Callable[[Future[Any]], Coroutine[Any, Any, Any]]


async def plainly(future: Future[Any]) -> Any:
    return await future


async def by_task(future: Future[Any]) -> Any:
    return await asyncio.create_task(future)


async def by_gather(future: Future[Any]) -> Any:
    first, second = await asyncio.gather(future, future)
    assert first == second
    return first


async def by_wait_for(future: Future[Any]) -> Any:
    return await asyncio.wait_for(future, SOON)


async def by_shield(future: Future[Any]) -> Any:
    return await asyncio.shield(future)


async def by_task_group(future: Future[Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(future)
    return task.result()


async def by_wait(future: Future[Any]) -> Any:
    done, _ = await asyncio.wait([asyncio.ensure_future(future)])
    return done.pop().result()


WAYS: list[Await] = [plainly, by_task, by_gather, by_wait_for, by_shield, by_task_group, by_wait]


@pytest.mark.parametrize("way", WAYS)
def test_works_wherever_asyncio_takes_an_awaitable(way: Await) -> None:
    async def check() -> None:
        assert await way(Future.of("done")) == "done"
        assert await way(completed_elsewhere("later")) == "later"
        soon: Future[str] = Future()
        asyncio.get_running_loop().call_soon(soon.set, "same loop")
        assert await way(soon) == "same loop"
        for failed in (Future.failed(KeyError("k")), completed_elsewhere(error=KeyError("k"))):
            with pytest.raises((KeyError, BaseExceptionGroup)):
                await way(failed)

    asyncio.run(check())


def test_is_awaited_from_several_loops_and_threads_at_once() -> None:
    future: Future[int] = Future()
    start = threading.Barrier(9)

    def on_a_loop() -> int:
        async def wait() -> int:
            start.wait(SOON)
            return sum(await asyncio.gather(*(plainly(future) for _ in range(5))))

        return asyncio.run(wait())

    def in_a_thread() -> int:
        start.wait(SOON)
        return future.get(timeout=SOON)

    with ThreadPoolExecutor(8) as pool:
        loops = [pool.submit(on_a_loop) for _ in range(4)]
        threads = [pool.submit(in_a_thread) for _ in range(4)]
        start.wait(SOON)
        future.set(2)
        assert [each.result(SOON) for each in loops] == [10] * 4
        assert [each.result(SOON) for each in threads] == [2] * 4


async def test_cancelling_who_awaits_leaves_the_future_alone() -> None:
    future: Future[str] = Future()
    tasks = [asyncio.create_task(plainly(future)) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    future.set("served")
    assert await tasks[1] == "served"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Future(), 0.001)


async def test_who_is_cancelled_as_it_completes_is_cancelled() -> None:
    """The result is there, but a cancellation is never swallowed."""
    future: Future[str] = Future()
    task = asyncio.create_task(plainly(future))
    await asyncio.sleep(0)
    future.set("done")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_abandoned_is_when_the_last_task_is_cancelled() -> None:
    """CN-2: one that never took its first step counts too."""
    abandoned: list[int] = []
    future: Future[None] = Future()
    future.on_abandoned(lambda: abandoned.append(1))
    tasks = [asyncio.create_task(plainly(future)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in tasks:
        assert not abandoned
        task.cancel()
        await asyncio.wait([task])
    assert abandoned == [1]

    early: Future[None] = Future()
    early.on_abandoned(lambda: abandoned.append(2))
    task = asyncio.create_task(early)
    task.cancel()
    await asyncio.wait([task])
    assert abandoned == [1, 2]
    assert not early._drivers, "nothing keeps the cancelled task"

    served: Future[None] = Future()
    served.on_abandoned(lambda: abandoned.append(3))
    task = asyncio.create_task(plainly(served))
    await asyncio.sleep(0)
    served.set()
    task.cancel()
    await asyncio.wait([task])
    assert abandoned == [1, 2]


def test_a_loop_that_is_gone_hurts_nobody() -> None:
    """In another thread, and in the very thread that ran it."""
    future: Future[str] = Future()
    loops = []

    def leave() -> None:
        loop = asyncio.new_event_loop()
        loops.append(loop)
        task = loop.create_task(plainly(future))
        loop.call_soon(loop.stop)
        loop.run_forever()
        tasks.append(task)
        loop.close()

    tasks: list[Any] = []
    leave()
    thread = threading.Thread(target=leave)
    thread.start()
    thread.join(SOON)
    assert future.complete("late")
    for task in tasks:
        task._log_destroy_pending = False


def test_a_blocking_get_on_a_loop_raises_at_once_unless_it_is_done() -> None:
    async def check() -> None:
        with pytest.raises(BlockingOnLoop, match="await"):
            Future().get()
        with pytest.raises(BlockingOnLoop):
            Future().map(str).get()
        assert Future.of(1).get() == 1

    asyncio.run(check())


# -- completing --------------------------------------------------------------------------------


def test_is_set_once() -> None:
    future: Future[int] = Future()
    future.set(1)
    for again in (lambda: future.set(2), lambda: future.set_exception(ValueError())):
        with pytest.raises(queue.Full):
            again()
    assert (future.complete(2), future.fail(ValueError())) == (False, False)
    assert future.get() == 1


def test_of_many_who_complete_it_one_does() -> None:
    for _ in range(50):
        future: Future[int] = Future()
        start = threading.Barrier(4)

        def complete(number: int, future: Any = future, start: Any = start) -> bool:
            start.wait(SOON)
            return future.complete(number)

        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(complete, range(4)))
        assert won.count(True) == 1
        assert future.get() == won.index(True)


def test_an_error_is_raised_each_time_with_the_same_traceback() -> None:
    """It must not grow by the frames of all who looked."""
    future = Future[Any]()
    try:
        raise ValueError("v")
    except ValueError:
        future.set_exception()
    lengths = []
    for _ in range(5):
        with pytest.raises(ValueError, match="v") as caught:
            future.get()
        lengths.append(len(caught.traceback))
    assert len(set(lengths)) == 1
    triple = Future[Any]()
    triple.set_exception((TypeError, None, None))
    with pytest.raises(TypeError):
        triple.get()
    with pytest.raises(ValueError, match="outside an except block"):
        Future[Any]().set_exception()


def test_done_callbacks_run_once_and_their_faults_hurt_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Any] = []

    def broken(_: Any) -> None:
        raise RuntimeError("a callback of the asker")

    ref = Answering.start()
    held: list[Any] = []

    class Holding(Answering):
        def on_receive(self, message: Any) -> Any:
            held.append(self.defer())
            return super().on_receive(message)

    holding = Holding.start()
    future = holding.call("held")
    future.add_done_callback(broken)
    future.add_done_callback(lambda done: seen.append(done.get()))
    while not held:
        holding.statistics().get(timeout=SOON)
    held[0].reply("reply")
    assert future.get(timeout=SOON) == "reply"
    future.add_done_callback(lambda done: seen.append(done.get()))
    assert seen == ["reply", "reply"]
    assert "a callback of the asker" in caplog.text
    assert ref.ask("alive") == "alive"
    ref.stop()
    holding.stop()


# -- time limits -------------------------------------------------------------------------------


def test_get_running_out_does_not_withdraw_it() -> None:
    future: Future[int] = Future()
    for timeout in (0, 0.001, -1):
        with pytest.raises(CallTimeout):
            future.get(timeout=timeout)
    assert future._waiters == []
    future.set(1)
    assert future.get(timeout=0) == 1


@pytest.mark.parametrize("timeout", [0.001, 0.5, 1.99, 2.0, 5.0, 3600.0])
def test_deadlines_are_kept_exactly_on_a_virtual_clock(timeout: float) -> None:
    clock = VirtualClock()
    deadlines = Deadlines(clock)
    late, served = Future[int](), Future[int]()
    deadlines.add(late, timeout, "someone")
    deadlines.add(served, timeout, "someone")
    served.set(1)
    clock.advance(timeout * 0.999)
    assert not late.done()
    clock.advance(timeout * 0.001 + 1e-9)
    with pytest.raises(CallTimeout, match="no reply from someone"):
        late.get()
    assert served.get() == 1
    assert not deadlines._buckets


def test_a_deadline_of_zero_fails_at_once() -> None:
    late = Future[int]()
    Deadlines(VirtualClock()).add(late, 0, "someone")
    assert isinstance(late.error(), CallTimeout)


# -- pykka's combinators -----------------------------------------------------------------------


def test_combinators_compute_when_asked_and_by_callback() -> None:
    numbers: Future[Any] = Future()
    derived: list[tuple[Future[Any], Any]] = [
        (numbers.map(len), 4),
        (numbers.filter(lambda n: n % 2), [1, 3]),
        (numbers.reduce(lambda a, b: a + b), 10),
        (numbers.reduce(lambda a, b: a + b, 5), 15),
        (numbers.join(Future.of("x")), [[1, 2, 3, 4], "x"]),
        (numbers.map(list).map(len).map(str), "4"),
    ]
    told: list[Any] = []
    for future, _ in derived:
        future.add_done_callback(lambda done: told.append(done.get()))
    numbers.set([1, 2, 3, 4])
    assert told == [value for _, value in derived]
    assert [future.get() for future, _ in derived] == told

    async def awaited() -> list[Any]:
        return [await future for future, _ in derived]

    assert asyncio.run(awaited()) == told


def test_what_a_combinator_raises_is_its_result() -> None:
    source: Future[int] = Future()
    broken = source.map(lambda n: n // 0)
    failed = source.map(str)
    done = threading.Event()
    broken.add_done_callback(lambda _: done.set())
    source.set(1)
    assert done.wait(SOON)
    with pytest.raises(ZeroDivisionError):
        broken.get()
    assert failed.get() == "1"
    with pytest.raises(KeyError):
        asyncio.run(plainly(Future.failed(KeyError()).map(str)))


def test_plain_pykka_futures_join_in() -> None:
    plain: pykka.ThreadingFuture[int] = pykka.ThreadingFuture()
    joined = Future.of(1).join(plain)
    told: Future[Any] = Future()
    joined.add_done_callback(lambda done: told.set(done.get()))
    plain.set(2)
    assert told.get(timeout=SOON) == [1, 2]
    assert asyncio.run(plainly(Future.of(1).join(plain))) == [1, 2]
    assert plain.map(lambda n: n + 1).get() == 3


def test_a_derived_future_is_not_set_by_hand() -> None:
    derived = Future[int]().map(str)
    derived.add_done_callback(lambda _: None)
    with pytest.raises(queue.Full):
        derived.set("by hand")
    with pytest.raises(queue.Full):
        Future.of(1).set_get_hook(lambda timeout: 2)


def test_a_hook_is_called_once_for_all() -> None:
    calls: list[Any] = []

    def hook(timeout: float | None) -> int:
        calls.append(timeout)
        return 7

    future = Future[int]()
    future.set_get_hook(hook)
    assert [future.get(timeout=3), future.get()] == [7, 7]
    assert asyncio.run(plainly(future)) == 7
    assert calls == [3]


# -- what it keeps -----------------------------------------------------------------------------


def test_a_failed_future_keeps_nothing_of_the_handler_alive() -> None:
    """Pitfall of pykka: a failed future kept the handler's locals, and so the actor."""

    class Big: ...

    class Failing(Actor):
        def on_receive(self, message: Any) -> Any:
            local = Big()
            kept.append(weakref.ref(local))
            kept.append(weakref.ref(self))
            raise ValueError("v")

    kept: list[Any] = []
    future = Failing.start().ask("fail", block=False)
    with pytest.raises(ActorDied):
        future.get(timeout=SOON)
    reason = future.error()
    Answering.start().ask("has the worker returned?", timeout=SOON)
    gc.collect()
    assert [ref() for ref in kept] == [None, None]
    assert isinstance(reason, ActorDied)
    assert reason.__cause__ is not None
    assert reason.__cause__.__traceback__ is not None, "the lines are still there"


def test_an_error_handed_on_does_not_end_who_caught_it() -> None:
    """Emptying the frames of a crash must spare a coroutine that caught the error and lives."""

    async def main() -> str:
        async def serve(future: Future[Any]) -> str:
            try:
                raise ValueError("v")
            except ValueError as error:
                future.fail(error)
            await release.wait()
            return "still here"

        class Crashing(Actor):
            def on_receive(self, message: Any) -> Any:
                return message.get(timeout=SOON)

        release = asyncio.Event()
        future: Future[Any] = Future()
        serving = asyncio.create_task(serve(future))
        ref = await Crashing.spawn()
        with pytest.raises(ActorDied):
            await ref.call(future)
        await ref.ended()
        release.set()
        return await serving

    assert asyncio.run(main()) == "still here"


def test_a_guard_is_asked_only_by_who_must_wait() -> None:
    def refuse() -> None:
        raise AskedItself("it")

    guarded = Future[int]()
    guarded._guard = refuse
    with pytest.raises(AskedItself):
        guarded.get(timeout=0)
    with pytest.raises(AskedItself):
        asyncio.run(plainly(guarded))
    guarded.set(1)
    assert guarded.get() == 1
    assert asyncio.run(plainly(guarded)) == 1


async def test_contexts_of_awaiting_tasks_are_their_own() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("v", default=0)

    async def wait(number: int) -> int:
        variable.set(number)
        await future
        return variable.get()

    future: Future[None] = Future()
    tasks = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    threading.Thread(target=future.set).start()
    assert await asyncio.gather(*tasks) == [0, 1, 2]
