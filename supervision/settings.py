"""A supervisor's settings, checked when it starts (SPEC-3), and the optional back-off."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from ..actors.errors import InvalidValue
from ..actors.exits import ExitReason
from .child_spec import AUTO_SHUTDOWNS, AutoShutdown
from .restart import STRATEGIES, Strategy


class InvalidSetting(InvalidValue):
    """A supervisor was given a setting that it cannot use; `code` is OTP's word."""

    def __init__(self, code: str, value: object, *, remedy: str) -> None:
        super().__init__(f"{code}: {value!r}: {remedy}", code=code)
        self.value = value


class InvalidSupervisor(InvalidValue):
    """The reason with which a supervisor does not start because of what it was given.

    `code`: `supervisor_data` (a setting), `start_spec` (a child spec), `bad_start_spec` (no list
    of them, not one template); `fault`: the InvalidValue, or the ids of the templates.
    """

    def __init__(self, code: str, fault: InvalidValue | tuple[Hashable, ...]) -> None:
        told = fault if isinstance(fault, InvalidValue) else f"one template is needed, not {fault}"
        super().__init__(f"{code}: {told}", code=code)
        self.fault = fault
        if isinstance(fault, InvalidValue):
            self.__cause__ = fault


@dataclass(frozen=True, slots=True)
class FailedToStartChild:
    """Detail of the reason `shutdown: failed_to_start_child(id, reason)` (INIT-1)."""

    id: Hashable
    reason: ExitReason

    def __str__(self) -> str:
        return f"failed_to_start_child({self.id!r}, {self.reason!r})"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next try of a restart that has failed (not OTP's; optional).

    first: seconds before the first further try; each wait is `factor` times the last one, at most
    `longest` seconds. While the supervisor waits it serves requests and can be shut down. It gives
    up after `max_restarts` failed starts of a child in a row, however long they took (F73).

    >>> [Backoff(first=0.5, longest=3.0).delay(n) for n in (1, 2, 3, 4)]
    [0.5, 1.0, 2.0, 3.0]
    """

    first: float = 0.1
    factor: float = 2.0
    longest: float = 30.0

    def __post_init__(self) -> None:
        if not (
            0 < self.first <= self.longest and self.factor >= 1 and math.isfinite(self.longest)
        ):
            raise InvalidSetting(
                "invalid_backoff", self, remedy="0 < first <= longest and factor >= 1 are needed"
            )

    def delay(self, tries: int) -> float:
        """Seconds to wait after `tries` failed starts in a row (1 or more)."""
        steps = min(tries - 1, 1_000)
        try:
            return min(self.first * self.factor**steps, self.longest)
        except OverflowError:
            return self.longest


@dataclass(frozen=True, slots=True)
class Settings:
    """How a supervisor restarts; see `Supervisor`. Unchecked until `check`."""

    strategy: Strategy
    max_restarts: int
    max_seconds: int
    auto_shutdown: AutoShutdown
    backoff: Backoff | None = None

    def check(self) -> None:
        """Raise InvalidSetting for the first setting that is unusable, in OTP's order (SPEC-3)."""
        if self.strategy not in STRATEGIES:
            raise InvalidSetting("invalid_strategy", self.strategy, remedy=_one_of(STRATEGIES[:3]))
        if not _is_int(self.max_restarts) or self.max_restarts < 0:
            raise InvalidSetting(
                "invalid_intensity", self.max_restarts, remedy="max_restarts is an int, 0 or more"
            )
        if not _is_int(self.max_seconds) or self.max_seconds < 1:
            raise InvalidSetting(
                "invalid_period", self.max_seconds, remedy="max_seconds is an int, 1 or more"
            )
        if self.auto_shutdown not in AUTO_SHUTDOWNS:
            raise InvalidSetting(
                "invalid_auto_shutdown", self.auto_shutdown, remedy=_one_of(AUTO_SHUTDOWNS)
            )
        if self.strategy == "simple_one_for_one" and self.auto_shutdown != "never":
            raise InvalidSetting(
                "bad_combination",
                {"auto_shutdown": self.auto_shutdown, "strategy": self.strategy},
                remedy="children of a dynamic supervisor are never significant",
            )


DEFAULT_MAX_RESTARTS: Final = 1
DEFAULT_MAX_SECONDS: Final = 5
"""OTP's defaults (SPEC-1): one restart in 5 s."""

PER_CHILD_MAX_RESTARTS: Final = 5
PER_CHILD_MAX_SECONDS: Final = 10
"""The budget of each child under `DynamicSupervisor(per_child=True)` (design §4)."""


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_of(choices: tuple[str, ...]) -> str:
    return f"one of {', '.join(map(repr, choices))} is needed"
