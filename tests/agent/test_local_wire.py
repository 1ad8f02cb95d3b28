"""How a small model is asked for tool calls, and how its writing is read."""

from __future__ import annotations

import dataclasses
import json

import jsonschema
import pytest

from keepwell.agent.local_wire import call_schema, chat_messages, read_calls, wants_tools
from keepwell.agent.model import ModelRequest
from keepwell.agent.tool import tool
from keepwell.stores.message import Message, ToolCall


@dataclasses.dataclass
class Node:
    value: int
    next: Node | None = None


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def walk(node: Node) -> int:
    """Walk a list."""
    return node.value


@tool
def step(node: Node) -> int:
    """Step along a list."""
    return node.value


TOOLS = (add.schema, walk.schema, step.schema)
CALL = ToolCall("c1", "add", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"tool": "add", "arguments": {"a": 1, "b": 2}}', [("add", {"a": 1, "b": 2})]),
        ('{"tool": "none"}', []),
        ("I would rather talk.", []),
        ("", []),
        ('{"tool": "fly", "arguments": {}}', []),
        ('Sure!\n```json\n{"name": "add", "parameters": {"a": 1}}\n```', [("add", {"a": 1})]),
        ('{"function": "add", "a": 1}', [("add", {"a": 1})]),
        ('{"function": {"name": "add", "arguments": "{\\"a\\": 1}"}}', [("add", {"a": 1})]),
        ('[{"tool": "add", "arguments": {}}, {"tool": "walk"}]', [("add", {}), ("walk", {})]),
        ('{"tool": "add"} {"tool": "walk"}', [("add", {}), ("walk", {})]),
        ('{"tool": "add", "arguments": "{\\"a\\": "}', [("add", '{"a": ')]),
        ('{"tool": "add", "arguments": {"a": 1', []),
        ('{ {"tool": "add", "arguments": 3}', [("add", "3")]),
        ("[" * 5_000, []),
    ],
)
def test_calls_are_read_leniently(text, calls):
    found = read_calls(text, TOOLS)
    assert [(call.name, call.arguments) for call in found] == calls
    assert len({call.id for call in found}) == len(found)


def test_the_schema_of_a_choice():
    schema = call_schema(TOOLS)
    jsonschema.Draft202012Validator.check_schema(schema)
    good = [
        {"tool": "none"},
        {"tool": "add", "arguments": {"a": 1, "b": 2}},
        {"tool": "walk", "arguments": {"node": {"value": 1, "next": {"value": 2}}}},
        {"tool": "step", "arguments": {"node": {"value": 1, "next": {"value": 2}}}},
    ]
    bad = [
        {},
        {"tool": "fly"},
        {"tool": "add"},
        {"tool": "add", "arguments": {"a": "1", "b": 2}},
        {"tool": "walk", "arguments": {"node": {"value": 1, "next": {}}}},
    ]
    validator = jsonschema.Draft202012Validator(schema)
    assert all(validator.is_valid(each) for each in good)
    assert not any(validator.is_valid(each) for each in bad)
    for each in good[1:]:
        assert [c.name for c in read_calls(json.dumps(each), TOOLS)] == [each["tool"]]


def test_a_history_becomes_plain_chat():
    messages = (
        Message("system", "be kind"),
        Message("user", "1 + 2?"),
        Message("assistant", "let me see", [CALL]),
        Message("tool", "3", tool_call_id="c1"),
        Message("assistant", "3 \ud83d"),
    )
    sent = chat_messages(ModelRequest(messages, TOOLS), offer_tools=False)
    assert sent == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": "let me see"},
        {"role": "user", "content": "The result of add is 3."},
        {"role": "assistant", "content": "3 \ufffd"},
    ]
    asked = chat_messages(
        ModelRequest((messages[1], Message("assistant", None, [CALL]), messages[3]), TOOLS),
        offer_tools=False,
    )
    assert asked == [
        {
            "role": "user",
            "content": "1 + 2?\n\nThe result of add is 3. Answer my question with this result.",
        }
    ]
    offered = chat_messages(ModelRequest(messages, TOOLS), offer_tools=True)
    assert (
        '- add: Add two numbers. {"tool": "add", "arguments": {"a": "integer", "b": "integer"}}'
        in offered[0]["content"]
    )
    assert offered[0]["content"].startswith("be kind")
    assert offered[2:4] == [
        {
            "role": "assistant",
            "content": 'let me see\n{"tool":"add","arguments":{"a":1,"b":2}}',
        },
        {"role": "user", "content": "The tool add returned: 3"},
    ]


@pytest.mark.parametrize(
    ("messages", "rounds", "offered"),
    [
        ([Message("user", "x")], 1, True),
        ([Message("user", "x")], 0, False),
        ([Message("user", "x"), Message("assistant", None, [CALL])], 1, False),
        ([Message("user", "x"), Message("assistant", None, [CALL])], 2, True),
        ([Message("user", "x"), Message("assistant", None, [CALL]), Message("user", "y")], 1, True),
    ],
)
def test_tools_are_offered_so_many_times_a_question(messages, rounds, offered):
    assert wants_tools(ModelRequest(tuple(messages), TOOLS), rounds) is offered
    assert not wants_tools(ModelRequest(tuple(messages)), rounds)
