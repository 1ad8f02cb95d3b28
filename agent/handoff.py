"""Handoff: another agent of the team goes on with the conversation, in the same turn.

A team shares one conversation, one log and one queue; what changes hands is who makes the next
step: model, instructions, tools. The log says who that is (the mark `active` on the result of the
handoff, and on the record that ends a turn), so that it survives every restart. Since instructions
are never stored, and each context is a projection of the one log, each message appears once in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ..actors.errors import InvalidValue
from .tool import Tool
from .wire import wire_name

if TYPE_CHECKING:
    from .spec import AgentSpec

_PARAMETERS: Final = {
    "type": "object",
    "properties": {"reason": {"type": "string", "description": "what the other should know"}},
    "additionalProperties": False,
}


@dataclass(frozen=True)
class HandoffTool(Tool):
    """Hands the conversation to the member `target` of the team ("": the one it began with)."""

    target: str = ""


def team_of(spec: AgentSpec) -> dict[str, AgentSpec]:
    """The members of a spec's team by name, the spec itself under "", each with tools to hand over.

    Members are those of `handoffs=` and theirs in turn. Raises InvalidValue for what is no member,
    for two of one name, and for a name of a tool that is taken.
    """
    if not spec.handoffs:
        return {"": spec}
    members: dict[str, AgentSpec] = {}
    waiting = [spec]
    while waiting:
        member = waiting.pop(0)
        known = members.get(member.name)
        if known is member:
            continue
        if known is not None:
            raise InvalidValue(f"handoffs= has two agents named {member.name!r}: name them apart")
        if member.kernel is not None:
            raise InvalidValue(
                f"handoffs=: the agent {member.name!r} has a kernel=, which brings its own tools "
                "and so none to hand over: give it model= and tools="
            )
        members[member.name] = member
        waiting += member.handoffs
    return {
        "" if member is spec else name: replace(
            member,
            tools=(*member.tools, *(_tool(m, spec) for m in members.values() if m is not member)),
            callbacks=spec.callbacks,
            memory=spec.memory,
            handoffs=(),
        )
        for name, member in members.items()
    }


def _tool(member: AgentSpec, first: AgentSpec) -> HandoffTool:
    def hand_over(reason: str = "") -> str:
        return f"{member.name} goes on with the conversation"

    return HandoffTool(
        name=wire_name(f"handoff_to_{member.name}"),
        description=f"Hand the conversation over to {member.name}. {member.description}".strip(),
        parameters=_PARAMETERS,
        fn=hand_over,
        idempotent=True,
        target="" if member is first else member.name,
    )
