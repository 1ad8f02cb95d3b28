"""What goes ahead of data: stop, kill, suspend, continuations, idle limits (SYS, CONT, TMO)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from keepwell.actors import (
    ActorDied,
    ActorSystem,
    AsyncActor,
    CallTimeout,
    Down,
    Exit,
    IdleTimeout,
    SystemClock,
    VirtualClock,
)

SOON = 10.0


def test_control_goes_ahead_of_10_000_queued_messages(
    spawn: Any, gate: Any, watcher: Any, kind: Any
) -> None:
    """F54: what is left in the mailbox is failed, not run."""
    notes: list[Any] = []
    ref = spawn(notes.append)
    ref.tell(gate)
    assert gate.entered.wait(SOON)
    queued = kind.max_mailbox or 10_000
    for _ in range(queued - 1):
        ref.tell("queued")
    last = ref.call("queued", timeout=None)
    state, statistics = ref.get_state(), ref.statistics()
    stopped = ref.stop(block=False)
    gate.open.set()
    assert state.get(timeout=SOON)["seen"] == []
    assert statistics.get(timeout=SOON)["mailbox"] == queued
    assert stopped.get(timeout=SOON) is True
    with pytest.raises(ActorDied):
        last.get(timeout=SOON)
    assert notes == [("on_stop", "normal")]


def test_an_exit_signal_and_a_down_go_ahead_of_data(spawn: Any, gate: Any, light: Any) -> None:
    """F54."""
    target = light.start()
    ref = spawn(trap_exit=True)
    watch = ref.ask(lambda actor: actor.monitor(target), timeout=SOON)
    ref.tell(gate)
    assert gate.entered.wait(SOON)
    for number in range(3):
        ref.tell(number)
    ref.exit("boom")
    target.stop()
    gate.open.set()
    assert ref.ask(lambda actor: actor.seen, timeout=SOON) == [
        Exit(None, "boom"), Down(watch, target, None, "normal"), 0, 1, 2,
    ]  # fmt: skip


def test_every_way_of_waiting_for_the_end_outlasts_on_stop(spawn: Any, watcher: Any) -> None:
    """F47: by stop, by future, on a loop, by monitor, by `ended`, by is_alive."""

    def check(wait: Any) -> None:
        released, hook_done = threading.Event(), threading.Event()

        def on_stop(self: Any) -> None:
            assert released.wait(SOON)
            hook_done.set()

        ref = spawn(on_stop=on_stop)
        waiting = wait(ref)
        result: list[bool] = []
        thread = threading.Thread(target=lambda: result.append(waiting() and hook_done.is_set()))
        thread.start()
        assert ref.is_alive()
        released.set()
        thread.join(SOON)
        assert result == [True]

    async def on_a_loop(ref: Any) -> bool:
        return await ref.stop(block=False)

    def by_monitor(ref: Any) -> Any:
        watcher.ask(lambda actor: actor.monitor(ref) and actor.seen.clear(), timeout=SOON)
        down = threading.Event()
        watcher.ask(lambda actor: setattr(actor, "_note", lambda _: down.set()), timeout=SOON)
        ref.stop(block=False)
        return lambda: down.wait(SOON)

    check(lambda ref: ref.stop)
    check(lambda ref: ref.stop(block=False).get)
    check(lambda ref: lambda: asyncio.run(on_a_loop(ref)))
    check(lambda ref: lambda: bool(ref.stop(block=False) and ref.ended().get(timeout=SOON)))
    check(by_monitor)


def test_stop_of_the_dead_is_false(spawn: Any) -> None:
    """STOP-1."""
    ref = spawn()
    assert ref.stop() is True
    assert ref.stop() is False
    assert ref.stop(block=False).get() is False


def test_all_who_stop_an_actor_at_once_are_answered(spawn: Any, gate: Any) -> None:
    ref = spawn()
    ref.tell(gate)
    assert gate.entered.wait(SOON)
    futures = [ref.stop(block=False) for _ in range(20)]
    gate.open.set()
    assert [future.get(timeout=SOON) for future in futures] == [True] * 20


def test_stop_may_run_out_of_time_and_still_takes_effect(spawn: Any, gate: Any) -> None:
    ref = spawn()
    ref.tell(gate)
    assert gate.entered.wait(SOON)
    with pytest.raises(CallTimeout):
        ref.stop(timeout=0.01)
    gate.open.set()
    assert ref.ended().get(timeout=SOON) == "normal"


# -- suspend, resume, get_state ----------------------------------------------------------------


def test_suspended_messages_wait_in_order_and_state_is_served(spawn: Any) -> None:
    """SYS-1, F39: looking is no activity."""
    ref = spawn(trap_exit=True)
    ref.suspend().get(timeout=SOON)
    for number in range(3):
        ref.tell(number)
    ref.exit("boom")
    asked = ref.call("asked")
    assert ref.get_state().get(timeout=SOON)["seen"] == []
    statistics = ref.statistics().get(timeout=SOON)
    assert (statistics["suspended"], statistics["mailbox"], statistics["handled"]) == (True, 4, 0)
    assert not asked.done()
    ref.resume().get(timeout=SOON)
    assert asked.get(timeout=SOON) == "asked"
    assert sorted(map(str, ref.ask(lambda actor: actor.seen, timeout=SOON))) == sorted(
        map(str, [0, 1, 2, Exit(None, "boom"), "asked"])
    )


@pytest.mark.parametrize("end", ["stop", "kill", "exit"])
def test_a_suspended_actor_can_be_ended(spawn: Any, end: str) -> None:
    ref = spawn()
    ref.suspend().get(timeout=SOON)
    asked = ref.call("asked", timeout=None)
    {"stop": lambda: ref.stop(), "kill": ref.kill, "exit": lambda: ref.exit("boom")}[end]()
    reason = {"stop": "normal", "kill": "killed", "exit": "boom"}[end]
    assert ref.ended().get(timeout=SOON) == reason
    with pytest.raises(ActorDied):
        asked.get(timeout=SOON)


def test_get_state_that_raises_is_its_answer(spawn: Any) -> None:
    def get_state(self: Any) -> Any:
        raise SystemExit("no state")

    ref = spawn(get_state=get_state)
    with pytest.raises(SystemExit):
        ref.get_state().get(timeout=SOON)
    assert ref.ask("alive", timeout=SOON) == "alive"


# -- continuations and idle limits -------------------------------------------------------------


def test_a_continuation_goes_ahead_of_all_that_is_queued(spawn: Any, gate: Any) -> None:
    """CONT-1: several in the order given, and ahead of a stop."""
    notes: list[Any] = []
    ref = spawn(notes.append)

    def go_on(actor: Any) -> None:
        gate()
        actor.continue_with("first")
        actor.continue_with("second")

    ref.tell(go_on)
    assert gate.entered.wait(SOON)
    ref.tell("queued")
    stopped = ref.stop(block=False)
    gate.open.set()
    assert stopped.get(timeout=SOON)
    assert notes == ["first", "second", ("on_stop", "normal")]


def test_a_continuation_of_on_start_goes_ahead_of_what_it_told_itself(spawn: Any) -> None:
    """CONT-1."""

    def on_start(self: Any) -> None:
        self.actor_ref.tell("early")
        self.continue_with("continued")

    ref = spawn(on_start=on_start)
    assert ref.ask(lambda actor: actor.seen, timeout=SOON) == ["continued", "early"]


def test_an_endless_continuation_starves_no_other_actor(spawn: Any) -> None:
    """The pool and the loop give others their turn."""

    def again(actor: Any) -> None:
        if not stop.is_set():
            actor.continue_with(again)

    stop = threading.Event()
    ref, other = spawn(), spawn()
    ref.tell(again)
    try:
        assert other.ask("served", timeout=SOON) == "served"
    finally:
        stop.set()


class TestIdle:
    """TMO-1."""

    @pytest.fixture
    def clock(self) -> VirtualClock:
        return VirtualClock()

    @pytest.fixture
    def system(self, clock: VirtualClock) -> Any:
        with ActorSystem(name="virtual", clock=clock) as system:
            yield system

    def test_no_message_for_so_long(self, spawn: Any, clock: VirtualClock) -> None:
        ref = spawn()
        ref.ask(lambda actor: actor.idle_timeout(60), timeout=SOON)
        ref.statistics().get(timeout=SOON)
        clock.advance(59)
        ref.get_state().get(timeout=SOON)  # F39: no activity
        clock.advance(1)
        (message,) = ref.ask(lambda actor: actor.seen, timeout=SOON)
        assert isinstance(message, IdleTimeout)

    def test_a_message_in_time_cancels_it(self, spawn: Any, clock: VirtualClock) -> None:
        ref = spawn()
        ref.ask(lambda actor: actor.idle_timeout(60, "idle"), timeout=SOON)
        ref.ask("active", timeout=SOON)
        clock.advance(100)
        assert ref.ask(lambda actor: actor.seen, timeout=SOON) == ["active"]

    def test_the_last_setting_counts(self, spawn: Any, clock: VirtualClock) -> None:
        ref = spawn()

        def twice(actor: Any) -> None:
            actor.idle_timeout(10, "early")
            actor.idle_timeout(60, "late")

        ref.ask(twice, timeout=SOON)
        ref.statistics().get(timeout=SOON)
        clock.advance(59)
        clock.advance(1)
        assert ref.ask(lambda actor: actor.seen, timeout=SOON) == ["late"]

    def test_an_ended_actor_leaves_no_timer(self, spawn: Any, clock: VirtualClock) -> None:
        ref = spawn()
        ref.ask(lambda actor: actor.idle_timeout(60), timeout=SOON)
        ref.stop()
        assert clock.next_due() is None

    def test_messages_to_oneself_later(self, spawn: Any, clock: VirtualClock) -> None:
        ref = spawn()

        def schedule(actor: Any) -> None:
            actor.send_after(5, "later")
            actor.send_after(6, "never").cancel()

        ref.ask(schedule, timeout=SOON)
        clock.advance(10)
        assert ref.ask(lambda actor: actor.seen, timeout=SOON) == ["later"]


# -- kill and interruption ---------------------------------------------------------------------


def test_a_kill_runs_no_hook(spawn: Any) -> None:
    """SHUT-1."""
    notes: list[Any] = []
    ref = spawn(notes.append)
    ref.kill()
    assert ref.ended().get(timeout=SOON) == "killed"
    assert notes == []


def test_an_actor_that_does_not_return_is_fenced(
    spawn: Any, gate: Any, system: Any, watcher: Any, events: Any
) -> None:
    """F71, design §3: mailbox closed, askers failed, thread counted, peers told; no late reply."""
    notes: list[Any] = []
    ref = spawn(notes.append)
    watcher.ask(lambda actor: actor.link(ref), timeout=SOON)
    served = ref.call(gate, timeout=None)
    assert gate.entered.wait(SOON)
    queued, stopping = ref.call("queued", timeout=None), ref.stop(block=False)
    ref.kill()
    for future in (served, queued):
        with pytest.raises(ActorDied) as died:
            future.get(timeout=SOON)
        assert died.value.reason == "killed"
    assert stopping.get(timeout=SOON) is True
    assert ref.ended().get(timeout=SOON) == "killed"
    assert watcher.ask(lambda actor: actor.seen, timeout=SOON) == [Exit(ref, "killed")]
    assert system.abandoned_threads == 1
    assert [event for event, _ in events].count("keepwell.actor.fenced") == 1
    gate.open.set()
    assert spawn().ask("others live", timeout=SOON) == "others live"
    assert notes == []


def test_a_fenced_handler_that_raises_late_reports_nothing(
    spawn: Any, system: Any, events: Any
) -> None:
    entered, release, raised = threading.Event(), threading.Event(), threading.Event()

    def stuck(_actor: Any) -> None:
        entered.set()
        release.wait(SOON)
        raised.set()
        raise RuntimeError("too late")

    ref = spawn()
    ref.tell(stuck)
    assert entered.wait(SOON)
    ref.kill()
    assert ref.ended().get(timeout=SOON) == "killed"
    release.set()
    assert raised.wait(SOON)
    system.close()
    assert [event for event, _ in events if event.endswith(".crashed")] == []


class Suspended(AsyncActor):
    """Its handler, or its last hook, waits for ever."""

    def __init__(self, entered: asyncio.Event, stubborn: bool = False) -> None:
        super().__init__()
        self.entered, self.stubborn = entered, stubborn
        self.cancelled = 0

    async def on_receive(self, message: Any) -> None:
        await self.wait()

    async def wait(self) -> None:
        self.entered.set()
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled += 1
                if not self.stubborn:
                    raise


@pytest.mark.parametrize(
    ("signal", "reason"), [("kill", "killed"), ("boom", "boom"), ("shutdown", "shutdown")]
)
async def test_kill_and_exit_signals_interrupt_a_suspended_handler(
    system: Any, signal: str, reason: str
) -> None:
    entered = asyncio.Event()
    ref = await Suspended.options(system=system).spawn(entered)
    asked = ref.call("wait", timeout=None)
    await entered.wait()
    ref.exit(signal)
    with pytest.raises(ActorDied) as died:
        await asked
    assert died.value.reason == reason
    assert system.abandoned_threads == 0
    await system.aclose()


async def test_a_stop_waits_for_a_suspended_handler(system: Any) -> None:
    class Waiting(AsyncActor):
        async def on_receive(self, message: Any) -> Any:
            entered.set()
            await release.wait()
            return "done"

    entered, release = asyncio.Event(), asyncio.Event()
    ref = await Waiting.options(system=system).spawn()
    asked = ref.call("wait")
    await entered.wait()
    stopped = ref.stop(block=False)
    release.set()
    assert await asked == "done"
    assert await stopped is True
    await system.aclose()


async def test_a_handler_that_swallows_its_cancellation_is_fenced(system: Any) -> None:
    """F71, on a loop: its task is left behind and counted."""
    entered = asyncio.Event()
    ref = await Suspended.options(system=system).spawn(entered, stubborn=True)
    actor = ref._actor
    asked = ref.call("wait", timeout=None)
    await entered.wait()
    ref.kill()
    with pytest.raises(ActorDied):
        await asked
    assert await ref.ended() == "killed"
    assert actor.cancelled >= 1
    actor.stubborn = False
    await system.aclose()


async def test_only_a_kill_interrupts_the_last_hook(system: Any) -> None:
    class Cleaning(Suspended):
        async def on_stop(self) -> None:
            stopping.set()
            await release.wait()
            cleaned.append(self.exit_reason)

    cleaned: list[Any] = []
    entered, stopping, release = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ref = await Cleaning.options(system=system).spawn(entered)
    ref.exit("shutdown")
    await stopping.wait()
    ref.exit("boom")
    ref.exit("shutdown")
    release.set()
    assert await ref.ended() == "shutdown"
    assert cleaned == ["shutdown"]

    stopping.clear()
    release.clear()
    killed = await Cleaning.options(system=system).spawn(entered)
    killed.exit("shutdown")
    await stopping.wait()
    killed.kill()
    assert await killed.ended() == "killed"
    assert cleaned == ["shutdown"]
    await system.aclose()


async def test_an_interrupted_handler_does_not_taint_the_next(system: Any) -> None:
    """A cancellation that the handler outlives must not be taken for a later one."""

    class Trapping(AsyncActor):
        trap_exit = False

        async def on_receive(self, message: Any) -> Any:
            if message == "outlive":
                self.trap_exit = False
                entered.set()
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    self.trap_exit = True  # what interrupted it is a message now
                return "outlived"
            if message == "cancelled":
                raise asyncio.CancelledError
            return str(message)

    entered = asyncio.Event()
    ref = await Trapping.options(system=system).spawn()
    asked = ref.call("outlive")
    await entered.wait()
    ref.exit("boom")
    assert await asked == "outlived"
    with pytest.raises(ActorDied) as died:
        await ref.call("cancelled")
    assert isinstance(died.value.reason, asyncio.CancelledError)
    await system.aclose()


def test_cancelled_timers_do_not_pile_up() -> None:
    """Idle limits are long and set anew at each message."""
    clock = SystemClock()
    try:
        for _ in range(20_000):
            clock.call_later(3600, print).cancel()
        assert len(clock._heap) < 5_000
    finally:
        clock.close()
