"""The dynamic supervisor: any number of children of one template (OTP's simple_one_for_one)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pykka

from ..actors import ExitActor
from ..actors.errors import CallTimeout, InvalidValue
from ..actors.exits import ExitReason
from ..actors.ref import AnyRef
from . import reports
from .child_actor import end_orphans, kill, request_stop
from .child_spec import AutoShutdown, ChildSpec, ChildSpecLike, checked_spec
from .children import ChildRecord
from .requests import (
    ChildCount,
    ChildInfo,
    ChildRequestError,
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
    StartFailedAgain,
    Verdict,
    decide,
)
from .settings import (
    DEFAULT_MAX_RESTARTS,
    DEFAULT_MAX_SECONDS,
    PER_CHILD_MAX_RESTARTS,
    PER_CHILD_MAX_SECONDS,
    Backoff,
    InvalidSupervisor,
)
from .supervisor import Supervisor

_WAVE: Final = 500
"""How many supervisors are told to stop at once."""


class DynamicSupervisor(Supervisor):
    """Starts empty; `start_child(ref, *args)` starts one more child of the template.

    template: a ChildSpec or mapping; the arguments of `start_child` come after those of its start.
    per_child: count restarts for each child (5 in 10 s by default): who comes too often is given up
        and reported (`keepwell.supervisor.child_given_up`), all others and the supervisor live on.
        Without it one counter for all ends the supervisor, as in OTP (1 in 5 s by default).

    Children have no ids and no order; they are named by their refs, stop all at once, and are
    forgotten when they are not restarted. Rules: DYN-1 to DYN-6.
    """

    def __init__(
        self,
        template: ChildSpecLike | Sequence[ChildSpecLike],
        max_restarts: int | None = None,
        max_seconds: int | None = None,
        auto_shutdown: AutoShutdown = "never",
        *,
        per_child: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        usual = (
            (PER_CHILD_MAX_RESTARTS, PER_CHILD_MAX_SECONDS)
            if per_child
            else (DEFAULT_MAX_RESTARTS, DEFAULT_MAX_SECONDS)
        )
        super().__init__(
            (),
            "simple_one_for_one",
            usual[0] if max_restarts is None else max_restarts,
            usual[1] if max_seconds is None else max_seconds,
            auto_shutdown,
            backoff=backoff,
        )
        self._templates: list[Any] = (
            list(template) if isinstance(template, (list, tuple)) else [template]
        )
        self._per_child = per_child
        self._keys = itertools.count()

    def _start_children(self) -> None:
        if len(self._templates) != 1:
            ids = tuple(
                t.get("id") if isinstance(t, Mapping) else getattr(t, "id", t)
                for t in self._templates
            )
            raise ExitActor(InvalidSupervisor("bad_start_spec", ids))
        try:
            self._template = checked_spec(self._templates[0], self._settings.auto_shutdown)
        except InvalidValue as fault:
            raise ExitActor(InvalidSupervisor("start_spec", fault)) from fault

    def child_given_up(self, spec: ChildSpec, ref: AnyRef | None, reason: ExitReason) -> None:
        """Called when a child has used up its restarts (`per_child`); does nothing. Override it."""

    # -- requests --------------------------------------------------------------------------------

    def _on_start_child(self, request: StartChild) -> AnyRef | None:
        record = ChildRecord(next(self._keys), self._template, request.args, request.kwargs or None)
        if self._per_child:
            record.window = self._window
        ref = self._start_or_refuse(record)
        if ref is not None:
            self._book.add(record)
        return ref

    def _on_terminate_child(self, request: TerminateChild) -> None:
        record = self._known(request.target)
        if record is not None:
            self._stop_child(record)
            self._book.remove(record)

    def _on_restart_child(self, request: RestartChild) -> AnyRef | None:
        raise self._no_ids(request.target)

    def _on_delete_child(self, request: DeleteChild) -> None:
        raise self._no_ids(request.target)

    def _on_get_childspec(self, request: GetChildSpec) -> ChildSpec:
        if isinstance(request.target, pykka.ActorRef):
            self._known(request.target)
        elif request.target != self._template.id:
            raise ChildRequestError(
                "not_found", request.target, "name a child's ref, or the template's id"
            )
        return self._template

    def _on_which_children(self, _: WhichChildren) -> list[ChildInfo]:
        return [
            ChildInfo(None, info.child, info.type, info.restarts)
            for info in map(self._info, reversed(self._book.records()))
        ]

    def _on_count_children(self, _: Any) -> ChildCount:
        size = len(self._book)
        supervisors = size if self._template.type == "supervisor" else 0
        return ChildCount(1, size - self._book.restarting, supervisors, size - supervisors)

    def _known(self, target: Any) -> Any:
        """The record of a ref, None for a dead stranger's (DYN-3)."""
        if not isinstance(target, pykka.ActorRef):
            raise self._no_ids(target)
        record = self._book.by_ref(target)
        if record is None and target.is_alive():
            raise ChildRequestError("not_found", target, "it is no child of this supervisor")
        return record

    @staticmethod
    def _no_ids(target: object) -> ChildRequestError:
        return ChildRequestError(
            "simple_one_for_one",
            target,
            "children of a dynamic supervisor have no ids: terminate_child takes a ref",
        )

    def _name_of(self, record: ChildRecord) -> str:
        return f"{self._template.id}:{record.key}"

    # -- restarts --------------------------------------------------------------------------------

    def _decide(self, record: ChildRecord, event: Ended | StartFailedAgain) -> Decision:
        if record.window is None:
            return super()._decide(record, event)
        now = self.system.clock.monotonic()
        return decide("simple_one_for_one", self._book, event, record.window, now)

    def _carry_out(self, record: ChildRecord, decision: Decision) -> None:
        if record.window is not None:
            record.window = decision.window
            if decision.verdict is Verdict.GIVE_UP:
                self._give_child_up(record)
                return
        own = self._window
        super()._carry_out(record, decision)
        if record.window is not None:
            self._window = own  # the decision was about the child's window
        if decision.verdict is Verdict.RESTART and record.status is ChildStatus.STOPPED:
            self._book.remove(record)  # its restart returned Ignore: nothing is left of it

    def _give_child_up(self, record: ChildRecord) -> None:
        ref = record.ref
        self._book.remove(record)
        reports.child_given_up(self.actor_ref, record, ref, self._settings)
        self.child_given_up(record.spec, ref, record.last_reason)

    # -- the end ---------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Tell all children at once, then wait for all, for one shutdown time in all (DYN-4).

        Supervisors hold a thread each while they wait for their own children: they go in waves.
        """
        records = [r for r in self._book.records() if r.status is ChildStatus.RUNNING]
        wave = _WAVE if self._template.type == "supervisor" else max(len(records), 1)
        for start in range(0, len(records), wave):
            self._stop_wave(records[start : start + wave])

    def _stop_wave(self, records: list[ChildRecord]) -> None:
        shutdown = self._template.shutdown
        waiting = [
            (record, request_stop(record.ref, record.watch, shutdown))
            for record in records
            if record.ref is not None
        ]
        clock = self.system.clock
        limit = shutdown if isinstance(shutdown, (int, float)) else None
        deadline = None if limit is None else clock.monotonic() + limit
        late = []
        for record, ended in waiting:
            try:
                left = None if deadline is None else max(deadline - clock.monotonic(), 0.0)
                ended.get(timeout=left)
            except CallTimeout:
                late.append(record)
        for record in late:
            if record.ref is not None:
                kill(record.ref, record.watch)
        for record, ended in waiting:
            reason = ended.get()
            end_orphans(record.ref)
            self._note_stopped(record, reason)
