"""The book that a supervisor keeps of its children: states, refs, restarts."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..actors.exits import ExitReason
from .child_spec import ChildSpec
from .restart import ChildStatus, RestartWindow

if TYPE_CHECKING:
    from ..actors.pykka_bridge import Watch
    from ..actors.ref import AnyRef


@dataclass(slots=True, eq=False)
class ChildRecord:
    """One child.

    key: its place in the book: the spec's id, or a number for a dynamic child.
    ref: the actor while RUNNING, the last one while RESTARTING, else None.
    args, kwargs: what `start_child` added to the template (dynamic children).
    restarts: by the supervisor, in all. tries: failed starts in a row.
    last_reason: why the last incarnation ended. last_message: the type of what it handled then.
    window: the restarts that count, where each child is counted for itself.
    retry: identity of the next try; an older one that is still on its way does nothing.
    """

    key: Hashable
    spec: ChildSpec
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    status: ChildStatus = ChildStatus.STOPPED
    ref: AnyRef | None = None
    watch: Watch | None = None
    restarts: int = 0
    tries: int = 0
    last_reason: ExitReason = None
    last_message: str | None = None
    window: RestartWindow | None = None
    retry: object = None


class ChildBook:
    """Records in start order, by key and by ref; each operation takes constant time.

    Invariant: `by_ref` holds exactly the records that are RUNNING or RESTARTING and have a ref.
    """

    def __init__(self) -> None:
        self._records: dict[Hashable, ChildRecord] = {}
        self._by_ref: dict[AnyRef, ChildRecord] = {}
        self._significant: dict[Hashable, None] = {}
        self._restarting = 0

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, key: Hashable, /) -> ChildRecord:
        return self._records[key]

    def get(self, key: Hashable, /) -> ChildRecord | None:
        """The record of a key; None for unknown or unhashable ones."""
        try:
            return self._records.get(key)
        except TypeError:
            return None

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._records)

    def __reversed__(self) -> Iterator[Hashable]:
        return reversed(self._records)

    def records(self) -> list[ChildRecord]:
        """All records in start order; a snapshot that any thread may take."""
        return list(self._records.values())

    def by_ref(self, ref: object) -> ChildRecord | None:
        """The child whose present actor (or last one, while restarting) is `ref`."""
        try:
            return self._by_ref.get(ref)  # type: ignore[call-overload,no-any-return]  # any object may be asked for
        except TypeError:
            return None

    @property
    def restarting(self) -> int:
        """How many children are between two tries."""
        return self._restarting

    def other_significant(self, record: ChildRecord) -> int:
        """How many other significant children are running or restarting (AUTO-2)."""
        return len(self._significant) - (record.key in self._significant)

    def add(self, record: ChildRecord) -> None:
        """Append a child that has no actor yet."""
        self._records[record.key] = record

    def remove(self, record: ChildRecord) -> None:
        """Forget a child."""
        self.stopped(record)
        self._records.pop(record.key, None)

    def running(self, record: ChildRecord, ref: AnyRef, watch: Watch | None = None) -> None:
        """Note that `ref` is the child's actor now."""
        self._leave_state(record)
        record.status, record.ref, record.watch = ChildStatus.RUNNING, ref, watch
        record.tries = 0
        self._by_ref[ref] = record
        self._count_significant(record)

    def stopped(self, record: ChildRecord) -> None:
        """Note that the child has no actor."""
        self._leave_state(record)
        record.status, record.ref, record.watch = ChildStatus.STOPPED, None, None
        self._significant.pop(record.key, None)

    def restart_failed(self, record: ChildRecord, last_ref: AnyRef | None) -> None:
        """Note that a restart has failed and that a next try will come: `record.retry`."""
        self._leave_state(record)
        record.status, record.ref, record.watch = ChildStatus.RESTARTING, last_ref, None
        record.retry = object()
        record.tries += 1
        self._restarting += 1
        if last_ref is not None:
            self._by_ref[last_ref] = record
        self._count_significant(record)

    def _leave_state(self, record: ChildRecord) -> None:
        if record.status is ChildStatus.RESTARTING:
            self._restarting -= 1
        if record.ref is not None:
            self._by_ref.pop(record.ref, None)
        record.retry = None

    def _count_significant(self, record: ChildRecord) -> None:
        if record.spec.significant:
            self._significant[record.key] = None
