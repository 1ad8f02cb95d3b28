"""JSON Schemas from Python annotations, and the way back from JSON to the annotated types.

Each annotation gives a pair: the schema that the model is shown, and a converter that makes the
Python value from JSON data which that schema has accepted. Types that refer to themselves go to
`$defs`; all others are written in place, because small models follow references badly. pydantic
is never imported: its models are known by their methods and bring their own schema.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import inspect
import json
import pathlib
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from ..actors.errors import InvalidValue
from .docstring import parse_docstring
from .errors import InvalidArguments
from .json_schema import same_json, validate
from .tool_context import ToolContext

Schema = dict[str, object]
Convert = Callable[[Any], object]
Described = tuple[Schema, Convert]

_SCALARS: Final[Mapping[object, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
}
_TEXT_FORMS: Final[Mapping[object, tuple[str, Convert]]] = {
    datetime.datetime: ("date-time", datetime.datetime.fromisoformat),
    datetime.date: ("date", datetime.date.fromisoformat),
    datetime.time: ("time", datetime.time.fromisoformat),
    uuid.UUID: ("uuid", uuid.UUID),
    decimal.Decimal: ("decimal", lambda text: _decimal(text)),
    pathlib.Path: ("path", pathlib.Path),
}
_LISTS: Final[frozenset[object]] = frozenset({list, Sequence, MutableSequence, Iterable})
_SETS: Final[frozenset[object]] = frozenset({set, frozenset, AbstractSet})
_DICTS: Final[frozenset[object]] = frozenset({dict, Mapping, MutableMapping})


@dataclass(frozen=True)
class FunctionSchema:
    """What `function_schema` found: texts, parameters as JSON Schema, and how to convert them."""

    name: str
    description: str
    parameters: Mapping[str, object]
    converters: Mapping[str, Convert]
    rest: Convert | None  # for **kwargs
    context_parameters: tuple[str, ...]

    def convert(self, arguments: Mapping[str, object], context: ToolContext) -> dict[str, object]:
        """Keyword arguments from validated JSON data. Raises InvalidArguments."""
        result: dict[str, object] = {}
        for key, value in arguments.items():
            converter = self.converters.get(key, self.rest)
            if converter is None:
                raise InvalidArguments(f"there is no argument {key!r}")
            try:
                result[key] = converter(value)
            except InvalidArguments:
                raise
            except (ValueError, TypeError, ArithmeticError) as error:
                raise InvalidArguments(f"argument {key!r} cannot be used: {error}") from error
        for key in self.context_parameters:
            result[key] = context
        return result


def function_schema(fn: Callable[..., object]) -> FunctionSchema:
    """Describe a function for a model. Raises InvalidValue, naming the parameter at fault."""
    name = _function_name(fn)
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError) as error:
        raise InvalidValue(f"{fn!r} has no readable signature; wrap it in a function") from error
    hints = _hints(fn)
    description, texts = parse_docstring(_docstring(fn))
    builder = SchemaBuilder()
    properties: Schema = {}
    required: list[str] = []
    converters: dict[str, Convert] = {}
    context: list[str] = []
    rest: Convert | None = None
    extra: object = False
    for parameter in signature.parameters.values():
        where = f"parameter {parameter.name!r} of {name!r}"
        annotation = hints.get(parameter.name, Any)
        if annotation is ToolContext:
            context.append(parameter.name)
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidValue(
                f"{where} cannot be passed by name, as a model's call needs: "
                "use a keyword parameter"
            )
        schema, convert = builder.describe(annotation, where)
        if parameter.kind is parameter.VAR_KEYWORD:
            extra, rest = schema or True, convert
            continue
        if parameter.name in texts and "description" not in schema:
            schema = {**schema, "description": texts[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            default = _plain(parameter.default)
            if default is not _ABSENT:
                schema = {**schema, "default": default}
        properties[parameter.name] = schema
        converters[parameter.name] = convert
    parameters: Schema = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    parameters["additionalProperties"] = extra
    if builder.definitions:
        parameters["$defs"] = builder.definitions
    return FunctionSchema(name, description, parameters, converters, rest, tuple(context))


def type_schema(annotation: object) -> Described:
    """The JSON Schema of a type and its converter. Raises InvalidValue if it has no JSON form."""
    builder = SchemaBuilder()
    schema, convert = builder.describe(annotation, f"the type {annotation!r}")
    if builder.definitions:
        schema = {**schema, "$defs": builder.definitions}
    return schema, convert


class SchemaBuilder:
    """Describes annotations; types that refer to themselves are collected in `definitions`."""

    def __init__(self) -> None:
        self.definitions: Schema = {}
        self._open: set[object] = set()  # named types that are being described
        self._names: dict[object, str] = {}
        self._referred: set[object] = set()
        self._converters: dict[object, Convert] = {}

    def describe(self, annotation: Any, where: str) -> Described:
        """`(schema, converter)` of one annotation; `where` is for the error message."""
        if annotation is Any or annotation is object or annotation is inspect.Parameter.empty:
            return {}, _same
        if annotation is None or annotation is type(None):
            return {"type": "null"}, _same
        if annotation in _SCALARS:
            # JSON has one kind of number: 1 for a float parameter becomes 1.0
            return {"type": _SCALARS[annotation]}, (float if annotation is float else _same)
        if annotation in _TEXT_FORMS:
            form, convert = _TEXT_FORMS[annotation]
            return {"type": "string", "format": form}, convert
        origin = get_origin(annotation)
        if origin is Annotated:
            return self._annotated(annotation, where)
        if origin in (typing.Required, typing.NotRequired) or _is_read_only(origin):
            return self.describe(get_args(annotation)[0], where)
        if origin is Literal:
            return self._literal(get_args(annotation))
        if origin is Union or origin is types.UnionType:
            return self._union(get_args(annotation), where)
        if hasattr(annotation, "__supertype__"):  # NewType
            return self.describe(annotation.__supertype__, where)
        if hasattr(annotation, "__value__"):  # type X = ...
            # It may name itself: type Json = str | list[Json]
            return self._named(annotation, lambda: self.describe(annotation.__value__, where))
        container: object = origin or annotation
        if container in _LISTS or container in _SETS or container in _DICTS or container is tuple:
            return self._container(container, get_args(annotation), where)
        if isinstance(annotation, type):
            return self._class(annotation, where)
        raise InvalidValue(
            f"{where} is annotated {annotation!r}, which has no JSON form: use str, int, float, "
            "bool, list, dict, Literal, Enum, dataclass, TypedDict or a union"
        )

    def _annotated(self, annotation: Any, where: str) -> Described:
        base, *notes = get_args(annotation)
        schema, convert = self.describe(base, where)
        for note in notes:
            text = (
                note
                if isinstance(note, str)
                else (getattr(note, "description", None) or getattr(note, "documentation", None))
            )
            if isinstance(text, str):
                schema = {**schema, "description": text}
        return schema, convert

    def _literal(self, values: tuple[object, ...]) -> Described:
        plain = [v.value if isinstance(v, enum.Enum) else v for v in values]
        schema: Schema = {"enum": plain}
        kinds = {type(v) for v in plain}
        if len(kinds) == 1 and (kind := kinds.pop()) in _SCALARS:
            schema = {"type": _SCALARS[kind], **schema}
        pairs = list(zip(values, plain, strict=True))
        return schema, lambda value: next((v for v, p in pairs if same_json(p, value)), value)

    def _union(self, options: tuple[Any, ...], where: str) -> Described:
        described = [self.describe(option, where) for option in options]
        schemas = [schema for schema, _ in described]

        def convert(value: object) -> object:
            # The value has been coerced to fit one option exactly: the first such is meant.
            for schema, option in described:
                rooted = {**schema, "$defs": self.definitions} if self.definitions else schema
                if not validate(value, rooted)[1]:
                    return option(value)
            return value

        return {"anyOf": schemas}, convert

    def _container(self, container: object, args: tuple[Any, ...], where: str) -> Described:
        if container in _DICTS:
            key, item = args if args else (str, Any)
            if key is not str:
                raise InvalidValue(
                    f"{where} is a mapping with keys {key!r}: JSON has string keys only"
                )
            schema, convert = self.describe(item, where)
            whole: Schema = {"type": "object"}
            if schema:
                whole["additionalProperties"] = schema
            return whole, lambda value: {k: convert(v) for k, v in value.items()}
        if container is tuple and args and args[-1] is not ...:
            parts = [self.describe(arg, where) for arg in args if arg != ()]
            return (
                {
                    "type": "array",
                    "prefixItems": [s for s, _ in parts],
                    "minItems": len(parts),
                    "maxItems": len(parts),
                },
                lambda value: tuple(c(v) for (_, c), v in zip(parts, value, strict=True)),
            )
        schema, convert = self.describe(args[0] if args else Any, where)
        whole = {"type": "array"}
        if schema:
            whole["items"] = schema
        make: Callable[[Iterable[object]], object] = list
        if container is tuple:
            make = tuple
        elif container in _SETS:
            whole["uniqueItems"] = True
            make = set if container is set else frozenset
        return whole, lambda value: make([convert(v) for v in value])

    def _class(self, cls: Any, where: str) -> Described:
        if issubclass(cls, enum.Enum):
            members = {member.value: member for member in cls}
            if not all(isinstance(v, str | int | float | bool) or v is None for v in members):
                raise InvalidValue(f"{where}: the values of {cls.__name__} must be JSON scalars")
            schema: Schema = {"enum": list(members)}
            kinds = {type(v) for v in members}
            if len(kinds) == 1 and (kind := kinds.pop()) in _SCALARS:
                schema = {"type": _SCALARS[kind], **schema}
            return schema, cls
        if callable(getattr(cls, "model_json_schema", None)):
            return self._pydantic(cls)
        if dataclasses.is_dataclass(cls):
            return self._named(cls, lambda: self._dataclass(cls))
        if typing.is_typeddict(cls):
            return self._named(cls, lambda: self._typed_dict(cls))
        for base in _SCALARS:
            if cls is not base and isinstance(base, type) and issubclass(cls, base):
                return {"type": _SCALARS[base]}, cls
        raise InvalidValue(
            f"{where} is annotated {cls.__name__}, which has no JSON form: use a dataclass, "
            "a TypedDict, a pydantic model or plain types"
        )

    def _named(self, cls: Any, build: Callable[[], Described]) -> Described:
        """Describe a type that may contain itself; it becomes a definition only if it does."""
        if cls in self._open:
            self._referred.add(cls)
            return self._reference(cls), lambda value: self._converters[cls](value)
        if cls in self._converters and cls in self._referred:
            return self._reference(cls), self._converters[cls]
        self._open.add(cls)
        try:
            schema, convert = build()
        finally:
            self._open.discard(cls)
        self._converters[cls] = convert
        if cls in self._referred:
            self.definitions[self._name_of(cls)] = schema
            return self._reference(cls), convert
        return schema, convert

    def _reference(self, cls: Any) -> Schema:
        return {"$ref": f"#/$defs/{self._name_of(cls)}"}

    def _name_of(self, cls: Any) -> str:
        """The class's name; the second class of one name gets its module in front."""
        if cls not in self._names:
            name = str(cls.__name__)
            if name in self._names.values():
                path = getattr(cls, "__qualname__", name).replace("<locals>.", "")
                name = f"{cls.__module__}.{path}"
            self._names[cls] = name
        return self._names[cls]

    def _dataclass(self, cls: Any) -> Described:
        hints = typing.get_type_hints(cls, include_extras=True)
        _, texts = parse_docstring(cls.__doc__)
        properties: Schema = {}
        required: list[str] = []
        converters: dict[str, Convert] = {}
        for item in dataclasses.fields(cls):
            if not item.init:
                continue
            schema, converters[item.name] = self.describe(
                hints[item.name], f"field {item.name!r} of {cls.__name__}"
            )
            if item.name in texts and "description" not in schema:
                schema = {**schema, "description": texts[item.name]}
            properties[item.name] = schema
            if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                required.append(item.name)
        return (
            _object_schema(properties, required),
            lambda value: cls(**{k: converters[k](v) for k, v in value.items()}),
        )

    def _typed_dict(self, cls: Any) -> Described:
        hints = typing.get_type_hints(cls, include_extras=True)
        described = {
            key: self.describe(hint, f"key {key!r} of {cls.__name__}")
            for key, hint in hints.items()
        }
        required = [key for key, hint in hints.items() if _is_required(key, hint, cls)]
        return (
            _object_schema({k: s for k, (s, _) in described.items()}, required),
            lambda value: {k: described[k][1](v) for k, v in value.items()},
        )

    def _pydantic(self, cls: Any) -> Described:
        schema = dict(cls.model_json_schema())
        renamed: dict[str, str] = {}
        inner = schema.pop("$defs", {})
        for name, definition in inner.items():
            fresh = name
            while fresh in self.definitions and self.definitions[fresh] != definition:
                fresh += "_"
            renamed[name] = fresh
        for name, definition in inner.items():
            self.definitions[renamed[name]] = renamed_references(definition, renamed)

        def convert(value: object) -> object:
            try:
                return cls.model_validate(value)
            except ValueError as error:  # pydantic's ValidationError is one
                raise InvalidArguments(f"{cls.__name__} cannot be made of it: {error}") from error

        renamed_schema = renamed_references(schema, renamed)
        assert isinstance(renamed_schema, dict)
        return renamed_schema, convert


_ABSENT: Final = object()


def _plain(value: object) -> object:
    """A default as JSON data, or _ABSENT where it has no such form."""
    if isinstance(value, enum.Enum):
        value = value.value
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return _ABSENT


def _object_schema(properties: Schema, required: list[str]) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    return schema


def renamed_references(value: object, names: Mapping[str, str]) -> object:
    """A copy of a schema whose references to renamed definitions follow the new names."""
    if isinstance(value, Mapping):
        return {
            k: f"#/$defs/{names.get(str(v)[8:], str(v)[8:])}"
            if k == "$ref" and isinstance(v, str) and v.startswith("#/$defs/")
            else renamed_references(v, names)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [renamed_references(v, names) for v in value]
    return value


def _same(value: object) -> object:
    return value


def _decimal(text: str) -> decimal.Decimal:
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise ValueError(f"{text!r} is not a decimal number") from None


def _is_read_only(origin: object) -> bool:
    return getattr(origin, "_name", None) == "ReadOnly"


def _is_required(key: str, hint: Any, cls: Any) -> bool:
    # Not __required_keys__ alone: under `from __future__ import annotations` it misses both marks.
    origin = get_origin(hint)
    if origin in (typing.Required, typing.NotRequired):
        return origin is typing.Required
    return key in cls.__required_keys__


def _underlying(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or isinstance(fn, type):
        return fn
    return getattr(type(fn), "__call__", fn)  # noqa: B004 -- the method itself is wanted


def _function_name(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def _docstring(fn: Any) -> str | None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or isinstance(fn, type):
        return inspect.getdoc(fn)
    return inspect.getdoc(type(fn).__call__) or inspect.getdoc(type(fn))


def _hints(fn: Callable[..., object]) -> dict[str, Any]:
    target = _underlying(fn)
    if isinstance(target, type):
        target = inspect.getattr_static(target, "__init__")
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, AttributeError, TypeError) as error:
        raise InvalidValue(
            f"the annotations of {_function_name(fn)!r} cannot be read: {error}. A "
            "type that it names must be defined at module level, not inside a function"
        ) from error
