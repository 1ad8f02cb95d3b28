"""Channels, payload types and plain data (A1…A6)."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from enum import IntEnum, StrEnum
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.actors.errors import InvalidValue, RequestError, Unavailable
from keepwell.sessions import (
    Channel,
    ChannelFull,
    NotPlain,
    PayloadInvalid,
    PayloadTooLarge,
    RecvTimeout,
    SessionDefinitionError,
    value_fingerprint,
)
from keepwell.stores.plain import canonical_json, copy_plain

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=20,
)


def nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


class Point(NamedTuple):
    x: int
    y: int


class Word(StrEnum):
    HI = "hi"


class Number(IntEnum):
    ONE = 1


# -- A1: plain data ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        (float("inf"), "$"),
        (b"", "$"),
        (object(), "$"),
        ({1: "a"}, "$"),
        ({"a": [0, 1, 2, b"x"]}, "$.a[3]"),
        ({"a b": {"c": set()}}, '$["a b"].c'),
        ({"a": {("t",): 1}}, "$.a"),
        ("a\ud83d", "$"),
        ({"\ud83d": 1}, "$"),
        ([{"k": "\udc00"}], "$[0].k"),
        (2**64, "$"),
        (-(2**63) - 1, "$"),
        (nested(101), "$" + "[0]" * 100),
        ([[], [[], {"deep": 1j}]], "$[1][1].deep"),
    ],
)
def test_a1_what_is_not_plain_is_named_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(NotPlain) as caught:
        copy_plain(value)
    assert caught.value.path == path
    with pytest.raises(NotPlain):
        Channel("in").append(value)
    with pytest.raises(NotPlain):
        Channel("in").emit(value)
    assert isinstance(caught.value, RequestError)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(a=(1,)), {"a": [1]}),
        ([Word.HI, Number.ONE], ["hi", 1]),
        (2**63, 2**63),
        (-(2**63), -(2**63)),
        (nested(100), nested(100)),
        ("naïve 中 \u0000", "naïve 中 \u0000"),
    ],
)
def test_a1_what_is_kept(value: Any, kept: Any) -> None:
    copied = copy_plain(value)
    assert copied == kept
    assert canonical_json(copied) == canonical_json(kept)
    for one in [copied, *(copied if isinstance(copied, list) else [])]:
        assert type(one) in (type(None), bool, int, float, str, list, dict)


def test_a1_a_list_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotPlain):
        copy_plain(loop)


def test_a1_a_list_that_holds_one_list_many_times_is_bounded() -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(NotPlain, match="more than"):
        copy_plain(value)


@given(plain)
def test_a1_plain_data_round_trips_and_is_copied(value: Any) -> None:
    copied = copy_plain(value)
    assert copied == value
    assert json.loads(canonical_json(copied)) == value
    assert value_fingerprint(value) == sha256(canonical_json(value)).hexdigest()


def test_c10_fingerprints() -> None:
    nothing = value_fingerprint(None)
    assert nothing.startswith("74234e98") and nothing.endswith("b90b")
    value = value_fingerprint({"b": 1, "a": [1, 2]})
    assert value.startswith("94a786c3") and value.endswith("c2ba")
    assert value_fingerprint({"a": (1, 2), "b": 1}) == value
    assert len({value_fingerprint(one) for one in (1, 1.0, True, "1")}) == 4


# -- A2: no aliasing -----------------------------------------------------------------------------


async def test_a2_values_are_copied_in() -> None:
    channel = Channel[dict]("in")
    value = {"list": [1]}
    channel.append(value)
    channel.emit(value)
    value["list"].append(2)
    assert await channel.recv() == {"list": [1]}
    assert channel.drain() == [{"list": [1]}]


# -- A3, A4: queues ------------------------------------------------------------------------------


async def test_a3_first_in_first_out_both_ways() -> None:
    channel = Channel[int]("c")
    for n in range(3):
        channel.append(n)
        channel.emit(10 + n)
    assert [await channel.recv() for _ in range(3)] == [0, 1, 2]
    assert channel.drain() == [10, 11, 12]
    assert channel.drain() == []


def test_a3_capacity_holds_either_way() -> None:
    channel = Channel[int]("c", capacity=2)
    for put in (channel.append, channel.emit):
        put(1)
        put(2)
        with pytest.raises(ChannelFull) as caught:
            put(3)
        assert (caught.value.channel, caught.value.capacity, caught.value.pending) == ("c", 2, 2)
    assert channel.drain() == [1, 2]
    channel.emit(3)


async def test_a4_recv_waits_and_waiters_are_served_in_order() -> None:
    channel = Channel[int]("c")
    got: list[tuple[int, int]] = []

    async def receive(n: int) -> None:
        got.append((n, await channel.recv()))

    tasks = [asyncio.create_task(receive(n)) for n in range(3)]
    await asyncio.sleep(0)
    for n in range(3):
        channel.append(n)
    await asyncio.gather(*tasks)
    assert got == [(0, 0), (1, 1), (2, 2)]


async def test_a4_a_late_message_is_a_recv_timeout() -> None:
    channel = Channel[int]("c")
    with pytest.raises(RecvTimeout) as caught:
        await channel.recv(timeout=0.01)
    assert isinstance(caught.value, Unavailable)
    with pytest.raises(RecvTimeout):
        await channel.recv(timeout=0)
    channel.append(1)
    assert await channel.recv(timeout=0) == 1


@pytest.mark.parametrize("served_first", [True, False])
async def test_a4_a_cancelled_waiter_loses_no_message(served_first: bool) -> None:
    channel = Channel[int]("c")
    first, second = (asyncio.create_task(channel.recv()) for _ in range(2))
    await asyncio.sleep(0)
    if served_first:
        channel.append(1)  # it is the first one's, who has not woken yet
        first.cancel()
    else:
        first.cancel()
        channel.append(1)
    channel.append(2)
    assert await second == 1, "and their order is kept"
    assert await channel.recv() == 2
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a4_messages_from_threads_reach_a_waiter() -> None:
    channel = Channel[int]("c")
    sent = asyncio.to_thread(lambda: [channel.append(n) for n in range(500)])
    received = asyncio.gather(*(channel.recv(timeout=30) for _ in range(500)))
    await sent
    assert await received == list(range(500))


# -- A5: payload types ---------------------------------------------------------------------------


class Shape(TypedDict, total=False):
    name: str
    size: int


TYPES: list[tuple[Any, list[Any], list[Any]]] = [
    (None, [None, 1, "x", [1], {}], []),
    (int, [0, -5], [True, 1.0, "1", None]),
    (float, [1.5, 1], [True, "1", None]),
    (bool, [True], [1, 0, None]),
    (str, [""], [1, None, ["x"]]),
    (type(None), [None], [0, False, ""]),
    (list, [[], [1, "x"]], [{}, "x"]),
    (dict, [{}, {"a": 1}], [[], None]),
    (list[int], [[], [1]], [[1, True], ["x"], 1]),
    (tuple[int, str], [[1, "a"]], [[1], [1, 2], ["a", 1]]),
    (tuple[int, ...], [[], [1, 2]], [[1, "a"]]),
    (dict[str, list[float]], [{}, {"a": [1, 1.5]}], [{"a": 1}, {"a": ["x"]}]),
    (int | None, [1, None], ["x", True]),
    (Literal["a", 1], ["a", 1], ["b", True, 1.0]),
    (Shape, [{}, {"name": "x"}], [{"name": 1}, {"other": 1}, []]),
    ({"type": "object", "required": ["a"]}, [{"a": 1}], [{}, 1]),
    ({"type": "array", "items": {"type": "integer", "minimum": 1}}, [[1]], [[0], ["x"], 1]),
    ({"enum": ["a", "b"]}, ["a"], ["c", 1]),
]


@pytest.mark.parametrize(("payload", "fits", "misfits"), TYPES)
def test_a5_payload_types_are_enforced(payload: Any, fits: list[Any], misfits: list[Any]) -> None:
    channel = Channel("c", payload)
    for value in fits:
        channel.emit(value)
    assert channel.drain() == fits
    for value in misfits:
        for put in (channel.append, channel.emit):
            with pytest.raises(PayloadInvalid) as caught:
                put(value)
            assert isinstance(caught.value, RequestError)
    assert channel.drain() == []


def test_a5_a_subscripted_channel_is_one_of_that_type() -> None:
    for channel in (Channel[dict]("in", capacity=3), Channel("in", dict, capacity=3)):
        assert (channel.name, channel.payload, channel.capacity) == ("in", dict, 3)
        with pytest.raises(PayloadInvalid):
            channel.append([])


@pytest.mark.parametrize(
    "payload",
    [
        bytes, set, complex, object(), list[bytes], dict[int, str], int | bytes, Point, "int",
        {"type": "strnig"}, {"if": {}}, {"properties": {"a": {"patternProperties": {}}}},
        {"pattern": "("}, {"$ref": "#/$defs/none"}, {"items": 5}, {"anyOf": {}}, {"type": 5},
    ],
)  # fmt: skip
def test_a5_what_cannot_be_checked_is_refused_when_the_channel_is_made(payload: Any) -> None:
    with pytest.raises(SessionDefinitionError):
        Channel("c", payload)


@pytest.mark.parametrize(
    "fields",
    [{"name": ""}, {"name": 5}, {"capacity": 0}, {"capacity": True}, {"max_bytes": -1},
     {"max_bytes": 1.5}],
)  # fmt: skip
def test_a5_fields_of_a_channel_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        Channel(**{"name": "c", **fields})


# -- A6: size ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["x" * 500, ["中" * 10, 1.5, None], {"b": [1, 2], "a": "é"}])
def test_a6_exactly_the_limit_passes(value: Any) -> None:
    size = len(json.dumps(value, separators=(",", ":"), sort_keys=True))
    Channel("c", max_bytes=size).append(value)
    with pytest.raises(PayloadTooLarge) as caught:
        Channel("c", max_bytes=size - 1).append(value)
    assert (caught.value.size, caught.value.limit) == (size, size - 1)


def test_a6_the_default_limit_is_a_mebibyte() -> None:
    channel = Channel[str]("c")
    channel.append("x" * (1_048_576 - 2))
    with pytest.raises(PayloadTooLarge):
        channel.append("x" * (1_048_576 - 1))


def test_a5_type_goes_before_size() -> None:
    with pytest.raises(PayloadInvalid):
        Channel("c", int, max_bytes=1).append("long")
