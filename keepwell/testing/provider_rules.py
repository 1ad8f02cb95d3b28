"""A strict checker of what model providers demand of a history.

Providers refuse a request whose history breaks their rules, and go on refusing it at every later
turn. `check_history` checks a conversation as it is stored, `check_requests` what the adapters make
of it for the wire: stricter, as it demands valid JSON, names and ids that endpoints accept,
argument objects and, for the messages protocol, turns that alternate.

    >>> from keepwell.stores import Message
    >>> check_history([Message("user", "hi"), Message("tool", "x", tool_call_id="c1")])
    Traceback (most recent call last):
    AssertionError: message 1: a result of 'c1' without an open call
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..agent.anthropic_wire import anthropic_payload
from ..agent.model import ModelRequest
from ..agent.openai_wire import openai_payload
from ..stores.message import Message

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")


def check_history(messages: Iterable[Message]) -> None:
    """Raise AssertionError, naming the place, where a history breaks a rule of providers.

    Every call has exactly one result, before anything but results is said; no result stands
    without its call; no assistant message says nothing.
    """
    waiting: Counter[str] = Counter()
    place = -1
    for place, message in enumerate(messages):
        if message.role == "tool":
            call = message.tool_call_id or ""
            assert waiting[call] > 0, f"message {place}: a result of {call!r} without an open call"
            waiting[call] -= 1
            continue
        assert not +waiting, f"message {place} comes before the results of {_open(waiting)}"
        if message.role == "assistant":
            assert message.content or message.tool_calls, f"message {place}: it says nothing"
            waiting.update(call.id for call in message.tool_calls)
    assert not +waiting, f"after message {place}: no results of {_open(waiting)}"


def _open(waiting: Counter[str]) -> str:
    return ", ".join(map(repr, sorted((+waiting).elements())))


def check_requests(messages: Sequence[Message]) -> None:
    """Raise AssertionError if a history cannot be sent to either family of endpoints.

    `messages` is what an agent would send: repaired and in call order.
    """
    request = ModelRequest(tuple(messages))
    check_completions_payload(openai_payload(request))
    check_messages_payload(anthropic_payload(request))


def check_completions_payload(payload: Mapping[str, object]) -> None:
    """Raise AssertionError if a chat completions request would be refused for its messages."""
    json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
    waiting: list[str] = []
    used: set[str] = set()
    wire = payload["messages"]
    assert isinstance(wire, list)
    for message in wire:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, "a result without an open call"
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting, f"{message['role']} before the results of {waiting}"
        calls = message.get("tool_calls", ())
        for call in calls:
            assert _ID.fullmatch(call["id"]) and _NAME.fullmatch(call["function"]["name"]), call
            assert isinstance(json.loads(call["function"]["arguments"]), dict), call
            assert call["id"] not in used, f"two calls have the id {call['id']!r}"
            used.add(call["id"])
            waiting.append(call["id"])
        assert message["role"] != "assistant" or message["content"] or calls, "it says nothing"
    assert not waiting, f"no results of {waiting}"


def check_messages_payload(payload: Mapping[str, object]) -> None:
    """Raise AssertionError if a request of the messages protocol would be refused for them."""
    json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
    owed: list[str] = []
    used: set[str] = set()
    wire = payload["messages"]
    assert isinstance(wire, list)
    for place, message in enumerate(wire):
        assert message["role"] == ("assistant" if place % 2 else "user"), "turns do not alternate"
        blocks = message["content"]
        assert blocks, "an empty message"
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        assert sorted(results) == sorted(owed), f"results {results} for calls {owed}"
        owed = []
        for block in blocks:
            if block["type"] == "text":
                assert block["text"].strip(), "an empty text"
            elif block["type"] == "tool_use":
                assert _ID.fullmatch(block["id"]) and _NAME.fullmatch(block["name"]), block
                assert isinstance(block["input"], dict), block
                assert block["id"] not in used, f"two calls have the id {block['id']!r}"
                used.add(block["id"])
                owed.append(block["id"])
    assert not owed, f"no results of {owed}"
