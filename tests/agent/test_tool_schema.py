"""Schemas from annotations, and the way back from JSON to the annotated types."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import json
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, TypedDict

import jsonschema
import pydantic
import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.errors import InvalidArguments
from keepwell.agent.tool import Tool, as_tool, as_tools, tool
from keepwell.agent.tool_context import ToolContext
from keepwell.agent.tool_schema import type_schema


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    """A place.

    Args:
        x: metres east
    """

    x: float
    y: float = 0.0
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)
    parent: Node | None = None


class Options(TypedDict):
    limit: Annotated[int, "how many"]
    order: NotRequired[Literal["asc", "desc"]]


class Item(pydantic.BaseModel):
    name: str
    count: int = pydantic.Field(default=1, ge=1)


class Even(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n


class Basket(pydantic.BaseModel):
    items: list[Item]


UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("annotation", "schema", "data", "value"),
    [
        (str, {"type": "string"}, "a", "a"),
        (int, {"type": "integer"}, 1, 1),
        (float, {"type": "number"}, 1, 1.0),
        (bool, {"type": "boolean"}, True, True),
        (None, {"type": "null"}, None, None),
        (Any, {}, {"a": [1]}, {"a": [1]}),
        (list, {"type": "array"}, [1, "a"], [1, "a"]),
        (list[int], {"type": "array", "items": {"type": "integer"}}, [1], [1]),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}, [1], [1]),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}, [1, 2], (1, 2)),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
            [1, "a"],
            (1, "a"),
        ),
        (
            set[str],
            {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
            ["a", "b"],
            {"a", "b"},
        ),
        (dict, {"type": "object"}, {"a": 1}, {"a": 1}),
        (
            Mapping[str, float],
            {"type": "object", "additionalProperties": {"type": "number"}},
            {"a": 1},
            {"a": 1.0},
        ),
        (
            Optional[int],  # noqa: UP045 -- this spelling is what is tested
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            None,
            None,
        ),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "a", "a"),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "b", "b"),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}, 1, 1),
        (Color, {"type": "string", "enum": ["red", "blue"]}, "red", Color.RED),
        (Literal[Color.RED], {"type": "string", "enum": ["red"]}, "red", Color.RED),
        (UserId, {"type": "integer"}, 3, 3),
        (
            datetime.datetime,
            {"type": "string", "format": "date-time"},
            "2024-05-01T10:00:00+00:00",
            datetime.datetime(2024, 5, 1, 10, tzinfo=datetime.UTC),
        ),
        (
            datetime.date,
            {"type": "string", "format": "date"},
            "2024-05-01",
            datetime.date(2024, 5, 1),
        ),
        (
            uuid.UUID,
            {"type": "string", "format": "uuid"},
            "12345678123456781234567812345678",
            uuid.UUID("12345678123456781234567812345678"),
        ),
        (Decimal, {"type": "string", "format": "decimal"}, "1.10", Decimal("1.10")),
        (Path, {"type": "string", "format": "path"}, "/tmp/a", Path("/tmp/a")),
        (
            Annotated[int, "a number"],
            {"type": "integer", "description": "a number"},
            1,
            1,
        ),
        (
            Annotated[int, pydantic.Field(description="from a field")],
            {"type": "integer", "description": "from a field"},
            1,
            1,
        ),
        (
            Point,
            {
                "type": "object",
                "properties": {
                    "x": {"type": "number", "description": "metres east"},
                    "y": {"type": "number"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["x"],
                "additionalProperties": False,
            },
            {"x": 1},
            Point(1.0),
        ),
        (
            Options,
            {
                "type": "object",
                "properties": {
                    "limit": {"type": "integer", "description": "how many"},
                    "order": {"type": "string", "enum": ["asc", "desc"]},
                },
                "required": ["limit"],
                "additionalProperties": False,
            },
            {"limit": 3},
            {"limit": 3},
        ),
        (
            list[Point | Color | None],
            None,
            [{"x": 2}, "blue", None],
            [Point(2.0), Color.BLUE, None],
        ),
        (Basket, None, {"items": [{"name": "a"}]}, Basket(items=[Item(name="a")])),
        (
            list[Basket | Item],
            None,
            [{"items": []}, {"name": "b", "count": 2}],
            [Basket(items=[]), Item(name="b", count=2)],
        ),
        (
            Node,
            None,
            {"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}]},
            Node(1, [Node(2, [Node(3)])]),
        ),
        (dict[str, list[Node]], None, {"a": [{"value": 1}]}, {"a": [Node(1)]}),
    ],
)
def test_a_type_has_a_schema_and_comes_back(annotation, schema, data, value):
    got, convert = type_schema(annotation)
    if schema is not None:
        assert got == schema
    json.dumps(got)
    jsonschema.Draft202012Validator.check_schema(got)
    jsonschema.validate(data, got)
    result = convert(data)
    assert result == value
    assert type(result) is type(value)


def test_a_type_alias_statement_is_followed():
    namespace: dict[str, Any] = {}
    try:
        exec("type Count = int", namespace)  # noqa: S102 -- 3.11 cannot parse it
    except SyntaxError:
        pytest.skip("needs Python 3.12")
    assert type_schema(namespace["Count"])[0] == {"type": "integer"}
    exec("type Json = int | None | list[Json]", namespace)  # noqa: S102 -- likewise
    schema, convert = type_schema(namespace["Json"])
    jsonschema.validate([1, [None, []]], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([1, ["x"]], schema)
    assert convert([1, [None, []]]) == [1, [None, []]]


def test_two_recursive_classes_of_one_name_stay_apart():
    def first():
        @dataclasses.dataclass
        class Tree:
            left: object = None

        Tree.__annotations__["left"] = Tree | None
        return Tree

    def second():
        @dataclasses.dataclass
        class Tree:
            right: object = None

        Tree.__annotations__["right"] = Tree | None
        return Tree

    one, two = first(), second()
    schema, convert = type_schema(tuple[one, two])
    assert len(schema["$defs"]) == 2
    assert convert([{"left": {}}, {"right": {}}]) == (one(one()), two(two()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{"right": {}}, {}], schema)


def test_colliding_definitions_of_pydantic_models_stay_apart():
    def make(kind: type) -> type[pydantic.BaseModel]:
        class Inner(pydantic.BaseModel):
            value: kind

        class Outer(pydantic.BaseModel):
            inner: Inner

        return Outer

    texts, numbers = make(str), make(int)
    schema, convert = type_schema(tuple[texts, numbers])
    jsonschema.validate([{"inner": {"value": "a"}}, {"inner": {"value": 1}}], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{"inner": {"value": 1}}, {"inner": {"value": 1}}], schema)
    first, second = convert([{"inner": {"value": "a"}}, {"inner": {"value": 1}}])
    assert (first.inner.value, second.inner.value) == ("a", 1)


class Opaque:
    pass


def test_what_has_no_json_form_is_refused_by_name():
    def bad(x: Opaque) -> None: ...

    def keys(x: dict[int, str]) -> None: ...

    def positional(x: int, /) -> None: ...

    def many(*xs: int) -> None: ...

    def missing(x: "NoSuchName") -> None: ...  # noqa: F821, UP037  # pyright: ignore[reportUndefinedVariable] - the fault to report

    for fn, words in [
        (bad, "parameter 'x' of 'bad'"),
        (keys, "string keys"),
        (positional, "cannot be passed by name"),
        (many, "'xs'"),
        (missing, "NoSuchName"),
    ]:
        with pytest.raises(InvalidValue, match=words):
            tool(fn)


GOOGLE = """Find things.

    In all places.

    Args:
        query (str): what to look for,
            in plain words
        limit: at most so many

    Returns:
        the hits: all of them
    """
NUMPY = """Find things.

    In all places.

    Parameters
    ----------
    query : str
        what to look for,
        in plain words
    limit
        at most so many

    Returns
    -------
    list
        the hits
    """
SPHINX = """Find things.

    In all places.

    :param str query: what to look for,
        in plain words
    :param limit: at most so many
    :returns: the hits
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX])
def test_descriptions_come_from_the_docstring(doc):
    def find(query: str, limit: int = 10) -> list[str]:
        return [query] * limit

    find.__doc__ = doc
    made = tool(find)
    assert made.name == "find"
    assert made.description == "Find things.\n\nIn all places."
    assert made.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for, in plain words"},
            "limit": {"type": "integer", "description": "at most so many", "default": 10},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_every_kind_of_callable_becomes_a_tool():
    class Finder:
        """Looks."""

        def method(self, q: str) -> str:
            """By method."""
            return q

        def __call__(self, q: str) -> str:
            return q

        async def later(self, q: str) -> str:
            return q

    class AsyncFinder:
        async def __call__(self, q: str) -> str:
            """Awaits."""
            return q

    def two(a: int, b: int) -> int:
        """Two."""
        return a + b

    finder = Finder()
    assert tool(finder.method).description == "By method."
    assert list(tool(finder.method).parameters["properties"]) == ["q"]
    assert tool(finder).name == "Finder"
    assert tool(finder).description == "Looks."
    assert tool(finder.later).is_async
    assert tool(AsyncFinder()).is_async
    assert tool(AsyncFinder()).description == "Awaits."
    assert not tool(finder).is_async
    part = tool(functools.partial(two, b=2))
    assert (part.name, part.description) == ("two", "Two.")
    assert part.bind({"a": 1}) == {"a": 1}
    assert tool(functools.partial(finder.later, q="x")).is_async
    assert list(tool(Point).parameters["properties"]) == ["x", "y", "tags"]


def test_extra_keywords_and_context():
    @tool
    def call(a: int, context: ToolContext, **more: float) -> str:
        """Call."""
        return f"{a} {context.call_id} {more}"

    assert "context" not in call.parameters["properties"]
    bound = call.bind({"a": 1, "b": "2"}, context=ToolContext(call_id="c1"))
    assert bound == {"a": 1, "b": 2.0, "context": ToolContext(call_id="c1")}
    assert call(**bound) == "1 c1 {'b': 2.0}"


def test_arguments_become_the_annotated_types():
    @tool
    def place(
        points: list[Point], color: Color | None = None, when: datetime.date | None = None
    ) -> None: ...

    bound = place.bind('{"points": [{"x": "1.5"}], "color": "RED", "when": "2024-01-02"}')
    assert bound == {"points": [Point(1.5)], "color": Color.RED, "when": datetime.date(2024, 1, 2)}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ('{"cmd": "ec', "not valid JSON"),
        ("[1]", "must be a JSON object, got array"),
        ('"x"', "must be a JSON object"),
        ('{"n": NaN}', "NaN is not JSON"),
        ("{}", "arguments lacks 'n'"),
        ('{"n": "x"}', "arguments.n must be an integer, got string 'x'"),
        ('{"n": 1, "m": 2}', "arguments has no 'm'; it takes n, when"),
        ('{"n": 1, "when": "soon"}', "argument 'when' cannot be used"),
        ("[" * 100_000, "nested too deeply|not valid JSON"),
    ],
)
def test_unusable_arguments_say_why(raw, words):
    """F17, TL-4: the text is for the model that has to correct the call."""

    @tool
    def run(n: int, when: datetime.date | None = None) -> None: ...

    with pytest.raises(InvalidArguments, match=words) as caught:
        run.bind(raw)
    assert caught.value.type == "invalid_arguments"
    assert len(str(caught.value)) < 500


def test_empty_arguments_are_none_at_all():
    @tool
    def now() -> str:
        return ""

    assert now.bind("") == now.bind("{}") == now.bind(" \n") == {}


def test_a_tool_from_a_schema_validates_and_passes_on():
    made = Tool(
        "t", "", {"type": "object", "properties": {"a": {"type": "integer"}}}, lambda **kw: kw
    )
    assert made.bind({"a": "1", "b": [1]}) == {"a": 1, "b": [1]}
    with pytest.raises(InvalidArguments):
        made.bind({"a": []})


def test_pydantic_faults_are_invalid_arguments():
    @tool
    def take(e: Even) -> None: ...

    assert take.bind({"e": {"n": 2}}) == {"e": Even(n=2)}
    with pytest.raises(InvalidArguments, match="odd"):
        take.bind({"e": {"n": 3}})


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "x" * 65},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": True},
        {"retries": -1},
        {"retries": 1.0},
    ],
)
def test_bad_options_are_refused(bad):
    with pytest.raises(InvalidValue):
        tool(**bad)(lambda: None) if "name" in bad else tool(name="t", **bad)(lambda: None)


def test_tools_are_collected():
    def a() -> None: ...

    @tool(name="b", idempotent=True, serial=True, timeout=3, retries=2, return_direct=True)
    def made() -> None: ...

    tools = as_tools([a, made])
    assert [t.name for t in tools] == ["a", "b"]
    assert (made.idempotent, made.serial, made.timeout, made.retries, made.return_direct) == (
        True,
        True,
        3,
        2,
        True,
    )
    assert as_tool(made) is made
    with pytest.raises(InvalidValue, match="two tools are called 'a'"):
        as_tools([a, a])
    with pytest.raises(InvalidValue, match="'x' is no tool"):
        as_tool("x")
    with pytest.raises(InvalidValue, match="lambda"):
        tool(lambda: None)
