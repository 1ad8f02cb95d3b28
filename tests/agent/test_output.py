"""Structured output: checked, repaired within bounds, and the same value from the log."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import pytest

from keepwell import (
    AgentSpec,
    FunctionModel,
    InvalidValue,
    Kernel,
    Message,
    ModelError,
    ModelReply,
    Runtime,
    ScriptedModel,
    StepRestarted,
    TextDelta,
    Usage,
    tool,
)
from keepwell.agent.output import OutputForm, output_form
from keepwell.agent.scripted_model import Call


@dataclass
class City:
    name: str
    people: int
    twins: list[City] = field(default_factory=list)


class Weather(TypedDict):
    city: str
    degrees: float


SCHEMA = {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"],
}  # fmt: skip
LISBON = '{"name": "Lisbon", "people": 545000, "twins": [{"name": "Rio", "people": 6}]}'


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def ask(model: Any, output: Any, **options: Any) -> Any:
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(model, output=output, **options), "c")
        result = await agent.run("q")
        assert [m.role for m in await agent.messages()] == [m.role for m in result.messages]
        return result


async def test_a_dataclass() -> None:
    model = ScriptedModel(Call("look"), LISBON)
    result = await ask(model, City, tools=[look])
    assert result.output == City("Lisbon", 545000, [City("Rio", 6)])
    assert result.text == LISBON
    schema = model.requests[-1].output_schema
    assert schema["type"] == "object"
    assert schema["required"] == ["name", "people"]


async def test_a_typed_dict_and_a_schema() -> None:
    result = await ask(ScriptedModel('{"city": "Rome", "degrees": 30}'), Weather)
    assert result.output == {"city": "Rome", "degrees": 30.0}
    result = await ask(ScriptedModel('```json\n{"n": 3}\n```'), SCHEMA)
    assert result.output == {"n": 3}


async def test_a_pydantic_model() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Point(pydantic.BaseModel):  # type: ignore[misc, name-defined]  # may be absent
        x: int
        y: int = pydantic.Field(gt=0)

    model = ScriptedModel('{"x": 1, "y": 0}', '{"x": 1, "y": 2}')
    result = await ask(model, Point)
    assert result.output == Point(x=1, y=2)
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("of course!", "not a JSON object"),
        ("[1]", "must be an object"),
        ('{"n": 0}', "$.n"),
        ('{"n": NaN}', "NaN"),
        ("[" * 100_000, "nested"),
        ('{"n": 1} and more', "not a JSON object"),
        ("x" * 1_000_001, "1,000,000"),
    ],
    ids=lambda text: text[:12],
)
async def test_what_does_not_fit_is_asked_for_again_and_not_stored(bad: str, problem: str) -> None:
    model = ScriptedModel(bad, '{"n": 2}')
    result = await ask(model, SCHEMA)
    assert result.output == {"n": 2}
    assert [m.text for m in result.messages] == ["q", '{"n": 2}']
    note = model.requests[1].messages[-1]
    assert note.role == "user"
    assert problem in note.text
    assert model.requests[1].messages[-2] == Message("assistant", bad)


async def test_repairs_are_bounded_and_paid_for() -> None:
    """US-1: right after errors, too. AG-7: the question stays and the next message is accepted."""
    cost = Usage(10, 1)
    script = [ModelReply(Message("assistant", text), cost) for text in ("a", "b", "c")]
    model = ScriptedModel(*script, '{"n": 1}')
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(model, output=SCHEMA), "c")
        with pytest.raises(ModelError, match="after 2 repairs") as caught:
            await agent.run("q", turn_id="t")
        assert (caught.value.code, caught.value.partial) == ("invalid_output", "c")
        assert [m.text for m in await agent.messages()] == ["q"]
        result = await agent.run("q", turn_id="t")
        assert result.output == {"n": 1}
        assert result.usage.input_tokens >= 30
    with pytest.raises(ModelError, match="after 0 repairs"):
        await ask(ScriptedModel("a"), SCHEMA, output_repairs=0)


async def test_a_stream_is_told_that_the_text_is_void() -> None:
    async with Runtime() as runtime:
        model = ScriptedModel('{"n": "three"}', '{"n": 3}')
        agent = await runtime.spawn(AgentSpec(model, output=SCHEMA), "c")
        events = [event async for event in agent.stream("q")]
        restarts = [i for i, event in enumerate(events) if isinstance(event, StepRestarted)]
        assert len(restarts) == 1
        after = "".join(e.text for e in events[restarts[0] :] if isinstance(e, TextDelta))
        assert after == '{"n": 3}'
        assert events[-1].result.output == {"n": 3}  # type: ignore[union-attr]  # TurnEnded


async def test_a_repaired_answer_may_call_tools_first() -> None:
    model = ScriptedModel("let me see", [Call("look")], '{"n": 1}')
    result = await ask(model, SCHEMA, tools=[look])
    assert result.output == {"n": 1}
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]


async def test_the_value_is_the_same_from_the_log(tmp_path: Path) -> None:
    """AG-6: also in a later process, and also where the form has changed since."""
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel(LISBON), output=City), "c")
        first = await agent.run("q", turn_id="t")
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel(), output=City), "c")
        assert await agent.run("q", turn_id="t") == first
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel(), output=Weather), "c")
        again = await agent.run("q", turn_id="t")
        assert (again.text, again.output) == (LISBON, None)


class Plain:
    name: str


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ({"type": "array"}, "type object"),
        ({"type": "object", "properties": {"a": {"if": {}}}}, "if"),
        (Plain, "a dataclass"),
        (int, "a dataclass"),
        ("City", "a dataclass"),
        (City("x", 1), "a dataclass"),
    ],
)
def test_forms_that_cannot_be_checked_are_refused(output: Any, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        AgentSpec(ScriptedModel("x"), output=output)


def test_an_answer_that_would_not_be_checked_is_refused() -> None:
    direct = tool(return_direct=True)(look.fn)
    with pytest.raises(InvalidValue, match="returns direct"):
        AgentSpec(ScriptedModel("x"), output=SCHEMA, tools=[direct])
    with pytest.raises(InvalidValue, match="output_repairs"):
        AgentSpec(ScriptedModel("x"), output_repairs=-1)


async def test_a_type_that_refers_to_itself_is_shown_as_an_object() -> None:
    form = output_form(City)
    assert isinstance(form, OutputForm)
    assert "$ref" not in form.schema
    assert "$ref" in json.dumps(form.schema)
    model = FunctionModel(lambda request: LISBON)
    assert (await ask(model, form)).output.twins == [City("Rio", 6)]


@dataclass
class Refusing:
    """Its class raises by itself, in every way."""

    error: int

    def __post_init__(self) -> None:
        if self.error:
            raise (AssertionError(), KeyError("limit"), RuntimeError("no"), ValueError())[
                self.error - 1
            ]


@pytest.mark.parametrize(
    ("error", "says"),
    [(1, "AssertionError()"), (2, "KeyError('limit')"), (3, "'no'"), (4, "ValueError()")],
)
async def test_whatever_the_class_of_an_answer_raises_is_asked_for_again(
    error: int, says: str
) -> None:
    model = ScriptedModel(json.dumps({"error": error}), json.dumps({"error": 0}))
    result = await Kernel(model).invoke([{"role": "user", "content": "?"}], output=Refusing)
    assert result.output == Refusing(0)
    assert says in model.requests[-1].messages[-1].text
