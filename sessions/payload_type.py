"""Payload types: what a channel or carrier may hold, checked against every value (A5, A14).

A type is a Python type of plain data (`int`, `list[str]`, `dict[str, float] | None`, a Literal, a
TypedDict) or a JSON Schema. What could not be checked is refused when the channel is made, not at
the first message. Types are Python's and exact: int takes no True and no 1.0, float takes 1.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..agent.json_schema import describe, resolve_reference, unchecked_keywords, validate
from ..stores.errors import shown
from .errors import SessionDefinitionError

Check = Callable[[object], str | None]
"""What is wrong with a plain value, None if nothing."""

_JSON_TYPES = ("null", "boolean", "integer", "number", "string", "object", "array")
_SCHEMAS = ("items", "additionalProperties", "not")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAPS = ("properties", "$defs", "definitions")


def payload_check(payload: object) -> Check:
    """The check of a payload type or JSON Schema; None takes everything.

    Raises SessionDefinitionError, naming the part, for a type or keyword that cannot be checked.
    """
    if payload is None or payload is Any or payload is object:
        return _anything
    if isinstance(payload, Mapping):
        return _schema_check(payload)
    return _type_check(payload)


def _anything(_value: object) -> str | None:
    return None


# -- JSON Schema ---------------------------------------------------------------------------------


def _schema_check(schema: Mapping[str, object]) -> Check:
    for keyword in unchecked_keywords(schema):
        raise SessionDefinitionError(f"schema keyword {keyword} cannot be checked: leave it out")
    _check_schema(schema, schema, "$")

    def check(value: object) -> str | None:
        problems = validate(value, schema)[1]
        return "; ".join(map(str, problems)) or None

    return check


def _check_schema(schema: object, root: Mapping[str, object], path: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise SessionDefinitionError(f"schema {path} must be a mapping, not {shown(schema)}")
    names = schema.get("type", [])
    listed = list(names) if isinstance(names, list | tuple) else [names]
    for name in listed:
        if name not in _JSON_TYPES:
            raise SessionDefinitionError(
                f"schema {path}.type {shown(name)} is none of {', '.join(_JSON_TYPES)}"
            )
    pattern = schema.get("pattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as problem:
            raise SessionDefinitionError(
                f"schema {path}.pattern {shown(pattern)} is no pattern: {problem}"
            ) from None
    if "$ref" in schema and resolve_reference(root, schema["$ref"]) is None:
        raise SessionDefinitionError(f"schema {path}.$ref {shown(schema['$ref'])} leads nowhere")
    for key in _SCHEMAS:
        if key in schema:
            _check_schema(schema[key], root, f"{path}.{key}")
    for key in _SCHEMA_LISTS:
        options = schema.get(key, ())
        if not isinstance(options, list | tuple):
            raise SessionDefinitionError(
                f"schema {path}.{key} must be a list, not {shown(options)}"
            )
        for place, inner in enumerate(options):
            _check_schema(inner, root, f"{path}.{key}[{place}]")
    for key in _SCHEMA_MAPS:
        mapped = schema.get(key, {})
        if not isinstance(mapped, Mapping):
            raise SessionDefinitionError(
                f"schema {path}.{key} must be a mapping, not {shown(mapped)}"
            )
        for name, inner in mapped.items():
            _check_schema(inner, root, f"{path}.{key}.{name}")


# -- Python types --------------------------------------------------------------------------------


def _type_check(payload: object) -> Check:
    check = _typed(payload, "")

    def checked(value: object) -> str | None:
        return check(value, "$")

    return checked


_Typed = Callable[[object, str], str | None]


def _typed(payload: object, place: str) -> _Typed:
    if payload is None or payload is type(None):
        return _atom(lambda value: value is None, "None")
    if payload is Any or payload is object:
        return lambda _value, _path: None
    if payload is bool:
        return _atom(lambda value: isinstance(value, bool), "a bool")
    if payload is int:
        return _atom(lambda value: type(value) is int, "an int")
    if payload is float:
        return _atom(lambda value: type(value) in (float, int), "a float")
    if payload is str:
        return _atom(lambda value: isinstance(value, str), "a str")
    origin, args = typing.get_origin(payload), typing.get_args(payload)
    if origin is typing.Union or origin is types.UnionType:
        return _union([_typed(arg, place) for arg in args], args)
    if origin is typing.Literal:
        return _atom(
            lambda value: any(type(value) is type(arg) and value == arg for arg in args),
            "one of " + ", ".join(map(repr, args)),
        )
    if origin is typing.Annotated:
        return _typed(args[0], place)
    if payload is list or origin in (list, Sequence):
        return _list_of(_typed(args[0], f"{place}[]") if args else None)
    if payload is tuple or origin is tuple:
        return _tuple_of(args, place)
    if payload is dict or origin in (dict, Mapping):
        if args and args[0] is not str:
            raise SessionDefinitionError(f"{shown(payload)}: keys of plain data are str")
        return _dict_of(_typed(args[1], f"{place}{{}}") if args else None)
    if typing.is_typeddict(payload):
        return _typed_dict(payload, place)
    raise SessionDefinitionError(
        f"payload type {shown(payload)}{' at ' + place if place else ''} cannot be checked: give a "
        "type of plain data (None, bool, int, float, str, list[...], dict[str, ...], a union, a "
        "Literal, a TypedDict), or a JSON Schema"
    )


def _atom(fits: Callable[[object], bool], wanted: str) -> _Typed:
    return lambda value, path: (
        None if fits(value) else f"{path} must be {wanted}, got {describe(value)}"
    )


def _union(options: list[_Typed], args: tuple[object, ...]) -> _Typed:
    wanted = " or ".join(getattr(arg, "__name__", str(arg)) for arg in args)

    def check(value: object, path: str) -> str | None:
        if any(option(value, path) is None for option in options):
            return None
        return f"{path} must be {wanted}, got {describe(value)}"

    return check


def _list_of(item: _Typed | None) -> _Typed:
    def check(value: object, path: str) -> str | None:
        if not isinstance(value, list):
            return f"{path} must be a list, got {describe(value)}"
        if item is not None:
            for place, each in enumerate(value):
                problem = item(each, f"{path}[{place}]")
                if problem is not None:
                    return problem
        return None

    return check


def _tuple_of(args: tuple[object, ...], place: str) -> _Typed:
    if not args:
        return _list_of(None)
    if len(args) == 2 and args[1] is Ellipsis:
        return _list_of(_typed(args[0], f"{place}[]"))
    items = [_typed(arg, f"{place}[{i}]") for i, arg in enumerate(args)]

    def check(value: object, path: str) -> str | None:
        if not isinstance(value, list) or len(value) != len(items):
            return f"{path} must be a list of {len(items)}, got {describe(value)}"
        for i, (item, each) in enumerate(zip(items, value, strict=True)):
            problem = item(each, f"{path}[{i}]")
            if problem is not None:
                return problem
        return None

    return check


def _dict_of(item: _Typed | None) -> _Typed:
    def check(value: object, path: str) -> str | None:
        if not isinstance(value, dict):
            return f"{path} must be a dict, got {describe(value)}"
        if item is not None:
            for key, each in value.items():
                problem = item(each, f"{path}.{key}")
                if problem is not None:
                    return problem
        return None

    return check


def _typed_dict(payload: Any, place: str) -> _Typed:
    hints = typing.get_type_hints(payload)
    fields = {name: _typed(hint, f"{place}.{name}") for name, hint in hints.items()}
    required: frozenset[str] = payload.__required_keys__

    def check(value: object, path: str) -> str | None:
        if not isinstance(value, dict):
            return f"{path} must be a dict, got {describe(value)}"
        for name in sorted(required):
            if name not in value:
                return f"{path} lacks {name!r}"
        for name, each in value.items():
            if name not in fields:
                return f"{path} has no field {name!r}; it has {', '.join(fields)}"
            problem = fields[name](each, f"{path}.{name}")
            if problem is not None:
                return problem
        return None

    return check
