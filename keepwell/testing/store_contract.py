"""The suite that every conversation store passes (contract CS).

    class TestMyStore(StoreContract):
        @pytest.fixture
        async def store(self):
            store = MyStore()
            yield store
            await store.close()

The store needs a counter that counts the characters of a text content: `CharacterCounter`. What it
does not name in `capabilities` is skipped. Needs pytest and pytest-asyncio (`asyncio_mode = auto`).
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from ..actors.errors import InvalidValue
from ..stores.contract import (
    APPEND_IDS,
    CURSORS,
    EPOCHS,
    LAZY_READS,
    LISTING,
    MARKS,
    TOKENS,
)
from ..stores.errors import (
    AppendConflict,
    CursorConflict,
    InvalidConversationId,
    InvalidMessage,
    PredecessorMissing,
    StaleEpoch,
)
from ..stores.message import Message
from ..stores.record import NewRecord


class CharacterCounter:
    """Counts a token a character of text contents: for tests."""

    name = "characters"

    def count_message(self, message: Message) -> int:
        """The length of the content."""
        return self.count_text(message.text)

    def count_text(self, text: str) -> int:
        """The length."""
        return len(text)


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


def users(*texts: str) -> list[dict[str, Any]]:
    """User messages."""
    return [user(text) for text in texts]


def needs(store: Any, *capabilities: str) -> None:
    """Skip the test unless the store promises all of these."""
    missing = set(capabilities) - store.capabilities
    if missing:
        pytest.skip(f"this store does not promise {', '.join(sorted(missing))}")


async def texts(store: Any, conversation_id: str = "c", **how: Any) -> list[Any]:
    """The contents of a conversation."""
    return [message.content for message in await store.get(conversation_id, **how)]


ODD_IDS = ["a", "A", "a\0", "ab", "a/../b", "../x", "é", "e\u0301", " ", "\0", "\U0001f600", "a ",
           "x" * 200, "x" * 201, "x" * 200 + "y", "x" * 511, "x" * 512, "y" * 60_000,
           "y" * 59_999 + "z", "é" * 101, "é" * 100 + "e\u0301"]

BAD_IDS = ["", b"bytes", 5, None, "\ud800", "a\udfff", "x" * 65_537, ["a"], True]

LOSSLESS: list[dict[str, Any]] = [
    {"role": "user", "content": None},
    {"role": "user", "content": ""},
    {"role": "user", "content": []},
    {"role": "user", "content": "a\ud83d"},
    {"role": "system", "content": "be brief", "cache_control": {"type": "ephemeral"}},
    {"role": "user", "content": [{"type": "text", "text": "see"},
                                 {"type": "image", "data": b"\x00\xff\xfe", "size": [3, 4]}]},
    {"role": "assistant", "content": "beside", "tool_calls": [
        {"id": "c1", "name": "add", "arguments": {"a": 1, "b": {"c": [None, True, 1.5]}}},
        {"id": "c1", "name": "run", "arguments": '{"cmd": "ec'}]},
    {"role": "assistant", "content": None, "reasoning": [{"type": "thinking", "signature": "s=="}]},
    {"role": "tool", "content": "3", "tool_call_id": "c1", "is_error": False},
    {"role": "user", "content": "n", "ints": [0, -1, 2**63, 2**64, -(2**200), 10**100]},
    {"role": "user", "content": "f", "floats": [math.inf, -math.inf, 1e-310, -0.0]},
    {"role": "user", "content": "d", "when": [
        datetime(2026, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001 - naive ones round-trip as such
        datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
        datetime.min, datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]},  # noqa: DTZ901 - as above
    {"role": "user", "content": "", "": {"": ""}, "nul\0": "\0", "deep": {"a": {"b": {"c": []}}}},
]

BAD_MESSAGES: list[Any] = [
    {"role": "robot", "content": "x"}, {"content": "x"}, {"role": "user", "content": 5},
    {"role": "user", "content": [{"text": "no type"}]}, {"role": "tool", "content": "x"},
    {"role": "user", "content": "x", "tool_calls": [{"id": "1", "name": "n", "arguments": {}}]},
    {"role": "assistant", "tool_calls": [{"id": "1", "name": "n"}]},
    {"role": "user", "content": "x", "v": {1, 2}},
    {"role": "user", "content": "x", "v": Decimal(1)},
    {"role": "user", "content": "x", "v": {1: "int key"}},
    {"role": "user", "content": "x", "v": object()},
    "text", 5, None, ["role", "user"],
]


class StoreContract:
    """Tests of one store, given by the fixture `store`. Rules: CS-1…20, CS-23."""

    # -- reading and appending --------------------------------------------------------------------

    async def test_unknown_conversation_cs1(self, store: Any) -> None:
        assert await store.get("c") == ()
        info = await store.info("c")
        assert (info.count, info.cursor, info.exists) == (0, 0, False)
        assert len(await store.read("c")) == 0
        if LISTING in store.capabilities:
            assert list(await store.conversations()) == []

    async def test_log_order_and_result_cs1_cs4(self, store: Any) -> None:
        first = await store.add("c", users("1", "2"))
        second = await store.add("c", users("3"))
        assert (first.first_seq, first.cursor, first.count, first.replayed) == (1, 2, 2, False)
        assert (second.first_seq, second.cursor, second.count) == (3, 3, 1)
        assert await texts(store) == ["1", "2", "3"]
        assert isinstance(await store.get("c"), tuple)
        assert (await store.info("c")).count == 3

    async def test_equal_messages_are_stored_twice_cs4(self, store: Any) -> None:
        await store.add("c", users("same"))
        await store.add("c", users("same"))
        assert await texts(store) == ["same", "same"]

    @pytest.mark.parametrize("prefix", ["", "d"])
    async def test_last_and_after_cs2_cs3(self, store: Any, prefix: str) -> None:
        for i in range(1, 8):
            await store.add("c" + prefix, users(str(i)))
        everything = [str(i) for i in range(1, 8)]
        for last in (0, 1, 3, 7, 8, 10**9):
            for after in (None, 0, 2, 6, 7, 100):
                expected = everything[after or 0:]
                expected = expected[len(expected) - min(last, len(expected)):]
                assert await texts(store, "c" + prefix, last=last, after=after) == expected

    @pytest.mark.parametrize("bad", [-1, True, 1.0, "1", 2.5])
    async def test_bad_ranges_are_refused_cs2(self, store: Any, bad: Any) -> None:
        for how in ({"last": bad}, {"after": bad}):
            for call in (store.get, store.read):
                with pytest.raises(InvalidValue):
                    await call("c", **how)

    async def test_empty_batch_writes_nothing_cs5(self, store: Any) -> None:
        appended = await store.add("c", [])
        assert (appended.count, appended.cursor) == (0, 0)
        assert not (await store.info("c")).exists
        await store.add("c", users("1"))
        appended = await store.add("c", iter(()))
        assert (appended.count, appended.cursor) == (0, 1)

    async def test_empty_batch_checks_conditions_cs5(self, store: Any) -> None:
        needs(store, EPOCHS, CURSORS)
        await store.add("c", users("1"))
        with pytest.raises(CursorConflict):
            await store.add("c", [], cursor=0)
        with pytest.raises(StaleEpoch):
            await store.add("c", [], epoch=(await store.info("c")).epoch + 1)

    async def test_batches_never_interleave_cs4(self, store: Any) -> None:
        async def writer(name: str) -> None:
            for i in range(10):
                await store.add("c", users(*(f"{name}/{i}/{j}" for j in range(3))))

        await asyncio.gather(*(writer(name) for name in "abcd"))
        got = await texts(store)
        assert len(got) == 120
        for start in range(0, 120, 3):
            name, i, _ = got[start].split("/")
            assert got[start:start + 3] == [f"{name}/{i}/{j}" for j in range(3)]
        for name in "abcd":
            mine = [text for text in got if text.startswith(name)]
            assert mine == [f"{name}/{i}/{j}" for i in range(10) for j in range(3)]

    # -- clear ------------------------------------------------------------------------------------

    async def test_clear_cs6(self, store: Any) -> None:
        await store.add("c", users("1", "2"))
        await store.add("d", users("other"))
        await store.clear("c")
        assert await store.get("c") == ()
        assert not (await store.info("c")).exists
        assert (await store.add("c", users("new"))).first_seq == 1
        assert await texts(store) == ["new"]
        assert await texts(store, "d") == ["other"]

    async def test_clear_raises_the_epoch_even_of_nothing_cs6_cs17(self, store: Any) -> None:
        needs(store, EPOCHS)
        for conversation_id in ("unknown", "empty", "empty", "full"):
            if conversation_id == "full":
                await store.add("full", users("1"))
            before = (await store.info(conversation_id)).epoch
            await store.clear(conversation_id)
            assert (await store.info(conversation_id)).epoch > before
            with pytest.raises(StaleEpoch) as refusal:
                await store.add(conversation_id, users("late"), epoch=before)
            assert refusal.value.given == before
            assert await store.get(conversation_id) == ()
        if LISTING in store.capabilities:
            assert list(await store.conversations()) == []

    # -- ids --------------------------------------------------------------------------------------

    async def test_ids_isolate_cs7_cs9(self, store: Any) -> None:
        for place, conversation_id in enumerate(ODD_IDS):
            await store.add(conversation_id, users(f"of {place}"))
        for place, conversation_id in enumerate(ODD_IDS):
            assert await texts(store, conversation_id) == [f"of {place}"], conversation_id[:20]
        if LISTING in store.capabilities:
            listed = [info.conversation_id for info in await store.conversations(limit=1000)]
            assert sorted(listed) == sorted(ODD_IDS)
        await store.clear("x" * 512)
        assert await texts(store, "x" * 511) == ["of 15"]

    @pytest.mark.parametrize("bad", BAD_IDS, ids=lambda bad: repr(bad)[:20])
    async def test_bad_ids_are_refused_cs8(self, store: Any, bad: Any) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: store.get(bad), lambda: store.read(bad), lambda: store.add(bad, users("x")),
            lambda: store.clear(bad), lambda: store.tail_within(bad, 5), lambda: store.info(bad)]
        for call in calls:
            with pytest.raises(InvalidConversationId):
                await call()

    # -- messages ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("given", LOSSLESS, ids=lambda given: repr(given)[:40])
    async def test_lossless_cs12(self, store: Any, given: dict[str, Any]) -> None:
        await store.add("c", [copy.deepcopy(given)])
        got = (await store.get("c"))[0].to_dict()
        assert got == given
        assert repr(got) == repr({"role": given["role"], **{k: got[k] for k in got if k != "role"}})
        for key, value in given.items():
            assert type(got[key]) is type(value)

    async def test_nan_tuples_and_bytearrays_cs12(self, store: Any) -> None:
        await store.add("c", [{"role": "user", "content": "x", "nan": math.nan,
                               "pair": (1, (2,)), "raw": bytearray(b"\x00")}])
        got = (await store.get("c"))[0].to_dict()
        assert math.isnan(got["nan"])
        assert (got["pair"], got["raw"]) == ([1, [2]], b"\x00")

    async def test_any_iterable_of_messages_or_mappings_cs10(self, store: Any) -> None:
        await store.add("c", (m for m in [user("1"), Message("assistant", "2")]))
        assert [m.role for m in await store.get("c")] == ["user", "assistant"]
        for bad in ("text", user("one"), None, 5, Message("user", "x")):
            with pytest.raises(InvalidMessage):
                await store.add("c", bad)
        assert len(await store.get("c")) == 2

    @pytest.mark.parametrize("bad", BAD_MESSAGES, ids=lambda bad: repr(bad)[:40])
    async def test_one_bad_message_refuses_its_batch_only_cs10_cs13(self, store: Any,
                                                                    bad: Any) -> None:
        good = asyncio.gather(store.add("d", users("beside")), store.add("e", users("beside")))
        with pytest.raises(InvalidMessage) as refusal:
            await store.add("c", [user("fine"), bad, user("fine")])
        assert refusal.value.index == 1
        await good
        assert await store.get("c") == ()
        assert (await store.add("c", users("next"))).first_seq == 1

    async def test_a_large_message_passes_and_one_too_large_does_not_cs13(self, store: Any) -> None:
        await store.add("c", users("x" * 3_000_000))
        assert len((await store.get("c"))[0].content) == 3_000_000
        if hasattr(store, "port"):
            with pytest.raises(InvalidMessage, match="max_message_bytes"):
                await store.add("c", users("x" * (17 << 20)))
        assert len(await store.get("c")) == 1

    async def test_no_aliasing_cs14(self, store: Any) -> None:
        message: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "x"}],
                                   "extra_list": [1]}
        await store.add("c", [message])
        message["content"][0]["text"] = "changed"
        message["extra_list"].append(2)
        (got,) = await store.get("c")
        got.to_dict()["extra_list"].append(3)
        with pytest.raises((TypeError, AttributeError)):
            got.extra["extra_list"].append(4)
        with pytest.raises((TypeError, AttributeError)):
            got.role = "system"
        assert (await store.get("c"))[0].to_dict() == {
            "role": "user", "content": [{"type": "text", "text": "x"}], "extra_list": [1]}

    # -- append ids -------------------------------------------------------------------------------

    async def test_replay_gives_the_original_result_cs15(self, store: Any) -> None:
        needs(store, APPEND_IDS)
        first = await store.add("c", users("1", "2"), append_id="k")
        await store.add("c", users("3"))
        again = await store.add("c", users("1", "2"), append_id="k")
        assert again.replayed
        assert (again.first_seq, again.cursor, again.epoch, again.count) == \
            (first.first_seq, first.cursor, first.epoch, first.count)
        assert await texts(store) == ["1", "2", "3"]
        for other in (users("1"), users("1", "x"), users("1", "2", "3"), []):
            with pytest.raises(AppendConflict):
                await store.add("c", other, append_id="k")
        assert not (await store.add("d", users("1"), append_id="k")).replayed
        assert await texts(store) == ["1", "2", "3"]

    async def test_concurrent_replays_store_once_cs15(self, store: Any) -> None:
        needs(store, APPEND_IDS)
        done = await asyncio.gather(*(store.add("c", users("1"), append_id="k") for _ in range(20)))
        assert sorted(d.replayed for d in done) == [False] + [True] * 19
        assert await texts(store) == ["1"]

    @pytest.mark.parametrize("bad", ["", 5, b"k"])
    async def test_bad_append_ids_are_refused_cs15(self, store: Any, bad: Any) -> None:
        needs(store, APPEND_IDS)
        for how in ({"append_id": bad}, {"follows": bad}):
            with pytest.raises(InvalidValue):
                await store.add("c", users("x"), **how)

    async def test_long_and_odd_append_ids_differ_cs15(self, store: Any) -> None:
        needs(store, APPEND_IDS)
        odd = ["k", "K", "k\0", "k" * 200, "k" * 201, "k" * 202, "k" * 5000, "\ud800", "é"]
        for append_id in odd:
            assert not (await store.add("c", users(append_id[:9]), append_id=append_id)).replayed
        for append_id in odd:
            assert (await store.add("c", users(append_id[:9]), append_id=append_id)).replayed

    async def test_follows_cs15a(self, store: Any) -> None:
        needs(store, APPEND_IDS)
        with pytest.raises(PredecessorMissing):
            await store.add("c", users("2"), append_id="k2", follows="k1")
        assert await store.get("c") == ()
        one, two = store.add("c", users("1"), append_id="k1"), \
            store.add("c", users("2"), append_id="k2", follows="k1")
        assert ((await one).cursor, (await two).cursor) == (1, 2)
        await store.clear("c")
        with pytest.raises(PredecessorMissing):
            await store.add("c", users("3"), append_id="k3", follows="k2")

    async def test_append_ids_outlive_a_clear_cs16(self, store: Any) -> None:
        needs(store, APPEND_IDS, EPOCHS)
        first = await store.add("c", users("1"), append_id="k")
        await store.clear("c")
        late = await store.add("c", users("1"), append_id="k")
        assert (late.replayed, late.epoch, late.cursor) == (True, first.epoch, 1)
        assert await store.get("c") == ()
        epoch = (await store.info("c")).epoch
        assert not (await store.add("c", users("1"), append_id="k", epoch=epoch)).replayed
        assert await texts(store) == ["1"]

    # -- epochs and cursors -----------------------------------------------------------------------

    async def test_a_late_write_never_brings_back_what_was_cleared_cs17(self, store: Any) -> None:
        needs(store, EPOCHS)
        epoch = (await store.add("c", users("1"))).epoch
        assert (await store.add("c", users("2"), epoch=epoch)).cursor == 2
        await store.clear("c")
        with pytest.raises(StaleEpoch):
            await store.add("c", users("3"), epoch=epoch)
        assert await store.get("c") == ()

    async def test_cursor_is_compare_and_swap_cs18(self, store: Any) -> None:
        needs(store, CURSORS)
        done = await asyncio.gather(*(store.add("c", users(str(i)), cursor=0) for i in range(5)),
                                    return_exceptions=True)
        refused = [outcome for outcome in done if isinstance(outcome, CursorConflict)]
        assert len(refused) == 4
        assert (refused[0].given, refused[0].head) == (0, 1)
        assert len(await store.get("c")) == 1
        assert (await store.add("c", users("x"), cursor=1)).cursor == 2

    async def test_order_of_checks_cs18(self, store: Any) -> None:
        needs(store, APPEND_IDS, EPOCHS, CURSORS)
        await store.add("c", users("1"), append_id="k")
        epoch = (await store.info("c")).epoch
        with pytest.raises(InvalidMessage):
            await store.add("c", [5], append_id="k", epoch=epoch + 1, cursor=9)
        with pytest.raises(StaleEpoch):
            await store.add("c", users("1"), append_id="k", epoch=epoch + 1, cursor=9)
        assert (await store.add("c", users("1"), append_id="k", epoch=epoch, cursor=9)).replayed
        with pytest.raises(CursorConflict):
            await store.add("c", users("1"), append_id="new", epoch=epoch, cursor=9)

    @pytest.mark.parametrize("bad", [-1, True, 1.0, "1"])
    async def test_bad_epochs_and_cursors_are_refused(self, store: Any, bad: Any) -> None:
        needs(store, EPOCHS, CURSORS)
        for how in ({"epoch": bad}, {"cursor": bad}):
            with pytest.raises(InvalidValue):
                await store.add("c", users("x"), **how)

    # -- listing ----------------------------------------------------------------------------------

    async def test_listing_pages_cs19(self, store: Any) -> None:
        needs(store, LISTING)
        ids = [f"c{i:03}" for i in range(25)]
        for conversation_id in ids:
            await store.add(conversation_id, users("x"))
        await store.clear("c003")
        seen: list[str] = []
        after = None
        while page := await store.conversations(after=after, limit=4):
            assert len(page) <= 4
            seen += [info.conversation_id for info in page]
            after = seen[-1]
            await store.add("c024", users("more"))  # appends in between move nothing
            await store.add("c000", users("more"))
        assert seen == [conversation_id for conversation_id in ids if conversation_id != "c003"]
        info = (await store.conversations(prefix="c02", limit=1000))[-1]
        assert (info.conversation_id, info.count) == ("c024", 1 + 6)
        assert list(await store.conversations(prefix="nothing")) == []

    @pytest.mark.parametrize("bad", [0, 1001, -1, True, "5", 1.0])
    async def test_listing_limits_cs19(self, store: Any, bad: Any) -> None:
        needs(store, LISTING)
        with pytest.raises(InvalidValue):
            await store.conversations(limit=bad)

    # -- tokens -----------------------------------------------------------------------------------

    async def test_tail_within_cs20(self, store: Any) -> None:
        needs(store, TOKENS)
        for size in (5, 1, 2, 3):
            await store.add("c", users("x" * size))
        for budget, kept in ((0, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 3), (10, 3), (11, 4),
                             (10**9, 4)):
            tail = await store.tail_within("c", budget)
            assert (len(tail.records), tail.elided, tail.cursor) == (kept, 4 - kept, 4)
            assert [r.seq for r in tail.records] == list(range(5 - kept, 5))
            assert tail.tokens == sum(r.tokens for r in tail.records) <= budget
            assert tail.messages == (await store.get("c"))[4 - kept:]
        empty = await store.tail_within("unknown", 100)
        assert (empty.records, empty.elided) == ((), 0)
        for bad in (-1, True, 1.0, None):
            with pytest.raises(InvalidValue):
                await store.tail_within("c", bad)

    # -- logs and marks ---------------------------------------------------------------------------

    async def test_read_is_a_sequence_of_records_cs23(self, store: Any) -> None:
        for i in range(1, 8):
            await store.add("c", [{"role": "system" if i in (1, 4) else "user", "content": str(i)}])
        log = await store.read("c")
        assert (len(log), log.cursor) == (7, 7)
        expected = [str(i) for i in range(1, 8)]
        assert [r.message.content for r in log] == expected
        assert [r.message.content for r in reversed(log)] == expected[::-1]
        assert [r.seq for r in log] == list(range(1, 8))
        for index in (slice(None), slice(2, 5), slice(-3, None), slice(None, None, 2),
                      slice(None, None, -1), slice(5, 1, -2), slice(4, 4), slice(9, 20)):
            assert [r.message.content for r in log[index]] == expected[index]
        assert (log[0].seq, log[-1].seq, log[-7].seq) == (1, 7, 1)
        for bad in (7, -8):
            with pytest.raises(IndexError):
                log[bad]
        assert [r.seq for r in log.systems()] == [1, 4]
        assert log[0].time.tzinfo is not None
        part = await store.read("c", last=4, after=2)
        assert [r.seq for r in part] == [4, 5, 6, 7]
        assert [r.seq for r in part.systems()] == [4]

    async def test_a_log_is_fixed_and_ends_with_its_epoch_cs23(self, store: Any) -> None:
        needs(store, LAZY_READS, EPOCHS)
        await store.add("c", users("1", "2"))
        log = await store.read("c")
        await store.add("c", users("3"))
        assert ([r.message.content for r in log], len(log), log.cursor) == (["1", "2"], 2, 2)
        assert log[-1].message.content == "2"
        await store.clear("c")
        for touch in (lambda: log[0], lambda: list(log), lambda: log.systems(), lambda: log[5:9]):
            with pytest.raises(StaleEpoch):
                touch()

    async def test_marks_are_seen_only_with_marks(self, store: Any) -> None:
        needs(store, MARKS)
        added = await store.add("c", [
            NewRecord(user("1"), turn_id="t1"), NewRecord(None, "t1", {"ended": "completed"}),
            NewRecord(user("2"), "t2", {"usage": {"input": 3}}), NewRecord(None, mark={"a": [1]})])
        assert (added.first_seq, added.cursor, added.count) == (1, 4, 4)
        await store.add("c", users("3"))
        info = await store.info("c")
        assert (info.count, info.cursor) == (3, 5)
        log, everything = await store.read("c"), await store.read("c", marks=True)
        assert [r.seq for r in log] == [1, 3, 5]
        assert [r.seq for r in everything] == [1, 2, 3, 4, 5]
        assert [r.turn_id for r in everything] == ["t1", "t1", "t2", None, None]
        assert everything[1].message is None
        assert (everything[1].mark, everything[2].mark) == ({"ended": "completed"},
                                                            {"usage": {"input": 3}})
        assert (log[-1].seq, log[1].seq, len(log)) == (5, 3, 3)
        assert await texts(store, last=2) == ["2", "3"]
        assert await texts(store, after=1) == ["2", "3"]
        assert await texts(store, after=3) == ["3"]
        assert [r.seq for r in await store.read("c", last=2)] == [3, 5]
        assert [r.seq for r in await store.read("c", last=2, marks=True)] == [3, 4, 5]
        assert [r.seq for r in await store.read("c", after=3, marks=True)] == [4, 5]
        tail = await store.tail_within("c", 2)
        assert ([r.seq for r in tail.records], tail.elided) == ([3, 5], 1)

    async def test_tokens_are_counted_at_append(self, store: Any) -> None:
        needs(store, TOKENS)
        await store.add("c", users("abc", "de"))
        log = await store.read("c")
        assert [(r.tokens, r.counter) for r in log] == [(3, "characters"), (2, "characters")]
