"""A validator for the part of JSON Schema that tools and structured outputs use.

The standard's full validator is a large dependency, and its messages are made for schema authors.
Here the reader of a message is a model that has to correct its call, so a message names the path,
what was expected and what came. Keywords that only annotate are accepted and ignored; keywords
that we cannot check are listed by `unchecked_keywords`, for callers that must not pass over them.

With `coerce=True` values that are plainly meant are converted: `"42"` and `42.0` for an integer,
`"true"` for a boolean, JSON text for an object or array. Small models write these all the time.
An exact match of any alternative of a union goes before a conversion.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Schema = Mapping[str, object]

_CHECKED: Final = frozenset(
    {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "$ref",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "pattern",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
    }
)
ANNOTATIONS: Final = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "discriminator",
        "strict",
    }
)
_MAX_DEPTH: Final = 200  # of nested values and references; a schema may refer to itself for ever
_MAX_STEPS: Final = 1_000_000  # values looked at, all tried alternatives of unions together
_MAX_PROBLEMS: Final = 5  # a model needs the first few, not one per element of a long array


@dataclass(frozen=True, slots=True)
class Problem:
    """One mismatch: `path` is `$` or e.g. `$.rows[3].name`; `message` reads on from the path."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path} {self.message}"


def validate(
    value: object, schema: Schema, *, coerce: bool = False
) -> tuple[object, list[Problem]]:
    """Check plain data against a schema: `(value, problems)`, no problems if it fits.

    The returned value is a copy where something was coerced, else the one given; nothing passed
    in is changed. At most five problems are returned.
    """
    checker = _Check(schema, coerce, iter(range(_MAX_STEPS)))
    result = checker.check(value, schema, "$", 0)
    return result, checker.problems


def unchecked_keywords(schema: object, path: str = "$") -> Iterator[str]:
    """Yield `path.keyword` for each keyword that `validate` would pass over without checking."""
    if not isinstance(schema, Mapping):
        return
    for key, sub in schema.items():
        here = f"{path}.{key}"
        if key not in _CHECKED and key not in ANNOTATIONS:
            yield here
        elif key in ("properties", "$defs", "definitions") and isinstance(sub, Mapping):
            for name, inner in sub.items():
                yield from unchecked_keywords(inner, f"{here}.{name}")
        elif key in ("items", "additionalProperties", "not"):
            yield from unchecked_keywords(sub, here)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(sub, Sequence):
            for i, inner in enumerate(sub):
                yield from unchecked_keywords(inner, f"{here}[{i}]")


def describe(value: object) -> str:
    """A value as an error message shows it: JSON type and a short form, at most 60 characters."""
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{json_type(value)} {text}" if value is not None else "null"


def json_type(value: object) -> str:
    """The JSON name of a Python value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    if isinstance(value, Mapping):
        return "object"
    if isinstance(value, list | tuple):
        return "array"
    return type(value).__name__


def same_json(a: object, b: object) -> bool:
    """Equality in JSON's sense: 1 equals 1.0, but True is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_json(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same_json, a, b))
    return a == b


class _Check:
    def __init__(self, root: Schema, coerce: bool, steps: Iterator[int]) -> None:
        self.root = root
        self.coerce = coerce
        self.steps = steps  # shared with the probes: all alternatives together are bounded
        self.problems: list[Problem] = []

    def say(self, path: str, message: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(Problem(path, message))

    def check(self, value: object, schema: object, path: str, depth: int) -> object:
        if depth > _MAX_DEPTH:
            self.say(path, "is nested too deeply")
            return value
        if next(self.steps, None) is None:
            self.say(path, "cannot be checked: there are too many alternatives in alternatives")
            return value
        if schema is True or schema == {}:
            return value
        if schema is False:
            self.say(path, "is not allowed")
            return value
        if not isinstance(schema, Mapping):
            self.say(path, f"cannot be checked: its schema is {describe(schema)}")
            return value
        if "$ref" in schema:
            value = self.check_reference(value, schema["$ref"], path, depth)
        if "allOf" in schema:
            for sub in _list(schema["allOf"]):
                value = self.check(value, sub, path, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                options = _list(schema[keyword])
                value = self.check_union(value, options, path, depth, keyword == "oneOf")
        if "not" in schema and not self.probe(value, schema["not"], depth, coerce=False)[1]:
            self.say(path, "matches what is excluded")
        if "type" in schema:
            value, fits = self.check_type(value, schema["type"], path)
            if not fits:
                return value
        if "const" in schema and not same_json(value, schema["const"]):
            self.say(path, f"must be {schema['const']!r}, got {describe(value)}")
        if "enum" in schema:
            value = self.check_enum(value, _list(schema["enum"]), path)
        if isinstance(value, str):
            self.check_string(value, schema, path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self.check_number(value, schema, path)
        elif isinstance(value, Mapping):
            return self.check_object(value, schema, path, depth)
        elif isinstance(value, list | tuple):
            return self.check_array(value, schema, path, depth)
        return value

    def probe(
        self, value: object, schema: object, depth: int, *, coerce: bool
    ) -> tuple[object, list[Problem]]:
        inner = _Check(self.root, coerce, self.steps)
        result = inner.check(value, schema, "$", depth + 1)
        return result, inner.problems

    def check_reference(self, value: object, ref: object, path: str, depth: int) -> object:
        target = resolve_reference(self.root, ref)
        if target is None:
            self.say(path, f"cannot be checked: its schema refers to {ref!r}, which is not there")
            return value
        return self.check(value, target, path, depth + 1)

    def check_union(
        self, value: object, options: Sequence[object], path: str, depth: int, exactly_one: bool
    ) -> object:
        meant = [o for o in options if not _is_null(o)]
        if len(meant) == 1 and len(options) == 2 and value is not None:
            # `X | null`, the commonest union, is decided without trying: tried alternatives inside
            # tried alternatives would cost the power of the nesting.
            if self.coerce and isinstance(value, str) and value in ("null", "None"):
                as_x, problems = self.probe(value, meant[0], depth, coerce=True)
                return None if problems else as_x
            return self.check(value, meant[0], path, depth + 1)
        exact = [o for o in options if not self.probe(value, o, depth, coerce=False)[1]]
        if exactly_one and len(exact) > 1:
            found = f"{describe(value)} matches {len(exact)}"
            self.say(path, f"must match one alternative only, {found}")
            return value
        if exact:
            return self.probe(value, exact[0], depth, coerce=True)[0] if self.coerce else value
        if self.coerce:
            for option in options:
                result, problems = self.probe(value, option, depth, coerce=True)
                if not problems:
                    return result
        if len(options) == 1:
            return self.check(value, options[0], path, depth + 1)
        wanted = " or ".join(_summary(o) for o in options)
        self.say(path, f"must be {wanted}, got {describe(value)}")
        return value

    def check_type(self, value: object, types: object, path: str) -> tuple[object, bool]:
        names = [types] if isinstance(types, str) else [str(t) for t in _list(types)]
        if any(_is_type(value, name) for name in names):
            if isinstance(value, float) and "integer" in names and "number" not in names:
                return (int(value) if self.coerce else value), True
            return value, True
        if self.coerce:
            for name in names:
                converted = _convert(value, name)
                if converted is not _NO:
                    return converted, True
        self.say(path, f"must be {_a(' or '.join(names))}, got {describe(value)}")
        return value, False

    def check_enum(self, value: object, options: Sequence[object], path: str) -> object:
        if any(same_json(value, option) for option in options):
            return value
        if self.coerce and isinstance(value, str):
            folded = [o for o in options if isinstance(o, str) and o.casefold() == value.casefold()]
            if len(folded) == 1:
                return folded[0]
            numbers = [o for o in options if not isinstance(o, str) and json.dumps(o) == value]
            if len(numbers) == 1:
                return numbers[0]
        listed = ", ".join(repr(o) for o in options[:20]) + (", ..." if len(options) > 20 else "")
        self.say(path, f"must be one of {listed}, got {describe(value)}")
        return value

    def check_string(self, value: str, schema: Schema, path: str) -> None:
        shortest, longest = schema.get("minLength"), schema.get("maxLength")
        if isinstance(shortest, int) and len(value) < shortest:
            self.say(path, f"must have at least {shortest} characters, has {len(value)}")
        if isinstance(longest, int) and len(value) > longest:
            self.say(path, f"must have at most {longest} characters, has {len(value)}")
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            try:
                if re.search(pattern, value) is None:
                    self.say(path, f"must match the pattern {pattern!r}, got {describe(value)}")
            except re.error:
                self.say(path, f"cannot be checked: {pattern!r} is no pattern")

    def check_number(self, value: int | float, schema: Schema, path: str) -> None:
        for keyword, fails, words in _BOUNDS:
            bound = schema.get(keyword)
            if _is_type(bound, "number") and isinstance(bound, int | float) and fails(value, bound):
                self.say(path, f"must be {words} {bound}, got {value}")
        step = schema.get("multipleOf")
        if isinstance(step, int | float) and step > 0:
            quotient = value / step
            if not math.isfinite(quotient) or abs(quotient - round(quotient)) > 1e-9:
                self.say(path, f"must be a multiple of {step}, got {value}")

    def check_object(
        self, value: Mapping[str, object], schema: Schema, path: str, depth: int
    ) -> Mapping[str, object]:
        raw = schema.get("properties")
        properties: Mapping[str, object] = raw if isinstance(raw, Mapping) else {}
        extra = schema.get("additionalProperties", True)
        for name in _list(schema.get("required", ())):
            if name not in value:
                self.say(path, f"lacks {name!r}")
        least, most = schema.get("minProperties"), schema.get("maxProperties")
        if isinstance(least, int) and len(value) < least:
            self.say(path, f"must have at least {least} members, has {len(value)}")
        if isinstance(most, int) and len(value) > most:
            self.say(path, f"must have at most {most} members, has {len(value)}")
        result: dict[str, object] = {}
        changed = False
        for key, item in value.items():
            where = f"{path}.{key}"
            if key in properties:
                result[key] = self.check(item, properties[key], where, depth + 1)
            elif extra is False:
                known = ", ".join(properties) or "nothing"
                self.say(path, f"has no {key!r}; it takes {known}")
                continue
            else:
                result[key] = self.check(item, extra, where, depth + 1)
            changed = changed or result[key] is not item
        return result if changed else value

    def check_array(
        self, value: Sequence[object], schema: Schema, path: str, depth: int
    ) -> Sequence[object]:
        least, most = schema.get("minItems"), schema.get("maxItems")
        if isinstance(least, int) and len(value) < least:
            self.say(path, f"must have at least {least} items, has {len(value)}")
        if isinstance(most, int) and len(value) > most:
            self.say(path, f"must have at most {most} items, has {len(value)}")
        if schema.get("uniqueItems") is True and _has_duplicates(value):
            self.say(path, "must not hold the same item twice")
        prefix = _list(schema.get("prefixItems", ()))
        rest = schema.get("items", True)
        result: list[object] = []
        changed = False
        for i, item in enumerate(value):
            sub = prefix[i] if i < len(prefix) else rest
            result.append(self.check(item, sub, f"{path}[{i}]", depth + 1))
            changed = changed or result[i] is not item
            if len(self.problems) >= _MAX_PROBLEMS:
                return value
        return result if changed else value


def resolve_reference(root: Schema, ref: object) -> object:
    """The part of `root` that a local reference (`#/$defs/Name`) names, or None."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    target: object = root
    for raw in ref[1:].split("/")[1:]:
        key = raw.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or key not in target:
            return None
        target = target[key]
    return target


_NO: Final = object()
_BOUNDS: Final[tuple[tuple[str, Callable[[float, float], bool], str], ...]] = (
    ("minimum", lambda v, b: v < b, "at least"),
    ("maximum", lambda v, b: v > b, "at most"),
    ("exclusiveMinimum", lambda v, b: v <= b, "more than"),
    ("exclusiveMaximum", lambda v, b: v >= b, "less than"),
)


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _is_type(value: object, name: str) -> bool:
    if name == "integer":
        if isinstance(value, float):
            return value.is_integer()
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return json_type(value) == name


def _convert(value: object, name: str) -> object:
    if not isinstance(value, str):
        return _NO
    text = value.strip()
    if name == "null":
        return None if text in ("null", "None") else _NO
    if name == "boolean":
        return {"true": True, "false": False}.get(text.casefold(), _NO)
    if name in ("integer", "number", "object", "array") and len(text) <= 1_000_000:
        try:
            parsed: object = json.loads(text)
        except (ValueError, RecursionError):
            return _NO
        if name == "integer" and isinstance(parsed, float) and parsed.is_integer():
            return int(parsed)
        return parsed if _is_type(parsed, name) else _NO
    return _NO


def _is_null(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null" and len(schema) == 1


def _has_duplicates(value: Sequence[object]) -> bool:
    seen: set[str] = set()
    for item in value:
        key = json.dumps(_canonical(item), sort_keys=True, default=repr)
        if key in seen:
            return True
        seen.add(key)
    return False


def _canonical(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {k: _canonical(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(v) for v in value]
    return value


def _summary(schema: object) -> str:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("title"), str):
            return str(schema["title"])
        if isinstance(schema.get("type"), str):
            return _a(str(schema["type"]))
        if "enum" in schema:
            return "one of " + ", ".join(repr(o) for o in _list(schema["enum"]))
        if "const" in schema:
            return repr(schema["const"])
        if isinstance(schema.get("$ref"), str):
            return str(schema["$ref"]).rsplit("/", 1)[-1]
    return "another form"


def _a(name: str) -> str:
    if name == "null":
        return name
    return f"{'an' if name[0] in 'aio' else 'a'} {name}"
