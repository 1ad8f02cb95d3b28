"""The JSON Schema validator: agreement with the reference implementation, messages, coercion."""

from __future__ import annotations

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.agent.flat_schema import FlatSchema
from keepwell.agent.json_schema import same_json, unchecked_keywords, validate

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([0.5, 1.0, -2.0])
    | st.sampled_from(["", "a", "abc", "1", "true"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)


def _objects(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.fixed_dictionaries(
        {
            "type": st.just("object"),
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
        },
        optional={
            "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
            "additionalProperties": st.booleans() | inner,
            "minProperties": st.integers(0, 2),
            "maxProperties": st.integers(0, 2),
        },
    )


def _arrays(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "uniqueItems": st.booleans(),
        },
    )


LEAVES = (
    st.just({})
    | st.booleans()
    | st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["string", "integer", "number", "boolean", "null", "array", "object"]
            )
        }
    )
    | st.fixed_dictionaries({"type": st.just(["string", "null"])})
    | st.fixed_dictionaries({"enum": st.lists(SCALARS, min_size=1, max_size=3)})
    | st.fixed_dictionaries({"const": SCALARS})
    | st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={
            "minLength": st.integers(0, 3),
            "maxLength": st.integers(0, 3),
            "pattern": st.just("^a"),
        },
    )
    | st.fixed_dictionaries(
        {"type": st.just("number")},
        optional={
            "minimum": st.integers(-2, 2),
            "maximum": st.integers(-2, 2),
            "exclusiveMinimum": st.integers(-2, 2),
            "exclusiveMaximum": st.integers(-2, 2),
            "multipleOf": st.sampled_from([2, 0.5]),
        },
    )
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: (
        _objects(inner)
        | _arrays(inner)
        | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)})
        | st.fixed_dictionaries({"not": inner})
    ),
    max_leaves=5,
)


@given(VALUES, SCHEMAS)
def test_it_agrees_with_the_reference_validator(value, schema):
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    _, problems = validate(value, schema)
    assert (not problems) == expected, (value, schema, problems)


@given(VALUES, SCHEMAS)
def test_what_is_valid_is_not_coerced(value, schema):
    if not validate(value, schema)[1]:
        result, problems = validate(value, schema, coerce=True)
        assert not problems
        assert same_json(result, value)


@given(st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3), _objects(LEAVES))
def test_what_fits_a_flat_schema_at_a_glance_is_valid_as_it_is(value, schema):
    flat = FlatSchema.of(schema)
    if flat is not None and flat.fits(value):
        result, problems = validate(value, schema, coerce=True)
        assert not problems
        assert result is value


FLAT = {
    "type": "object",
    "properties": {"a": {"type": "integer", "description": "a"}, "b": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"a": 1, "b": "x"}, True),
        ({"a": 1}, True),
        ({"b": "x"}, False),
        ({"a": True}, False),
        ({"a": 1.0}, False),
        ({"a": "1"}, False),
        ({"a": 1, "c": 1}, False),
        ({}, False),
    ],
)
def test_a_flat_schema_is_known_at_a_glance(value, fits):
    flat = FlatSchema.of(FLAT)
    assert flat is not None
    assert flat.fits(value) is fits


@pytest.mark.parametrize(
    "more",
    [
        {"minProperties": 1},
        {"properties": {"a": {"type": "integer", "minimum": 0}}},
        {"properties": {"a": {"type": ["integer", "null"]}}},
        {"properties": {"a": {"enum": [1]}}},
        {"properties": {"a": True}},
        {"type": "array"},
        {"anyOf": [{}]},
    ],
)
def test_a_schema_that_says_more_is_not_flat(more):
    assert FlatSchema.of({**FLAT, **more}) is None


@given(VALUES, SCHEMAS)
def test_what_coercion_accepts_fits_afterwards(value, schema):
    result, problems = validate(value, schema, coerce=True)
    # `not` judges the value as it came; everything else judges what is handed on.
    if not problems and "not" not in str(schema):
        assert not validate(result, schema)[1], (value, result, schema)


@pytest.mark.parametrize(
    ("schema", "value", "result"),
    [
        ({"type": "integer"}, "42", 42),
        ({"type": "integer"}, 42.0, 42),
        ({"type": "integer"}, "42.0", 42),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "boolean"}, "True", True),
        ({"type": "array", "items": {"type": "integer"}}, '["1", 2]', [1, 2]),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": "1"}', {"a": 1}),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "3", "3"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "null"}]}, 3.0, 3),
        ({"enum": ["Red", "Blue"]}, "red", "Red"),
        ({"enum": [1, 2]}, "2", 2),
    ],
)
def test_what_is_plainly_meant_is_converted(schema, value, result):
    got, problems = validate(value, schema, coerce=True)
    assert not problems
    assert got == result
    assert type(got) is type(result)
    assert validate(value, schema)[1] or same_json(value, result)


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"type": "integer"}, "x", "$ must be an integer, got string 'x'"),
        ({"type": "integer"}, True, "$ must be an integer, got boolean True"),
        (
            {"properties": {"a": {"items": {"type": "string"}}}},
            {"a": ["x", 3]},
            "$.a[1] must be a string, got integer 3",
        ),
        ({"required": ["a"]}, {}, "$ lacks 'a'"),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"b": 1},
            "$ has no 'b'; it takes a",
        ),
        (
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            [],
            "$ must be an integer, got array []",
        ),
        (
            {"$ref": "#/$defs/none"},
            1,
            "$ cannot be checked: its schema refers to '#/$defs/none', which is not there",
        ),
    ],
)
def test_a_message_names_path_wanted_and_given(schema, value, text):
    assert [str(p) for p in validate(value, schema)[1]] == [text]


def test_a_schema_that_refers_to_itself_for_ever_ends():
    assert validate(1, {"$ref": "#"})[1]
    tree = {"properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    assert not validate({"next": {"next": {}}}, tree)[1]
    assert validate({"next": {"nxt": {}}}, tree)[1]


@pytest.mark.parametrize(
    "union",
    [
        [{"$ref": "#"}, {"type": "null"}],
        [{"$ref": "#"}, {"type": "integer"}, {"type": "null"}],
    ],
)
def test_alternatives_in_alternatives_end(union):
    """The work is bounded, not the power of the nesting."""
    schema = {"type": "object", "properties": {"next": {"anyOf": union}}}
    value: object = {"next": []}
    for _ in range(90):
        value = {"next": value}
    assert validate(value, schema, coerce=True)[1]


def test_a_long_bad_array_gives_few_problems():
    assert len(validate(["x"] * 10_000, {"items": {"type": "integer"}})[1]) == 5


def test_the_value_passed_in_is_not_changed():
    value = {"a": ["1", {"b": "2"}]}
    schema = {
        "properties": {
            "a": {"prefixItems": [{"type": "integer"}, {"properties": {"b": {"type": "integer"}}}]}
        }
    }
    assert validate(value, schema, coerce=True)[0] == {"a": [1, {"b": 2}]}
    assert value == {"a": ["1", {"b": "2"}]}


def test_unchecked_keywords_are_listed():
    schema = {"title": "x", "if": {}, "properties": {"a": {"contains": {}, "format": "date"}}}
    assert list(unchecked_keywords(schema)) == ["$.if", "$.properties.a.contains"]
