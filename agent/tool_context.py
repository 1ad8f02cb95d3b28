"""What a tool function may know about the call it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Injected into a tool's parameter of this type; the model neither sees nor fills it.

    `call_id` identifies the call and is the same when an idempotent tool runs again after a
    crash: use it as the key of an outside effect. `values` is whatever the owner of the agent
    put there for its tools.
    """

    conversation_id: str = ""
    turn_id: str = ""
    step: int = 0
    call_id: str = ""
    agent: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
