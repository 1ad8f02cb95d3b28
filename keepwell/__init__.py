"""keepwell: agents may crash; conversations may not.

Names are imported when they are first used, so that `import keepwell` is quick and what an
application does not use costs it nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actors import (
        Actor as Actor,
    )
    from .actors import (
        ActorDied as ActorDied,
    )
    from .actors import (
        AsyncActor as AsyncActor,
    )
    from .actors import (
        CallTimeout as CallTimeout,
    )
    from .actors import (
        Future as Future,
    )
    from .actors import (
        InvalidValue as InvalidValue,
    )
    from .actors import (
        KeepwellError as KeepwellError,
    )
    from .actors import (
        RequestError as RequestError,
    )
    from .actors import (
        StartFailed as StartFailed,
    )
    from .actors import (
        ThreadActor as ThreadActor,
    )
    from .actors import (
        Unavailable as Unavailable,
    )
    from .actors import (
        telemetry as telemetry,
    )
    from .agent.agent import Agent as Agent
    from .agent.approval import (
        Allow as Allow,
    )
    from .agent.approval import (
        Answer as Answer,
    )
    from .agent.approval import (
        Approve as Approve,
    )
    from .agent.approval import (
        Ask as Ask,
    )
    from .agent.approval import (
        Deny as Deny,
    )
    from .agent.approval import (
        PendingCall as PendingCall,
    )
    from .agent.approval import (
        Proceed as Proceed,
    )
    from .agent.approval import (
        Reject as Reject,
    )
    from .agent.approval import (
        Retry as Retry,
    )
    from .agent.errors import ModelError as ModelError
    from .agent.errors import ToolError as ToolError
    from .agent.events import (
        ModelEnded as ModelEnded,
    )
    from .agent.events import (
        ModelStarted as ModelStarted,
    )
    from .agent.events import (
        Paused as Paused,
    )
    from .agent.events import (
        StepRestarted as StepRestarted,
    )
    from .agent.events import (
        TextDelta as TextDelta,
    )
    from .agent.events import (
        ToolEnded as ToolEnded,
    )
    from .agent.events import (
        ToolStarted as ToolStarted,
    )
    from .agent.events import (
        TurnEnded as TurnEnded,
    )
    from .agent.events import (
        TurnStarted as TurnStarted,
    )
    from .agent.function_model import FunctionModel as FunctionModel
    from .agent.model import (
        ChatModel as ChatModel,
    )
    from .agent.model import (
        ModelReply as ModelReply,
    )
    from .agent.model import (
        ModelRequest as ModelRequest,
    )
    from .agent.model import (
        Usage as Usage,
    )
    from .agent.openai_model import OpenAIModel as OpenAIModel
    from .agent.result import Step as Step
    from .agent.result import TurnResult as TurnResult
    from .agent.scripted_model import ScriptedModel as ScriptedModel
    from .agent.spec import AgentSpec as AgentSpec
    from .agent.tool import Tool as Tool
    from .agent.tool import tool as tool
    from .agent.tool_context import ToolContext as ToolContext
    from .agent.turn_errors import (
        Busy as Busy,
    )
    from .agent.turn_errors import (
        ConversationCleared as ConversationCleared,
    )
    from .agent.turn_errors import (
        DecisionConflict as DecisionConflict,
    )
    from .agent.turn_errors import (
        LimitReached as LimitReached,
    )
    from .agent.turn_errors import (
        NotPaused as NotPaused,
    )
    from .agent.turn_errors import (
        Superseded as Superseded,
    )
    from .agent.turn_errors import (
        TurnCancelled as TurnCancelled,
    )
    from .agent.turn_errors import (
        TurnConflict as TurnConflict,
    )
    from .agent.turn_errors import (
        TurnNotRunning as TurnNotRunning,
    )
    from .memory.default_provider import DefaultProvider as DefaultProvider
    from .memory.provider import MemoryProvider as MemoryProvider
    from .memory.provider import ProviderError as ProviderError
    from .memory.window import Window as Window
    from .runtime import (
        Runtime as Runtime,
    )
    from .runtime import (
        current_runtime as current_runtime,
    )
    from .runtime import (
        default_store as default_store,
    )
    from .stores import (
        DiskStore as DiskStore,
    )
    from .stores import (
        MemoryStore as MemoryStore,
    )
    from .stores import (
        Message as Message,
    )
    from .stores import (
        NewRecord as NewRecord,
    )
    from .stores import (
        StoreError as StoreError,
    )
    from .stores import (
        StoreHandle as StoreHandle,
    )
    from .stores import (
        StoreUnavailable as StoreUnavailable,
    )
    from .stores import (
        ToolCall as ToolCall,
    )
    from .supervision import (
        ChildSpec as ChildSpec,
    )
    from .supervision import (
        DynamicSupervisor as DynamicSupervisor,
    )
    from .supervision import (
        Supervisor as Supervisor,
    )

_HOMES: dict[str, str] = {
    **dict.fromkeys(
        ("Actor", "ActorDied", "AsyncActor", "CallTimeout", "Future", "InvalidValue",
         "KeepwellError", "RequestError", "StartFailed", "ThreadActor", "Unavailable"),
        "actors",
    ),
    **dict.fromkeys(("ChildSpec", "DynamicSupervisor", "Supervisor"), "supervision"),
    **dict.fromkeys(
        ("DiskStore", "MemoryStore", "Message", "NewRecord", "StoreError", "StoreHandle",
         "StoreUnavailable", "ToolCall"),
        "stores",
    ),
    "DefaultProvider": "memory.default_provider",
    **dict.fromkeys(("MemoryProvider", "ProviderError"), "memory.provider"),
    "Window": "memory.window",
    "Agent": "agent.agent",
    **dict.fromkeys(
        ("Allow", "Answer", "Approve", "Ask", "Deny", "PendingCall", "Proceed", "Reject", "Retry"),
        "agent.approval",
    ),
    **dict.fromkeys(("ModelError", "ToolError"), "agent.errors"),
    **dict.fromkeys(
        ("ModelEnded", "ModelStarted", "Paused", "StepRestarted", "TextDelta", "ToolEnded",
         "ToolStarted", "TurnEnded", "TurnStarted"),
        "agent.events",
    ),
    "FunctionModel": "agent.function_model",
    **dict.fromkeys(("ChatModel", "ModelReply", "ModelRequest", "Usage"), "agent.model"),
    "OpenAIModel": "agent.openai_model",
    **dict.fromkeys(("Step", "TurnResult"), "agent.result"),
    "ScriptedModel": "agent.scripted_model",
    "AgentSpec": "agent.spec",
    **dict.fromkeys(("Tool", "tool"), "agent.tool"),
    "ToolContext": "agent.tool_context",
    **dict.fromkeys(
        ("Busy", "ConversationCleared", "DecisionConflict", "LimitReached", "NotPaused",
         "Superseded", "TurnCancelled", "TurnConflict", "TurnNotRunning"),
        "agent.turn_errors",
    ),
    **dict.fromkeys(("Runtime", "current_runtime", "default_store"), "runtime"),
}  # fmt: skip

__all__ = [
    "Actor", "ActorDied", "Agent", "AgentSpec", "Allow", "Answer", "Approve", "Ask", "AsyncActor",
    "Busy", "CallTimeout", "ChatModel", "ChildSpec", "ConversationCleared", "DecisionConflict",
    "DefaultProvider", "Deny", "DiskStore", "DynamicSupervisor", "FunctionModel", "Future",
    "InvalidValue", "KeepwellError", "LimitReached", "MemoryProvider", "MemoryStore", "Message",
    "ModelEnded", "ModelError", "ModelReply", "ModelRequest", "ModelStarted", "NewRecord",
    "NotPaused", "OpenAIModel", "Paused", "PendingCall", "Proceed", "ProviderError", "Reject",
    "RequestError", "Retry", "Runtime", "ScriptedModel", "StartFailed", "Step", "StepRestarted",
    "StoreError", "StoreHandle", "StoreUnavailable", "Superseded", "Supervisor", "TextDelta",
    "ThreadActor", "Tool", "ToolCall", "ToolContext", "ToolEnded", "ToolError", "ToolStarted",
    "TurnCancelled", "TurnConflict", "TurnEnded", "TurnNotRunning", "TurnResult", "TurnStarted",
    "Unavailable", "Usage", "Window", "current_runtime", "default_store", "telemetry", "tool",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "telemetry":
        value: Any = importlib.import_module(".actors.telemetry", __name__)
    elif name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
