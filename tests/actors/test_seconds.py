"""Numbers of seconds: what is none is refused before anything is sent, infinity is never."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from keepwell.actors import Actor, ActorSystem, CallTimeout, InvalidValue, SystemClock, VirtualClock

NO_SECONDS = [math.nan, "1", True, b"1", [1]]
NEVER = [math.inf, 1e12, 1e300, 10**400]


class Echo(Actor):
    handled = 0

    def on_receive(self, message: Any) -> Any:
        self.handled += 1
        if callable(message):
            return message(self)
        return self.handled if message == "handled" else message


@pytest.fixture
def system() -> Any:
    system = ActorSystem()
    yield system
    system.close()


@pytest.fixture
def echo(system: ActorSystem) -> Any:
    return Echo.options(system=system).start()


def still_in_time(system: ActorSystem) -> None:
    """Timers of the system still fire."""
    busy = Echo.options(system=system).start()
    request = busy.call(lambda actor: actor.defer() and None, timeout=0.01)
    with pytest.raises(CallTimeout):
        request.get(timeout=5)


@pytest.mark.parametrize("seconds", NO_SECONDS)
def test_a_time_limit_that_is_none_is_refused_before_anything_is_sent(
    system: ActorSystem, echo: Any, seconds: Any
) -> None:
    for send in (echo.call, echo.ask):
        with pytest.raises(InvalidValue, match="timeout="):
            send("x", timeout=seconds)
    with pytest.raises(InvalidValue, match="timeout="):
        echo.stop(timeout=seconds)
    with pytest.raises(InvalidValue, match="timeout="):
        Echo.options(system=system, timeout=seconds).start()
    assert echo.ask("handled") == 1
    with pytest.raises(InvalidValue, match="timeout="):
        echo.call(lambda actor: actor.defer() and None, timeout=None).get(timeout=seconds)
    still_in_time(system)


@pytest.mark.parametrize("seconds", NEVER)
def test_a_limit_beyond_all_time_is_no_limit(
    system: ActorSystem, echo: Any, seconds: Any
) -> None:
    assert echo.call("x", timeout=seconds).get(timeout=seconds) == "x"
    assert echo.ask("x", timeout=seconds) == "x"
    held = echo.call(lambda actor: setattr(actor, "held", actor.defer()), timeout=seconds)
    still_in_time(system)
    echo.tell(lambda actor: actor.held.reply("at last"))
    assert held.get(timeout=5) == "at last"
    assert echo.stop(timeout=seconds)


@pytest.mark.parametrize("seconds", NEVER)
def test_a_timer_that_never_comes_holds_no_other(
    system: ActorSystem, echo: Any, seconds: Any
) -> None:
    timer = echo.ask(lambda actor: actor.send_after(seconds, "never"))
    echo.ask(lambda actor: actor.idle_timeout(seconds))
    still_in_time(system)
    assert timer.active
    assert echo.ask("handled") == 3


@pytest.mark.parametrize("seconds", NO_SECONDS)
def test_a_timer_at_no_time_is_refused(system: ActorSystem, seconds: Any) -> None:
    def refused(later: Callable[[Echo], Any]) -> None:
        echo = Echo.options(system=system).start()
        with pytest.raises(InvalidValue):
            echo.ask(later)
        assert echo.is_alive()

    refused(lambda actor: actor.send_after(seconds, "x"))
    refused(lambda actor: actor.idle_timeout(seconds))
    still_in_time(system)


@pytest.mark.parametrize("seconds", NO_SECONDS)
def test_both_clocks_refuse_it(seconds: Any) -> None:
    machine = SystemClock()
    for clock in (machine, VirtualClock()):
        with pytest.raises(InvalidValue, match="delay="):
            clock.call_later(seconds, print)
    machine.close()
