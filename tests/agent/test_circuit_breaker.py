"""The circuit breaker: the machine as a table, its laws, the model around it, its actor's end."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from itertools import pairwise

import pykka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.actors import telemetry
from keepwell.actors.errors import InvalidValue
from keepwell.agent.breaker_state import (
    BreakerPolicy,
    BreakerState,
    Phase,
    abandoned,
    admit,
    failed,
    succeeded,
)
from keepwell.agent.circuit_breaker import CircuitBreaker
from keepwell.agent.errors import ModelError
from keepwell.agent.model import ModelRequest, TextDelta
from keepwell.agent.scripted_model import Broken, Held, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.runtime import Runtime
from keepwell.stores.message import Message
from keepwell.supervision import tree

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


def test_what_is_no_model_is_refused():
    with pytest.raises(InvalidValue, match="'gpt' is no chat model"):
        CircuitBreaker("gpt")


# -- the actor below it ------------------------------------------------------------------------


def branch(runtime):
    """The supervisor of breakers in the runtime's tree."""
    (found,) = (node for node in tree(runtime.supervisor).walk() if node.id == "circuit_breakers")
    return found


async def settled(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 -- another thread's work, seen in the tree
            await asyncio.sleep(0.002)


def gone(ref):
    """Done when the actor has ended."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    ref.on_exit(lambda _reason: loop.call_soon_threadsafe(ended.set))
    return ended.wait()


async def opened(runtime):
    """A breaker that has opened in a runtime, its clock, and the ref of its actor."""
    clock = Clock()
    inner = ScriptedModel(DOWN, *["up"] * 100, shared=True)
    model = CircuitBreaker(inner, BreakerPolicy(1, 10.0), clock=clock)
    with pytest.raises(ModelError, match="down"):
        await model.complete(ASK)
    (node,) = branch(runtime).children
    return model, clock, node.ref


async def test_agents_share_it_and_the_tree_and_health_show_it():
    async with Runtime() as runtime:
        inner = ScriptedModel(DOWN, repeat=True, shared=True, name="far")
        spec = AgentSpec(CircuitBreaker(inner, BreakerPolicy(3, 60.0)))
        first, second = [await runtime.spawn(spec, name) for name in "ab"]
        with pytest.raises(ModelError, match="down"):
            await first.run("hello")
        assert len(inner.requests) == 3
        with pytest.raises(ModelError) as caught:
            await second.run("hello")
        assert caught.value.code == "circuit_open"
        assert len(inner.requests) == 3, "what the first has met spares the second the wait"
        (node,) = branch(runtime).children
        assert node.note == "far: open, 3 failures"
        assert node.note in str(tree(runtime.supervisor))
        assert (await node.ref.get_state())["phase"] == "open"
        assert runtime.health().open_circuits == ("far",)
        assert runtime.health().ready
    assert runtime.health().open_circuits == ()


async def test_a_killed_breaker_fails_no_call_and_forgets_nothing():
    async with Runtime() as runtime:
        model, clock, ref = await opened(runtime)
        ended = gone(ref)
        ref.kill()
        with pytest.raises(ModelError) as caught:  # asked in the middle of its restart
            await model.complete(ASK)
        assert caught.value.code == "circuit_open"
        await ended
        (node,) = branch(runtime).children
        assert (node.restarts, node.note) == (1, f"{model.name}: open, 1 failures")
        clock.now = 10.0
        assert (await model.complete(ASK)).message.text == "up"
        assert model.state.phase is Phase.CLOSED


async def test_calls_go_on_while_it_is_killed_again_and_again_and_given_up():
    """Past its restart intensity it is given up; then the next call has a new one."""
    async with Runtime() as runtime:
        model, clock, _ = await opened(runtime)
        given_up = asyncio.Event()
        loop = asyncio.get_running_loop()

        def note(event, fields):
            loop.call_soon_threadsafe(given_up.set)

        clock.now = 10.0
        with telemetry.attach("keepwell.supervisor.child_given_up", note):
            while not given_up.is_set():
                for node in branch(runtime).children:
                    if node.ref is not None:
                        node.ref.kill()
                await asyncio.sleep(0)
        await settled(lambda: not branch(runtime).children)
        assert (await model.complete(ASK)).message.text == "up"  # the trial after the cool-down
        replies = await asyncio.gather(*(model.complete(ASK) for _ in range(20)))
        assert {reply.message.text for reply in replies} == {"up"}
        await settled(lambda: [n.status for n in branch(runtime).children] == ["running"])


async def test_it_survives_the_crash_of_its_supervisor():
    async with Runtime() as runtime:
        model, clock, ref = await opened(runtime)
        ended = gone(ref)
        before = branch(runtime)
        before.ref.kill()
        await ended
        await settled(lambda: branch(runtime).restarts == 1 and branch(runtime).ref is not None)
        assert model.state.phase is Phase.OPEN
        clock.now = 10.0
        assert (await model.complete(ASK)).message.text == "up"
        await settled(lambda: len(branch(runtime).children) == 1)


async def test_one_that_never_answers_is_done_without(monkeypatch):
    monkeypatch.setattr("keepwell.agent.breaker_home.PATIENCE", 0.05)
    async with Runtime() as runtime:
        model, clock, ref = await opened(runtime)
        await ref.suspend()
        with pytest.raises(ModelError) as caught:
            await model.complete(ASK)
        assert caught.value.code == "circuit_open"
        clock.now = 10.0
        assert (await model.complete(ASK)).message.text == "up"
        assert model.state.phase is Phase.CLOSED


async def test_without_a_runtime_there_is_no_actor():
    before = pykka.ActorRegistry.get_all()
    model = CircuitBreaker(ScriptedModel(DOWN, "up"), BreakerPolicy(1, 10.0), clock=Clock())
    with pytest.raises(ModelError, match="down"):
        await model.complete(ASK)
    with pytest.raises(ModelError, match="circuit is open"):
        await model.complete(ASK)
    assert not model._home().attended
    assert pykka.ActorRegistry.get_all() == before


async def test_each_runtime_judges_for_itself():
    inner = ScriptedModel(DOWN, "up", "up", shared=True)
    model = CircuitBreaker(inner, BreakerPolicy(1, 60.0))
    async with Runtime(name="one"):
        with pytest.raises(ModelError):
            await model.complete(ASK)
        async with Runtime(name="two"):
            assert model.state.phase is Phase.CLOSED
            assert (await model.complete(ASK)).message.text == "up"
        assert model.state.phase is Phase.OPEN


async def test_one_that_nobody_has_any_more_ends_when_another_begins():
    async with Runtime() as runtime:

        async def used() -> tuple[CircuitBreaker, object]:
            model = CircuitBreaker(ScriptedModel("up"))
            await model.complete(ASK)
            await settled(lambda: branch(runtime).children and model._home().ref is not None)
            return model, model._home().ref

        held = [await used()]
        first = held.pop()[1]
        gc.collect()
        held.append(await used())
        second = held[0][1]
        assert [node.ref for node in branch(runtime).children] == [second]
        assert not first.is_alive()
