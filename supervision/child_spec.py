"""Child specs: what a supervisor starts, and how it stops and restarts it.

A spec is plain data. Nothing is checked when it is made: a bad one is a start error of the
supervisor that is given it, or the refusal of one `start_child` (rules SPEC-1 to SPEC-3). The
codes are OTP's words.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from ..actors.errors import InvalidValue

RestartType = Literal["permanent", "transient", "temporary"]
ChildType = Literal["worker", "supervisor"]
AutoShutdown = Literal["never", "any_significant", "all_significant"]

RESTART_TYPES: Final = ("permanent", "transient", "temporary")
CHILD_TYPES: Final = ("worker", "supervisor")
AUTO_SHUTDOWNS: Final = ("never", "any_significant", "all_significant")

WORKER_SHUTDOWN: Final = 5.0
"""Seconds that a worker may take to stop by default (SHUT-4)."""


class DefaultShutdown:
    """Type of `DEFAULT_SHUTDOWN`: 5 s for a worker, "infinity" for a supervisor (SHUT-4)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DEFAULT_SHUTDOWN"


DEFAULT_SHUTDOWN: Final = DefaultShutdown()

ShutdownTime = float | Literal["brutal_kill", "infinity"]
"""Seconds, or one of the two words (SHUT-1, SHUT-4)."""


class InvalidChildSpec(InvalidValue):
    """A child spec, or a list of them, cannot be used.

    `code` is OTP's word (`missing_id`, `invalid_restart_type`, ...), `value` the value at fault
    (None for what is missing).
    """

    def __init__(self, code: str, value: object = None, *, remedy: str) -> None:
        fault = code if code.startswith("missing_") else f"{code}: {value!r}"
        super().__init__(f"bad child spec ({fault}): {remedy}", code=code)
        self.value = value
        self.remedy = remedy


@dataclass(frozen=True, slots=True, repr=False)
class ChildSpec:
    """How one child is started, restarted and stopped.

    id: any hashable value, unique within the supervisor.
    start: an actor class, `functools.partial(cls, ...)`, or a callable without arguments that
        returns a ref (or None, which counts as `Ignore`).
    restart: "permanent" (always), "transient" (unless it ended `normal`, `shutdown` or
        `shutdown: x`), "temporary" (never, and its spec is dropped).
    shutdown: seconds to wait after the exit signal `shutdown` before the child is killed,
        "infinity", or "brutal_kill" (kill at once). Default: 5 s for a worker, "infinity" for a
        supervisor.
    type: "worker" or "supervisor".
    significant: may end its supervisor, see `auto_shutdown`.

    Never raises; the supervisor that gets the spec checks it. Rules: SPEC-1, SHUT-1 to SHUT-4.
    """

    id: Hashable
    start: Callable[..., Any]
    restart: RestartType = "permanent"
    shutdown: ShutdownTime | DefaultShutdown = DEFAULT_SHUTDOWN
    type: ChildType = "worker"
    significant: bool = False

    def __repr__(self) -> str:
        # Without the arguments of a partial: specs are logged, and arguments may be secrets.
        start: Any = self.start
        while isinstance(start, functools.partial):
            start = start.func
        name = getattr(start, "__qualname__", type(start).__name__)
        return f"ChildSpec({self.id!r}, {name}, {self.restart} {self.type})"


ChildSpecLike = ChildSpec | Mapping[str, Any]
"""A `ChildSpec`, or a mapping with the same keys; `id` and `start` are required."""

_KEYS: Final = frozenset(field.name for field in fields(ChildSpec))


def checked_spec(given: object, auto_shutdown: AutoShutdown | None = None) -> ChildSpec:
    """Return `given` as a valid `ChildSpec` whose default shutdown time is filled in.

    `auto_shutdown` is that of the supervisor; None (unknown) skips the check that a significant
    child needs one. Raises InvalidChildSpec with the first fault found, in OTP's order. Rule:
    SPEC-2.
    """
    spec = _as_spec(given)
    try:
        hash(spec.id)
    except TypeError:
        raise InvalidChildSpec(
            "invalid_id", spec.id, remedy="an id must be hashable, such as a string"
        ) from None
    if not callable(spec.start):
        raise InvalidChildSpec(
            "invalid_start",
            spec.start,
            remedy="start must be an actor class, functools.partial(cls, ...) or a callable that "
            "returns a ref",
        )
    if spec.restart not in RESTART_TYPES:
        raise InvalidChildSpec(
            "invalid_restart_type", spec.restart, remedy=_one_of("restart", RESTART_TYPES)
        )
    _check_significant(spec, auto_shutdown)
    if spec.type not in CHILD_TYPES:
        raise InvalidChildSpec("invalid_child_type", spec.type, remedy=_one_of("type", CHILD_TYPES))
    return replace(spec, shutdown=_checked_shutdown(spec))


def checked_specs(
    given: Iterable[object], auto_shutdown: AutoShutdown | None = None
) -> dict[Hashable, ChildSpec]:
    """Return the valid specs by id, in the order given.

    Raises InvalidChildSpec for the first bad spec, or `duplicate_child_name` with the id that
    comes twice. Rule: SPEC-2.
    """
    specs: dict[Hashable, ChildSpec] = {}
    for item in given:
        spec = checked_spec(item, auto_shutdown)
        if spec.id in specs:
            raise InvalidChildSpec(
                "duplicate_child_name", spec.id, remedy="give each child an id of its own"
            )
        specs[spec.id] = spec
    return specs


def check_childspecs(
    specs: Iterable[ChildSpecLike], auto_shutdown: AutoShutdown | None = None
) -> None:
    """Check specs as a supervisor with this `auto_shutdown` would at its start; start nothing.

    Without `auto_shutdown` a significant child is accepted whatever its supervisor will be.
    Raises InvalidChildSpec; `badarg` for an unknown `auto_shutdown`. Rule: SPEC-2.

    >>> check_childspecs([{"id": "a"}])
    Traceback (most recent call last):
        ...
    keepwell.supervision.child_spec.InvalidChildSpec: bad child spec (missing_start): ...
    """
    if auto_shutdown is not None and auto_shutdown not in AUTO_SHUTDOWNS:
        raise InvalidChildSpec(
            "badarg", auto_shutdown, remedy=_one_of("auto_shutdown", AUTO_SHUTDOWNS)
        )
    checked_specs(specs, auto_shutdown)


def _as_spec(given: object) -> ChildSpec:
    if isinstance(given, ChildSpec):
        return given
    if not isinstance(given, Mapping):
        raise InvalidChildSpec(
            "invalid_child_spec", given, remedy="pass a ChildSpec, or a mapping with its keys"
        )
    for key in ("id", "start"):
        if key not in given:
            raise InvalidChildSpec(f"missing_{key}", remedy=f"add the key {key!r}")
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        raise InvalidChildSpec(
            "invalid_child_spec", unknown[0], remedy=_one_of("a key", sorted(_KEYS))
        )
    return ChildSpec(**given)


def _check_significant(spec: ChildSpec, auto_shutdown: AutoShutdown | None) -> None:
    if not isinstance(spec.significant, bool):
        raise InvalidChildSpec(
            "invalid_significant", spec.significant, remedy="significant must be True or False"
        )
    if not spec.significant:
        return
    if spec.restart == "permanent":
        raise InvalidChildSpec(
            "bad_combination",
            {"restart": "permanent", "significant": True},
            remedy="a permanent child never ends for good: make it transient or temporary, or "
            "not significant",
        )
    if auto_shutdown == "never":
        raise InvalidChildSpec(
            "bad_combination",
            {"auto_shutdown": "never", "significant": True},
            remedy="give the supervisor auto_shutdown='any_significant' or 'all_significant'",
        )


def _checked_shutdown(spec: ChildSpec) -> ShutdownTime:
    value: object = spec.shutdown
    if isinstance(value, DefaultShutdown):
        return WORKER_SHUTDOWN if spec.type == "worker" else "infinity"
    if value == "brutal_kill":
        return "brutal_kill"
    if value == "infinity":
        return "infinity"
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and value >= 0
        and not math.isnan(value)
    ):
        return "infinity" if math.isinf(value) else value
    raise InvalidChildSpec(
        "invalid_shutdown",
        value,
        remedy="shutdown must be seconds (0 or more), 'infinity' or 'brutal_kill'",
    )


def _one_of(name: str, choices: Iterable[str]) -> str:
    return f"{name} must be one of {', '.join(map(repr, choices))}"
