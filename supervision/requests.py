"""What one may ask of a supervisor, as functions on its ref or name.

Each returns a `Future` without time limit (a supervisor may wait long for a child to stop): `await`
it, or `.get()` it in a thread. A refusal raises `ChildRequestError` whose `code` is OTP's word, a
child that does not start `StartFailed`, a dead supervisor `ActorDied`. Rules: MAN-1 to MAN-5,
DYN-1 to DYN-6.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from ..actors import ActorDied, Future, NamedRef, RequestError, names
from ..actors.ref import AnyRef
from .child_spec import ChildSpec, ChildType

SupervisorLike: TypeAlias = "AnyRef | NamedRef | str"
"""A supervisor's ref, or the name it is registered under."""

RESTARTING: Final = "restarting"


class ChildRequestError(RequestError):
    """A supervisor cannot do what was asked for this child.

    `code`: `not_found`, `running`, `restarting`, `already_started` (then `ref` is the child's),
    `already_present`, `simple_one_for_one`.
    """

    def __init__(
        self, code: str, child_id: object, remedy: str, *, ref: AnyRef | None = None
    ) -> None:
        super().__init__(f"child {child_id!r} ({code}): {remedy}", code=code)
        self.child_id = child_id
        self.ref = ref


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """One child as its supervisor sees it.

    child: its ref; None without actor; "restarting" between two tries of a failing restart.
    restarts: how often the supervisor has restarted it.
    """

    id: Hashable
    child: AnyRef | Literal["restarting"] | None
    type: ChildType
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class ChildCount:
    """Numbers of child specs, living children, and children (living or not) by type (MAN-5)."""

    specs: int
    active: int
    supervisors: int
    workers: int


@dataclass(frozen=True, slots=True)
class StartChild:
    """Start a child: of a spec, or of a dynamic supervisor's template with more arguments."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TerminateChild:
    """Stop a child; its spec is kept unless it is temporary."""

    target: Hashable


@dataclass(frozen=True, slots=True)
class RestartChild:
    """Start a child whose spec is kept and that has no actor."""

    target: Hashable


@dataclass(frozen=True, slots=True)
class DeleteChild:
    """Forget the spec of a child that has no actor."""

    target: Hashable


@dataclass(frozen=True, slots=True)
class GetChildSpec:
    """Return a child's spec."""

    target: Hashable


@dataclass(frozen=True, slots=True)
class WhichChildren:
    """List the children, newest first."""


@dataclass(frozen=True, slots=True)
class CountChildren:
    """Count the children."""


def start_child(supervisor: SupervisorLike, /, *args: Any, **kwargs: Any) -> Future[Any]:
    """Start a child; the future gives its ref, or None if its `on_start` returned `Ignore`.

    For a `Supervisor` the one argument is a `ChildSpec` or a mapping; the child comes after all
    others. For a `DynamicSupervisor` the arguments are appended to those of the template.

    Raises `InvalidChildSpec`; ChildRequestError `already_started` (with the ref) or
    `already_present` for an id that is in use; StartFailed, and then no spec is kept. Rules: MAN-4,
    DYN-1, DYN-6.
    """
    return _ask(supervisor, StartChild(args, kwargs))


def terminate_child(supervisor: SupervisorLike, /, child: Hashable) -> Future[None]:
    """Stop a child as its spec says and keep the spec (a temporary one's is dropped).

    child: its id; under a DynamicSupervisor its ref. A child without actor is fine; raises
    ChildRequestError `not_found`, or `simple_one_for_one` for an id under a DynamicSupervisor.
    Rules: MAN-1, DYN-3, AUTO-4.
    """
    return _ask(supervisor, TerminateChild(child))


def restart_child(supervisor: SupervisorLike, /, child_id: Hashable) -> Future[AnyRef | None]:
    """Start a child whose spec is there and that has no actor; not counted as a restart (INT-8).

    Raises ChildRequestError `running`, `restarting`, `not_found`, `simple_one_for_one`; StartFailed
    leaves it stopped. Rule: MAN-2.
    """
    return _ask(supervisor, RestartChild(child_id))


def delete_child(supervisor: SupervisorLike, /, child_id: Hashable) -> Future[None]:
    """Forget the spec of a child that has no actor.

    Raises ChildRequestError `running`, `restarting`, `not_found`, `simple_one_for_one`. MAN-3.
    """
    return _ask(supervisor, DeleteChild(child_id))


def get_childspec(supervisor: SupervisorLike, /, child: Hashable) -> Future[ChildSpec]:
    """Return a child's spec with its shutdown time filled in; by id, or by ref if dynamic.

    Raises ChildRequestError `not_found`.
    """
    return _ask(supervisor, GetChildSpec(child))


def which_children(supervisor: SupervisorLike, /) -> Future[list[ChildInfo]]:
    """List the children, newest first (MAN-5)."""
    return _ask(supervisor, WhichChildren())


def count_children(supervisor: SupervisorLike, /) -> Future[ChildCount]:
    """Count specs, living children, supervisors and workers (MAN-5)."""
    return _ask(supervisor, CountChildren())


def _ask(supervisor: SupervisorLike, request: object) -> Future[Any]:
    ref: Any = names.whereis(supervisor) if isinstance(supervisor, str) else supervisor
    answer: Future[Any]
    if ref is not None:
        answer = ref.call(request, timeout=None)
    else:
        told = f"no supervisor is registered as {supervisor!r}: start it with name=..."
        answer = Future.failed(ActorDied(told, reason="noproc"))
    return answer
