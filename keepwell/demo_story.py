"""What the demo's agent is: its questions, its tools, and the model that needs no weights.

The demo and its child process share it, so that a turn begun by one can be ended by the other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from .actors import ActorRef
from .agent.errors import ModelError
from .agent.function_model import FunctionModel
from .agent.model import ChatModel, ModelRequest
from .agent.spec import AgentSpec
from .agent.tool import Tool, tool
from .memory.window import Window
from .runtime import Runtime
from .stores import ToolCall
from .supervision import which_children
from .supervision.tree import tree, tree_text

QUESTIONS: Final = (
    "My name is Ada. What is 2 + 2?",
    "Add 38 to that, please.",
)
CRASH_QUESTION: Final = "What is 1000 + 24? Your store will crash while you write that down."
KILL_QUESTION: Final = "What is 99 + 1? Your whole process will be killed before you can say."
LAST_QUESTION: Final = "What is 20 + 3, now that you are back?"

INSTRUCTIONS: Final = (
    "You are a careful assistant. Use your tools for sums. Answer in one sentence."
)

_LOCAL: Final = (
    "local: SmolLM2-135M in this process. It is tiny; what is claimed below is read from the log "
    "and the tools, never from its wit"
)

_SUMS: Final = {
    QUESTIONS[0]: (2, 2),
    QUESTIONS[1]: (4, 38),
    CRASH_QUESTION: (1000, 24),
    KILL_QUESTION: (99, 1),
    LAST_QUESTION: (20, 3),
}


def choose_model(wanted: str | None, base_url: str | None = None) -> tuple[ChatModel, str]:
    """Return the model that was asked for, and a line that says what it is.

    None takes the local model where its wheels are installed, else the scripted one and says so.
    Raises ModelError if the model that was asked for is not installed.
    """
    if wanted == "scripted":
        return scripted_model(), "scripted: replies are written beforehand, no model is asked"
    if wanted in (None, "local"):
        from .agent.local_model import LocalModel  # noqa: PLC0415 - an extra

        missing = LocalModel.missing()
        if missing is None:
            return LocalModel(max_output_tokens=48), _LOCAL
        if wanted == "local":
            raise ModelError(missing, code="not_installed")
        return scripted_model(), f"scripted, since the local model is not here: {missing}"
    from .agent.openai_model import OpenAIModel  # noqa: PLC0415 - an extra

    return OpenAIModel(wanted, base_url=base_url), f"{wanted} at its endpoint"


def scripted_model() -> ChatModel:
    """A model of a few lines: it adds by its tool, and answers from the log that it is shown."""
    return FunctionModel(_scripted, name="scripted")


def _scripted(request: ModelRequest) -> object:
    messages = [message for message in request.messages if message.role != "system"]
    last = max(index for index, message in enumerate(messages) if message.role == "user")
    question = str(messages[last].content)
    results = [str(m.content) for m in messages[last + 1 :] if m.role == "tool"]
    sums = next((_SUMS[known] for known in _SUMS if known == question), None)
    if sums is not None and not results:
        return ToolCall(f"call_{len(messages)}", "add", {"a": sums[0], "b": sums[1]})
    if sums is not None:
        if "interrupted" in results[-1]:
            return "The sum was interrupted; I cannot tell whether it was done."
        return f"That makes {results[-1]}."
    earlier = sum(1 for message in messages[:last] if message.role == "user")
    return f"You said {question!r}, after {earlier} earlier messages. I am a script, no model."


def ledger(path: Path) -> Callable[[str], None]:
    """Return what tools note their side effects with: one line each, on disk before it returns."""

    def note(line: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    return note


def tools(note: Callable[[str], None], on_add: Callable[[], None] = lambda: None) -> list[Tool]:
    """The agent's two tools. `on_add()` runs in the middle of `add`, after its side effect."""

    @tool
    def add(a: int, b: int) -> int:
        """Add two whole numbers.

        Args:
            a: the first number
            b: the second number
        """
        note(f"add {a} {b}")
        on_add()
        return a + b

    @tool(idempotent=True)
    def clock() -> str:
        """Tell the hour of the day."""
        note("clock")
        return "It is noon."

    return [add, clock]


def spec(
    model: ChatModel, note: Callable[[str], None], on_add: Callable[[], None] = lambda: None
) -> AgentSpec:
    """The demo's agent."""
    return AgentSpec(
        model=model, name="demo", instructions=INSTRUCTIONS, tools=tools(note, on_add),
        memory=Window(20),
    )  # fmt: skip


async def settled_tree(runtime: Runtime) -> str:
    """The supervision tree as text, once its supervisors have dealt with what has come to them."""
    for branch in await runtime.supervisor.which_children():
        if branch.type == "supervisor" and isinstance(branch.child, ActorRef):
            await which_children(branch.child)  # answered behind a restart that is under way
    return tree_text(tree(runtime.supervisor))


def record_key(record: Any) -> str:
    """What identifies a record across processes: its seq and all of its message."""
    message = record.message
    body = None if message is None else message.to_dict()
    return json.dumps([record.seq, body], sort_keys=True, default=str, ensure_ascii=True)
