"""What a tool function may know about the call it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..stores.frozen import slot_setters


@dataclass(frozen=True, slots=True, init=False)
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

    # By hand, since one is made for each tool call: see `slot_setters`.
    def __init__(
        self,
        conversation_id: str = "",
        turn_id: str = "",
        step: int = 0,
        call_id: str = "",
        agent: str = "",
        values: Mapping[str, object] | None = None,
    ) -> None:
        _set_conversation(self, conversation_id)
        _set_turn(self, turn_id)
        _set_step(self, step)
        _set_call(self, call_id)
        _set_agent(self, agent)
        _set_values(self, {} if values is None else values)


_set_conversation, _set_turn, _set_step, _set_call, _set_agent, _set_values = slot_setters(
    ToolContext
)
