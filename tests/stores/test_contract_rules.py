"""Rules of conversation stores that the suite for every backend cannot see from outside.

The suite itself (`keepwell.testing.store_contract`, run by `test_contract`) shows CS-1…10, CS-12…20
and CS-23, each by the tests whose names end in the rule. Here are what lies below the surface of
CS-6, CS-9 and CS-16, and CS-11, CS-15a under a full disk, CS-21, CS-22.
"""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.errors import RequestError
from keepwell.stores import (
    DiskFull,
    InvalidMessage,
    Message,
    PredecessorMissing,
    SimpleStore,
    StaleEpoch,
)
from keepwell.stores import disk_engine as module
from keepwell.stores.contract import ALL, TOKENS
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.environment import Environment, Transaction
from keepwell.stores.request import Append, Clear
from keepwell.testing.store_contract import CharacterCounter, user, users

from .test_contract import AsyncLists, Lists

ROOT = Path(__file__).parents[2]


class Counting:
    """A transaction that counts what is asked of it."""

    def __init__(self, txn: Transaction, counts: dict[str, int]) -> None:
        self._txn, self._counts = txn, counts

    def __getattr__(self, name: str) -> Any:
        self._counts[name] = self._counts.get(name, 0) + 1
        return getattr(self._txn, name)


def counted(engine: DiskEngine, monkeypatch: pytest.MonkeyPatch,
            act: Callable[[], object]) -> dict[str, int]:
    """How often each method of the write transactions is used while `act` runs."""
    counts: dict[str, int] = {}
    write = Environment.write
    with monkeypatch.context() as patch:
        patch.setattr(Environment, "write", lambda self, work: write(
            self, lambda txn: work(Counting(txn, counts))))
        act()
    return counts


def test_an_append_does_as_much_in_a_long_conversation_cs21(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CS-21: counted, since time on a busy machine proves nothing; see `python -m benchmarks`."""
    engine = DiskEngine(tmp_path, durability="process", cache_bytes=0)
    monkeypatch.setattr(module, "MOVE_BATCHES", 0)
    engine.commit([Append("short", users("x"), append_id="0")])
    for number in range(20):
        engine.commit([Append("long", users(*map(str, range(1000))), append_id=f"b{number}")])
    costs = [counted(engine, monkeypatch,
                     lambda name=name: engine.commit([Append(name, users("y"), append_id="k")]))
             for name in ("short", "long")]
    assert costs[0] == costs[1]
    assert costs[0]["put"] > 0
    engine.close()


def test_the_last_messages_cost_what_they_are_cs21(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CS-21, CS-20: a tail reads only what it returns, whatever lies before it."""
    engine = DiskEngine(tmp_path, durability="process", cache_bytes=0)
    monkeypatch.setattr(module, "MOVE_BATCHES", 0)
    for name, batches in (("short", 1), ("long", 20)):
        for _ in range(batches):
            engine.commit([Append(name, users(*map(str, range(200))), counter=CharacterCounter())])
    touched: list[int] = []
    rows = DiskEngine._rows

    def counting(self: DiskEngine, *args: Any) -> Any:
        found = rows(self, *args)
        touched.append(len(found[0]))
        return found

    monkeypatch.setattr(DiskEngine, "_rows", counting)
    reads: list[Callable[[str], object]] = [
        lambda name: engine.get(name, last=50), lambda name: engine.tail_within(name, 30),
        lambda name: engine.get(name, after=engine.info(name).cursor - 50)]
    for read in reads:
        costs = []
        for name in ("short", "long"):
            engine._known.clear()
            touched.clear()
            read(name)
            costs.append(sum(touched))
        assert 0 < costs[0] == costs[1] <= 50
    engine.close()


def test_a_clear_is_instant_and_swept_in_bounded_steps_cs6(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CS-6: no more is done for 20,000 records than for one; the rest follows, step by step."""
    engine = DiskEngine(tmp_path, durability="process")
    engine.commit([Append("short", users("x"))])
    for _ in range(20):
        engine.commit([Append("long", users(*map(str, range(1000))))])
    engine.settle()
    costs = [counted(engine, monkeypatch, lambda name=name: engine.commit([Clear(name)]))
             for name in ("short", "long")]
    assert costs[0] == costs[1]
    assert engine.get("long") == ()
    engine.settle()
    steps = 1
    while engine.maintain():
        steps += 1
    assert 20_000 / module.SWEEP_STEP <= steps <= 30_000 / module.SWEEP_STEP
    with engine.environment.read() as txn:
        assert txn.stat(engine.tables.rows)["entries"] == 0
    engine.close()


def test_long_ids_are_kept_whole_beside_their_hash_cs9(tmp_path: Path) -> None:
    """CS-9: ids of 201, 511, 512 and 60,000 bytes that differ in the last character only."""
    ids = sorted("é" * (size // 2) + "x" * (size % 2) + last
                 for size in (200, 510, 511, 59_999) for last in "ab")
    engine = DiskEngine(tmp_path, durability="process")
    for name in ids:
        engine.commit([Append(name, users(name[-1]), append_id="k")])
    for _ in range(2):
        assert sorted(info.conversation_id for info in engine.conversations()) == ids
        assert [engine.get(name)[0].content for name in ids] == [name[-1] for name in ids]
        engine.settle()
    engine.close()
    engine = DiskEngine(tmp_path, readonly=True)
    assert sorted(info.conversation_id for info in engine.conversations()) == ids
    engine.close()


def test_append_ids_go_an_hour_after_the_clear_cs16(tmp_path: Path) -> None:
    """CS-16: until then a late retry without epoch writes nothing; afterwards it is new."""
    now = [1_000_000.0]
    engine = DiskEngine(tmp_path, durability="process", wall=lambda: now[0])
    (first,) = engine.commit([Append("c", users("x"), append_id="k")])
    engine.commit([Clear("c")])
    engine.settle()
    for later in (0.0, 3599.0):
        now[0] = 1_000_000.0 + later
        while engine.maintain():
            pass
        (late,) = engine.commit([Append("c", users("x"), append_id="k")])
        assert (late.first_seq, late.epoch, late.replayed) == (first.first_seq, 0, True)
        assert engine.get("c") == ()
    now[0] += 2.0
    while engine.maintain():
        pass
    (new,) = engine.commit([Append("c", users("x"), append_id="k")])
    assert (new.first_seq, new.epoch, new.replayed) == (1, 1, False)
    engine.close()


def test_what_follows_a_refused_append_is_refused_cs15a(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CS-15a: k finds no room, k+1 would fit and is refused all the same, k again stores both."""
    engine = DiskEngine(tmp_path, durability="process")
    engine.commit([Append("c", users("0"), append_id="0")])
    with monkeypatch.context() as patch:
        def full(self: Environment, work: object) -> bool:
            raise DiskFull(self.path)

        patch.setattr(Environment, "write", full)
        with pytest.raises(DiskFull):
            engine.commit([Append("c", users("1"), append_id="1", follows="0")])
    (refused,) = engine.commit([Append("c", users("2"), append_id="2", follows="1")])
    assert isinstance(refused, PredecessorMissing)
    assert [message.content for message in engine.get("c")] == ["0"]
    done = engine.commit([Append("c", users("1"), append_id="1", follows="0"),
                          Append("c", users("2"), append_id="2", follows="1")])
    assert [answer.cursor for answer in done] == [2, 3]
    engine.close()


@pytest.mark.parametrize(("message", "path"), [
    ({"role": "developer", "content": "x"}, "role"), ({"content": "x"}, "role"),
    ({"role": "user", "content": 1}, "content"),
    ({"role": "user", "content": ["x"]}, r"content\[0\]"),
    ({"role": "user", "content": [{"text": "x"}]}, r"content\[0\]"),
    ({"role": "user", "content": "x", "tool_calls": [{"id": "1", "name": "f", "arguments": {}}]},
     "tool_calls"),
    ({"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "f"}]},
     r"tool_calls\[0\]"),
    ({"role": "assistant", "content": None,
      "tool_calls": [{"id": "1", "name": "f", "arguments": 5}]}, r"tool_calls\[0\]\.arguments"),
    ({"role": "tool", "content": "x"}, "tool_call_id"),
    ({"role": "user", "content": "x", "tool_call_id": "1"}, "tool_call_id")])
def test_the_shape_of_a_message_is_checked_cs11(message: dict[str, Any], path: str) -> None:
    """CS-11: refused with index and path; what is nearly plain is checked all the same."""
    with pytest.raises(InvalidMessage, match=path):
        Append("c", [user("fine"), message])


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_the_short_way_of_plain_messages_is_the_long_one_cs11(role: str) -> None:
    """CS-11: a mapping of role and text alone is checked in fewer steps, with the same result."""

    class Text(str):
        __slots__ = ()

    short = Message.from_dict({"role": role, "content": "x"})
    assert short == Message(role, "x")
    for odd in ({"role": Text(role), "content": "x"}, {"role": role, "content": Text("x")}):
        long = Message.from_dict(odd)
        assert long == short
        assert type(long.role) is type(long.content) is str


@pytest.mark.parametrize("kind", [Lists, AsyncLists])
async def test_a_simple_store_names_what_it_cannot_promise_cs22(kind: type[Lists]) -> None:
    """CS-22: append ids are taken and promise nothing; epochs, cursors and listing are refused."""
    store = SimpleStore(kind())
    assert store.capabilities == {TOKENS} < ALL
    for _ in range(2):
        await store.add("c", users("x"), append_id="k")
    assert len(await store.get("c")) == 2
    refused: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.add("c", users("y"), cursor=1), store.conversations]
    for call in refused:
        with pytest.raises(RequestError, match="cannot"):
            await call()
    assert len(await store.get("c")) == 2


async def test_a_refused_request_is_never_stored_rw3(disk_store: Any) -> None:
    """RW-3: a RequestError means not stored, then and later; the same id may be used again."""
    await disk_store.clear("c")
    with pytest.raises(StaleEpoch):
        await disk_store.add("c", users("x"), append_id="k", epoch=0)
    assert await disk_store.get("c") == ()
    assert not (await disk_store.add("c", users("x"), append_id="k", epoch=1)).replayed


def test_every_rule_of_a_store_has_a_test() -> None:
    """Of the contract's parts on stores and handles: each id is cited by a test or by the suite."""
    contract = (ROOT / "docs" / "contracts" / "memory.md").read_text()
    rules = re.findall(r"^\| ((?:CS|SH|MS|DS|RW)-\d+a?) \|", contract, re.MULTILINE)
    assert len(rules) > 40
    texts = [path.read_text() for path in sorted((ROOT / "tests" / "stores").glob("test_*.py"))]
    texts.append((ROOT / "keepwell" / "testing" / "store_contract.py").read_text())
    cited: set[str] = set()
    for text in texts:
        for letters, digits in re.findall(r"(?i)(?<![a-z])(cs|sh|ms|ds|rw)-?(\d+a?)(?![0-9a-z])",
                                          text):
            cited.add(f"{letters.upper()}-{digits}")
    assert [rule for rule in rules if rule not in cited] == []
