"""Structured output: what an answer must look like, and its value once it does.

The answer in the log stays the text that the model wrote; the value is made from it whenever a
result is, so that it is the same from the log as it was from memory.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, is_typeddict

from ..actors.errors import InvalidValue
from ..stores.message import Message
from .errors import InvalidArguments, ModelError
from .json_schema import unchecked_keywords, validate
from .tool_schema import type_schema

if TYPE_CHECKING:
    from .model import ModelReply, ModelRequest
    from .model_call import ModelCall

MAX_CHARS: Final = 1_000_000
"""A longer answer is refused unread."""


@dataclass(frozen=True)
class OutputForm:
    """A checked form of answers. `schema`: JSON Schema of type object, shown to the model."""

    schema: Mapping[str, object]
    build: Callable[[Any], object]
    """Makes the value from JSON data that fits the schema; raises what says why it cannot."""

    def read(self, text: str) -> object:
        """The value of an answer. Raises ValueError with a sentence that a model can act upon."""
        if len(text) > MAX_CHARS:
            raise ValueError(f"it has {len(text):,} characters, {MAX_CHARS:,} are allowed")
        try:
            data = json.loads(_unfenced(text), parse_constant=_no_number)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"it is not a JSON object: {error}") from None
        _, problems = validate(data, self.schema)
        if problems:
            raise ValueError("; ".join(map(str, problems)))
        try:
            return self.build(data)
        except (InvalidArguments, ValueError, TypeError, ArithmeticError) as error:
            raise ValueError(str(error) or repr(error)) from error
        except Exception as error:  # whatever the class raises, an assertion say
            raise ValueError(f"its class raises {error!r}") from error

    def problem(self, text: str) -> str | None:
        """What is wrong with an answer, None if nothing is."""
        try:
            self.read(text)
        except ValueError as error:
            return str(error)
        return None


def output_form(given: object) -> OutputForm | None:
    """The form of `output=`: a JSON Schema (type object), a dataclass, TypedDict or pydantic model.

    Raises InvalidValue, naming what cannot be used or would not be checked.
    """
    if given is None or isinstance(given, OutputForm):
        return given
    if isinstance(given, Mapping):
        if given.get("type") != "object":
            raise InvalidValue(f"output={given!r}: a JSON Schema must be of type object")
        unchecked = list(unchecked_keywords(given))
        if unchecked:
            raise InvalidValue(
                f"output= has keywords that would not be checked: {', '.join(unchecked)}"
            )
        return OutputForm(given, _same)
    if isinstance(given, type) and (
        dataclasses.is_dataclass(given) or is_typeddict(given)
        or hasattr(given, "model_json_schema")
    ):  # fmt: skip
        schema, build = type_schema(given)
        return OutputForm(_resolved(schema), build)
    raise InvalidValue(
        f"output={given!r}: pass a JSON Schema of type object, a dataclass, a TypedDict or a "
        "pydantic model, or None"
    )


def repair_note(problem: str) -> str:
    """What the model is told after an answer that does not fit; it is never stored."""
    return (
        f"Your answer does not have the required form: {problem}. "
        "Answer again with nothing but the corrected JSON object."
    )


async def fitting(
    form: OutputForm,
    reply: ModelReply,
    request: ModelRequest,
    ask: Callable[[ModelRequest], Awaitable[ModelReply]],
    *,
    repairs: int,
    call: ModelCall,
    model: str,
) -> ModelReply:
    """The reply to `request` once it has the form that is asked for, or calls tools.

    `ask` is called again up to `repairs` times, with what is wrong. Answers that do not fit are not
    stored, like other attempts of a model call that were of no use; what they cost is added to
    `call.usage`. Raises ModelError "invalid_output".
    """
    made = 0
    while not reply.message.tool_calls:
        text = reply.message.text
        problem = form.problem(text)
        if problem is None:
            break
        call.usage = call.usage + reply.usage
        if made == repairs:
            raise invalid_output(f"{model}: after {made} repairs", problem, text)
        made += 1
        note = Message("user", repair_note(problem))
        again = (*request.messages, reply.message, note)
        reply = await ask(request.replace(messages=again))
    return reply


def invalid_output(who: str, problem: str, text: str) -> ModelError:
    """The error for an answer without the form that was asked for."""
    return ModelError(
        f"{who} the answer still does not have the form of output=: {problem}",
        partial=text,
        code="invalid_output",
    )


def _resolved(schema: Mapping[str, object]) -> Mapping[str, object]:
    """A type that refers to itself is described by a reference: servers want the object itself."""
    reference = schema.get("$ref")
    definitions = schema.get("$defs")
    if isinstance(reference, str) and isinstance(definitions, Mapping):
        target = definitions.get(reference.rpartition("/")[2])
        if isinstance(target, Mapping):
            return {**target, "$defs": definitions}
    return schema


def _unfenced(text: str) -> str:
    """The text without a Markdown fence around all of it, which models like to add."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") : -3]
    return text


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _same(value: object) -> object:
    return value
