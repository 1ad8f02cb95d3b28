"""The index of open turns says what the logs say, at every moment and after any end (FL-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwell.actors import failpoint
from keepwell.actors.errors import InvalidValue
from keepwell.cli import main
from keepwell.stores import disk_engine
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.engine import Engine
from keepwell.stores.errors import DamagedStore, OlderFormat
from keepwell.stores.memory_engine import MemoryEngine
from keepwell.stores.record import NewRecord
from keepwell.stores.request import Append, Clear
from keepwell.stores.verify import check, verify

LONG = "long/" + "x" * 300  # its key is cut and hashed
IDS = ("a", "ab", "ä", LONG, "z")

OPEN, DONE, BESIDE = "open", "done", "beside"


def record(kind: str, turn_id: str = "t") -> NewRecord:
    if kind == BESIDE:  # of no turn: a message added between turns
        return NewRecord({"role": "user", "content": "beside"})
    return NewRecord(
        {"role": "assistant", "content": kind},
        turn_id,
        {"ended": "completed"} if kind == DONE else {},
    )


def expected(engine: Engine) -> list[str]:
    """By the slow way: the newest record of a turn in each log."""
    found = []
    for info in engine.conversations(limit=1000):
        log = engine.span(info.conversation_id, info.epoch, 1, info.cursor)
        of_turns = [one for one in log if one.turn_id is not None]
        if of_turns and "ended" not in (of_turns[-1].mark or {}):
            found.append(info.conversation_id)
    return found


def paged(engine: Engine, limit: int = 1000) -> list[str]:
    found: list[str] = []
    while page := engine.open_turns(found[-1] if found else None, limit):
        found += page
    return found


@pytest.fixture(params=["memory", "disk"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    made: Engine = MemoryEngine() if request.param == "memory" else DiskEngine(tmp_path)
    yield made
    made.close()


def test_fl_3_a_turn_is_open_until_a_record_of_it_ends_it(engine: Engine) -> None:
    def after(*kinds: str, cid: str = "c") -> bool:
        engine.commit([Append(cid, [record(kind) for kind in kinds])])
        return cid in engine.open_turns()

    assert not after(BESIDE)
    assert after(OPEN)
    assert after(BESIDE)  # whatever is added beside it
    assert not after(OPEN, DONE)
    assert not after(BESIDE, BESIDE)
    assert after(DONE, OPEN, BESIDE)  # the next turn, or the same one resumed
    engine.commit([Clear("c")])
    assert engine.open_turns() == ()
    assert after(OPEN)


def test_fl_3_pages_neither_skip_nor_repeat(engine: Engine) -> None:
    ids = [f"c{number:03}" for number in range(50)]
    for number, cid in enumerate(ids):
        engine.commit([Append(cid, [record(OPEN if number % 3 else DONE)])])
    engine.settle()
    for cid in ids[::5]:  # some in the table and waiting, too
        engine.commit([Append(cid, [record(OPEN)])])
    for limit in (1, 7, 1000):
        assert paged(engine, limit) == expected(engine)
    with pytest.raises(InvalidValue, match="limit"):
        engine.open_turns(limit=0)


Step = tuple[str, Any]

steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(IDS), st.lists(st.sampled_from([OPEN, DONE, BESIDE]), max_size=3)
        ),
        st.tuples(st.sampled_from(IDS), st.just("clear")),
        st.tuples(st.just("settle"), st.none()),
        st.tuples(st.just("crash"), st.sampled_from(["store.commit.planned", "store.move.end"])),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=20,
)


@given(steps)
@settings(max_examples=25, deadline=None)
def test_fl_3_the_index_is_what_the_logs_say(tmp_path_factory: Any, taken: list[Step]) -> None:
    path = tmp_path_factory.mktemp("turns")
    engine: DiskEngine = DiskEngine(path)
    try:
        for what, how in taken:
            if what == "settle":
                engine.settle()
            elif what == "reopen":
                engine.close()
                engine = DiskEngine(path)
            elif what == "crash":
                with failpoint.active({how: failpoint.raise_error}):
                    try:
                        engine.commit([Append("a", [record(OPEN)])])
                        engine.settle()
                    except failpoint.FailpointError:
                        engine.close()
                        engine = DiskEngine(path)
            else:
                request: Any = (
                    Clear(what) if how == "clear" else Append(what, [record(k) for k in how])
                )
                engine.commit([request])
            assert paged(engine, 2) == expected(engine)
        check(engine)
        assert paged(engine) == expected(engine)
    finally:
        engine.close()


def test_fl_3_finding_them_costs_in_proportion_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among many conversations only those with an open turn are looked at."""
    engine = DiskEngine(tmp_path)
    engine.commit([Append(f"c{n:05}", [record(DONE)]) for n in range(3000)])
    engine.commit([Append(f"c{n:05}", [record(OPEN)]) for n in (5, 2900)])
    engine.settle()
    engine.close()
    engine = DiskEngine(tmp_path)

    def never(*_: object) -> Any:
        raise AssertionError("it looked at the conversations")

    monkeypatch.setattr(engine, "_page", never)
    monkeypatch.setattr(engine, "_load", never)
    assert engine.open_turns() == ("c00005", "c02900")
    engine.close()


def _make_old(path: Path) -> None:
    """What an engine of format 1 has left: no index."""
    with lmdb.open(str(path), max_dbs=64) as env, env.begin(write=True) as txn:
        txn.put(b"format", b"1", db=env.open_db(b"meta", txn=txn))
        txn.drop(env.open_db(b"turns", txn=txn), delete=True)


@pytest.mark.parametrize("settled", [True, False], ids=["moved", "waiting"])
def test_fl_3_an_older_store_gets_its_index_when_it_is_opened(
    tmp_path: Path, settled: bool
) -> None:
    engine = DiskEngine(tmp_path)
    logs = {
        "open": [OPEN], "done": [OPEN, DONE], "beside": [BESIDE], "done, beside": [DONE, BESIDE],
        LONG: [DONE, OPEN, BESIDE, BESIDE],
    }  # fmt: skip
    for cid, kinds in logs.items():
        engine.commit([Append(cid, [record(kind) for kind in kinds])])
    engine.commit([Append("cleared", [record(OPEN)]), Clear("cleared")])
    if settled:
        engine.settle()
    engine.close()
    _make_old(tmp_path)
    crash = failpoint.active({"store.migrate": failpoint.raise_error})
    with crash, pytest.raises(failpoint.FailpointError):
        DiskEngine(tmp_path)
    engine = DiskEngine(tmp_path)
    assert paged(engine) == expected(engine) == [LONG, "open"]
    check(engine)
    engine.close()
    engine = DiskEngine(tmp_path, readonly=True)
    assert paged(engine) == [LONG, "open"]
    engine.close()


def test_ds_6_an_older_store_is_copied_as_it_is(tmp_path: Path) -> None:
    """A backup is made before an upgrade, and restored by whatever version is there."""
    engine = DiskEngine(tmp_path / "data")
    engine.commit([Append("open", [record(OPEN)])])
    engine.settle()
    engine.close()
    _make_old(tmp_path / "data")
    data, saved, copy = (str(tmp_path / name) for name in ("data", "saved", "copy"))
    assert main(["store", "backup", data, saved]) == 0
    assert main(["store", "restore", copy, saved]) == 0
    for path in (data, saved, copy):
        with pytest.raises(OlderFormat, match="old format 1"):
            DiskEngine(path, readonly=True)
    engine = DiskEngine(copy)
    assert paged(engine) == ["open"]
    check(engine)
    engine.close()


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda txn, table: txn.delete(b"open", db=table), "is ended"),
        (lambda txn, table: txn.put(b"done", b"done", db=table), "is open"),
        (lambda txn, table: txn.put(b"none", b"none", db=table), "the store has not"),
    ],
    ids=["lacks one", "has one too many", "has one of no conversation"],
)
def test_fl_3_verify_finds_an_index_that_lies(
    tmp_path: Path, spoil: Callable[[Any, Any], object], problem: str
) -> None:
    engine = DiskEngine(tmp_path)
    engine.commit([Append("open", [record(OPEN)]), Append("done", [record(DONE)])])
    engine.settle()
    assert verify(engine).problems == []
    engine.environment.write(lambda txn: bool(spoil(txn, engine.tables.turns)))
    with pytest.raises(DamagedStore, match=problem):
        check(engine)
    engine.close()


def test_the_format_says_that_there_is_an_index() -> None:
    assert disk_engine.FORMAT >= 2 and 1 in disk_engine.MIGRATIONS
