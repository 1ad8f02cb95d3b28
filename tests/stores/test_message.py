"""Messages at the door (CS-10…14)."""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from zoneinfo import ZoneInfo

import pytest

from keepwell.stores import InvalidMessage, Message, NewRecord, ToolCall
from keepwell.stores.message import checked_messages


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "text",
        [],
        [{"type": "text", "text": "a"}],
        "a\ud83d",
        [{"type": "image", "data": b"\x00\xff", "deep": {"n": [1, [2]]}}],
    ],
)
def test_to_dict_gives_back_what_from_dict_took_cs12(content: object) -> None:
    given = {"role": "user", "content": content, "cache": {"ttl": 5}, "flag": True}
    message = Message.from_dict(copy.deepcopy(given))
    assert message.to_dict() == given
    assert type(message.to_dict()["content"]) is type(content)


def test_calls_keep_raw_arguments_and_extra_fields_cs11() -> None:
    calls = [
        {"id": "c1", "name": "add", "arguments": {"a": 1}, "signature": "s"},
        {"id": "c2", "name": "run", "arguments": '{"cmd": "ec'},
    ]
    message = Message.from_dict({"role": "assistant", "content": "beside", "tool_calls": calls})
    assert message.to_dict()["tool_calls"] == calls
    assert message.tool_calls[1] == ToolCall("c2", "run", '{"cmd": "ec')


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"role": "robot", "content": ""}, "role"),
        ({"role": None}, "role"),
        ({"content": "x"}, "role"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": {"type": "text"}}, "content"),
        ({"role": "user", "content": ["x"]}, "content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "content[0]"),
        (
            {
                "role": "user",
                "content": "x",
                "tool_calls": [{"id": "1", "name": "n", "arguments": "{}"}],
            },
            "tool_calls",
        ),
        ({"role": "assistant", "tool_calls": "x"}, "tool_calls"),
        (
            {"role": "assistant", "tool_calls": [{"id": "", "name": "n", "arguments": {}}]},
            "tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "name": 5, "arguments": {}}]},
            "tool_calls[0].name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "name": "n", "arguments": [1]}]},
            "tool_calls[0].arguments",
        ),
        ({"role": "assistant", "tool_calls": [{"id": "1", "name": "n"}]}, "tool_calls[0]"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "n"}}]},
            "tool_calls[0]",
        ),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 7}, "tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "c1"}, "tool_call_id"),
        ({"role": "user", "content": "x", "extra_field": {1, 2}}, "extra_field"),
        ({"role": "user", "content": "x", "price": Decimal("1.0")}, "price"),
        ({"role": "user", "content": "x", "day": date(2026, 1, 1)}, "day"),
        ({"role": "user", "content": "x", "a": {"b": [0, {1: "a"}]}}, "a.b[1]"),
        ({"role": "user", "content": "x", "a": {("t",): 1}}, "a"),
        (
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "name": "n", "arguments": {"k": {"x": object()}}}],
            },
            "tool_calls[0].arguments.k.x",
        ),
        ({"role": "user", "content": [{"type": "text", "bad": object()}]}, "content[0].bad"),
        ({"role": "user", "content": "x", "deep": nested(101)}, "deep" + "[0]" * 100),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path_cs11_cs13(
    given: dict[str, object], path: str
) -> None:
    with pytest.raises(InvalidMessage) as refusal:
        checked_messages([{"role": "user", "content": "good"}, given])
    assert (refusal.value.index, refusal.value.path) == (1, path)
    assert path in str(refusal.value)
    assert isinstance(refusal.value, ValueError)


def test_nesting_of_100_passes_cs13() -> None:
    assert Message("user", "x", deep=nested(100)).to_dict()["deep"] == nested(100)


def test_cycles_and_lists_that_unfold_without_end_are_refused_cs13(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("keepwell.stores.frozen.MAX_NODES", 100_000)
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(InvalidMessage, match="deep"):
        Message("user", "x", cycle=cycle)
    bomb: list[object] = [0]
    for _ in range(60):
        bomb = [bomb] * 1000
    with pytest.raises(InvalidMessage):
        Message("user", "x", bomb=bomb)


@pytest.mark.parametrize("bad", ["text", b"bytes", {"role": "user"}, None, 5, Message("user", "x")])
def test_a_batch_is_an_iterable_of_messages_cs10(bad: object) -> None:
    with pytest.raises(InvalidMessage):
        checked_messages(bad)


def test_any_iterable_and_any_mapping_is_a_batch_cs10() -> None:
    given = MappingProxyType({"role": "user", "content": "x"})
    assert checked_messages(iter([given])) == [Message("user", "x")]


def test_nothing_is_aliased_and_nothing_can_be_changed_cs14() -> None:
    inner = {"list": [1]}
    message = Message("user", [{"type": "text", "inner": inner}], extra_field=inner)
    inner["list"].append(2)
    assert message.extra["extra_field"]["list"] == (1,)
    for change in (lambda: setattr(message, "role", "system"), lambda: delattr(message, "role")):
        with pytest.raises(FrozenInstanceError):
            change()
    with pytest.raises(TypeError):
        message.extra["extra_field"]["list2"] = 1  # type: ignore[index]  # refused at run time too
    with pytest.raises(TypeError):
        message.extra.update(a=1)  # type: ignore[attr-defined]  # refused at run time too
    out = message.to_dict()
    out["extra_field"]["list"].append(3)
    assert message.extra["extra_field"]["list"] == (1,)


def test_messages_are_values() -> None:
    message = Message("assistant", "x", [ToolCall("1", "n", {"a": [1]})], note={"k": [b"x"]})
    assert message == Message.from_dict(message.to_dict()) == pickle.loads(pickle.dumps(message))  # noqa: S301 - our own bytes
    assert hash(message) == hash(Message.from_dict(message.to_dict()))
    assert message != message.replace(content="y")
    assert message.replace(content="y").content == "y"
    assert copy.deepcopy(message) is message
    assert json.loads(json.dumps(message.tool_calls[0].arguments)) == {"a": [1]}


NAIVE = datetime(2026, 1, 1, fold=1)  # noqa: DTZ001 - naive datetimes are stored as they are


def test_enums_and_zones_become_plain_cs12() -> None:
    class Role(StrEnum):
        USER = "user"

    local = datetime(2026, 7, 1, 12, 0, 0, 123456, ZoneInfo("Europe/Berlin"))
    message = Message(Role.USER, "x", at=local, naive=NAIVE, other=NAIVE)
    assert type(message.role) is str
    assert type(message.extra["at"]) is datetime
    assert message.extra["at"] == local
    assert message.extra["at"].utcoffset() == timedelta(hours=2)
    assert message.extra["naive"].fold == 1
    assert Message("user", "x", at=datetime(2026, 1, 1, tzinfo=UTC)).extra["at"].tzinfo is UTC


def test_a_record_needs_a_message_or_a_plain_mark() -> None:
    assert NewRecord(None, mark={"ended": "completed"}).mark == {"ended": "completed"}
    for bad in (
        lambda: NewRecord(None),
        lambda: NewRecord(None, mark={"a": {1}}),
        lambda: NewRecord(Message("user", "x"), turn_id=5),
    ):  # type: ignore[arg-type]  # refused
        with pytest.raises(InvalidMessage):
            bad()
