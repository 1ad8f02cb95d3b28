"""Many children of one template: per-child budgets (F50), their costs, their stop."""

from __future__ import annotations

import functools
import gc
import time
from typing import Any

import pytest

from keepwell.actors import Actor, ActorSystem
from keepwell.supervision import (
    Backoff,
    ChildRequestError,
    ChildSpec,
    DynamicSupervisor,
    Supervisor,
)

BOOM = RuntimeError


def template(nursery: Any, toy: Any, **options: Any) -> ChildSpec:
    return ChildSpec("toy", functools.partial(toy, nursery), **options)


def crash(ref: Any) -> None:
    ref.tell(BOOM)
    ref.ended().get()


def test_one_of_a_hundred_is_given_up_and_the_others_go_on(
    simulation: Any, nursery: Any, toy: Any, reports: Any
) -> None:
    """F50."""
    told: list[Any] = []

    class Fleet(DynamicSupervisor):
        def child_given_up(self, spec: Any, ref: Any, reason: Any) -> None:
            told.append((spec.id, ref, reason))

    supervisor = Fleet.start(template(nursery, toy), per_child=True)
    refs = [supervisor.start_child(number).get() for number in range(100)]
    nursery.plans[42] = ["ok", BOOM]
    crash(refs[42])
    simulation.run_until_idle()
    assert nursery.take("start failed") == [42] * 5, "5 in 10 s"
    assert nursery.alive() == [n for n in range(100) if n != 42]
    assert supervisor.count_children().get().active == 99
    assert [(name, ref, type(reason)) for name, ref, reason in told] == [("toy", refs[42], BOOM)]
    (report,) = reports.of("supervisor.child_given_up")
    assert report["last_ref"] is refs[42]
    assert supervisor.start_child("new").get().is_alive()
    supervisor.terminate_child(refs[42]).get()  # given up: as good as terminated


def test_each_child_has_its_own_window(simulation: Any, nursery: Any, toy: Any) -> None:
    """A hundred restarts in a second are fine if they are a hundred children's."""
    supervisor = DynamicSupervisor.start(template(nursery, toy), 1, 5, per_child=True)
    for number in range(100):
        supervisor.start_child(number).get()
    for number in range(100):
        crash(nursery.ref(number))
    simulation.run_until_idle()
    assert len(nursery.alive()) == 100
    crash(nursery.ref(7))
    simulation.run_until_idle()
    assert nursery.alive() == [n for n in range(100) if n != 7]
    simulation.advance(6)
    crash(nursery.ref(8))
    simulation.run_until_idle()
    assert 8 in nursery.alive()


def test_without_per_child_one_counter_ends_all(simulation: Any, nursery: Any, toy: Any) -> None:
    """INT-5 holds for OTP's simple_one_for_one."""
    supervisor = DynamicSupervisor.start(template(nursery, toy), max_restarts=3)
    for number in range(5):
        supervisor.start_child(number).get()
    for number in range(4):
        crash(nursery.ref(number))
    simulation.run_until_idle()
    assert supervisor.exit_reason == "shutdown"
    assert nursery.alive() == []


def test_a_restart_gets_the_arguments_of_the_start(simulation: Any, nursery: Any) -> None:
    """DYN-2."""
    seen: list[Any] = []

    class Noting(Actor):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__()
            seen.append((args, kwargs))

        def on_receive(self, message: Any) -> None:
            raise message("boom")

    spec = ChildSpec("noting", functools.partial(Noting, 1, a="a"))
    supervisor = DynamicSupervisor.start(spec)
    ref = supervisor.start_child(2, b="b").get()
    crash(ref)
    simulation.run_until_idle()
    assert seen == [((1, 2), {"a": "a", "b": "b"})] * 2


def test_a_restart_that_is_ignored_leaves_nothing(simulation: Any, nursery: Any, toy: Any) -> None:
    """RINIT-4, DYN-1."""
    supervisor = DynamicSupervisor.start(template(nursery, toy))
    ref = supervisor.start_child("x").get()
    nursery.plans["x"] = ["ok", "ignore"]
    crash(ref)
    simulation.run_until_idle()
    assert supervisor.which_children().get() == []
    nursery.plans["y"] = ["ignore"]
    assert supervisor.start_child("y").get() is None
    assert supervisor.count_children().get().workers == 0


def test_a_restarting_child_is_named_by_its_last_ref(
    simulation: Any, nursery: Any, toy: Any
) -> None:
    supervisor = DynamicSupervisor.start(
        template(nursery, toy), 3, backoff=Backoff(first=60, longest=60)
    )
    ref = supervisor.start_child("x").get()
    nursery.plans["x"] = ["ok", BOOM]
    crash(ref)
    simulation.run_until_idle()
    (info,) = supervisor.which_children().get()
    assert (info.id, info.child) == (None, "restarting")
    count = supervisor.count_children().get()
    assert (count.specs, count.active, count.workers) == (1, 0, 1)
    assert supervisor.get_childspec(ref).get().id == "toy"
    supervisor.terminate_child(ref).get()
    assert supervisor.which_children().get() == []
    simulation.advance(120)
    assert nursery.take("start failed") == ["x"]


def test_refs_of_others_are_refused_and_of_the_dead_are_fine(
    simulation: Any, nursery: Any, toy: Any
) -> None:
    """DYN-3."""
    supervisor = DynamicSupervisor.start(template(nursery, toy))
    stranger = Actor.start()
    for request, code in [
        (supervisor.terminate_child(stranger), "not_found"),
        (supervisor.terminate_child("x"), "simple_one_for_one"),
        (supervisor.restart_child("x"), "simple_one_for_one"),
        (supervisor.delete_child("x"), "simple_one_for_one"),
        (supervisor.get_childspec("x"), "not_found"),
        (supervisor.get_childspec([]), "not_found"),
    ]:
        with pytest.raises(ChildRequestError) as caught:
            request.get()
        assert caught.value.code == code
    assert supervisor.get_childspec("toy").get().id == "toy"
    stranger.stop()
    supervisor.terminate_child(stranger).get()


def test_all_are_told_at_once_and_share_one_shutdown_time(
    simulation: Any, nursery: Any, toy: Any
) -> None:
    """DYN-4: a hundred that need a second each stop in a second; the late ones are killed."""
    supervisor = DynamicSupervisor.start(template(nursery, toy, shutdown=2.0))

    def slow(seconds: float) -> Any:
        def hook(_: Any) -> None:
            simulation.system.run(_sleep(seconds)).get()

        return hook

    for number in range(50):
        supervisor.start_child(number).get()
        nursery.hooks[number] = slow(1.0 if number < 48 else 60.0)
    nursery.take()
    begin = simulation.clock.monotonic()
    supervisor.stop()
    assert simulation.clock.monotonic() - begin < 2.5
    assert nursery.alive() == []
    reasons = [nursery.ref(number).exit_reason for number in range(50)]
    assert reasons == ["shutdown"] * 48 + ["killed"] * 2


async def _sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def test_brutal_kill_runs_no_hook(simulation: Any, nursery: Any, toy: Any) -> None:
    supervisor = DynamicSupervisor.start(template(nursery, toy, shutdown="brutal_kill"))
    supervisor.start_child("x").get()
    supervisor.stop()
    assert nursery.take("stop") == []
    assert nursery.ref("x").exit_reason == "killed"


class Quiet(Actor):
    def __init__(self, *_: Any) -> None:
        super().__init__()

    def on_receive(self, message: Any) -> Any:
        if message == "boom":
            raise BOOM
        return message


def cost(children: int, operations: int) -> dict[str, float]:
    """CPU seconds of each kind of operation beside so many children."""
    with ActorSystem():
        dynamic = DynamicSupervisor.start(ChildSpec("q", Quiet), per_child=True)
        fixed = Supervisor.start(max_restarts=10**6)
        # All at once: one after the other each waits for two threads to hand over to each other.
        begun = [dynamic.start_child(n) for n in range(children)]
        begun_fixed = [fixed.start_child(ChildSpec(n, Quiet)) for n in range(children)]
        refs = [started.get(timeout=30) for started in begun]
        for started in begun_fixed:
            started.get(timeout=30)
        spent: dict[str, float] = {}

        def measure(name: str, action: Any) -> None:
            gc.disable()  # a collection walks whatever all tests before have left
            try:
                begin = time.process_time()
                for n in range(operations):
                    action(n)
                spent[name] = time.process_time() - begin
            finally:
                gc.enable()

        def crash_dynamic(n: int) -> None:
            refs[n].tell("boom")
            refs[n].ended().get(timeout=10)
            dynamic.get_childspec("q").get(timeout=10)

        measure("start", lambda n: dynamic.start_child(n).get(timeout=10))
        measure("restart", crash_dynamic)
        measure("terminate", lambda n: dynamic.terminate_child(refs[-1 - n]).get(timeout=10))
        measure("start static", lambda n: fixed.start_child(ChildSpec(-1 - n, Quiet)).get())
        measure("terminate static", lambda n: fixed.terminate_child(n).get(timeout=10))
        measure("delete static", lambda n: fixed.delete_child(n).get(timeout=10))
        return spent


def test_an_operation_costs_the_same_beside_ten_thousand_children() -> None:
    few, many = cost(300, 100), cost(10_000, 100)
    # A cost that grew with the number of children would be 30 times as high.
    ratios = {name: many[name] / few[name] for name in few}
    assert max(ratios.values()) < 8, ratios
