"""Tools: functions that a model may call."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, overload

from ..actors.errors import InvalidValue
from .errors import InvalidArguments
from .flat_schema import FlatSchema
from .json_schema import describe, validate
from .tool_context import ToolContext
from .tool_schema import FunctionSchema, function_schema
from .tool_source import ToolSource, is_source

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what the large providers accept


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """What a model is told about a tool; `parameters` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, object]


@dataclass(frozen=True)
class Tool:
    """A function with what a model and the tool loop need to know about it.

    Made by `tool(...)` from a typed function, or directly from a JSON Schema (then `fn` gets the
    validated arguments as keywords). `fn` may be async.

    `idempotent`: running it twice does no harm, so an interrupted call is run again after a crash.
    `serial`: a batch with such a call runs in call order. `timeout`: seconds, None takes the
    agent's `tool_timeout`. `retries`: further tries after a `transient` error, if idempotent.
    `return_direct`: its result is the answer of the turn. `ask_human`: never run; the turn pauses
    and a human's answer is the result. Raises InvalidValue for a field that cannot be used.
    Rules: TL-1...6, HP-2.
    """

    name: str
    description: str
    parameters: Mapping[str, object]
    fn: Callable[..., object]
    idempotent: bool = False
    serial: bool = False
    timeout: float | None = None
    retries: int = 0
    return_direct: bool = False
    ask_human: bool = False
    function: FunctionSchema | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise InvalidValue(
                f"tool name {self.name!r} cannot be used: give 1 to 64 letters, digits, _ or -"
            )
        if not callable(self.fn):
            raise InvalidValue(f"tool {self.name!r}: fn must be callable, got {self.fn!r}")
        if not isinstance(self.parameters, Mapping):
            raise InvalidValue(
                f"tool {self.name!r}: parameters must be a JSON Schema (a mapping), "
                f"got {self.parameters!r}"
            )
        timeout = self.timeout
        if timeout is not None and not (_is_number(timeout) and timeout > 0):
            raise InvalidValue(
                f"tool {self.name!r}: timeout must be positive seconds or None, got {timeout!r}"
            )
        retries: object = self.retries
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise InvalidValue(
                f"tool {self.name!r}: retries must be an int >= 0, got {self.retries!r}"
            )

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function itself, unchecked: a decorated function stays usable as one."""
        return self.fn(*args, **kwargs)

    @property
    def schema(self) -> ToolSchema:
        """What the model is told."""
        return ToolSchema(self.name, self.description, self.parameters)

    @property
    def is_async(self) -> bool:
        """Whether calling `fn` gives an awaitable (else it may block and belongs in a thread)."""
        return inspect.iscoroutinefunction(_unwrapped(self.fn))

    def bind(
        self, arguments: Mapping[str, object] | str, *, context: ToolContext | None = None
    ) -> dict[str, object]:
        """The keyword arguments for `fn` from what a model wrote.

        `arguments`: a mapping, or the raw JSON text ("" means none). They are checked and coerced
        by the schema and turned into the annotated types; a `ToolContext` parameter gets
        `context`. Raises InvalidArguments with a text the model can act on. Rule: TL-4.
        """
        parsed = checked = parse_arguments(arguments)
        if self._flat is None or not self._flat.fits(parsed):
            checked = self._validated(parsed)
        if self.function is None:
            return dict(checked)
        return self.function.convert(checked, context or ToolContext())

    @functools.cached_property
    def _flat(self) -> FlatSchema | None:
        return FlatSchema.of(self.parameters)

    def _validated(self, arguments: Mapping[str, object]) -> Mapping[str, object]:
        checked, problems = validate(arguments, self.parameters, coerce=True)
        if problems:
            raise InvalidArguments("; ".join(str(p).replace("$", "arguments", 1) for p in problems))
        assert isinstance(checked, Mapping)  # validate keeps a mapping a mapping
        return checked


def parse_arguments(arguments: Mapping[str, object] | str) -> Mapping[str, object]:
    """Tool arguments as a mapping. Raises InvalidArguments for text that is no JSON object. F17."""
    if isinstance(arguments, Mapping):
        return arguments
    if not isinstance(arguments, str):
        raise InvalidArguments(f"arguments must be a JSON object, got {describe(arguments)}")
    if not arguments.strip():
        return {}
    try:
        parsed: object = json.loads(arguments, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidArguments("arguments are nested too deeply; send a flatter object") from None
    except ValueError as error:
        shown = arguments if len(arguments) <= 200 else arguments[:200] + "..."
        raise InvalidArguments(
            f"arguments are not valid JSON ({error}); got {shown!r}. Send one complete JSON object"
        ) from None
    if not isinstance(parsed, Mapping):
        raise InvalidArguments(f"arguments must be a JSON object, got {describe(parsed)}")
    return parsed


@overload
def tool(fn: Callable[..., object], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    serial: bool = False,
    timeout: float | None = None,
    retries: int = 0,
    return_direct: bool = False,
    ask_human: bool = False,
) -> Callable[[Callable[..., object]], Tool]: ...
def tool(
    fn: Callable[..., object] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    serial: bool = False,
    timeout: float | None = None,
    retries: int = 0,
    return_direct: bool = False,
    ask_human: bool = False,
) -> Tool | Callable[[Callable[..., object]], Tool]:
    """Make a Tool of a typed function, as `@tool` or `@tool(idempotent=True)`.

    The schema comes from the annotations, the descriptions from the docstring (Google, NumPy or
    Sphinx form) or `Annotated[int, "what it is"]`. Raises InvalidValue, naming the parameter, for
    an annotation that has no JSON form.
    """

    def make(function: Callable[..., object]) -> Tool:
        described = function_schema(function)
        return Tool(
            name=described.name if name is None else name,
            description=described.description if description is None else description,
            parameters=described.parameters,
            fn=function,
            idempotent=idempotent,
            serial=serial,
            timeout=timeout,
            retries=retries,
            return_direct=return_direct,
            ask_human=ask_human,
            function=described,
        )

    return make if fn is None else make(fn)


def as_tool(value: object) -> Tool:
    """A Tool as it is, a plain function made into one. Raises InvalidValue for anything else."""
    if isinstance(value, Tool):
        return value
    if callable(value):
        return tool(value)
    raise InvalidValue(f"{value!r} is no tool: pass a function or keepwell.tool(...)")


def as_tools(values: Iterable[object]) -> tuple[Tool | ToolSource, ...]:
    """Tools and sources in the order given. Raises InvalidValue for what is neither, and for two
    tools of one name."""
    given: object = values
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise InvalidValue(f"tools={values!r}: pass a list of functions or tools")
    tools = tuple(value if is_source(value) else as_tool(value) for value in values)
    seen: set[str] = set()
    for each in tools:
        if is_source(each):
            continue
        if each.name in seen:
            raise InvalidValue(
                f"two tools are called {each.name!r}: rename one with tool(name=...)"
            )
        seen.add(each.name)
    return tools


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def _unwrapped(fn: Callable[..., object]) -> object:
    target: object = fn
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target):
        return getattr(target, "__call__", target)  # noqa: B004 -- the bound method is wanted
    return target
