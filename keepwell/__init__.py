"""keepwell: agents may crash; conversations may not.

Names are imported when they are first used, so that `import keepwell` is quick and what an
application does not use costs it nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actors import (
        Actor,
        ActorDied,
        AsyncActor,
        CallTimeout,
        Future,
        InvalidValue,
        KeepwellError,
        RequestError,
        StartFailed,
        ThreadActor,
        Unavailable,
        telemetry,
    )
    from .agent.agent import Agent
    from .agent.approval import (
        Allow,
        Answer,
        Approve,
        Ask,
        Deny,
        PendingCall,
        Proceed,
        Reject,
        Retry,
    )
    from .agent.errors import ModelError, ToolError
    from .agent.events import (
        ModelEnded,
        ModelStarted,
        Paused,
        StepRestarted,
        TextDelta,
        ToolEnded,
        ToolStarted,
        TurnEnded,
        TurnStarted,
    )
    from .agent.function_model import FunctionModel
    from .agent.model import (
        ChatModel,
        ModelReply,
        ModelRequest,
        Usage,
    )
    from .agent.openai_model import OpenAIModel
    from .agent.result import Step, TurnResult
    from .agent.scripted_model import ScriptedModel
    from .agent.spec import AgentSpec
    from .agent.tool import Tool, tool
    from .agent.tool_context import ToolContext
    from .agent.turn_errors import (
        Busy,
        ConversationCleared,
        DecisionConflict,
        LimitReached,
        NotPaused,
        Superseded,
        TurnCancelled,
        TurnConflict,
        TurnNotRunning,
    )
    from .memory.default_provider import DefaultProvider
    from .memory.provider import MemoryProvider, ProviderError
    from .memory.window import Window
    from .runtime import (
        Runtime,
        current_runtime,
        default_store,
    )
    from .stores import (
        DiskStore,
        MemoryStore,
        Message,
        NewRecord,
        StoreError,
        StoreHandle,
        StoreUnavailable,
        ToolCall,
    )
    from .supervision import (
        ChildSpec,
        DynamicSupervisor,
        Supervisor,
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
