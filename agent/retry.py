"""When to ask a model again: a pure schedule, and a loop that carries it out.

A retry helps against what passes by itself: limits, overload, lost connections. It must not make
an overloaded endpoint worse: delays grow, are spread by chance (full jitter), and never undercut
what the endpoint asked for. It must not multiply either: an error that comes up says how many
requests were made (`ModelError.attempts`), and whoever retries above counts those as its own.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from ..actors.errors import InvalidValue
from .errors import ModelError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long apart a failed model call is repeated.

    `retries`: further tries after the first. The n-th waits a random time of up to
    `base * 2**(n-1)` seconds, at most `cap`, but at least half of that, and never less than the
    endpoint's Retry-After. An endpoint that asks for more than `max_wait` seconds is not waited
    for. Raises InvalidValue for negative or non-numeric fields. Rule: AG-7.
    """

    retries: int = 2
    base: float = 0.5
    cap: float = 20.0
    max_wait: float = 60.0

    def __post_init__(self) -> None:
        retries: object = self.retries
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise InvalidValue(f"retries must be an int >= 0, got {retries!r}")
        for name in ("base", "cap", "max_wait"):
            value: object = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise InvalidValue(f"{name} must be a number of seconds >= 0, got {value!r}")


NO_RETRY: Final = RetryPolicy(retries=0)


def retry_delay(
    policy: RetryPolicy,
    error: ModelError,
    attempts: int,
    *,
    chance: float,
    remaining: float | None = None,
) -> float | None:
    """Seconds to wait before trying again, or None to give up. Pure.

    `attempts`: requests made so far, 1 or more. `chance`: a random number in [0, 1).
    `remaining`: seconds until the call's deadline, None if it has none; a wait that would not end
    before it is not begun.
    """
    if not error.retryable or attempts > policy.retries:
        return None
    bound = min(policy.cap, policy.base * 2.0 ** (attempts - 1))
    delay = bound * (0.5 + 0.5 * chance)
    if error.retry_after is not None:
        if error.retry_after > policy.max_wait:
            return None
        # Spread upwards only: those who were all told the same second must not all come in it.
        delay = max(delay, error.retry_after + 0.1 * bound * chance)
    if remaining is not None and delay >= remaining:
        return None
    return delay


def parse_retry_after(
    value: str | None, *, now: datetime, in_ms: str | None = None
) -> float | None:
    """Seconds of a Retry-After header (a number or an HTTP date); None if absent or garbled.

    `in_ms`: the value of a `retry-after-ms` header, which is finer and goes first. `now` is aware.
    """
    for text, unit in ((in_ms, 0.001), (value, 1.0)):
        if text is None:
            continue
        try:
            seconds = float(text) * unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
        return None
    if value is None:
        return None
    try:
        date = email.utils.parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


async def with_retries(
    call: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    *,
    deadline: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    chance: Callable[[], float] = random.random,
) -> T:
    """Await `call()` until it succeeds or the policy gives up; then the last ModelError.

    `deadline` is a time of `clock`. The error's `attempts` is the number of requests made in all.
    """
    attempts = 0
    while True:
        try:
            return await call()
        except ModelError as error:
            attempts += error.attempts
            error.attempts = attempts
            remaining = None if deadline is None else deadline - clock()
            delay = retry_delay(policy, error, attempts, chance=chance(), remaining=remaining)
            if delay is None:
                raise
        await sleep(delay)
