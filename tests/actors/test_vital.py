"""Actors that wait for others do not starve those of threads if they are vital."""

from __future__ import annotations

from typing import Any, ClassVar

from keepwell.actors import Actor, ActorDied, ActorSystem, CallTimeout, Future


class Asking(Actor):
    """Waits for the answer of another actor."""

    vital: ClassVar[bool] = False

    def on_receive(self, message: Any) -> Any:
        target, timeout = message
        return target.ask("hello", timeout=timeout)


class Vital(Asking):
    vital = True


class Echo(Actor):
    def on_receive(self, message: Any) -> Any:
        return message


def answers(asking: type[Asking], count: int, timeout: float) -> list[Future[Any]]:
    """Have more actors wait than the pool may have threads, each for one that comes after all."""
    echoes = [Echo.start() for _ in range(count)]
    return [asking.start().ask((echo, timeout), block=False) for echo in echoes]


def test_vital_waits_go_beyond_the_bound() -> None:
    with ActorSystem() as system:
        pool: Any = system.scheduler.pool  # type: ignore[attr-defined]  # of ThreadScheduler
        pool._max = 4
        assert [a.get(timeout=10) for a in answers(Vital, 50, 8.0)] == ["hello"] * 50
        assert pool._vital == 0


def test_other_waits_are_bounded() -> None:
    """The counterpart: here the bound is reached, and time-outs are what frees threads."""
    with ActorSystem() as system:
        pool: Any = system.scheduler.pool  # type: ignore[attr-defined]  # of ThreadScheduler
        pool._max = 4
        late = 0
        for answer in answers(Asking, 20, 0.2):
            try:
                answer.get(timeout=10)
            except (CallTimeout, ActorDied):
                late += 1
        assert late > 0
        assert pool.workers <= 4
