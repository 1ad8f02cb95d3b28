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
        ActorSystem,
        AsyncActor,
        BlockingOnLoop,
        CallTimeout,
        Down,
        Exit,
        ExitActor,
        Future,
        Ignore,
        InvalidValue,
        KeepwellError,
        MailboxFull,
        Reply,
        RequestError,
        Shutdown,
        StartFailed,
        ThreadActor,
        Unavailable,
        telemetry,
    )
    from .agent.agent import (
        Agent,
    )
    from .agent.anthropic_model import (
        AnthropicModel,
    )
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
    from .agent.callbacks import (
        CallbackInfo,
    )
    from .agent.circuit_breaker import (
        BreakerPolicy,
        CircuitBreaker,
    )
    from .agent.delegation import (
        delegate,
        fan_out,
    )
    from .agent.errors import (
        ModelError,
        ToolError,
    )
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
    from .agent.fallback_model import (
        FallbackModel,
    )
    from .agent.filters import (
        MEMORY_ORDER,
        SYSTEM_PROMPT_ORDER,
        ChatRequest,
        Filter,
        SystemPromptFilter,
        ToolRequest,
    )
    from .agent.fleet import (
        Fleet,
    )
    from .agent.function_model import (
        FunctionModel,
    )
    from .agent.gate import (
        GateCall,
    )
    from .agent.kept_results import (
        result_reader,
    )
    from .agent.kernel import (
        Kernel,
        KernelResult,
    )
    from .agent.local_model import (
        LocalModel,
    )
    from .agent.managed_agents import managed_agents
    from .agent.mcp_server import (
        McpServer,
        McpUnavailable,
    )
    from .agent.memory_filter import (
        MemoryFilter,
        memory_filter,
    )
    from .agent.model import (
        ChatModel,
        ModelReply,
        ModelRequest,
        Usage,
    )
    from .agent.open_turns import (
        OpenTurn,
    )
    from .agent.openai_model import (
        OpenAIModel,
    )
    from .agent.result import (
        Step,
        TurnResult,
    )
    from .agent.retry import (
        RetryPolicy,
    )
    from .agent.scripted_model import (
        ScriptedModel,
    )
    from .agent.spec import (
        AgentSpec,
    )
    from .agent.tool import (
        Tool,
        tool,
    )
    from .agent.tool_context import (
        ToolContext,
    )
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
    from .default_runtime import (
        current_runtime,
        default_store,
    )
    from .memory.budget import (
        ContextTooLarge,
        fit_context,
        split_to_budget,
    )
    from .memory.context import ContextReport
    from .memory.context_policy import (
        ContextPolicy,
        ContextPolicyError,
    )
    from .memory.default_provider import (
        DefaultProvider,
    )
    from .memory.full_text_retriever import FullTextRetriever, RetrieverError
    from .memory.prepared import Prepared
    from .memory.provider import (
        MemoryProvider,
        ProviderError,
    )
    from .memory.recall_provider import RecallProvider
    from .memory.retriever import Hit, Retrieved, Retriever
    from .memory.search_index import FullTextSearchMissing
    from .memory.token_counter import (
        approx_token_count,
        token_counter,
    )
    from .memory.transcript import (
        conversation_transcript,
        transcript_for,
    )
    from .memory.window import (
        Window,
    )
    from .runtime import (
        Runtime,
    )
    from .sessions import (
        NO_OUTPUT,
        Channel,
        ChannelFull,
        ChannelUndeclared,
        EventsTrimmed,
        IdempotencyConflict,
        MaxTurnsExceeded,
        NotPlain,
        PayloadInvalid,
        PayloadTooLarge,
        RaceFailed,
        RecvTimeout,
        Session,
        SessionClosed,
        SessionConflict,
        SessionDefinitionError,
        SessionEvent,
        SessionFailed,
        SessionFenced,
        SessionHandle,
        SessionResult,
        SessionTurnError,
        SessionValidationError,
        SubFailed,
        TurnOutcome,
        current_turn,
        drive_session,
        loop,
        run_session,
        scan,
        session,
        value_fingerprint,
    )
    from .stores import (
        HEAD,
        AppendConflict,
        ConversationInfo,
        CursorConflict,
        DamagedStore,
        DiskFull,
        DiskSessionStore,
        DiskStore,
        ForeignFormat,
        InvalidConversationId,
        InvalidMessage,
        MemorySessionStore,
        MemoryStore,
        Message,
        NewerFormat,
        NewRecord,
        NoCounter,
        ReadOnlyStore,
        Record,
        SessionState,
        SessionStore,
        SimpleStore,
        StaleEpoch,
        StoreError,
        StoreHandle,
        StoreInUse,
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
        (
            "Actor", "ActorDied", "ActorSystem", "AsyncActor", "BlockingOnLoop", "CallTimeout",
            "Down", "Exit", "ExitActor", "Future", "Ignore", "InvalidValue", "KeepwellError",
            "MailboxFull", "Reply", "RequestError", "Shutdown", "StartFailed", "ThreadActor",
            "Unavailable",
        ),
        "actors",
    ),
    **dict.fromkeys(
        (
            "ChildSpec", "DynamicSupervisor", "Supervisor",
        ),
        "supervision",
    ),
    **dict.fromkeys(
        (
            "AppendConflict", "ConversationInfo", "CursorConflict", "DamagedStore", "DiskFull",
            "DiskSessionStore", "DiskStore", "ForeignFormat", "HEAD", "InvalidConversationId",
            "InvalidMessage", "MemorySessionStore", "MemoryStore", "Message", "NewRecord",
            "NewerFormat", "NoCounter", "ReadOnlyStore", "Record", "SessionState", "SessionStore",
            "SimpleStore", "StaleEpoch", "StoreError", "StoreHandle", "StoreInUse",
            "StoreUnavailable", "ToolCall",
        ),
        "stores",
    ),
    **dict.fromkeys(
        (
            "ContextTooLarge", "fit_context", "split_to_budget",
        ),
        "memory.budget",
    ),
    "ContextReport": "memory.context",
    **dict.fromkeys(
        (
            "ContextPolicy", "ContextPolicyError",
        ),
        "memory.context_policy",
    ),
    "DefaultProvider": "memory.default_provider",
    **dict.fromkeys(("FullTextRetriever", "RetrieverError"), "memory.full_text_retriever"),
    "Prepared": "memory.prepared",
    "RecallProvider": "memory.recall_provider",
    **dict.fromkeys(("Hit", "Retrieved", "Retriever"), "memory.retriever"),
    "FullTextSearchMissing": "memory.search_index",
    **dict.fromkeys(
        (
            "MemoryProvider", "ProviderError",
        ),
        "memory.provider",
    ),
    **dict.fromkeys(
        (
            "approx_token_count", "token_counter",
        ),
        "memory.token_counter",
    ),
    **dict.fromkeys(
        (
            "conversation_transcript", "transcript_for",
        ),
        "memory.transcript",
    ),
    "Window": "memory.window",
    "Agent": "agent.agent",
    "AnthropicModel": "agent.anthropic_model",
    **dict.fromkeys(
        (
            "Allow", "Answer", "Approve", "Ask", "Deny", "PendingCall", "Proceed", "Reject",
            "Retry",
        ),
        "agent.approval",
    ),
    "CallbackInfo": "agent.callbacks",
    **dict.fromkeys(
        (
            "delegate", "fan_out",
        ),
        "agent.delegation",
    ),
    **dict.fromkeys(
        (
            "ModelError", "ToolError",
        ),
        "agent.errors",
    ),
    **dict.fromkeys(
        (
            "ModelEnded", "ModelStarted", "Paused", "StepRestarted", "TextDelta", "ToolEnded",
            "ToolStarted", "TurnEnded", "TurnStarted",
        ),
        "agent.events",
    ),
    **dict.fromkeys(("BreakerPolicy", "CircuitBreaker"), "agent.circuit_breaker"),
    **dict.fromkeys(("McpServer", "McpUnavailable"), "agent.mcp_server"),
    "RetryPolicy": "agent.retry",
    "FallbackModel": "agent.fallback_model",
    **dict.fromkeys(
        (
            "ChatRequest", "Filter", "MEMORY_ORDER", "SYSTEM_PROMPT_ORDER", "SystemPromptFilter",
            "ToolRequest",
        ),
        "agent.filters",
    ),
    "FunctionModel": "agent.function_model",
    "GateCall": "agent.gate",
    **dict.fromkeys(
        (
            "Kernel", "KernelResult",
        ),
        "agent.kernel",
    ),
    "LocalModel": "agent.local_model",
    **dict.fromkeys(
        (
            "MemoryFilter", "memory_filter",
        ),
        "agent.memory_filter",
    ),
    **dict.fromkeys(
        (
            "ChatModel", "ModelReply", "ModelRequest", "Usage",
        ),
        "agent.model",
    ),
    "OpenAIModel": "agent.openai_model",
    **dict.fromkeys(
        (
            "Step", "TurnResult",
        ),
        "agent.result",
    ),
    "ScriptedModel": "agent.scripted_model",
    "AgentSpec": "agent.spec",
    **dict.fromkeys(
        (
            "Tool", "tool",
        ),
        "agent.tool",
    ),
    "ToolContext": "agent.tool_context",
    **dict.fromkeys(
        (
            "Busy", "ConversationCleared", "DecisionConflict", "LimitReached", "NotPaused",
            "Superseded", "TurnCancelled", "TurnConflict", "TurnNotRunning",
        ),
        "agent.turn_errors",
    ),
    "Fleet": "agent.fleet",
    "OpenTurn": "agent.open_turns",
    "Runtime": "runtime",
    **dict.fromkeys(
        (
            "Channel", "ChannelFull", "ChannelUndeclared", "EventsTrimmed", "IdempotencyConflict",
            "MaxTurnsExceeded", "NO_OUTPUT", "NotPlain", "PayloadInvalid", "PayloadTooLarge",
            "RaceFailed", "RecvTimeout", "Session", "SessionClosed", "SessionConflict",
            "SessionDefinitionError", "SessionEvent", "SessionFailed", "SessionFenced",
            "SessionHandle", "SessionResult", "SessionTurnError", "SessionValidationError",
            "SubFailed", "TurnOutcome", "current_turn", "drive_session", "loop", "run_session",
            "scan", "session", "value_fingerprint",
        ),
        "sessions",
    ),
    **dict.fromkeys(
        (
            "current_runtime", "default_store",
        ),
        "default_runtime",
    ),
    "managed_agents": "agent.managed_agents",
    "result_reader": "agent.kept_results",
}  # fmt: skip

__all__ = [
    "Actor", "ActorDied", "ActorSystem", "Agent", "AgentSpec", "Allow", "Answer",
    "AnthropicModel", "AppendConflict", "Approve", "Ask", "AsyncActor", "BlockingOnLoop",
    "BreakerPolicy", "Busy", "CallTimeout", "CallbackInfo", "Channel", "ChannelFull",
    "ChannelUndeclared", "ChatModel", "ChatRequest", "ChildSpec", "CircuitBreaker",
    "ContextPolicy", "ContextPolicyError", "ContextReport", "ContextTooLarge",
    "ConversationCleared", "ConversationInfo", "CursorConflict", "DamagedStore",
    "DecisionConflict", "DefaultProvider", "Deny", "DiskFull", "DiskSessionStore", "DiskStore",
    "Down", "DynamicSupervisor", "EventsTrimmed", "Exit", "ExitActor", "FallbackModel",
    "Filter", "Fleet", "ForeignFormat", "FullTextRetriever", "FullTextSearchMissing",
    "FunctionModel", "Future", "GateCall", "HEAD", "Hit", "IdempotencyConflict", "Ignore",
    "InvalidConversationId", "InvalidMessage", "InvalidValue", "KeepwellError", "Kernel",
    "KernelResult", "LimitReached", "LocalModel", "MEMORY_ORDER", "MailboxFull",
    "MaxTurnsExceeded", "McpServer", "McpUnavailable", "MemoryFilter", "MemoryProvider",
    "MemorySessionStore", "MemoryStore", "Message", "ModelEnded", "ModelError", "ModelReply",
    "ModelRequest", "ModelStarted", "NO_OUTPUT", "NewRecord", "NewerFormat", "NoCounter",
    "NotPaused", "NotPlain", "OpenAIModel", "OpenTurn", "Paused", "PayloadInvalid",
    "PayloadTooLarge", "PendingCall", "Prepared", "Proceed", "ProviderError", "RaceFailed",
    "ReadOnlyStore", "RecallProvider", "Record", "RecvTimeout", "Reject", "Reply",
    "RequestError", "Retrieved", "Retriever", "RetrieverError", "Retry", "RetryPolicy",
    "Runtime", "SYSTEM_PROMPT_ORDER", "ScriptedModel", "Session", "SessionClosed",
    "SessionConflict", "SessionDefinitionError", "SessionEvent", "SessionFailed",
    "SessionFenced", "SessionHandle", "SessionResult", "SessionState", "SessionStore",
    "SessionTurnError", "SessionValidationError", "Shutdown", "SimpleStore", "StaleEpoch",
    "StartFailed", "Step", "StepRestarted", "StoreError", "StoreHandle", "StoreInUse",
    "StoreUnavailable", "SubFailed", "Superseded", "Supervisor", "SystemPromptFilter",
    "TextDelta", "ThreadActor", "Tool", "ToolCall", "ToolContext", "ToolEnded", "ToolError",
    "ToolRequest", "ToolStarted", "TurnCancelled", "TurnConflict", "TurnEnded",
    "TurnNotRunning", "TurnOutcome", "TurnResult", "TurnStarted", "Unavailable", "Usage",
    "Window", "approx_token_count", "conversation_transcript", "current_runtime",
    "current_turn", "default_store", "delegate", "drive_session", "fan_out", "fit_context",
    "loop", "managed_agents", "memory_filter", "result_reader", "run_session", "scan", "session",
    "split_to_budget", "telemetry", "token_counter", "tool", "transcript_for",
    "value_fingerprint",
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
