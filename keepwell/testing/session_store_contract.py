"""The contracts that session stores, journals and blob stores must pass, whoever wrote them.

A store written elsewhere runs them in a few lines:

    class TestMyStore(SessionStoreContract):
        @pytest.fixture
        def store(self): return MyStore()

Methods may return Futures or be coroutines. Rules: C7…C17.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

import pytest

from ..actors.errors import RequestError
from ..stores.blob_store import Collected
from ..stores.errors import CursorConflict
from ..stores.plain import NotPlain, value_fingerprint
from ..stores.session_errors import (
    BlobIntegrityError,
    BlobNotFound,
    BlobRefError,
    BlobTenantError,
    ChannelFull,
    CursorNotFound,
    EventsTrimmed,
    FingerprintMismatch,
    IdempotencyConflict,
    NotFound,
    SessionClosed,
    SessionFenced,
)
from ..stores.session_event import SessionEvent
from ..stores.session_state import (
    HEAD,
    Admission,
    Letter,
    SessionSettings,
    SessionState,
    TurnWrites,
)


async def run(value: Any) -> Any:
    """The result of a store's method."""
    return await value if isinstance(value, Awaitable) else value


class SessionStoreContract:
    """The six methods of `SessionStore`, for a store that keeps 16 revisions, empty value None."""

    async def test_c8_commits_of_a_session_return_1_2_3(self, store: Any) -> None:
        for base in range(3):
            assert await run(store.commit_value("s", base, {"n": base})) == base + 1
        assert await run(store.commit_value("other", 0, None)) == 1

    async def test_c8_both_commits_share_one_chain(self, store: Any) -> None:
        assert await run(store.commit_value("s", 0, 1)) == 1
        assert await run(store.commit("s", 1, SessionState(2, turn=7), None)) == 2
        assert await run(store.commit_value("s", 2, 3)) == 3
        assert (await run(store.load("s", 2))).carrier == await run(store.load_value("s", 2)) == 2
        assert (await run(store.load("s"))).carrier == await run(store.load_value("s", HEAD)) == 3
        assert (await run(store.load("s"))).turn == 7, "a value alone leaves the counters"

    @pytest.mark.parametrize("bad", [-1, True, False, 1.0, "1", None])
    async def test_c8_a_cursor_is_an_int_of_0_or_more(self, store: Any, bad: Any) -> None:
        await run(store.commit_value("s", 0, 1))
        for call in (
            partial(store.load, "s", bad),
            partial(store.load_value, "s", bad),
            partial(store.commit_value, "s", bad, 2),
            partial(store.commit, "s", bad, SessionState(2), None),
        ):
            with pytest.raises(RequestError):
                await run(call())
        assert await run(store.load_value("s")) == 1

    async def test_c9_a_base_that_is_not_the_head_conflicts(self, store: Any) -> None:
        await run(store.commit_value("s", 0, "a"))
        for base in (0, 2, 99):
            with pytest.raises(CursorConflict) as caught:
                await run(store.commit_value("s", base, "b"))
            assert (caught.value.given, caught.value.head) == (base, 1)
        assert await run(store.load_value("s")) == "a"

    async def test_c9_the_same_commit_again_returns_its_cursor(self, store: Any) -> None:
        assert await run(store.commit_value("s", 0, {"a": (1, 2)})) == 1
        assert await run(store.commit_value("s", 1, "later")) == 2
        assert await run(store.commit_value("s", 0, {"a": [1, 2]})) == 1
        assert await run(store.load_value("s")) == "later"

    async def test_c9_of_20_racing_distinct_commits_one_wins(self, store: Any) -> None:
        results = await asyncio.gather(
            *(run(store.commit_value("s", 0, n)) for n in range(20)), return_exceptions=True
        )
        assert results.count(1) == 1
        assert sum(isinstance(result, CursorConflict) for result in results) == 19
        assert await run(store.load_value("s")) == results.index(1)

    async def test_c10_a_fingerprint_must_match(self, store: Any) -> None:
        value = {"b": 1, "a": [1, 2]}
        with pytest.raises(FingerprintMismatch):
            await run(store.commit_value("s", 0, value, value_fingerprint({"b": 2})))
        with pytest.raises(FingerprintMismatch):
            await run(store.commit("s", 0, SessionState(value), "0" * 64))
        assert await run(store.load_value("s")) is None
        assert await run(store.commit_value("s", 0, value, value_fingerprint(value))) == 1
        assert await run(store.commit("s", 1, SessionState(3), value_fingerprint(3))) == 2

    async def test_c11_cursor_0_is_the_fresh_state(self, store: Any) -> None:
        for session_id in ("unknown", "s"):
            assert await run(store.load(session_id, 0)) == SessionState()
            assert await run(store.load_value(session_id, 0)) is None
            assert await run(store.load(session_id)) == SessionState()
        await run(store.commit_value("s", 0, 1))
        assert await run(store.load_value("s", 0)) is None

    async def test_c11_other_unknown_cursors_are_not_found(self, store: Any) -> None:
        with pytest.raises(CursorNotFound):
            await run(store.load("unknown", 1))
        await run(store.commit_value("s", 0, 1))
        with pytest.raises(CursorNotFound) as caught:
            await run(store.load_value("s", 2))
        assert caught.value.oldest == 1

    async def test_c12_the_newest_16_stay(self, store: Any) -> None:
        for base in range(20):
            await run(store.commit_value("s", base, base + 1))
        assert await run(store.load_value("s", 5)) == 5
        with pytest.raises(CursorNotFound) as caught:
            await run(store.load_value("s", 4))
        assert caught.value.oldest == 5
        with pytest.raises(CursorConflict):
            await run(store.commit_value("s", 2, 3))  # it was there, and is forgotten: no duplicate
        assert await run(store.commit_value("s", 6, 7)) == 7
        assert await run(store.load_value("s")) == 20

    async def test_a1_only_plain_data_is_kept(self, store: Any) -> None:
        with pytest.raises(NotPlain) as caught:
            await run(store.commit_value("s", 0, {"a": [0, b""]}))
        assert caught.value.path == "$.a[1]"
        with pytest.raises(NotPlain):
            await run(store.put_blob("t", float("nan")))
        assert await run(store.load("s")) == SessionState()

    async def test_a2_nothing_is_shared_with_the_caller(self, store: Any) -> None:
        value = {"list": [1]}
        await run(store.commit_value("s", 0, value))
        value["list"].append(2)
        first = await run(store.load_value("s"))
        assert first == {"list": [1]}
        first["list"].append(3)
        assert await run(store.load_value("s")) == {"list": [1]}

    async def test_c13_blobs_of_values(self, store: Any) -> None:
        value = {"b": [1, 2.5, None], "a": "ä"}
        ref = await run(store.put_blob("t", value))
        assert ref == f"t/sha256:{value_fingerprint(value)}"
        assert await run(store.put_blob("t", {"a": "ä", "b": (1, 2.5, None)})) == ref
        assert await run(store.put_blob("u", value)) != ref
        assert await run(store.get_blob("t", ref)) == value

    async def test_c14_blobs_of_others_and_absent_ones(self, store: Any) -> None:
        ref = await run(store.put_blob("t", 1))
        with pytest.raises(BlobTenantError):
            await run(store.get_blob("u", ref))
        with pytest.raises(BlobNotFound):
            await run(store.get_blob("t", f"t/sha256:{'0' * 64}"))
        for bad in ("", "t", ref[:-1], ref.upper(), 5, f"t/md5:{'0' * 64}", ref + "0"):
            with pytest.raises(BlobRefError):
                await run(store.get_blob("t", bad))
        for tenant in ("", "a/b", "x" * 129, 5):
            with pytest.raises(BlobTenantError):
                await run(store.put_blob(tenant, 1))
        assert await run(store.put_blob("x" * 128, 1))

    async def test_f34_session_ids_are_distinct_and_reach_nothing_else(self, store: Any) -> None:
        ids = ["a/b", "../x", "A", "a", "n\0ul", "é", "e\u0301", "x" * 600, "x" * 601]
        for session_id in ids:
            await run(store.commit_value(session_id, 0, session_id))
        for session_id in ids:
            assert await run(store.load_value(session_id)) == session_id
        with pytest.raises(RequestError):
            await run(store.load(""))


def turn_writes(epoch: int, order: int, position: int, **fields: Any) -> TurnWrites:
    """The writes of an echo turn that takes message `order` when `position` events are there."""
    events = (
        SessionEvent("turn_started", position + 1, order, "in", order),
        SessionEvent("emit", position + 2, order, "out", order, f"echo {order}"),
        SessionEvent("turn_done", position + 3, order, "in", order),
    )
    named: dict[str, Any] = {"events": events, "outputs": (f"echo {order}",), **fields}
    return TurnWrites(epoch, order, **named)


class SessionJournalContract:
    """`claim`, `accept`, `read`, and the writes of a commit."""

    async def test_c7_a_claim_fences_the_one_before(self, store: Any) -> None:
        first = await run(store.claim("s"))
        await run(store.accept("s", "in", 1))
        second = await run(store.claim("s"))
        assert second.epoch == first.epoch + 1
        writes = turn_writes(first.epoch, 1, 0)
        with pytest.raises(SessionFenced) as caught:
            await run(store.commit("s", 0, SessionState(1), None, writes=writes))
        assert (caught.value.given, caught.value.current) == (first.epoch, second.epoch)
        assert await run(store.load("s")) == SessionState()
        assert len(await run(store.read("s", "inbox"))) == 1
        assert await run(store.read("s", "events")) == []
        assert await run(
            store.commit("s", 0, SessionState(1), None, writes=turn_writes(second.epoch, 1, 0))
        ) == 1  # fmt: skip

    async def test_c1_a_commit_takes_the_message_and_adds_the_events(self, store: Any) -> None:
        claim = await run(store.claim("s"))
        for n in range(3):
            assert (await run(store.accept("s", "in", {"n": n}))).seq == n + 1
        before = await run(store.read("s", "inbox"))
        assert [(m.order, m.channel, m.seq, m.payload) for m in before] == [
            (n + 1, "in", n + 1, {"n": n}) for n in range(3)
        ]
        writes = turn_writes(claim.epoch, 1, 0)
        await run(store.commit("s", 0, SessionState(1, 1, 3), None, writes=writes))
        assert [m.seq for m in await run(store.read("s", "inbox"))] == [2, 3]
        assert [m.seq for m in await run(store.read("s", "inbox", after=2))] == [3]
        assert [m.seq for m in await run(store.read("s", "inbox", limit=1))] == [2]
        events = await run(store.read("s", "events"))
        assert [event.kind for event in events] == ["turn_started", "emit", "turn_done"]
        assert [e.position for e in await run(store.read("s", "events", after=1))] == [2, 3]
        assert [e.position for e in await run(store.read("s", "events", after=1, limit=1))] == [2]

    async def test_c1_a_refused_commit_writes_nothing(self, store: Any) -> None:
        claim = await run(store.claim("s"))
        await run(store.accept("s", "in", 1))
        missing = {"$blob": f"default/sha256:{'0' * 64}"}
        bad_event = SessionEvent("emit", 1, 1, "out", 1, missing)
        for writes, error in (
            (turn_writes(claim.epoch, 2, 0), RequestError),  # not the next message
            (turn_writes(claim.epoch, 1, 5), RequestError),  # a gap in the positions
            (TurnWrites(claim.epoch, 1, events=(bad_event,)), BlobNotFound),
        ):
            with pytest.raises(error):
                await run(store.commit("s", 0, SessionState(1), None, writes=writes))
        with pytest.raises(BlobNotFound):
            await run(store.commit("s", 0, SessionState([missing]), None))
        assert await run(store.load("s")) == SessionState()
        assert len(await run(store.read("s", "inbox"))) == 1

    async def test_b11_a_known_key_answers_what_it_knows(self, store: Any) -> None:
        claim = await run(store.claim("s"))
        ack = await run(store.accept("s", "in", {"a": (1,)}, key="k"))
        assert (ack.seq, ack.duplicate, ack.outcome) == (1, False, "pending")
        again = await run(store.accept("s", "in", {"a": [1]}, key="k"))
        assert (again.seq, again.duplicate, again.outcome) == (1, True, "pending")
        with pytest.raises(IdempotencyConflict):
            await run(store.accept("s", "in", {"a": [2]}, key="k"))
        assert (await run(store.accept("s", "other", 5, key="k"))).duplicate is False
        writes = turn_writes(claim.epoch, 1, 0)
        await run(store.commit("s", 0, SessionState(1, 1, 3), None, writes=writes))
        done = await run(store.accept("s", "in", {"a": [1]}, key="k"))
        assert (done.seq, done.duplicate, done.outcome) == (1, True, "done")
        assert len(await run(store.read("s", "inbox"))) == 1

    async def test_c3_racing_accepts_under_one_key_are_one(self, store: Any) -> None:
        acks = await asyncio.gather(*(run(store.accept("s", "in", 1, key="k")) for _ in range(20)))
        assert [ack.duplicate for ack in acks].count(False) == 1
        assert {ack.seq for ack in acks} == {1}
        assert len(await run(store.read("s", "inbox"))) == 1

    @pytest.mark.parametrize("key", ["", "x" * 257, 5, b"k"])
    async def test_b11_a_key_is_a_str_of_1_to_256(self, store: Any, key: Any) -> None:
        with pytest.raises(RequestError):
            await run(store.accept("s", "in", 1, key=key))
        assert (await run(store.accept("s", "in", 1, key="x" * 256))).seq == 1

    async def test_read_refuses_what_it_does_not_know(self, store: Any) -> None:
        for stream, options in (("outbox", {}), ("inbox", {"after": -1}), ("events", {"limit": 0})):
            with pytest.raises(RequestError):
                await run(store.read("s", stream, **options))
        for stream in ("inbox", "events", "dead_letters"):
            assert await run(store.read("unknown", stream)) == []


async def play(store: Any, turns: int, settings: SessionSettings | None = None) -> int:
    """Run `turns` echo turns of session "s"; the epoch."""
    claim = await run(store.claim("s", settings))
    for n in range(1, turns + 1):
        await run(store.accept("s", "in", n, key=f"k{n}"))
        state = SessionState(n, n, 3 * n, {"out": n})
        writes = turn_writes(claim.epoch, n, 3 * (n - 1))
        await run(store.commit("s", n - 1, state, None, writes=writes))
    return int(claim.epoch)


class OwnSessionStoreContract(SessionStoreContract, SessionJournalContract):
    """What a live session needs beyond the protocols, and blobs."""

    async def test_b8_old_events_go_unless_a_consumer_has_not_read_them(self, store: Any) -> None:
        settings = SessionSettings(retain_events=6)
        await play(store, 4, settings)
        assert (await run(store.info("s"))).oldest_event == 7
        with pytest.raises(EventsTrimmed) as caught:
            await run(store.read("s", "events"))
        assert caught.value.oldest == 7
        kept = await run(store.read("s", "events", after=6))
        assert [event.position for event in kept] == [*range(7, 13)]

    async def test_b7_a_consumers_position_is_kept_and_never_goes_back(self, store: Any) -> None:
        await run(store.claim("s", SessionSettings(retain_events=3)))
        assert await run(store.consume("s", "c")) == 0
        for n in range(1, 4):
            await run(store.accept("s", "in", n))
            epoch = (await run(store.info("s"))).epoch
            writes = turn_writes(epoch, n, 3 * (n - 1))
            await run(store.commit("s", n - 1, SessionState(n, n, 3 * n), None, writes=writes))
        assert (await run(store.info("s"))).oldest_event == 1, "the consumer has read nothing"
        assert await run(store.consume("s", "c", 4)) == 4
        assert await run(store.consume("s", "c", 2)) == 4
        assert (await run(store.info("s"))).oldest_event == 4, "rows are dropped whole"
        with pytest.raises(RequestError):
            await run(store.consume("s", "c", 10))
        assert await run(store.forget_consumer("s", "c")) is True
        assert await run(store.forget_consumer("s", "c")) is False
        assert (await run(store.info("s"))).oldest_event == 7

    async def test_b9_checks_come_in_order(self, store: Any) -> None:
        await play(store, 1)
        fault = RequestError("type or size")
        full = Admission(capacity=0)
        known = await run(store.accept("s", "in", 1, key="k1", admission=Admission(0, fault)))
        assert known.duplicate
        with pytest.raises(RequestError, match="type or size"):
            await run(store.accept("s", "in", 2, admission=Admission(0, fault)))
        with pytest.raises(ChannelFull):
            await run(store.accept("s", "in", 2, key="new", admission=full))
        await run(store.seal("s", "enough"))
        with pytest.raises(SessionClosed, match="enough"):
            await run(store.accept("s", "in", 2, admission=Admission(0, fault)))
        assert (await run(store.accept("s", "in", 1, key="k1"))).outcome == "done"
        with pytest.raises(IdempotencyConflict):
            await run(store.accept("s", "in", 2, key="k1"))
        assert await run(store.outcome_of("s", "in", "new")) is None, "a refused key is unused"

    async def test_b12_the_running_message_does_not_count(self, store: Any) -> None:
        await run(store.claim("s"))
        for n in range(2):
            await run(store.accept("s", "in", n, admission=Admission(2)))
        with pytest.raises(ChannelFull) as caught:
            await run(store.accept("s", "in", 2, admission=Admission(2)))
        assert (caught.value.capacity, caught.value.pending) == (2, 2)
        assert (await run(store.accept("s", "in", 2, admission=Admission(2, running=1)))).seq == 3

    async def test_b11_keys_beyond_the_window_are_forgotten_but_never_untaken_ones(
        self, store: Any
    ) -> None:
        epoch = await play(store, 3, SessionSettings(dedupe_window=2))
        assert await run(store.outcome_of("s", "in", "k1")) is None
        assert (await run(store.outcome_of("s", "in", "k2"))).outputs == ["echo 2"]
        for n in range(4, 8):
            await run(store.accept("s", "in", n, key=f"k{n}"))
        for n in range(4, 8):
            assert (await run(store.accept("s", "in", n, key=f"k{n}"))).duplicate
        assert await run(store.outcome_of("s", "in", "k3")) is None
        writes = turn_writes(epoch, 4, 9)
        await run(store.commit("s", 3, SessionState(4, 4, 12), None, writes=writes))
        assert await run(store.outcome_of("s", "in", "k4")) is None, "taken, and the third newest"

    async def test_b19_a_dead_letter_is_retried_once(self, store: Any) -> None:
        claim = await run(store.claim("s"))
        await run(store.accept("s", "in", {"x": 1}, key="k"))
        writes = turn_writes(
            claim.epoch, 1, 0, outcome="failed", error="ValueError: no",
            letter=Letter("failed", "ValueError: no", "trace"),
        )  # fmt: skip
        await run(store.commit("s", 0, SessionState(None, 1, 3), None, writes=writes))
        (letter,) = await run(store.read("s", "dead_letters"))
        assert letter[:8] == (1, "in", 1, {"x": 1}, 1, "failed", "ValueError: no", "trace")
        assert (await run(store.accept("s", "in", {"x": 1}, key="k"))).outcome == "failed"
        with pytest.raises(ChannelFull):
            await run(store.retry("s", 1, Admission(0)))
        assert (await run(store.retry("s", 1, Admission()))).seq == 2
        with pytest.raises(NotFound):
            await run(store.retry("s", 1, Admission()))
        assert [m.payload for m in await run(store.read("s", "inbox"))] == [{"x": 1}]
        assert await run(store.read("s", "dead_letters")) == []

    async def test_b4_finishing_makes_dead_letters_of_what_is_untaken(self, store: Any) -> None:
        epoch = await play(store, 1)
        await run(store.accept("s", "in", 2, key="k2"))
        info = await run(store.finish("s", epoch, "done with it"))
        assert (info.closed, info.reason, info.unprocessed, info.pending) == (
            True, "done with it", 1, 0,
        )  # fmt: skip
        assert (await run(store.finish("s", epoch, "again"))).reason == "done with it"
        (letter,) = await run(store.read("s", "dead_letters"))
        assert (letter.outcome, letter.turn) == ("closed", None)
        events = await run(store.read("s", "events", after=3))
        assert events == [SessionEvent("closed", 4, reason="done with it")]
        assert (await run(store.accept("s", "in", 2, key="k2"))).outcome == "closed"

    async def test_b21_an_explicit_reason_wins(self, store: Any) -> None:
        epoch = await play(store, 0)
        assert (await run(store.seal("s", None))).reason == "closed"
        assert (await run(store.seal("s", "mine"))).reason == "mine"
        assert (await run(store.finish("s", epoch, "other"))).reason == "mine"

    async def test_c6_pending_sessions(self, store: Any) -> None:
        epoch = await play(store, 1)
        await run(store.accept("t", "in", 1))
        await run(store.accept("s", "in", 2))
        assert await run(store.pending_sessions()) == ["s", "t"]
        writes = turn_writes(epoch, 2, 3)
        await run(store.commit("s", 1, SessionState(2, 2, 6), None, writes=writes))
        assert await run(store.pending_sessions()) == ["t"]

    async def test_b18_deliveries_are_counted_for_the_first_message_only(self, store: Any) -> None:
        claim = await run(store.claim("s"))
        await run(store.accept("s", "in", 1))
        claim = await run(store.claim("s"))
        await run(store.deliver("s", claim.epoch, 1, 2))
        assert (await run(store.read("s", "inbox")))[0].deliveries == 2
        with pytest.raises(SessionFenced):
            await run(store.deliver("s", claim.epoch - 1, 1, 3))
        claim = await run(store.claim("s"))
        assert (await run(store.read("s", "inbox")))[0].deliveries == 2
        await run(store.accept("s", "in", 2))
        writes = turn_writes(claim.epoch, 1, 0)
        await run(store.commit("s", 0, SessionState(1, 1, 3), None, writes=writes))
        await run(store.claim("s"))
        assert (await run(store.read("s", "inbox")))[0].deliveries == 0

    async def test_b22_deleting_frees_the_id(self, store: Any) -> None:
        await play(store, 2)
        before = await run(store.claim("s"))
        ref = await run(store.put_blob("default", "kept"))
        await run(store.accept("s", "in", {"$blob": ref}))
        assert await run(store.delete("s")) is True
        assert await run(store.delete("s")) is False
        assert (await run(store.info("s"))).exists is False
        assert await run(store.load("s")) == SessionState()
        assert await run(store.pending_sessions()) == []
        assert await run(store.collect(0)) == Collected(1, 6), "and lets go of its blobs"
        after = await run(store.claim("s"))
        assert after.birth != before.birth
        assert (await run(store.accept("s", "in", 1, key="k1"))).seq == 1

    # -- blobs ---------------------------------------------------------------------------------

    async def test_c13_bytes_are_kept_under_their_hash(self, store: Any) -> None:
        data = bytes(range(256)) * 100
        ref = await run(store.put("t", data))
        assert await run(store.put("t", bytearray(data))) == ref
        assert await run(store.get("t", ref)) == data
        with pytest.raises(RequestError):
            await run(store.put("t", "text"))

    async def test_c15_damaged_bytes_are_told_and_repaired(self, store: Any, damage: Any) -> None:
        ref = await run(store.put("t", b"right"))
        await damage(ref)
        with pytest.raises(BlobIntegrityError):
            await run(store.get("t", ref))
        assert await run(store.put("t", b"right")) == ref
        assert await run(store.get("t", ref)) == b"right"

    async def test_c16_everything_that_mentions_a_blob_holds_it(self, store: Any) -> None:
        claim = await run(store.claim("s", SessionSettings(retain_events=3)))
        names = ("payload", "carrier", "output")
        refs = {name: await run(store.put_blob("default", name)) for name in names}
        await run(store.accept("s", "in", [{"$blob": refs["payload"]}], key="k"))
        assert (await run(store.collect(0))).blobs == 2
        for name in ("carrier", "output"):
            await run(store.put_blob("default", name))
        output = {"deep": {"$blob": refs["output"]}}
        events = (
            SessionEvent("turn_started", 1, 1, "in", 1),
            SessionEvent("emit", 2, 1, "out", 1, output),
            SessionEvent("turn_done", 3, 1, "in", 1),
        )
        state = SessionState({"x": {"$blob": refs["carrier"]}}, 1, 3)
        writes = TurnWrites(claim.epoch, 1, outputs=(output,), events=events)
        await run(store.commit("s", 0, state, None, writes=writes))
        assert (await run(store.collect(0))).blobs == 1, "the message was taken"
        with pytest.raises(BlobNotFound):
            await run(store.get_blob("default", refs["payload"]))
        for n in range(2, 18):
            await run(store.accept("s", "in", n))
            state = SessionState(n, n, 3 * n)
            writes = turn_writes(claim.epoch, n, 3 * (n - 1))
            await run(store.commit("s", n - 1, state, None, writes=writes))
        assert (await run(store.collect(0))).blobs == 1, "its revision was compacted"
        assert await run(store.get_blob("default", refs["output"])) == "output", "the key holds it"
        await run(store.delete("s"))
        assert (await run(store.collect(0))).blobs == 1

    async def test_c16_a_blob_of_another_tenant_is_none(self, store: Any) -> None:
        await run(store.claim("s", SessionSettings(tenant="mine")))
        ref = await run(store.put_blob("theirs", 1))
        with pytest.raises(BlobTenantError):
            await run(store.accept("s", "in", {"$blob": ref}))
        with pytest.raises(BlobRefError):
            await run(store.accept("s", "in", {"$blob": "nonsense"}))
        assert await run(store.read("s", "inbox")) == []

    async def test_c17_collect_spares_the_young_and_the_held(self, store: Any) -> None:
        held, loose = [await run(store.put("t", data)) for data in (b"held", b"loose")]
        await run(store.hold("t", held, "me"))
        await run(store.hold("t", held, "me"))
        assert await run(store.collect()) == Collected(0, 0), "younger than an hour"
        assert await run(store.collect(0)) == Collected(1, 5)
        with pytest.raises(BlobNotFound):
            await run(store.hold("t", loose, "me"))
        await run(store.release("me"))
        assert await run(store.collect(0)) == Collected(1, 4)
        with pytest.raises(BlobNotFound):
            await run(store.get("t", held))

    async def test_c17_collect_looks_at_any_number(self, store: Any) -> None:
        await asyncio.gather(*(run(store.put("t", b"%d" % n)) for n in range(1_203)))
        keep = await run(store.put("t", b"kept"))
        await run(store.hold("t", keep, "me"))
        assert (await run(store.collect(0))).blobs == 1_203
        assert await run(store.get("t", keep)) == b"kept"
        with pytest.raises(RequestError):
            await run(store.collect(-1))
