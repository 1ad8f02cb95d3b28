"""Crashes, requests and shutdowns that race: in thousands of seeded orders, and on real threads.

Whatever happens: every request is answered or refused, nothing lives twice, what lives is what the
supervisors list, and after the shutdown nothing lives at all (F65, F52, F55, F69).
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import threading
from typing import Any

import pytest

from keepwell.actors import Actor, ActorDied, ActorRef, ActorSystem, RequestError, StartFailed
from keepwell.supervision import ChildSpec, DynamicSupervisor, Supervisor
from keepwell.testing.simulation import SimulatedScheduler, search_interleavings

SEEDS = int(os.environ.get("KEEPWELL_SEEDS", "400"))
SECONDS = max(5.0, SEEDS / 50)
REFUSALS = (RequestError, StartFailed, ActorDied)
STRATEGIES = ("one_for_one", "one_for_all", "rest_for_one")
RESTARTS = ("permanent", "transient", "temporary")


class Chaos:
    """A random tree, and random things that are done to it."""

    def __init__(self, nursery: Any, toy: Any, seed: int, max_restarts: int) -> None:
        self.nursery, self.toy, self.random = nursery, toy, random.Random(seed)
        self.answers: list[Any] = []
        rng = self.random
        for child_id in "abcdefxyz":
            outcomes = ["ok", RuntimeError, "ignore"]
            later = rng.choices(outcomes, [20, 2, 1], k=20)
            nursery.plans[child_id] = ["ok", *later, "ok"]
        fleet = functools.partial(
            DynamicSupervisor, ChildSpec("toy", functools.partial(toy, nursery)), per_child=True
        )
        sub = functools.partial(
            Supervisor, self.specs("xyz"), rng.choice(STRATEGIES), max_restarts // 2, 5
        )
        children = [
            *self.specs("abc"),
            ChildSpec("sub", sub, rng.choice(RESTARTS[:2]), type="supervisor"),
            ChildSpec("fleet", fleet, type="supervisor"),
            *self.specs("de"),
        ]
        self.root: Any = Supervisor.start(children, rng.choice(STRATEGIES), max_restarts, 5)

    def specs(self, ids: str) -> list[ChildSpec]:
        rng = self.random
        shutdowns = [5.0, "infinity", "brutal_kill", 1.0]
        return [
            self.nursery.spec(i, restart=rng.choice(RESTARTS), shutdown=rng.choice(shutdowns))
            for i in ids
        ]

    def some_ref(self) -> Any:
        return self.random.choice(self.nursery.refs[self.random.choice(list(self.nursery.refs))])

    def step(self) -> None:
        """One thing, without waiting for what comes of it."""
        rng, root, answers = self.random, self.root, self.answers
        child_id = rng.choice("abcdef")  # x, y and z belong to the subtree
        match rng.randrange(11):
            case 0 | 1:
                self.some_ref().tell(rng.choice([RuntimeError, ("exit", "normal")]))
            case 2:
                self.some_ref().exit(rng.choice(["boom", "shutdown", "normal"]))
            case 3:
                self.some_ref().kill()
            case 4:
                answers.append(root.start_child(self.specs(child_id)[0]))
            case 5:
                answers.append(root.terminate_child(child_id))
            case 6:
                answers.append(root.restart_child(child_id))
            case 7:
                answers.append(root.delete_child(child_id))
            case 8:
                answers.append(root.which_children())
                answers.append(root.count_children())
            case 9:
                answers.append(self.some_ref().call("hello", timeout=None))
            case _:
                self.in_subtree(rng.choice([self.into_fleet, self.kill_it]))

    def in_subtree(self, action: Any) -> None:
        supervisors = [
            ref
            for ref in list(self.root.system.actors)
            if issubclass(ref.actor_class, Supervisor) and ref is not self.root
        ]
        if supervisors:
            action(self.random.choice(supervisors))

    def into_fleet(self, ref: Any) -> None:
        if issubclass(ref.actor_class, DynamicSupervisor):
            self.answers.append(ref.start_child(f"d{self.random.randrange(10**9)}"))

    def kill_it(self, ref: Any) -> None:
        if self.random.random() < 0.3:
            ref.kill()

    def listed(self, ref: Any) -> list[Any]:
        """All workers below a supervisor, when nothing is on its way."""
        found = []
        for info in ref.which_children().get(timeout=30):
            if isinstance(info.child, ActorRef) and info.type == "supervisor":
                found += self.listed(info.child)
            elif info.child is not None:
                found.append(info.child)
        return found

    def check(self) -> None:
        """Nothing is on its way any more."""
        nursery = self.nursery
        for answer in self.answers:
            try:
                answer.get(timeout=30)
            except REFUSALS:
                pass
        assert nursery.twice == []
        living = {ref for refs in nursery.living.values() for ref in refs}
        assert living == (set(self.listed(self.root)) if self.root.is_alive() else set())


def test_no_interleaving_loses_a_child_or_an_answer(new_nursery: Any, toy: Any) -> None:
    seeds = iter(range(SEEDS))

    def scenario(simulation: SimulatedScheduler) -> None:
        chaos = Chaos(new_nursery(), toy, next(seeds), max_restarts=8)
        for _ in range(chaos.random.randrange(5, 40)):
            chaos.step()
            if chaos.random.random() < 0.3:
                simulation.advance(chaos.random.choice([0.0, 0.0, 0.2, 1.0]))
        simulation.advance(60)
        chaos.check()
        chaos.step()
        stopped = chaos.root.stop(block=False, reason="shutdown")
        chaos.step()
        simulation.advance(60)
        stopped.get()
        assert chaos.nursery.alive() == []
        chaos.check()

    assert search_interleavings(scenario, seeds=SEEDS, seconds=SECONDS) > 20


@pytest.mark.parametrize("seed", range(3))
def test_on_real_threads(system: ActorSystem, nursery: Any, toy: Any, seed: int) -> None:
    """F65: requests and crashes from several threads, until and while the root shuts down."""
    chaos = Chaos(nursery, toy, seed, max_restarts=10**6)
    barrier, half = threading.Barrier(4), threading.Semaphore(0)

    def client() -> None:
        barrier.wait()
        for number in range(400):
            chaos.step()
            if number < 300:
                chaos.root.count_children().get(timeout=30)  # or it would never come to a restart
            elif number == 300:
                half.release()

    threads = [threading.Thread(target=client) for _ in range(3)]
    for thread in threads:
        thread.start()
    barrier.wait()
    for _ in threads:
        assert half.acquire(timeout=30)
    stopped = chaos.root.stop(block=False, reason="shutdown")
    for thread in threads:
        thread.join(30)
    assert stopped.get(timeout=30)
    for answer in chaos.answers:
        try:
            answer.get(timeout=30)
        except REFUSALS:
            pass
    for refs in nursery.refs.values():
        for ref in refs:
            ref.ended().get(timeout=30)
    assert nursery.twice == []
    assert nursery.alive() == []
    assert max(map(len, nursery.refs.values())) > 5, "nothing was restarted: no stress at all"


def test_start_child_races_with_the_shutdown(system: ActorSystem, nursery: Any, toy: Any) -> None:
    """F65: refused, or stopped with the rest; a fleet is no exception."""
    numbers = itertools.count()
    for _ in range(15):
        fleet = DynamicSupervisor.start(ChildSpec("toy", functools.partial(toy, nursery)))
        answers: list[Any] = []
        begin = threading.Event()

        def start(fleet: Any = fleet, answers: Any = answers, begin: Any = begin) -> None:
            begin.wait(10)
            for _ in range(40):
                answers.append(fleet.start_child(next(numbers)))

        threads = [threading.Thread(target=start) for _ in range(3)]
        for thread in threads:
            thread.start()
        begin.set()
        assert fleet.stop(reason="shutdown")
        for thread in threads:
            thread.join(10)
        for answer in answers:
            try:
                ref = answer.get(timeout=10)
            except ActorDied:
                continue
            ref.ended().get(timeout=10)
        assert len(answers) == 120
    assert nursery.alive() == []


def test_asks_during_restarts_are_answered_or_fail(system: ActorSystem, nursery: Any) -> None:
    """F52, F70: through the name, which leads to the new incarnation."""
    supervisor = Supervisor.start(
        [ChildSpec("a", lambda: Answering.start(name="answering"))], max_restarts=10**6
    )
    outcomes: list[str] = []

    def ask() -> None:
        from keepwell.actors import names

        for number in range(400):
            try:
                names.named("answering", system=system).ask(number, timeout=10)
            except (ActorDied, RequestError) as error:
                outcomes.append(type(error).__name__)
            else:
                outcomes.append("answered")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert len(outcomes) == 1_600
    assert outcomes.count("answered") > 0
    (info,) = supervisor.which_children().get(timeout=10)
    assert info.restarts > 0


class Answering(Actor):
    def on_receive(self, message: Any) -> Any:
        if message % 50 == 49:
            raise RuntimeError("every fiftieth is too much")
        return message
