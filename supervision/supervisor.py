"""The supervisor: an actor that starts children in order and carries out the restart decision.

It blocks while a child starts or stops, as OTP's does: whatever happens meanwhile (an exit of
another child, a request, its own shutdown) waits in its mailbox and is seen in order. Being a light
actor it holds no thread while it is idle.

All that is decided is decided in `restart.decide`. What is here: the start with its roll-back, the
stops, the requests, and the reports.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..actors import (
    Actor,
    ActorRef,
    ActorSystem,
    Exit,
    ExitActor,
    InvalidValue,
    Reply,
    RequestError,
    Shutdown,
    StartFailed,
)
from ..actors.exits import SHUTDOWN, ExitReason, is_orderly
from ..actors.ref import AnyRef
from . import reports
from .child_actor import end_orphans, last_message_type, start_actor, stop_actor
from .child_spec import AutoShutdown, ChildSpec, ChildSpecLike, checked_spec, checked_specs
from .children import ChildBook, ChildRecord
from .requests import (
    RESTARTING,
    ChildCount,
    ChildInfo,
    ChildRequestError,
    CountChildren,
    DeleteChild,
    GetChildSpec,
    RestartChild,
    StartChild,
    TerminateChild,
    WhichChildren,
)
from .restart import (
    ChildStatus,
    Decision,
    Ended,
    RestartWindow,
    StartFailedAgain,
    Strategy,
    Verdict,
    decide,
)
from .settings import (
    DEFAULT_MAX_RESTARTS,
    DEFAULT_MAX_SECONDS,
    Backoff,
    FailedToStartChild,
    InvalidSetting,
    InvalidSupervisor,
    Settings,
)
from .supervisor_ref import Orphan, SupervisorRef

if TYPE_CHECKING:
    from ..actors import Future


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The supervisor's message to itself after a failed restart (RINIT-1)."""

    key: Hashable
    retry: object


class Supervisor(Actor):
    """Starts its children from left to right, restarts them as their specs say, stops in reverse.

    children: ChildSpecs or mappings with the same keys.
    strategy: "one_for_one" (restart the dead child), "one_for_all" (stop the others in reverse,
        start all), "rest_for_one" (the same with the dead one and those after it).
    max_restarts, max_seconds: more than `max_restarts` restarts within `max_seconds` whole seconds
        and the supervisor gives up: it stops all children and exits `shutdown`.
    auto_shutdown: "any_significant" or "all_significant": it also ends when a (the last)
        significant child has ended for good.
    backoff: waits before further tries of a restart that fails; None, as in OTP, tries at once.

    `Supervisor.start(...)` returns its ref when all children are up. If one does not start, those
    that did are stopped in reverse and StartFailed is raised with the reason
    `Shutdown(FailedToStartChild(id, reason))`; bad settings and specs are StartFailed with an
    InvalidSupervisor, and nothing is started.

    Its ref takes `start_child` and the other functions of `requests`. It is killed or told to stop
    like any actor; its children end with it, also when it is killed.
    """

    trap_exit = True
    vital = True

    def __init__(
        self,
        children: Iterable[ChildSpecLike] = (),
        strategy: Strategy = "one_for_one",
        max_restarts: int = DEFAULT_MAX_RESTARTS,
        max_seconds: int = DEFAULT_MAX_SECONDS,
        auto_shutdown: AutoShutdown = "never",
        *,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__()
        self._given = children
        self._settings = Settings(strategy, max_restarts, max_seconds, auto_shutdown, backoff)
        self._window = RestartWindow(max_restarts, max_seconds)
        self._book = ChildBook()

    if TYPE_CHECKING:

        @classmethod
        def start(cls, *args: Any, **kwargs: Any) -> SupervisorRef: ...

        @classmethod
        def spawn(  # type: ignore[override]  # a future of a subclass: futures are invariant
            cls, *args: Any, **kwargs: Any
        ) -> Future[SupervisorRef]: ...

    def _make_ref(self, system: ActorSystem) -> SupervisorRef:
        return SupervisorRef(self, system)

    @property
    def _own_ref(self) -> SupervisorRef:
        return cast("SupervisorRef", self._actor_ref)

    # -- start and end ---------------------------------------------------------------------------

    def on_start(self) -> Any:
        """Check what was given, then start the children (ORD-1, INIT-1, SPEC-2, SPEC-3)."""
        self._own_ref.on_exit(self._leave_orphans)
        try:
            self._settings.check()
        except InvalidSetting as fault:
            raise ExitActor(InvalidSupervisor("supervisor_data", fault)) from fault
        self._start_children()

    def _start_children(self) -> None:
        if self._settings.strategy == "simple_one_for_one":
            fault = InvalidSetting(
                "invalid_strategy", "simple_one_for_one", remedy="use a DynamicSupervisor"
            )
            raise ExitActor(InvalidSupervisor("supervisor_data", fault))
        if isinstance(self._given, Mapping) or not isinstance(self._given, Iterable):
            told = InvalidValue(f"{self._given!r} is no list of child specs: pass one in brackets")
            raise ExitActor(InvalidSupervisor("bad_start_spec", told)) from told
        try:
            specs = checked_specs(self._given, self._settings.auto_shutdown)
        except InvalidValue as fault:
            raise ExitActor(InvalidSupervisor("start_spec", fault)) from fault
        self._given = ()
        for spec in specs.values():
            record = ChildRecord(spec.id, spec)
            try:
                self._start_child(record)
            except StartFailed as failed:
                self._stop_all()
                reason = Shutdown(FailedToStartChild(spec.id, failed.reason))
                raise ExitActor(reason) from failed
            if record.status is ChildStatus.RUNNING or spec.restart != "temporary":  # INIT-3
                self._book.add(record)

    def on_stop(self) -> None:
        """Stop the children in exact reverse, each waited for (ORD-2, SHUT-2 to SHUT-8)."""
        self._stop_all()

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the children if the supervisor itself has crashed."""
        self._stop_all()

    def _stop_all(self) -> None:
        for record in reversed(self._book.records()):
            self._stop_child(record)

    def _leave_orphans(self, _: ExitReason) -> None:
        """Note which children a killed supervisor leaves to their links; else there are none."""
        self._own_ref.orphans = tuple(
            Orphan(record.ref, record.watch, record.spec.shutdown)
            for record in self._book.records()
            if record.status is ChildStatus.RUNNING and record.ref is not None
        )

    # -- messages --------------------------------------------------------------------------------

    def on_receive(self, message: Any) -> Any:
        """Serve a request of `requests`, or deal with the end of a child."""
        handler = self._handlers.get(type(message))
        if handler is not None:
            return getattr(self, handler)(message)
        raise RequestError(
            f"{self.actor_ref} takes requests for children, not {type(message).__name__}: "
            "subclass on_receive for others",
            code="unknown_request",
        )

    def _on_exit(self, message: Exit) -> None:
        record = self._book.by_ref(message.ref)
        if record is None or record.status is not ChildStatus.RUNNING:
            return  # a stranger's (SHUT-9), or a sibling's that was stopped already (STRAT-8)
        record.last_reason = message.reason
        record.last_message = last_message_type(message.ref)
        decision = self._decide(record, Ended(record.key, message.reason))
        reports.child_ended(self.actor_ref, record, decision)
        self._carry_out(record, decision)

    def _on_try_again(self, message: TryAgain) -> None:
        record = self._book.get(message.key)
        if record is None or record.retry is not message.retry:
            return  # it was terminated, deleted or started meanwhile
        tries = record.tries if self._settings.backoff is not None else 0
        self._carry_out(record, self._decide(record, StartFailedAgain(record.key, tries)))

    def _on_start_child(self, request: StartChild) -> AnyRef | None:
        if len(request.args) != 1 or request.kwargs:
            raise RequestError(
                f"{self.actor_ref} starts one ChildSpec at a time; only a DynamicSupervisor takes "
                "arguments for its template",
                code="badarg",
            )
        spec = checked_spec(request.args[0], self._settings.auto_shutdown)
        present = self._book.get(spec.id)
        if present is not None and present.status is ChildStatus.RUNNING:
            raise ChildRequestError(
                "already_started", spec.id, "terminate and delete it first", ref=present.ref
            )
        if present is not None:
            raise ChildRequestError(
                "already_present", spec.id, "restart_child starts it, delete_child forgets it"
            )
        record = ChildRecord(spec.id, spec)
        ref = self._start_or_refuse(record)
        if ref is not None or spec.restart != "temporary":
            self._book.add(record)
        return ref

    def _on_terminate_child(self, request: TerminateChild) -> None:
        record = self._known(request.target)
        self._stop_child(record)
        if record.spec.restart == "temporary":
            self._book.remove(record)
        else:
            self._book.stopped(record)  # also ends the tries of a failing restart

    def _on_restart_child(self, request: RestartChild) -> AnyRef | None:
        return self._start_or_refuse(self._without_actor(request.target))

    def _on_delete_child(self, request: DeleteChild) -> None:
        self._book.remove(self._without_actor(request.target))

    def _on_get_childspec(self, request: GetChildSpec) -> ChildSpec:
        return self._known(request.target).spec

    def _on_which_children(self, _: WhichChildren) -> list[ChildInfo]:
        return [self._info(record) for record in reversed(self._book.records())]

    def _on_count_children(self, _: CountChildren) -> ChildCount:
        records = self._book.records()
        active = sum(
            r.status is ChildStatus.RUNNING and r.ref is not None and r.ref.is_alive()
            for r in records
        )
        supervisors = sum(r.spec.type == "supervisor" for r in records)
        return ChildCount(len(records), active, supervisors, len(records) - supervisors)

    _handlers: ClassVar[dict[type, str]] = {
        Exit: "_on_exit",
        TryAgain: "_on_try_again",
        StartChild: "_on_start_child",
        TerminateChild: "_on_terminate_child",
        RestartChild: "_on_restart_child",
        DeleteChild: "_on_delete_child",
        GetChildSpec: "_on_get_childspec",
        WhichChildren: "_on_which_children",
        CountChildren: "_on_count_children",
    }

    # -- carrying a decision out -----------------------------------------------------------------

    def _decide(self, record: ChildRecord, event: Ended | StartFailedAgain) -> Decision:
        settings = self._settings
        return decide(
            settings.strategy,
            self._book,
            event,
            self._window,
            self.system.clock.monotonic(),
            auto_shutdown=settings.auto_shutdown,
            other_significant=self._book.other_significant(record),
        )

    def _carry_out(self, record: ChildRecord, decision: Decision) -> None:
        if decision.verdict is Verdict.IGNORE:
            return
        self._window = decision.window
        last_ref = record.ref
        self._book.stopped(record)
        for key in decision.stop:
            self._stop_child(self._book[key])
        for key in decision.remove:
            self._book.remove(self._book[key])
        if decision.ends_supervisor:
            reports.supervisor_ends(self.actor_ref, record, decision, self._settings)
            raise ExitActor(SHUTDOWN)
        end_orphans(last_ref)
        for key in decision.start:
            if self._book[key].status is ChildStatus.RESTARTING:
                self._book.stopped(self._book[key])  # the group's restart replaces its next try
        for key in decision.start:
            started = self._book[key]
            if not self._restart(started, last_ref if started is record else None):
                return  # the rest waits for the next try (RINIT-2, RINIT-3)

    def _restart(self, record: ChildRecord, last_ref: AnyRef | None) -> bool:
        """Start a child again; False if it failed, and then a next try is on its way."""
        try:
            ref = self._start_child(record, again=True)
        except StartFailed as failed:
            self._book.restart_failed(record, last_ref)
            record.last_reason, record.last_message = failed.reason, None
            again = TryAgain(record.key, record.retry)
            if self._settings.backoff is None:
                self.actor_ref.tell(again)
            else:
                self.send_after(self._settings.backoff.delay(record.tries), again)
            return False
        if ref is not None:
            reports.child_restarted(self.actor_ref, record)
        return True

    # -- single children -------------------------------------------------------------------------

    def _start_child(self, record: ChildRecord, *, again: bool = False) -> AnyRef | None:
        """Start the child's actor; None if it said `Ignore`. Raises StartFailed.

        `again`: it is a restart, and counted as one.
        """
        try:
            ref, watch = start_actor(self, record.spec, record.args, record.kwargs)
        except StartFailed as failed:
            reports.start_failed(self.actor_ref, record, failed.reason)
            raise
        if ref is None:
            self._book.stopped(record)
            return None
        record.restarts += again
        if isinstance(ref, ActorRef):
            life = ref._get_life()
            life.child_id, life.restarts = self._name_of(record), record.restarts
        self._book.running(record, ref, watch)
        reports.child_started(self.actor_ref, record)
        return ref

    def _start_or_refuse(self, record: ChildRecord) -> AnyRef | None:
        try:
            return self._start_child(record)
        except StartFailed as failed:
            raise Reply(failed) from failed  # the answer to the request; the supervisor lives

    def _stop_child(self, record: ChildRecord) -> None:
        """Stop the child's actor, if it has one, as its spec says; wait for its end."""
        ref = record.ref
        if record.status is not ChildStatus.RUNNING or ref is None:
            return
        reason = stop_actor(ref, record.watch, record.spec.shutdown)
        end_orphans(ref)
        self._note_stopped(record, reason)

    def _note_stopped(self, record: ChildRecord, reason: ExitReason) -> None:
        expected = "killed" if record.spec.shutdown == "brutal_kill" else SHUTDOWN
        if reason != expected and not (is_orderly(reason) and record.spec.restart != "permanent"):
            reports.shutdown_error(self.actor_ref, record, reason)
        record.last_reason = reason
        self._book.stopped(record)

    def _known(self, target: Hashable) -> ChildRecord:
        record = self._book.get(target)
        if record is None:
            raise ChildRequestError("not_found", target, "which_children lists those there are")
        return record

    def _without_actor(self, target: Hashable) -> ChildRecord:
        record = self._known(target)
        if record.status is ChildStatus.RUNNING:
            raise ChildRequestError("running", target, "terminate it first", ref=record.ref)
        if record.status is ChildStatus.RESTARTING:
            raise ChildRequestError("restarting", target, "it is being restarted; try again")
        return record

    def _name_of(self, record: ChildRecord) -> Hashable:
        """What stands for the child in paths."""
        return record.spec.id

    @staticmethod
    def _info(record: ChildRecord) -> ChildInfo:
        restarting = record.status is ChildStatus.RESTARTING
        child: Any = RESTARTING if restarting else record.ref
        return ChildInfo(record.spec.id, child, record.spec.type, record.restarts)
