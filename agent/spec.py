"""What an agent is made of: checked when it is written down, not at its first turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal

from ..actors.errors import InvalidValue
from ..memory.context_policy import ContextPolicy
from ..memory.forms import MemoryForm, memory_form
from ..memory.turn import CountTokens
from .busy import ON_BUSY, OnBusy
from .callbacks import Callback, check_callbacks
from .context_view import MAX_SHOWN_CHARACTERS
from .model import ChatModel, Usage
from .output import OutputForm, output_form
from .tool import Tool, as_tools
from .tool_source import ToolSource, is_source, tools_now
from .turn_action import Rules

OnEnvironmentError = Literal["proceed", "pause"]


@dataclass(frozen=True)
class AgentSpec:
    """How to make an agent. Raises InvalidValue, naming field, value and remedy, when it is built.

    model: a ChatModel; None only with `kernel=`, which brings model, tools and filters.
    instructions: the system prompt, shown at every model call and never stored (AG-8).
    tools: functions, `Tool`s or ToolSources such as an McpServer, names distinct. memory: one of
    the five forms (MF-1…5).
    context: a ContextPolicy, applied after prepare and repair; count_tokens: its counter
    (o200k_base).

    Limits of a turn (LM-1): max_rounds model calls, max_tool_calls, turn_timeout (seconds),
    max_turn_tokens (input and output of all its model calls) and max_turn_cost, or None. Of a
    conversation since it was begun or cleared, all its agents together: max_conversation_tokens and
    max_conversation_cost, or None. At a limit no further model call is made (the one that exceeds a
    budget is not cut short), and LimitReached brings the result so far. price: a quick function of
    model name and Usage; what it returns is stored as the cost of that model call.
    model_timeout and tool_timeout are seconds per call. parallel_tools=False runs the calls
    of a batch one after another.

    gate: sees every call before any runs and returns Allow, Deny or Ask (HP-1).
    callbacks: functions by name (CB-1). on_busy, max_queue: BZ-1…4. on_environment_error: HP-6.
    output: the form of the answer: a JSON Schema (type object), a dataclass, TypedDict or pydantic
    model, or None; its value is `result.output`. Models that can are held to it, all are checked;
    an answer that does not fit is asked for again up to output_repairs times, then the turn fails
    with ModelError "invalid_output".
    max_result_characters: a tool result that is longer is shown cut, with a note, and kept whole as
    a blob beside the log (`Agent.whole_result`, the tool `result_reader()`).
    handoffs: agents that may go on with the conversation instead, and hand it back; each member of
    the team gets a tool `handoff_to_<name>` for each other. Their model, instructions, tools, gate,
    context, limits and output are theirs; memory, queue, callbacks and turn_timeout are of the
    agent that was spawned.
    tool_values: given to tools as `ToolContext.values`. description: for those who delegate to it.
    """

    model: ChatModel | None = None
    _: KW_ONLY
    name: str = "agent"
    instructions: str = ""
    tools: Iterable[Tool | ToolSource | Callable[..., object]] = ()
    memory: object = "default"
    context: ContextPolicy | None = None
    kernel: Any = None
    max_rounds: int = 25
    max_tool_calls: int | None = None
    turn_timeout: float | None = None
    max_turn_tokens: int | None = None
    max_turn_cost: float | None = None
    max_conversation_tokens: int | None = None
    max_conversation_cost: float | None = None
    price: Callable[[str, Usage], float] | None = None
    model_timeout: float = 120.0
    tool_timeout: float = 60.0
    parallel_tools: bool = True
    gate: Callable[..., object] | None = None
    callbacks: Mapping[str, Callback] = field(default_factory=dict)
    on_busy: OnBusy = "queue"
    max_queue: int = 64
    on_environment_error: OnEnvironmentError = "proceed"
    output: object = None
    output_repairs: int = 2
    max_result_characters: int = MAX_SHOWN_CHARACTERS
    handoffs: Sequence[AgentSpec] = ()
    tool_values: Mapping[str, object] = field(default_factory=dict)
    description: str = ""
    count_tokens: CountTokens | None = None

    has_sources: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether this agent, or one of its team, has tools of a source."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        self._check_model()
        for name in ("name", "instructions", "description"):
            if not isinstance(getattr(self, name), str):
                raise InvalidValue(f"{name}={getattr(self, name)!r}: pass a str")
        if not self.name:
            raise InvalidValue("name='': an agent needs a name, it appears in errors and logs")
        put(self, "tools", as_tools(self.tools))
        if not isinstance(self.memory, MemoryForm):  # of a spec that is replaced in part
            put(self, "memory", memory_form(self.memory))
        put(self, "callbacks", check_callbacks(self.callbacks))
        _count("max_rounds", self.max_rounds, least=1)
        _count("max_queue", self.max_queue, least=0)
        if self.max_tool_calls is not None:
            _count("max_tool_calls", self.max_tool_calls, least=0)
        for name in ("max_turn_tokens", "max_conversation_tokens"):
            if getattr(self, name) is not None:
                _count(name, getattr(self, name), least=1)
        if self.price is not None and not callable(self.price):
            raise InvalidValue(f"price={self.price!r}: pass a function of model name and Usage")
        for name in ("max_turn_cost", "max_conversation_cost"):
            cost: object = getattr(self, name)
            if cost is None:
                continue
            if not isinstance(cost, int | float) or isinstance(cost, bool) or not cost > 0:
                raise InvalidValue(f"{name}={cost!r}: pass a number above 0, or None")
            if self.price is None:
                raise InvalidValue(f"{name}={cost!r} needs price=: without, nothing costs")
        _seconds("model_timeout", self.model_timeout)
        _seconds("tool_timeout", self.tool_timeout)
        if self.turn_timeout is not None:
            _seconds("turn_timeout", self.turn_timeout)
        if not isinstance(self.parallel_tools, bool):
            raise InvalidValue(f"parallel_tools={self.parallel_tools!r}: pass True or False")
        if self.gate is not None and not callable(self.gate):
            raise InvalidValue(f"gate={self.gate!r}: pass a function of one call, or None")
        context: object = self.context
        if context is not None and not isinstance(context, ContextPolicy):
            raise InvalidValue(f"context={context!r}: pass a ContextPolicy(…), or None")
        _choice("on_busy", self.on_busy, ON_BUSY)
        _choice("on_environment_error", self.on_environment_error, ("proceed", "pause"))
        _count("output_repairs", self.output_repairs, least=0)
        _count("max_result_characters", self.max_result_characters, least=1)
        put(self, "output", output_form(self.output))
        direct = [tool.name for tool in self.tool_list if tool.return_direct]
        if self.output is not None and direct:
            raise InvalidValue(
                f"output= is given, and the tool {direct[0]!r} returns direct: its result would be "
                "the answer unchecked. Leave one of them out"
            )
        self._check_handoffs()
        sourced = any(map(is_source, self.given_tools)) or any(m.has_sources for m in self.handoffs)
        put(self, "has_sources", sourced)
        if not isinstance(self.tool_values, Mapping):
            raise InvalidValue(f"tool_values={self.tool_values!r}: pass a mapping")

    def _check_model(self) -> None:
        model: object = self.model
        if self.kernel is not None:
            if model is not None:
                raise InvalidValue("kernel= brings its own model: leave model out")
            if getattr(self.kernel, "uses_memory", False):
                raise InvalidValue(
                    "kernel= has a memory filter, and the agent has a memory of its own: leave the "
                    "filter out, the agent records the turn"
                )
            return
        if isinstance(model, type):
            raise InvalidValue(f"model={model.__name__} is a class: pass an instance")
        missing = [m for m in ("complete", "stream") if not callable(getattr(model, m, None))]
        if missing:
            raise InvalidValue(
                f"model={model!r} is no ChatModel, it lacks {' and '.join(missing)}: pass for "
                'example ScriptedModel("hello") or OpenAIModel("gpt-5-mini")'
            )

    def _check_handoffs(self) -> None:
        given: object = self.handoffs
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise InvalidValue(f"handoffs={given!r}: pass a list of AgentSpecs")
        for member in self.handoffs:
            other: object = member
            if not isinstance(other, AgentSpec):
                raise InvalidValue(f"handoffs= has {other!r}, which is no AgentSpec")
        if self.handoffs:
            from .handoff import team_of  # it makes specs

            team_of(self)

    @property
    def memory_form(self) -> MemoryForm:
        """The memory as it was understood."""
        form = self.memory
        assert isinstance(form, MemoryForm)
        return form

    @property
    def output_form(self) -> OutputForm | None:
        """The form of the answer as it was understood."""
        form = self.output
        assert form is None or isinstance(form, OutputForm)
        return form

    @property
    def chat_model(self) -> ChatModel:
        """The model, or the kernel's."""
        model: ChatModel | None = self.model if self.kernel is None else self.kernel.model
        assert model is not None  # checked when the spec was built
        return model

    @property
    def given_tools(self) -> tuple[Tool | ToolSource, ...]:
        """The tools and sources of tools, those of a kernel too."""
        tools: Any = self.tools  # checked when the spec was built
        return tools if self.kernel is None else (*self.kernel.given_tools, *tools)

    @property
    def tool_list(self) -> tuple[Tool, ...]:
        """The tools, those of a kernel too, and those of sources as they are now."""
        return tools_now(self.given_tools)

    def rules(self, tools: Mapping[str, Tool] | None = None) -> Rules:
        """What the turn's state machine must know. `tools`: those that may change, by name."""
        if tools is None:
            known = {tool.name: tool for tool in self.tool_list}
            repeats: Callable[[str], bool] = frozenset(
                n for n, t in known.items() if t.idempotent
            ).__contains__
            direct: Callable[[str], bool] = frozenset(
                n for n, t in known.items() if t.return_direct
            ).__contains__
        else:
            repeats = partial(_has, tools, "idempotent")
            direct = partial(_has, tools, "return_direct")
        return Rules(
            self.max_rounds, self.max_tool_calls, repeats, direct,
            self.max_turn_tokens, self.max_turn_cost, self.max_conversation_tokens,
            self.max_conversation_cost,
        )  # fmt: skip


def _has(tools: Mapping[str, Tool], property_: str, name: str) -> bool:
    tool = tools.get(name)
    return tool is not None and bool(getattr(tool, property_))


def _count(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidValue(f"{name}={value!r}: pass an int of at least {least}")


def _seconds(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise InvalidValue(f"{name}={value!r}: pass seconds above 0")


def _choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidValue(f"{name}={value!r}: pass one of {', '.join(map(repr, choices))}")
