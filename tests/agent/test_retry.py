"""The retry schedule, pure, and the loop that carries it out with a fake clock."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.actors.errors import InvalidValue
from keepwell.agent.errors import ModelError
from keepwell.agent.retry import NO_RETRY, RetryPolicy, parse_retry_after, retry_delay, with_retries

NOW = datetime(2024, 5, 1, 12, 0, 0, tzinfo=UTC)
PASSING = ModelError("busy", retryable=True)


@pytest.mark.parametrize(
    ("value", "in_ms", "seconds"),
    [
        (None, None, None),
        ("3", None, 3.0),
        ("0", None, 0.0),
        ("1.5", None, 1.5),
        ("3", "250", 0.25),
        ("3", "soon", 3.0),
        ("-1", None, None),
        ("inf", None, None),
        ("nan", None, None),
        ("soon", None, None),
        ("", None, None),
        ("Wed, 01 May 2024 12:00:07 GMT", None, 7.0),
        ("Wed, 01 May 2024 11:00:00 GMT", None, 0.0),
        ("Wed, 01 May 2024 12:00:07", None, 7.0),
    ],
)
def test_retry_after(value, in_ms, seconds):
    assert parse_retry_after(value, in_ms=in_ms, now=NOW) == seconds


@pytest.mark.parametrize(
    ("attempts", "chance", "delay"),
    [(1, 0.0, 0.5), (1, 0.5, 0.75), (2, 0.0, 1.0), (3, 0.0, 2.0), (6, 0.0, 10.0), (9, 0.999, 20.0)],
)
def test_delays_grow_to_the_cap(attempts, chance, delay):
    policy = RetryPolicy(retries=10, base=1.0, cap=20.0)
    got = retry_delay(policy, PASSING, attempts, chance=chance)
    assert got == pytest.approx(delay, rel=0.01)


@pytest.mark.parametrize(
    ("error", "attempts", "remaining", "why"),
    [
        (ModelError("no"), 1, None, "not retryable"),
        (PASSING, 3, None, "two retries are used up"),
        (PASSING, 1, 0.2, "the deadline comes first"),
        (ModelError("wait", retryable=True, retry_after=61), 1, None, "asks for too long"),
        (ModelError("wait", retryable=True, retry_after=5), 1, 4.0, "the deadline comes first"),
    ],
)
def test_when_to_give_up(error, attempts, remaining, why):
    assert retry_delay(RetryPolicy(), error, attempts, chance=0.0, remaining=remaining) is None, why


@given(
    st.integers(1, 50),
    st.floats(0, 1, exclude_max=True),
    st.none() | st.floats(0, 100),
    st.none() | st.floats(-1, 200),
)
def test_laws(attempts, chance, asked, remaining):
    policy = RetryPolicy(retries=20)
    error = ModelError("x", retryable=True, retry_after=asked)
    delay = retry_delay(policy, error, attempts, chance=chance, remaining=remaining)
    if delay is None:
        return
    assert attempts <= policy.retries
    assert asked is None or asked <= delay <= max(asked, policy.cap) + 0.1 * policy.cap
    assert remaining is None or delay < remaining
    assert delay <= max(policy.cap, (asked or 0) + 0.1 * policy.cap)


class FakeTime:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


async def test_the_loop_repeats_until_it_succeeds():
    time, asked = FakeTime(), []

    async def call() -> str:
        asked.append(time.now)
        if len(asked) < 3:
            raise ModelError("busy", retryable=True)
        return "good"

    policy = RetryPolicy(base=1.0)
    result = await with_retries(
        call, policy, clock=time.clock, sleep=time.sleep, chance=lambda: 0.0
    )
    assert result == "good"
    assert time.slept == [0.5, 1.0]


async def test_the_loop_counts_what_was_asked_below():
    """Nested retries do not multiply: an error brings the number of requests behind it."""
    time = FakeTime()

    async def call() -> None:
        raise ModelError("busy", retryable=True, attempts=2)

    with pytest.raises(ModelError) as caught:
        await with_retries(
            call, RetryPolicy(), clock=time.clock, sleep=time.sleep, chance=lambda: 0
        )
    assert caught.value.attempts == 4
    assert len(time.slept) == 1


async def test_the_loop_ends_before_the_deadline():
    time = FakeTime()

    async def call() -> None:
        time.now += 3
        raise ModelError("busy", retryable=True)

    with pytest.raises(ModelError):
        await with_retries(
            call, RetryPolicy(retries=99, base=1, cap=1), deadline=110.0,
            clock=time.clock, sleep=time.sleep, chance=lambda: 0.0,
        )  # fmt: skip
    assert time.now <= 110.0 + 3


async def test_other_exceptions_are_not_repeated():
    asked = []

    async def call() -> None:
        asked.append(1)
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await with_retries(call, RetryPolicy())
    assert asked == [1]


@pytest.mark.parametrize(
    "bad", [{"retries": -1}, {"retries": True}, {"retries": 1.5}, {"base": -1}, {"cap": "x"}]
)
def test_bad_policies_are_refused(bad):
    with pytest.raises(InvalidValue):
        RetryPolicy(**bad)


def test_no_retry():
    assert retry_delay(NO_RETRY, PASSING, 1, chance=0.0) is None
