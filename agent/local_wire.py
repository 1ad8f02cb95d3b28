"""How a small local model is asked, and how its tool calls are read. Pure.

Small models do not speak the providers' tool protocol. They are asked for JSON that a schema
constrains, `{"tool": name, "arguments": {...}}` or `{"tool": "none"}`; and because a constraint
may be missing or cut off by the output limit, what comes is read leniently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..stores.message import ToolCall
from .model import ModelRequest
from .tool import ToolSchema
from .tool_schema import renamed_references
from .wire import arguments_object, clean_json, clean_text, json_text, tool_call

NO_TOOL: Final = "none"


def chat_messages(request: ModelRequest, *, offer_tools: bool) -> list[dict[str, str]]:
    """The conversation as plain chat messages; calls and results as text the model can read.

    Where tools are offered, earlier calls are shown as the JSON that is wanted again. Where an
    answer is wanted they are left out, since a small model copies what it is shown, and a result
    stands with the question that it answers.
    """
    system = [clean_text(message.text) for message in request.messages if message.role == "system"]
    if offer_tools:
        system.append(_offer(request.tools))
    sent: list[dict[str, str]] = []
    if system:
        sent.append({"role": "system", "content": "\n\n".join(system)})
    names: dict[str, str] = {}
    for message in request.messages:
        if message.role == "system":
            continue
        text = clean_text(message.text)
        if message.role == "tool":
            name = names.get(message.tool_call_id or "", "tool")
            if offer_tools:
                sent.append({"role": "user", "content": f"The tool {name} returned: {text}"})
            else:
                _note_result(sent, f"The result of {name} is {text}.")
            continue
        for call in message.tool_calls:
            names[call.id] = call.name
            if offer_tools:
                arguments = arguments_object(call.arguments)
                written = json_text({"tool": call.name, "arguments": arguments})
                text = f"{text}\n{written}" if text else written
        if text or not message.tool_calls:
            sent.append({"role": message.role, "content": text})
    if not offer_tools and request.messages and request.messages[-1].role == "tool":
        sent[-1]["content"] += " Answer my question with this result."
    return sent


def _note_result(sent: list[dict[str, str]], note: str) -> None:
    if sent and sent[-1]["role"] == "user":
        sent[-1]["content"] += f"\n\n{note}"
    else:
        sent.append({"role": "user", "content": note})


def wants_tools(request: ModelRequest, rounds: int) -> bool:
    """Whether to offer tools: at most `rounds` times after a question.

    A small model that is offered a tool takes it, again and again; after that it must answer.
    """
    taken = 0
    for message in reversed(request.messages):
        if message.role == "user":
            break
        taken += bool(message.tool_calls)
    return bool(request.tools) and taken < rounds


def call_schema(tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """The JSON Schema of a choice: one of the tools with its arguments, or none."""
    options: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for place, tool in enumerate(tools):
        parameters = dict(tool.parameters)
        # References point into the root; each tool's definitions get names of their own there.
        inner = parameters.pop("$defs", None)
        if isinstance(inner, Mapping):
            names = {str(name): f"{place}_{name}" for name in inner}
            definitions |= {
                names[str(n)]: renamed_references(definition, names)
                for n, definition in inner.items()
            }
            renamed = renamed_references(parameters, names)
            assert isinstance(renamed, dict)  # a mapping stays one
            parameters = renamed
        options.append(_option({"tool": {"const": tool.name}, "arguments": clean_json(parameters)}))
    options.append(_option({"tool": {"const": NO_TOOL}}))
    schema: dict[str, Any] = {"anyOf": options}
    if definitions:
        schema["$defs"] = clean_json(definitions)
    return schema


def read_calls(text: str, tools: Sequence[ToolSchema]) -> tuple[ToolCall, ...]:
    """The tool calls in what the model wrote; none if it chose none or wrote something else.

    Understood are one object or several, in an array or one after another, in prose or code
    fences, with the name under tool, name or function and the arguments under arguments,
    parameters or beside the name.
    """
    taken: set[str] = set()
    known = {tool.name for tool in tools}
    calls = []
    for value in _objects(text):
        name = value.get("tool", value.get("name", value.get("function")))
        if isinstance(name, Mapping):  # {"function": {"name": ..., "arguments": ...}}
            value = dict(name)
            name = value.get("name")
        if not isinstance(name, str) or name not in known:
            continue
        arguments: object = value.get("arguments", value.get("parameters"))
        if arguments is None:
            beside = ("tool", "name", "function")
            arguments = {key: item for key, item in value.items() if key not in beside}
        calls.append(tool_call(None, name, arguments, taken))
    return tuple(calls)


def _offer(tools: Sequence[ToolSchema]) -> str:
    """The tools, each with the very JSON that calls it: small models copy what they are shown."""
    lines = ["Reply with JSON that calls the tool which fits the user's message."]
    for tool in tools:
        properties = tool.parameters.get("properties")
        shown = properties if isinstance(properties, Mapping) else {}
        example = {"tool": tool.name, "arguments": {k: _kind(v) for k, v in shown.items()}}
        lines.append(f"- {tool.name}: {clean_text(tool.description)} {_spaced(example)}")
    lines.append(f'- {NO_TOOL}: Anything else, such as a greeting. {{"tool": "{NO_TOOL}"}}')
    return "\n".join(lines)


def _kind(schema: object) -> object:
    """What to show in an argument's place: its type, or the values it may have."""
    if not isinstance(schema, Mapping):
        return "..."
    values = schema.get("enum")
    if isinstance(values, list | tuple):
        return " or ".join(str(value) for value in values)
    return clean_json(schema.get("type", "..."))


def _spaced(value: object) -> str:
    return json.dumps(clean_json(value), ensure_ascii=False)


def _option(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _objects(text: str) -> Iterator[Mapping[str, object]]:
    """The outermost JSON objects in a text; those of an array one by one."""
    decoder = json.JSONDecoder()
    place = failures = 0
    # Bounded: a text of brackets only would be tried from each of them to its end.
    while (start := _first(text, place)) >= 0 and failures < 20:
        try:
            value, place = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            place = start + 1
            failures += 1
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield each


def _first(text: str, place: int) -> int:
    found = [at for at in (text.find("{", place), text.find("[", place)) if at >= 0]
    return min(found, default=-1)
