"""Conversations on disk: the table of a `DiskStore`.

The problem: 64 conversations that append at once touch 64 places of a B-tree, and a commit writes
(and copies) a page for each. The way taken: a commit writes *one* row, the whole batch, to the
table `log`, ascending; every so often a commit also moves the waiting batches to the
conversations' own rows, sorted, so that a page takes many records at once, and deletes them from
`log`. Until then they are served from memory, where the hot tails are anyway, and opening finds
them again: what is in `log` is bounded, so opening takes the same time for any size of store. All
of it in LMDB transactions, so every crash leaves one of the two states. Ways rejected: rows at
once (0.5 to 0.7 of raw LMDB's speed), a file log in front of LMDB (faster, but with a second
format, a second recovery and stalls when it is emptied).

Tables: `meta` (format, numbers, names), `log` (batch number -> batch), `rows` (records),
`heads` (id -> head, of conversations that have records), `cleared` (id -> tombstone with the epoch,
of those that have none), `ids` (append ids), `systems` (seqs of system messages), `sweeps` (what
is to be deleted, and when), `sessions` (sessions and blobs, see `session_rows`), `turns` (key -> id
of the conversations with an open turn, see `open_turns`).
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import lmdb

from ..actors.errors import InvalidValue
from ..actors.failpoint import failpoint
from .codec import decode, encode
from .conversation import Conversation, empty_view, moment
from .conversation_id import TEMPORARY_PREFIX
from .disk_tables import Packed, Tables, move, stored_id
from .engine import Engine
from .environment import MAP_SIZE, Durability, Environment, Transaction
from .errors import DamagedStore, ForeignFormat, NewerFormat, OlderFormat, shown
from .ledger import Cleared, Plan, Written
from .listing import page
from .open_turns import index_open_turns, open_ids
from .pending import Pending, pack_batch, unpack_batch
from .record import ConversationInfo, Record
from .request import Clear, Request
from .row import (
    NUMBER_KEY,
    ROW_KEY,
    IdEntry,
    head_of,
    header_of,
    record_of,
)
from .session_request import LmdbRows, Operation
from .session_rows import Rows
from .sweep import sweep

FORMAT = 2
"""Format of the directory. Written once, checked at every open (DS-6)."""

MIGRATIONS: dict[int, Callable[[Transaction, Tables], None]] = {1: index_open_turns}
"""How a store of format n becomes one of format n + 1, by n.

All steps that an older store needs run in one transaction when its owner opens it: a crash leaves
the old format or the new one.
"""

MAGIC = b"keepwell conversations"

CACHE_BYTES = 64 << 20
"""Default bound of the decoded tails kept in memory."""

MOVE_BATCHES = 64
MOVE_BYTES = 1 << 20
MOVE_RECORDS = 4096
"""A commit moves the waiting batches when there are so many, or so much, of them."""

SWEEP_STEP = 2000
"""Most rows deleted in one step of sweeping."""

# Told apart from other processes, and from a later process with the same pid.
_PROCESS = secrets.token_bytes(8)


class DiskEngine(Engine):
    """Conversations in an LMDB environment.

    Raises what `Environment` raises, and `ForeignFormat`, `NewerFormat`, `DamagedStore`. A crash at
    any instant leaves the acknowledged records, and whole batches that were not acknowledged.
    """

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "power",
                 readonly: bool = False, cache_bytes: int = CACHE_BYTES, map_size: int = MAP_SIZE,
                 wall: Callable[[], float] = time.time) -> None:
        super().__init__(wall=wall)
        self.cache_bytes = cache_bytes
        failpoint("store.open.begin")
        self.environment = Environment(path, durability=durability, readonly=readonly,
                                       map_size=map_size)
        self.path = self.environment.path
        try:
            self._open()
        except lmdb.Error as problem:
            self.close()
            raise DamagedStore(self.path, str(problem)) from problem
        except BaseException:
            self.close()
            raise

    # -- opening --------------------------------------------------------------------------------

    def _open(self) -> None:
        environment = self.environment
        self.pending = Pending()
        self._counters: dict[int, str] = {}
        self._codes: dict[str, int] = {}
        self._numbers = 0
        self._batch_bytes = 0
        self._packed = Packed()
        self._format = FORMAT
        self._commits = self._committed = 0
        self._loading = False
        self.sweep_due = 0.0
        if not environment.fresh:
            self._check_format()
        self.tables = Tables._make(environment.table(name.encode()) for name in Tables._fields)
        if environment.fresh and not environment.readonly:
            environment.write(self._make)
        elif self._format < FORMAT:
            environment.write(self._migrate)
        self._read_state()
        failpoint("store.open.end")
        if not environment.readonly:
            self._drop_temporary()

    def _check_format(self) -> None:
        environment = self.environment
        try:
            meta = environment.table(b"meta", create=False)
        except lmdb.NotFoundError:
            if not environment.readonly and environment.env.stat()["entries"] == 0:
                environment.fresh = True  # killed between making the file and the first commit
                return
            raise ForeignFormat(self.path, "its LMDB file is not one of keepwell's") from None
        with environment.read() as txn:
            magic, form = txn.get(b"magic", db=meta), txn.get(b"format", db=meta)
        if magic is None and form is None:
            environment.fresh = True
            return
        if magic != MAGIC or form is None or not form.isdigit():
            raise ForeignFormat(self.path, "its LMDB file is not one of keepwell's")
        self._format = int(form)
        if self._format > FORMAT:
            raise NewerFormat(self.path, self._format, FORMAT)
        if self._format < FORMAT:
            missing = [step for step in range(self._format, FORMAT) if step not in MIGRATIONS]
            if missing:
                raise ForeignFormat(self.path, f"nothing is known of its format {missing[0]}")
            if environment.readonly:
                raise OlderFormat(self.path, self._format)

    def _migrate(self, txn: Transaction) -> bool:
        for step in range(self._format, FORMAT):
            failpoint("store.migrate")
            MIGRATIONS[step](txn, self.tables)
        txn.put(b"format", b"%d" % FORMAT, db=self.tables.meta)
        return True

    def _make(self, txn: Transaction) -> bool:
        txn.put(b"magic", MAGIC, db=self.tables.meta)
        txn.put(b"format", b"%d" % FORMAT, db=self.tables.meta)
        return True

    def _read_state(self) -> None:
        """Load what the next commit needs: numbers, names, and the batches not yet moved."""
        with self.environment.read() as txn:
            self._last_txn = txn.id()
            self._numbers = int(txn.get(b"numbers", b"0", db=self.tables.meta))
            self._process = txn.get(b"process", b"", db=self.tables.meta)
            for name, code in decode(txn.get(b"counters", encode(()), db=self.tables.meta)):
                self._counters[code], self._codes[name] = name, code
            self._codes_stored = len(self._codes)
            batches = [(NUMBER_KEY.unpack(key)[0], value)
                       for key, value in txn.cursor(db=self.tables.log)]
        for place, value in batches:
            failpoint("store.open.batch")
            try:
                for entry in unpack_batch(value, self._counters, self._recall):
                    self._numbers = max(self._numbers, entry.conversation.number)
                    self._apply(entry)
                    packed = Packed()
                    packed.add([entry], self._codes)
                    self.pending.add([entry], packed)
            except (ValueError, KeyError) as problem:
                raise DamagedStore(self.path, f"batch {place} cannot be read ({problem})") \
                    from problem
            self.pending.keep(place, len(value))

    def _recall(self, conversation_id: str, key: bytes, number: int) -> Conversation:
        conversation = self._lookup(key)
        return conversation or Conversation(conversation_id, key, number, empty_view())

    def _apply(self, entry: Written | Cleared) -> None:
        conversation = entry.conversation
        with self._lock:
            if conversation.key not in self._known:
                self._admit(conversation)
            conversation.dirty = True
            if type(entry) is Written:
                conversation.extend(entry.request, entry.first_seq, moment(entry.micros),
                                    entry.micros)
            else:
                conversation.reset(entry.epoch)

    def _drop_temporary(self) -> None:
        """Clear what invocations of an ended process left behind (KF-8)."""
        if self._process == _PROCESS:
            return
        while True:
            found = self._page(TEMPORARY_PREFIX.encode(), None, 1000)
            if not found:
                break
            self.commit([Clear(info.conversation_id) for info in found])
        self._process = _PROCESS
        self.environment.write(self._note_process)

    def _note_process(self, txn: Transaction) -> bool:
        txn.put(b"process", _PROCESS, db=self.tables.meta)
        return True

    # -- writing --------------------------------------------------------------------------------

    gathers = True

    def commit(self, requests: Sequence[Request], owner: object = None) -> list[Any]:
        """Decide and write requests in one transaction; see `Engine.commit`.

        Raises `DiskFull` if the batch found no room (nothing is written, the table is fine), any
        other error if the outcome is unknown.
        """
        failpoint("store.commit.begin")
        plan: Plan | None = None
        moved = False

        def work(txn: Transaction) -> bool:
            nonlocal plan, moved

            get, ids, waiting = txn.get, self.tables.ids, self.pending.ids

            def find_id(key: bytes) -> IdEntry | None:
                value = waiting.get(key)
                if value is None:
                    value = get(key, db=ids)
                return None if value is None else stored_id(value)

            plan = Plan(int(self._wall() * 1e6), self._find, self._number, find_id)
            wrote = False
            for request in requests:
                if isinstance(request, Operation):
                    wrote = request.perform(LmdbRows(txn, self.tables.sessions), plan) or wrote
                else:
                    plan.take(request)
            if not plan.entries:
                return wrote
            failpoint("store.commit.planned")
            moved = self._write(txn, plan)
            return True

        numbers = self._numbers
        try:
            self.environment.write(work)
        except BaseException:
            self._numbers = numbers
            for entry in plan.entries if plan is not None else ():
                conversation = entry.conversation
                if not conversation.dirty and conversation.view.epoch == conversation.stored == 0:
                    conversation.number = 0  # it does not exist after all
            raise
        assert plan is not None
        self._commits += 1
        self._committed += len(requests)
        if plan.entries:
            self._codes_stored = len(self._codes)
            self._publish_commit(plan, moved)
        failpoint("store.commit.published")
        return plan.answers

    def read_rows(self, work: Callable[[Rows], Any]) -> Any:
        """Run `work` over the rows of sessions and blobs, in a read transaction."""
        with self.environment.read() as txn:
            return work(LmdbRows(txn, self.tables.sessions))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _write(self, txn: Transaction, plan: Plan) -> bool:
        """Write a plan as one row of the log, or move everything; True if it moved."""
        entries, pending, codes = plan.entries, self.pending, self._codes
        size = 0
        for entry in entries:
            if type(entry) is Written:
                request = entry.request
                size += request.size
                if request.counter not in codes:
                    self._name_counter(request.counter)
        if len(self._codes) > self._codes_stored:
            txn.put(b"counters", encode(tuple(self._codes.items())), db=self.tables.meta)
        self._packed = packed = Packed()
        packed.add(entries, codes)
        if (len(pending.places) >= MOVE_BATCHES or pending.bytes + size > MOVE_BYTES
                or len(pending.packed.rows) > MOVE_RECORDS):
            failpoint("store.move.begin")
            touched = pending.conversations | {entry.conversation.key: entry.conversation
                                               for entry in entries}
            move(txn, self.tables, [pending.packed, packed], touched, plan.stages)
            self._unlog(txn)
            failpoint("store.move.end")
            return True
        value = pack_batch(entries, plan.micros, self._codes)
        self._batch_bytes = len(value)
        txn.put(NUMBER_KEY.pack(pending.next_place), value, db=self.tables.log, append=True)
        return False

    def _publish_commit(self, plan: Plan, moved: bool) -> None:
        """Bring memory in line with the table, whose transaction has succeeded."""
        pending, packed = self.pending, self._packed
        with self._lock:
            if moved:
                waited = pending.conversations
                if pending.packed.clears or packed.clears:
                    self.sweep_due = 0.0
                pending.clear()
                self._publish(plan)
                for conversation in (*waited.values(),
                                     *(entry.conversation for entry in plan.entries)):
                    conversation.dirty = False
                    conversation.stored = conversation.view.cursor
                return
            pending.add(plan.entries, packed)
            for entry in plan.entries:
                entry.conversation.dirty = True
            pending.keep(pending.next_place, self._batch_bytes)
            self._publish(plan)

    def _unlog(self, txn: Transaction) -> None:
        """Take the batches that were moved out of the log."""
        for place in self.pending.places:
            txn.delete(NUMBER_KEY.pack(place), db=self.tables.log)
        txn.put(b"numbers", b"%d" % self._numbers, db=self.tables.meta)

    def _name_counter(self, name: str) -> None:
        code = len(self._codes) + 1
        if code > 255:
            raise InvalidValue(
                f"a store knows at most 255 token counters, {shown(name)} is one more"
            )
        self._codes[name], self._counters[code] = code, name

    def maintain(self) -> bool:
        """Sweep a bounded part of what was cleared; True if there is more to do now."""
        if self.sweep_due is None or self.sweep_due > self._wall() or self.environment.readonly:
            return False
        failpoint("store.sweep")
        due: int | None = None

        def work(txn: Transaction) -> bool:
            nonlocal due
            done, due = sweep(txn, self.tables, int(self._wall() * 1e6), SWEEP_STEP)
            return done > 0

        self.environment.write(work)
        self.sweep_due = at = None if due is None else due / 1e6
        return at is not None and at <= self._wall()

    def settle(self) -> None:
        """Move all waiting batches now."""
        pending = self.pending
        if pending.places and not self.environment.readonly:
            def work(txn: Transaction) -> bool:
                move(txn, self.tables, [pending.packed], pending.conversations, {})
                self._unlog(txn)
                return True

            self.environment.write(work)
            with self._lock:
                for conversation in pending.conversations.values():
                    conversation.dirty = False
                    conversation.stored = conversation.view.cursor
                pending.clear()
            self.sweep_due = 0.0

    def sync(self) -> None:
        """Flush what was committed: with durability "process" it then survives a power cut too."""
        self.environment.sync()

    def ready(self) -> Engine:
        """This engine; raises `StoreUnavailable` if it is closed."""
        _ = self.environment.env
        return self

    def fence(self) -> None:
        """Keep the killed owner from its next transaction, and let go of the directory."""
        self.environment.fence()

    def statistics(self) -> dict[str, Any]:
        """Figures for operators."""
        return {**super().statistics(), "path": self.path, "waiting_batches":
                len(self.pending.places), "durability": self.environment.durability,
                "commits": self._commits, "requests": self._committed}

    def close(self) -> None:
        """Unmap the file and release the directory; idempotent."""
        self.environment.close()

    # -- reading --------------------------------------------------------------------------------

    def _lookup(self, key: bytes) -> Conversation | None:
        if self.environment.readonly:
            self._refresh()
        return super()._lookup(key)

    def _refresh(self) -> None:
        """Read-only: take up what the owner, another process, has committed since."""
        with self._lock:
            if not self._loading and self.environment.last_txn() != self._last_txn:
                self._known.clear()
                self._clock.clear()
                self._hot = 0
                self.pending = Pending()
                self._loading = True
                try:
                    self._read_state()
                finally:
                    self._loading = False

    def _load(self, key: bytes) -> Conversation | None:
        with self.environment.read() as txn:
            value = txn.get(key, db=self.tables.heads) or txn.get(key, db=self.tables.cleared)
        if value is None:
            return None
        head = head_of(value, self.path)
        view = empty_view(head.epoch)._replace(
            cursor=head.cursor, total=head.total, tokens=head.tokens, base=head.cursor + 1,
            unseen=head.total, created=head.created, updated=head.updated)
        return Conversation(head.conversation_id, key, head.number, view)

    def _rows(self, conversation: Conversation, epoch: int, first: int,
              last: int) -> tuple[list[Record], int]:
        number, seq, size = conversation.number, first, 0
        stop = ROW_KEY.pack(number, epoch, last)
        values = []
        with self.environment.read() as txn, txn.cursor(db=self.tables.rows) as cursor:
            if cursor.set_range(ROW_KEY.pack(number, epoch, first)):
                for key, value in cursor:
                    if key > stop:
                        break
                    values.append((key, value))
        records = []
        for key, value in values:
            if ROW_KEY.unpack(key)[2] != seq:
                break
            try:
                records.append(record_of(value, seq, self._counters))
            except ValueError as problem:
                raise DamagedStore(self.path, str(problem), seq=seq,
                                   conversation_id=conversation.conversation_id) from problem
            size += len(value)
            seq += 1
        return records, size

    def _count_at(self, conversation: Conversation, epoch: int, seq: int) -> int | None:
        with self.environment.read() as txn:
            value = txn.get(ROW_KEY.pack(conversation.number, epoch, seq), db=self.tables.rows)
        return None if value is None else header_of(value).messages_so_far

    def _system_seqs(self, conversation: Conversation, epoch: int, upto: int) -> list[int]:
        stop = ROW_KEY.pack(conversation.number, epoch, upto)
        seqs = []
        with self.environment.read() as txn, txn.cursor(db=self.tables.systems) as cursor:
            if cursor.set_range(ROW_KEY.pack(conversation.number, epoch, 0)):
                for key in cursor.iternext(values=False):
                    if key > stop:
                        break
                    seqs.append(ROW_KEY.unpack(key)[2])
        return seqs

    def _page(self, prefix: bytes, after: bytes | None, limit: int) -> list[ConversationInfo]:
        return page(self, prefix, after, limit)

    def _open_turns(self, after: bytes | None, limit: int) -> list[str]:
        return open_ids(self, after, limit)
