"""TL-4 and TL-5: what a tool's outcome looks like to the model."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import json
import socket
from decimal import Decimal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.actors.errors import CallTimeout
from keepwell.agent import tool_result
from keepwell.agent.errors import TOOL_ERROR_TYPES, ModelError, ToolError
from keepwell.agent.tool_result import classify, error_result, error_type_of, failed, result_text


class Level(enum.Enum):
    LOW = 1


class Name(str, enum.Enum):  # noqa: UP042 -- this kind is what is tested
    A = "a"


@dataclasses.dataclass
class Row:
    a: int
    b: object


class Model(pydantic.BaseModel):
    when: datetime.date


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError


CYCLE: list = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as is\n ", "as is\n "),
        (None, "(no output)"),
        ("", "(no output)"),
        (0, "0"),
        (False, "false"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": [1, 2.5, None], "b": "中"}, '{"a":[1,2.5,null],"b":"中"}'),
        ({"v": float("nan")}, '{"v":null}'),
        (float("inf"), "null"),
        ((1, (2,)), "[1,[2]]"),
        ({1: "a", None: "b", 2.5: "c"}, '{"1":"a","null":"b","2.5":"c"}'),
        ({(1, 2): "a"}, "{(1, 2): 'a'}"),
        (
            {
                1,
            },
            "{1}",
        ),
        (Level.LOW, "1"),
        (Name.A, '"a"'),
        (Row(1, Row(2, None)), '{"a":1,"b":{"a":2,"b":null}}'),
        (Model(when=datetime.date(2024, 1, 2)), '{"when":"2024-01-02"}'),
        (Decimal("1.10"), '"1.10"'),
        (b"x", "b'x'"),
        (CYCLE, "[[...]]"),
        (10**30, str(10**30)),
    ],
)
def test_a_result_is_text(value, text):
    assert result_text(value) == text


def test_a_hostile_object_is_text_too():
    assert "Hostile" in result_text(Hostile())
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert result_text(deep)


def test_a_huge_result_is_cut_and_says_so():
    text = result_text("中" * 5_000_000)
    assert text.endswith("\n[1000000 more characters left out]")
    assert len(text.encode()) < 16 * 1024 * 1024


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_json_data_comes_back(value):
    text = result_text(value)
    if isinstance(value, str) or value is None:
        assert text == (value or "(no output)")
    else:
        assert json.loads(text) == value


@pytest.mark.parametrize("error_type", TOOL_ERROR_TYPES)
def test_error_results_are_read_back(error_type):
    text = error_result(error_type, 'say "why" 中')
    assert json.loads(text) == {"error": {"type": error_type, "message": 'say "why" 中'}}
    assert error_type_of(text) == error_type


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        '{"error":{"type":"',
        '{"error":{"type":"odd","message":""}}',
        None,
        '{"error":1}',
        b"",
    ],
)
def test_other_texts_are_no_error_results(text):
    assert error_type_of(text) is None


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (ValueError("x"), "semantic"),
        (KeyError("x"), "semantic"),
        (FileNotFoundError("x"), "semantic"),
        (ToolError("x"), "semantic"),
        (ToolError("x", type="environment"), "environment"),
        (TimeoutError(), "transient"),
        (ConnectionResetError(), "transient"),
        (socket.gaierror(), "transient"),
        (CallTimeout("x"), "transient"),
        (ModelError("x", retryable=True), "transient"),
        (ModelError("x", code="unauthorized"), "environment"),
        (ModelError("x"), "semantic"),
        (PermissionError("x"), "environment"),
        (SystemExit(1), "crashed"),
        (KeyboardInterrupt(), "crashed"),
        (asyncio.CancelledError(), "crashed"),
        (MemoryError(), "crashed"),
        (RecursionError(), "crashed"),
    ],
)
def test_exceptions_have_a_type(error, error_type):
    assert classify(error) == error_type
    assert error_type_of(failed(error)) == error_type


def test_the_message_names_class_and_text():
    assert json.loads(failed(ValueError("odd")))["error"]["message"] == "ValueError: odd"
    assert json.loads(failed(SystemExit()))["error"]["message"] == "SystemExit"
    assert json.loads(failed(ToolError("just this")))["error"]["message"] == "just this"

    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert json.loads(failed(Broken()))["error"]["message"] == "Broken"


@pytest.mark.parametrize(
    ("text", "error_type", "words"),
    [
        (
            tool_result.unknown_tool("lst_files", ["list_files", "add"]),
            "unknown_tool",
            "add, list_files",
        ),
        (tool_result.unknown_tool("x", []), "unknown_tool", "none"),
        (tool_result.invalid_arguments("arguments lacks 'a'"), "invalid_arguments", "lacks"),
        (tool_result.denied("too dear"), "denied", "too dear"),
        (tool_result.denied(), "denied", "not allowed"),
        (tool_result.cancelled(started=True), "cancelled", "outcome unknown"),
        (tool_result.cancelled(started=False), "cancelled", "not run"),
        (tool_result.interrupted(), "interrupted", "interrupted, outcome unknown"),
        (tool_result.skipped("max_tool_calls=3"), "skipped", "max_tool_calls=3"),
        (tool_result.timed_out(0.5), "transient", "0.5 s"),
    ],
)
def test_constructors(text, error_type, words):
    assert error_type_of(text) == error_type
    assert words in json.loads(text)["error"]["message"]
