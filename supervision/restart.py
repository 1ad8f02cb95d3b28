"""What a supervisor does when a child has ended: one pure function.

`decide` looks at the strategy, the children's specs and states, what happened and the restarts
so far, and says what to stop (in which order, each waited for), what to forget, what to start (in
which order), and whether to go on at all. It has no clock, no I/O and no actor; a supervisor only
carries the decision out.

The function reads no more children than the decision touches: one for `one_for_one`, those from
the newest down to the dead one for `rest_for_one`. That is why it takes a mapping in start order
and a count of significant children instead of a snapshot of everything.

The rules are OTP's (`supervisor.erl`), named by their ids in docs/contracts/supervision.md.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile
from typing import Final, Literal, Protocol

from ..actors.exits import ExitReason, is_orderly
from .child_spec import AutoShutdown, ChildSpec

Strategy = Literal["one_for_one", "one_for_all", "rest_for_one", "simple_one_for_one"]

STRATEGIES: Final = ("one_for_one", "one_for_all", "rest_for_one", "simple_one_for_one")


class ChildStatus(Enum):
    """Where a child stands in its supervisor's book."""

    RUNNING = "running"
    """It has an actor, as far as the supervisor knows: a queued exit may say otherwise soon."""

    STOPPED = "stopped"
    """No actor: it finished, was terminated, or its start returned `Ignore`. The spec is kept."""

    RESTARTING = "restarting"
    """Its last restart failed and the next try is on its way (RINIT-1)."""


class Child(Protocol):
    """What the decision needs to know of a child."""

    @property
    def spec(self) -> ChildSpec: ...

    @property
    def status(self) -> ChildStatus: ...


class Children(Protocol):
    """Children by id, in start order; a dict will do."""

    def __getitem__(self, child_id: Hashable, /) -> Child: ...

    def get(self, child_id: Hashable, /) -> Child | None: ...

    def __iter__(self) -> Iterator[Hashable]: ...

    def __reversed__(self) -> Iterator[Hashable]: ...


@dataclass(frozen=True, slots=True)
class RestartWindow:
    """The restarts that still count.

    Times are whole seconds of the monotonic clock (INT-9), newest last; the bound is included.
    """

    max_restarts: int
    max_seconds: int
    restarts: tuple[int, ...] = ()

    def add(self, now: float) -> RestartWindow:
        """Return the window with a restart at `now` (seconds) and without those too old to count.

        >>> RestartWindow(max_restarts=1, max_seconds=1, restarts=(1,)).add(2.52).restarts
        (1, 2)
        """
        second = math.floor(now)
        oldest = second - self.max_seconds
        return replace(self, restarts=(*(t for t in self.restarts if t >= oldest), second))

    @property
    def exceeded(self) -> bool:
        """Whether there are more restarts in the window than allowed (INT-1)."""
        return len(self.restarts) > self.max_restarts


@dataclass(frozen=True, slots=True)
class Ended:
    """The actor of a child has ended."""

    child_id: Hashable
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class StartFailedAgain:
    """A restart has failed and it is time for the next try (RINIT-1).

    `tries` is how many starts of this child have failed in a row, this try would be one more. Only
    a supervisor with a back-off counts them, others leave it at 0: its waits would otherwise carry
    the tries past the window for ever.
    """

    child_id: Hashable
    tries: int = 0


class Verdict(Enum):
    """What a decision comes to."""

    IGNORE = "ignore"
    """Nothing to do: the child is unknown, or a group restart has already dealt with its end."""

    LEAVE = "leave"
    """It stays down; its spec is kept, or removed."""

    RESTART = "restart"
    """Stop `stop`, forget `remove`, start `start`; the window has one restart more."""

    GIVE_UP = "give_up"
    """Too many restarts: the dead child stays dead, all others stop, the supervisor ends."""

    AUTO_SHUTDOWN = "auto_shutdown"
    """A significant child has ended for good: all others stop, the supervisor ends."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, in this order: stop (each waited for), remove, start (each after the last).

    stop: children that have an actor, in reverse start order; never the dead one.
    remove: specs to forget.
    start: children to start, in start order.
    window: the restarts that count from now on.
    """

    verdict: Verdict
    window: RestartWindow
    stop: tuple[Hashable, ...] = ()
    remove: tuple[Hashable, ...] = ()
    start: tuple[Hashable, ...] = ()

    @property
    def ends_supervisor(self) -> bool:
        """Whether the supervisor stops its children and exits `shutdown` (INT-3, AUTO-1)."""
        return self.verdict in (Verdict.GIVE_UP, Verdict.AUTO_SHUTDOWN)


def decide(
    strategy: Strategy,
    children: Children,
    event: Ended | StartFailedAgain,
    window: RestartWindow,
    now: float,
    *,
    auto_shutdown: AutoShutdown = "never",
    other_significant: int = 0,
) -> Decision:
    """Say what follows from `event`.

    children: by id, in start order.
    now: monotonic seconds.
    other_significant: how many other significant children are running or restarting.

    Rules: TYPE-1 to TYPE-4, STRAT-1 to STRAT-8, RINIT-1 to RINIT-3, INT-1 to INT-6, AUTO-1 to
    AUTO-6.
    """
    child = children.get(event.child_id)
    if isinstance(event, StartFailedAgain):
        # Somebody may have terminated, deleted or restarted it between two tries.
        if child is None or child.status is not ChildStatus.RESTARTING:
            return Decision(Verdict.IGNORE, window)
    elif child is None or child.status is not ChildStatus.RUNNING:
        return Decision(Verdict.IGNORE, window)  # STRAT-8
    elif not asks_for_restart(child.spec, event.reason):
        return _leave(
            strategy, event.child_id, child.spec, window, auto_shutdown, other_significant
        )
    grown = window.add(now)
    too_often = isinstance(event, StartFailedAgain) and event.tries >= max(window.max_restarts, 1)
    if grown.exceeded or too_often:
        return Decision(
            Verdict.GIVE_UP, grown, remove=_forgotten(strategy, event.child_id, child.spec)
        )
    group = _group(strategy, children, event.child_id)
    siblings = [i for i in group if i != event.child_id]
    temporary = {i: None for i in siblings if children[i].spec.restart == "temporary"}
    return Decision(
        Verdict.RESTART,
        grown,
        stop=tuple(i for i in reversed(siblings) if children[i].status is ChildStatus.RUNNING),
        remove=tuple(temporary),  # STRAT-5; no auto-shutdown by it: AUTO-6
        # All others start, also one that had finished or was stopped (STRAT-4, STRAT-6).
        start=tuple(i for i in group if i not in temporary),
    )


def asks_for_restart(spec: ChildSpec, reason: ExitReason) -> bool:
    """Say whether a child with this spec is restarted after this reason (TYPE-1 to TYPE-4)."""
    if spec.restart == "temporary":
        return False
    return spec.restart == "permanent" or not is_orderly(reason)


def _leave(
    strategy: Strategy,
    child_id: Hashable,
    spec: ChildSpec,
    window: RestartWindow,
    auto_shutdown: AutoShutdown,
    other_significant: int,
) -> Decision:
    ends = spec.significant and (
        auto_shutdown == "any_significant"
        or (auto_shutdown == "all_significant" and other_significant == 0)
    )
    verdict = Verdict.AUTO_SHUTDOWN if ends else Verdict.LEAVE
    return Decision(verdict, window, remove=_forgotten(strategy, child_id, spec))


def _forgotten(strategy: Strategy, child_id: Hashable, spec: ChildSpec) -> tuple[Hashable, ...]:
    # A dynamic child has no spec of its own that could be kept (DYN-1).
    if spec.restart == "temporary" or strategy == "simple_one_for_one":
        return (child_id,)
    return ()


def _group(strategy: Strategy, children: Children, child_id: Hashable) -> list[Hashable]:
    """Return the children that a restart concerns, in start order (STRAT-1 to STRAT-3)."""
    if strategy == "one_for_all":
        return list(children)
    newer: list[Hashable] = []
    if strategy == "rest_for_one":
        newer.extend(takewhile(lambda other: other != child_id, reversed(children)))
    return [child_id, *reversed(newer)]
