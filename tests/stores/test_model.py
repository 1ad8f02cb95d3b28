"""Both engines beside a plain model, with crashes, reopens and full disks among the steps."""

import errno
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keepwell.actors import failpoint as failpoints
from keepwell.stores import (
    AppendConflict,
    CursorConflict,
    DiskFull,
    Message,
    PredecessorMissing,
    StaleEpoch,
)
from keepwell.stores.codec import decode, decode_body, encode, encode_body
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.frozen import freeze, thaw
from keepwell.stores.log import LazyLog
from keepwell.stores.memory_engine import MemoryEngine
from keepwell.stores.record import Appended, NewRecord
from keepwell.stores.request import Append, Clear
from keepwell.stores.row import MAX_SEQ
from keepwell.stores.verify import verify
from keepwell.testing.store_contract import CharacterCounter, user

IDS = st.sampled_from(["a", "b", "a\0", "x" * 300, "x" * 299 + "y"])
APPEND_IDS = st.none() | st.sampled_from(["k1", "k2", "k3", "k" * 250])
TEXTS = st.sampled_from(["", "x", "yy", "long" * 50])


class Model:
    """What the contract says, in the plainest form."""

    def __init__(self) -> None:
        self.logs: dict[str, list[tuple[str | None, str]]] = {}
        self.epochs: dict[str, int] = {}
        self.ids: dict[tuple[str, str], tuple[int, int, list[tuple[str | None, str]]]] = {}

    def add(
        self,
        conversation: str,
        records: list[tuple[str | None, str]],
        append_id: str | None,
        follows: str | None,
        epoch: int | None,
        cursor: int | None,
    ) -> Any:
        log = self.logs.setdefault(conversation, [])
        now = self.epochs.get(conversation, 0)
        if epoch is not None and epoch != now:
            return StaleEpoch
        known = self.ids.get((conversation, append_id or ""))
        if append_id and known and (known[0] == now or epoch is None):
            if known[2] != records:
                return AppendConflict
            return (known[1], known[1] + len(records) - 1, known[0], len(records), True)
        if follows:
            before = self.ids.get((conversation, follows))
            if before is None or before[0] != now:
                return PredecessorMissing
        if cursor is not None and cursor != len(log):
            return CursorConflict
        first = len(log) + 1
        log += records
        if append_id and records:
            self.ids[conversation, append_id] = (now, first, records)
        return (first, len(log), now, len(records), False)

    def clear(self, conversation: str) -> None:
        self.logs[conversation] = []
        self.epochs[conversation] = self.epochs.get(conversation, 0) + 1


class StoreMachine(RuleBasedStateMachine):
    """Drives a model and an engine side by side."""

    disk = True

    @initialize(batches=st.sampled_from([0, 2, 5]), cache=st.sampled_from([0, 2_000, 1 << 20]))
    def start(self, batches: int, cache: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="keepwell-model-"))
        self.batches, self.cache = batches, cache
        self.model = Model()
        self.wall = 1_700_000_000.0
        self.engine: Any = self.open() if self.disk else MemoryEngine(wall=lambda: self.wall)
        self.logs: list[tuple[LazyLog, str, int, list[str]]] = []

    def open(self) -> DiskEngine:
        from keepwell.stores import disk_engine

        disk_engine.MOVE_BATCHES = self.batches
        return DiskEngine(
            self.folder,
            durability="process",
            cache_bytes=self.cache,
            map_size=1 << 20,
            wall=lambda: self.wall,
        )

    def teardown(self) -> None:
        from keepwell.stores import disk_engine

        disk_engine.MOVE_BATCHES = 64
        if hasattr(self, "engine"):
            if self.disk:
                assert not verify(self.engine).problems
            self.engine.close()
            shutil.rmtree(self.folder)

    requests = st.lists(
        st.tuples(
            IDS,
            st.lists(st.tuples(st.sampled_from(["user", "system", None]), TEXTS), max_size=4),
            APPEND_IDS,
            APPEND_IDS,
            st.none() | st.integers(0, 3),
            st.none() | st.integers(0, 5),
        ),
        min_size=1,
        max_size=5,
    )

    @rule(batch=requests)
    def add(self, batch: list[Any]) -> None:
        requests = [self.request(*one) for one in batch]
        answers = self.engine.commit(requests)
        for one, answer in zip(batch, answers, strict=True):
            expected = self.model.add(*one)
            if isinstance(answer, Appended):
                assert (
                    answer.first_seq,
                    answer.cursor,
                    answer.epoch,
                    answer.count,
                    answer.replayed,
                ) == expected
            else:
                assert type(answer) is expected

    @staticmethod
    def request(
        conversation: str,
        records: list[tuple[str | None, str]],
        append_id: str | None,
        follows: str | None,
        epoch: int | None,
        cursor: int | None,
    ) -> Append:
        new = [
            NewRecord(None, mark={"m": text})
            if role is None
            else NewRecord({"role": role, "content": text})
            for role, text in records
        ]
        return Append(
            conversation,
            new,
            append_id=append_id,
            follows=follows,
            epoch=epoch,
            cursor=cursor,
            counter=CharacterCounter(),
        )

    @rule(conversation=IDS)
    def clear(self, conversation: str) -> None:
        self.engine.commit([Clear(conversation)])
        self.model.clear(conversation)

    @precondition(lambda self: self.disk)
    @rule(
        point=st.sampled_from(
            ["store.commit.begin", "store.commit.planned", "store.commit.before_flush"]
        ),
        batch=requests,
    )
    def crash_before_the_commit(self, point: str, batch: list[Any]) -> None:
        with failpoints.active({point: failpoints.raise_error}):
            try:
                self.engine.commit([self.request(*one) for one in batch])
            except failpoints.FailpointError:
                pass
        self.reopen()

    @precondition(lambda self: self.disk)
    @rule(batch=requests)
    def full_disk(self, batch: list[Any]) -> None:
        def full() -> None:
            raise OSError(errno.ENOSPC, "full")

        with failpoints.active({"store.commit.before_flush": full}):
            try:
                self.engine.commit([self.request(*one) for one in batch])
            except DiskFull:
                return
        for one in batch:  # nothing was to be written: the answers stand
            self.model.add(*one)

    @precondition(lambda self: self.disk)
    @rule(batch=requests, point=st.sampled_from(["store.commit.after_flush", "store.publish"]))
    def crash_after_the_commit(self, batch: list[Any], point: str) -> None:
        with failpoints.active({point: failpoints.raise_error}):
            try:
                self.engine.commit([self.request(*one) for one in batch])
            except failpoints.FailpointError:
                pass
        for one in batch:
            self.model.add(*one)
        self.reopen()

    @precondition(lambda self: self.disk)
    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.engine = self.open()

    @rule()
    def settle(self) -> None:
        self.engine.settle()

    @rule(hours=st.integers(0, 1))
    def sweep(self, hours: int) -> None:
        for _ in range(50):
            if not self.engine.maintain():
                break
        if hours and not any(self.model.epochs.values()):
            self.wall += 3601

    @rule(conversation=IDS)
    def take_a_log(self, conversation: str) -> None:
        log = LazyLog.of(self.engine, lambda: self.engine, conversation, None, None, False)
        texts = [text for role, text in self.model.logs.get(conversation, []) if role]
        self.logs.append((log, conversation, self.model.epochs.get(conversation, 0), texts))

    @rule(conversation=IDS, last=st.none() | st.integers(0, 8), after=st.none() | st.integers(0, 9))
    def look(self, conversation: str, last: int | None, after: int | None) -> None:
        log = self.model.logs.get(conversation, [])
        said = [(seq, text) for seq, (role, text) in enumerate(log, 1) if role]
        kept = [(seq, text) for seq, text in said if seq > (after or 0)]
        kept = kept if last is None else kept[len(kept) - min(last, len(kept)) :]
        assert [m.content for m in self.engine.get(conversation, last, after)] == [
            text for _, text in kept
        ]
        lazy = LazyLog.of(self.engine, lambda: self.engine, conversation, last, after, False)
        assert [(r.seq, r.message.content) for r in reversed(lazy)] == kept[::-1]
        assert [r.seq for r in lazy.systems()] == [
            seq for seq, _ in kept if log[seq - 1][0] == "system"
        ]
        everything = LazyLog.of(self.engine, lambda: self.engine, conversation, None, after, True)
        assert [r.seq for r in everything] == list(range((after or 0) + 1, len(log) + 1))

    @rule(conversation=IDS, budget=st.integers(0, 300))
    def look_at_the_tail(self, conversation: str, budget: int) -> None:
        said = [text for role, text in self.model.logs.get(conversation, []) if role]
        kept: list[str] = []
        while said and sum(map(len, kept)) + len(said[-1]) <= budget:
            kept.insert(0, said.pop())
        tail = self.engine.tail_within(conversation, budget)
        assert [m.content for m in tail.messages] == kept
        assert tail.elided == len(said)

    @invariant()
    def logs_stay_as_they_were(self) -> None:
        for log, conversation, epoch, texts in getattr(self, "logs", ())[-3:]:
            if self.model.epochs.get(conversation, 0) == epoch:
                assert [r.message.content for r in log if r.message] == texts
            else:
                try:
                    list(log[0:1])
                except StaleEpoch:
                    continue
                raise AssertionError("a log outlived its epoch")

    @invariant()
    def listing_and_counts_agree(self) -> None:
        if not hasattr(self, "engine"):
            return
        listed = {info.conversation_id: info for info in self.engine.conversations(limit=1000)}
        full = {name: log for name, log in self.model.logs.items() if log}
        assert listed.keys() == full.keys()
        for name, log in full.items():
            said = [text for role, text in log if role]
            assert (listed[name].cursor, listed[name].count, listed[name].tokens) == (
                len(log),
                len(said),
                sum(map(len, said)),
            )
            assert self.engine.info(name) == listed[name]


class MemoryMachine(StoreMachine):
    disk = False


STEPS = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_disk_engine_against_the_model() -> None:
    run_state_machine_as_test(StoreMachine, settings=STEPS)  # type: ignore[no-untyped-call]  # hypothesis has no types here


def test_memory_engine_against_the_model() -> None:
    run_state_machine_as_test(MemoryMachine, settings=STEPS)  # type: ignore[no-untyped-call]  # as above


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**300), 2**300)
    | st.floats()
    | st.text(st.characters(codec=None))
    | st.binary()
    | st.datetimes()
    | st.datetimes(timezones=st.timezones()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec=None), max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_values_round_trip_cs12(value: Any) -> None:
    frozen = freeze(value)
    again = decode(encode(frozen))
    assert encode(again) == encode(frozen)
    assert repr(thaw(again)) == repr(thaw(frozen))
    assert (
        thaw(frozen) == value
        or repr(thaw(frozen)) == repr(value)
        or "nan" in repr(value)
        or "datetime" in repr(value)
    )


@given(PLAIN, st.sampled_from(["system", "user"]), st.none() | st.text(), st.none() | st.text())
def test_records_round_trip_cs12(
    extra: Any, role: str, content: str | None, turn: str | None
) -> None:
    message = Message(role, content, note=extra)
    mark = None if extra is None else freeze({"value": extra})
    assert repr(decode_body(encode_body(message, turn, mark))) == repr((message, turn, mark))


@given(st.binary(max_size=60))
def test_damaged_bytes_end_in_value_error(data: bytes) -> None:
    for read in (decode, decode_body):
        try:
            read(data)
        except ValueError:
            pass


@given(st.binary(max_size=30), st.integers(0, 500), st.integers(0, 255))
def test_one_changed_byte_ends_in_value_error_or_a_value(
    tail: bytes, place: int, byte: int
) -> None:
    body = bytearray(
        encode_body(
            Message(
                "assistant",
                "hello",
                [{"id": "c", "name": "n", "arguments": {"a": [1, 2.5, None, tail]}}],
                note={"x": tail},
            ),
            "turn",
            freeze({"m": 1}),
        )
    )
    body[place % len(body)] = byte
    try:
        decode_body(bytes(body))
    except ValueError:
        pass


def test_numbers_of_rows_have_room() -> None:
    assert MAX_SEQ >= 4_000_000_000
    assert user("x")["role"] == "user"
