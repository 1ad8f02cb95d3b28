"""The circuit breaker: the machine as a table, its laws, and the model around it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.actors import telemetry
from keepwell.actors.errors import InvalidValue
from keepwell.agent.circuit_breaker import (
    BreakerPolicy,
    BreakerState,
    CircuitBreaker,
    Phase,
    abandoned,
    admit,
    failed,
    succeeded,
)
from keepwell.agent.errors import ModelError
from keepwell.agent.model import ModelRequest, TextDelta
from keepwell.agent.scripted_model import Broken, Held, ScriptedModel
from keepwell.stores.message import Message

POLICY = BreakerPolicy(failures=2, cooldown=10.0)
ASK = ModelRequest((Message("user", "hello"),))
CLOSED = BreakerState()
ONE = BreakerState(Phase.CLOSED, 1)
OPEN = BreakerState(Phase.OPEN, 2, 100.0)
HALF = BreakerState(Phase.HALF_OPEN, 2, 110.0)


@pytest.mark.parametrize(
    ("state", "event", "now", "after", "wait"),
    [
        (CLOSED, "admit", 100.0, CLOSED, None),
        (ONE, "admit", 100.0, ONE, None),
        (OPEN, "admit", 104.0, OPEN, 6.0),
        (OPEN, "admit", 110.0, HALF, None),
        (HALF, "admit", 112.0, HALF, 8.0),
        (HALF, "admit", 120.0, BreakerState(Phase.HALF_OPEN, 2, 120.0), None),
        (CLOSED, "failed", 100.0, ONE, None),
        (ONE, "failed", 100.0, OPEN, None),
        (OPEN, "failed", 105.0, BreakerState(Phase.OPEN, 3, 100.0), None),
        (HALF, "failed", 111.0, BreakerState(Phase.OPEN, 3, 111.0), None),
        (ONE, "succeeded", 100.0, CLOSED, None),
        (OPEN, "succeeded", 100.0, CLOSED, None),
        (HALF, "succeeded", 100.0, CLOSED, None),
        (ONE, "abandoned", 100.0, ONE, None),
        (OPEN, "abandoned", 105.0, OPEN, None),
        (HALF, "abandoned", 111.0, BreakerState(Phase.OPEN, 2, 101.0), None),
    ],
)
def test_the_machine(state, event, now, after, wait):
    if event == "admit":
        assert admit(state, POLICY, now) == (after, wait)
    elif event == "failed":
        assert failed(state, POLICY, now) == after
    elif event == "succeeded":
        assert succeeded(state) == after
    else:
        assert abandoned(state, now, POLICY) == after
        assert state is not HALF or admit(after, POLICY, now)[1] is None


@given(st.lists(st.tuples(st.sampled_from("aafs"), st.floats(0, 6)), max_size=40))
def test_laws(events):
    """Never shut for good; while open at most one call goes per cool-down."""
    state, now, let_go = BreakerState(), 0.0, []
    for event, passed in events:
        now += passed
        if event == "a":
            state, wait = admit(state, POLICY, now)
            if wait is None and state.phase is Phase.HALF_OPEN:
                let_go.append(now)
            assert wait is None or 0 < wait <= POLICY.cooldown
        elif event == "f":
            state = failed(state, POLICY, now)
        else:
            state = succeeded(state)
            let_go.clear()
    assert all(b - a >= POLICY.cooldown - 0.001 for a, b in pairwise(let_go))
    assert admit(state, POLICY, now + POLICY.cooldown)[1] is None


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


DOWN = ModelError("down", retryable=True)


async def test_an_endpoint_that_is_down_is_left_alone():
    clock = Clock()
    inner = ScriptedModel(DOWN, DOWN, DOWN, "up", "up", shared=True)
    model = CircuitBreaker(inner, POLICY, clock=clock)
    phases: list[str] = []

    def note(event: str, fields: object) -> None:
        phases.append(fields["phase"])

    async def outcome() -> str:
        try:
            return (await model.complete(ASK)).message.text
        except ModelError as error:
            return error.code or "down"

    with telemetry.attach("keepwell.model.circuit", note):
        assert [await outcome() for _ in range(4)] == [
            "down",
            "down",
            "circuit_open",
            "circuit_open",
        ]
        clock.now = 10.0
        assert [await outcome() for _ in range(2)] == ["down", "circuit_open"]
        clock.now = 20.0
        assert [await outcome() for _ in range(2)] == ["up", "up"]
    assert len(inner.requests) == 5
    assert phases == ["open", "half_open", "open", "half_open", "closed"]


async def test_a_refused_call_says_when_to_come_again():
    model = CircuitBreaker(ScriptedModel(DOWN), BreakerPolicy(1, 30.0), clock=Clock())
    with pytest.raises(ModelError):
        await model.complete(ASK)
    with pytest.raises(ModelError) as caught:
        await anext(model.stream(ASK))
    assert (caught.value.code, caught.value.retry_after) == ("circuit_open", 30.0)
    assert caught.value.retryable


async def test_errors_of_the_request_do_not_open_it():
    bad = ModelError("bad request")
    model = CircuitBreaker(ScriptedModel(DOWN, bad, DOWN, bad, "up"), POLICY)
    for _ in range(4):
        with pytest.raises(ModelError):
            await model.complete(ASK)
    assert model.state.phase is Phase.CLOSED
    assert (await model.complete(ASK)).message.text == "up"


async def test_a_stream_that_breaks_counts_and_one_that_is_left_does_not():
    inner = ScriptedModel(Broken("half", DOWN), Broken("half", DOWN), "up " * 20, shared=True)
    clock = Clock()
    model = CircuitBreaker(inner, BreakerPolicy(1, 10.0), clock=clock)
    with pytest.raises(ModelError):
        [item async for item in model.stream(ASK)]
    assert model.state.phase is Phase.OPEN
    clock.now = 10.0
    with pytest.raises(ModelError):
        [item async for item in model.stream(ASK)]
    clock.now = 20.0
    async with aclosing(model.stream(ASK)) as stream:
        assert isinstance(await anext(stream), TextDelta)
    assert model.state.phase is Phase.CLOSED


async def test_a_cancelled_trial_leaves_the_next_one_free():
    clock = Clock()
    inner = ScriptedModel(DOWN, Held(asyncio.Event(), "late"), "up", shared=True)
    model = CircuitBreaker(inner, BreakerPolicy(1, 10.0), clock=clock)
    with pytest.raises(ModelError):
        await model.complete(ASK)
    clock.now = 10.0
    trial = asyncio.create_task(model.complete(ASK))
    await asyncio.sleep(0)
    with pytest.raises(ModelError):  # one at a time
        await model.complete(ASK)
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    assert (await model.complete(ASK)).message.text == "up"


@pytest.mark.parametrize("bad", [{"failures": 0}, {"failures": True}, {"cooldown": 0}])
def test_bad_policies_are_refused(bad):
    with pytest.raises(InvalidValue):
        BreakerPolicy(**bad)
