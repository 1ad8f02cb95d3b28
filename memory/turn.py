"""Turns of a transcript: plain dicts that a budget can count and a model call can be made of.

A turn has a `role` and, where present, `content` or `content_ref`, `ref` (what was called),
`tool_calls` (the providers' form: id, type, function with name and arguments as text) and
`tool_call_id`; from a log also `seq`, `turn_id`, `tokens` and `counter`. A call without an id is an
assistant turn with a `ref` and no `tool_calls`, followed by its result. Rules: E1...E4, F1, F2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, overload

from ..actors.errors import InvalidValue
from ..stores.message import Message, ToolCall
from ..stores.record import Log, Record
from ..stores.token_counter import TokenCounter
from .turn_text import MEDIA_TOKENS, counted_text

Turn = dict[str, Any]

CountTokens = Callable[[str], int] | TokenCounter
"""What counts: a function of a text, perhaps with `name` and `per_turn`; or a store's counter."""

_NOT_SENT: Final = frozenset({"seq", "turn_id", "tokens", "counter"})


class TurnCost:
    """The cost of turns under one counter.

    `per_turn` of the counter (0 without) plus the turn's stored `tokens`, if made by a counter of
    this name, else the count of its text plus a flat estimate for media. Raises InvalidValue for
    what is no count. Rule: F1.
    """

    def __init__(self, count_tokens: CountTokens) -> None:
        if callable(count_tokens):
            self._count: Callable[[str], int] = count_tokens
        elif isinstance(count_tokens, TokenCounter):
            self._count = count_tokens.count_text
        else:
            raise InvalidValue(
                f"count_tokens must be a function of a text or a counter, got {count_tokens!r}"
            )
        self.name: object = getattr(count_tokens, "name", None)
        self._per_turn = _checked(getattr(count_tokens, "per_turn", 0), "per_turn")

    def __call__(self, turn: Mapping[str, Any]) -> int:
        stored = turn.get("tokens")
        if stored is not None and self.name is not None and turn.get("counter") == self.name:
            return self._per_turn + _checked(stored, "a turn's tokens")
        text, media = _text_and_media(turn)
        return self._per_turn + self.text(text) + media * MEDIA_TOKENS

    def text(self, text: str) -> int:
        """The count of a text alone."""
        return _checked(self._count(text), "a count of tokens")


def turn_text(turn: Mapping[str, Any]) -> str:
    """The text that a turn is counted by: content, then name and arguments of each call. F2."""
    return _text_and_media(turn)[0]


def has_id(turn: Mapping[str, Any]) -> bool:
    """Whether a result names the call it answers; "" is an id like any other."""
    return turn.get("tool_call_id") is not None


def call_ids(turn: Mapping[str, Any]) -> list[str]:
    """The ids of a turn's calls, in call order."""
    return [call["id"] for call in turn.get("tool_calls") or ()]


def message_turn(message: Message) -> Turn:
    """A message as a turn. Rules: E2, E3."""
    turn: Turn = {"role": message.role}
    content = message.content
    if content is not None:
        turn["content"] = content if isinstance(content, str) else message.to_dict()["content"]
    if "content_ref" in message.extra:
        turn["content_ref"] = message.extra["content_ref"]
    if message.tool_calls:
        turn["tool_calls"] = [
            call_dict(call.id, call.name, call.arguments) for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def record_turn(record: Record) -> Turn:
    """A record of a log as a turn, with its place and its stored count. Rule: E6."""
    if record.message is None:
        raise InvalidValue(f"record {record.seq} is a pure mark and has no turn")
    turn = message_turn(record.message)
    turn["seq"], turn["turn_id"] = record.seq, record.turn_id
    turn["tokens"], turn["counter"] = record.tokens, record.counter
    return turn


def call_dict(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    """A call in the providers' form; arguments as compact key-sorted JSON, None as "{}". E3."""
    if isinstance(arguments, str):
        text = arguments
    else:
        text = json.dumps(
            {} if arguments is None else arguments,
            ensure_ascii=False,
            separators=(",", ":"),
            sort_keys=True,
            default=str,
        )
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def turn_messages(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """The turns as messages for a model call; calls without id go out as `call_<index>`. E3.

    So do those with an empty id, which no provider takes.
    """
    messages: list[Message] = []
    made: str | None = None  # the id given to the last action without one
    emptied: list[str] = []  # the ids given to calls with an empty one that have no result yet
    for index, turn in enumerate(turns):
        content = turn.get("content")
        if content is not None and not isinstance(content, str):
            content = _content(content)
        calls: list[ToolCall] = []
        for call in turn.get("tool_calls") or ():
            function = call["function"]
            sent = call["id"]
            if sent == "":
                sent = f"call_{index}" + (f"_{len(calls)}" if calls else "")
                emptied.append(sent)
            calls.append(ToolCall(sent, function["name"], _arguments(function["arguments"])))
        call_id = turn.get("tool_call_id")
        if call_id == "":
            call_id = emptied.pop(0) if emptied else f"call_{index}"
        if turn["role"] == "assistant":
            made = None
            if not calls and "ref" in turn:
                made = f"call_{index}"
                calls.append(ToolCall(made, _ref_name(turn["ref"]), _arguments(content)))
                content = None
        if turn["role"] == "tool" and call_id is None:
            call_id = made or f"call_{index}"
        messages.append(Message(turn["role"], content, calls or (), call_id))
    return tuple(messages)


class LogTurns(Sequence[Turn]):
    """The turns of a log, made as they are touched; `systems()` is found by the log's index."""

    __slots__ = ("_log",)

    def __init__(self, log: Log) -> None:
        self._log = log

    def __len__(self) -> int:
        return len(self._log)

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> list[Turn]: ...
    def __getitem__(self, index: int | slice) -> Turn | list[Turn]:
        if isinstance(index, slice):
            return [record_turn(record) for record in self._log[index]]
        return record_turn(self._log[index])

    def __iter__(self) -> Iterator[Turn]:
        return map(record_turn, self._log)

    def __reversed__(self) -> Iterator[Turn]:
        return map(record_turn, reversed(self._log))

    def systems(self) -> list[Turn]:
        """The system turns, in order."""
        return [record_turn(record) for record in self._log.systems()]


def system_turns(turns: Sequence[Turn]) -> list[Turn]:
    """The system turns in order, by the sequence's own index if it has one."""
    index = getattr(turns, "systems", None)
    if callable(index):
        found = index()
        assert isinstance(found, Sequence)
        return list(found)
    return [turn for turn in turns if turn["role"] == "system"]


def _text_and_media(turn: Mapping[str, Any]) -> tuple[str, int]:
    content = turn.get("content", turn.get("content_ref"))
    calls = [
        (str(call["function"]["name"]), call["function"]["arguments"])
        for call in turn.get("tool_calls") or ()
    ]
    return counted_text(content, calls)


def _checked(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidValue(f"{what} must be an int of at least 0, got {value!r}")
    return value


def _content(content: object) -> str | list[Any]:
    """Content that is no str: parts stay parts, other data becomes its JSON text."""
    if isinstance(content, list | tuple) and all(
        isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in content
    ):
        return list(content)
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)


def _arguments(text: object) -> Any:
    """Arguments as a mapping if they are one, else the raw text. F17."""
    if not isinstance(text, str):
        return ""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parsed if isinstance(parsed, dict) else text


def _ref_name(ref: Mapping[str, Any]) -> str:
    if ref.get("kind") == "mcp":
        return f"{ref['server']}/{ref['tool']}"
    return str(ref.get("name", ref.get("ref", "")))
