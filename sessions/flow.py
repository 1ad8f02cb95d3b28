"""Flows: values through nodes. `from keepwell import flow`, then `flow.seq(flow.recv("in"), …)`.

A flow has an end: `await flow.run_flow(node, value)`. A session's body may be a flow; `recv` and
`emit` are for those only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..actors.errors import InvalidValue
from ..memory.context_policy import ContextPolicy
from ..stores.errors import shown
from .errors import SessionValidationError
from .finding import Finding
from .flow_nodes import UNSET, Arr, Call, Emit, Ident, Loop, Par, Race, Recv, Seq
from .flow_run import FlowRun
from .flow_services import FlowServices, default_services, register, registered
from .flow_sub import Sub, SubContract
from .flow_think import Think
from .node import Node
from .validation import validate

if TYPE_CHECKING:
    from ..agent.model import ChatModel
    from ..agent.spec import AgentSpec
    from ..agent.tool import Tool

__all__ = [
    "UNSET",
    "ContextPolicy",
    "Finding",
    "Node",
    "SubContract",
    "agent",
    "arr",
    "call",
    "emit",
    "ident",
    "loop",
    "par",
    "race",
    "recv",
    "register",
    "registered",
    "run_flow",
    "seq",
    "sub",
    "think",
    "validate",
]


def seq(*nodes: Node) -> Node:
    """One node after another; each gets what the one before gives."""
    return Seq(nodes)


def par(*nodes: Node) -> Node:
    """All branches at once, with the same input: a list of what they give, in branch order.

    The first failure cancels and awaits the rest. A branch that reads a transcript makes it serial.
    Raises RequestError without branches. Rules: D1, D3.
    """
    return Par(nodes)


def race(*nodes: Node) -> Node:
    """All branches at once: what the first to succeed gives; losers are cancelled and awaited.

    Raises RaceFailed, with all errors, if none succeeds. Rules: D2, D3.
    """
    return Race(nodes)


def call(tool: Tool | Callable[..., Any]) -> Node:
    """A tool, called with the value: a mapping of its arguments, or its only argument. Rule: D5."""
    return Call(tool)


def think(
    model: ChatModel, instructions: str = "", policy: ContextPolicy | None = None
) -> Node:
    """One model call: instructions, what the policy shows, the value as user turn. Rule: D5."""
    return Think(model, instructions, policy)


def sub(
    child: Node | str | AgentSpec,
    contract: SubContract | None = None,
    policy: ContextPolicy | None = None,
) -> Node:
    """A child flow (or one registered by name, or an agent) behind a firewall. Rules: D6…D11."""
    return Sub(child, contract, policy)


def agent(spec: AgentSpec, policy: ContextPolicy | None = None) -> Node:
    """An agent as a child: `sub(spec, policy=policy)`."""
    return Sub(spec, None, policy)


def arr(function: Callable[[Any], Any]) -> Node:
    """A function of the value, sync or async."""
    return Arr(function)


def ident() -> Node:
    """Gives what it gets."""
    return Ident()


def recv(channel: str, timeout: float | None = None) -> Node:
    """The message of the turn, with the value as carrier: `{"carrier": …, "msg": …}`. Rule: D4.

    timeout: seconds without a message after which telemetry says so; the session waits on.
    """
    return Recv(channel, timeout)


def emit(channel: str, value: Any = UNSET) -> Node:
    """Emit the value (or the one given here, None too) at the boundary; gives its input. D4."""
    return Emit(channel, value)


def loop(body: object = None, **fields: object) -> Node:
    """The loop of a session as a node: body, channels, state_schema, split. Only at the root."""
    return Loop(body, **fields)


async def run_flow(node: Node, value: Any = None) -> Any:
    """Run a flow once with a value: what comes out.

    Raises SessionValidationError with all findings for a flow that cannot run (recv, emit and loop
    belong into sessions), and what the flow raises. Agents inside need a Runtime.
    """
    if not isinstance(node, Node):
        raise InvalidValue(f"run_flow takes a flow node, not {shown(node)}")
    blocking = [finding for finding in validate(node, "flow") if finding.severity == "error"]
    if blocking:
        raise SessionValidationError(blocking)
    services = default_services[-1]() if default_services else FlowServices()
    return await node.run(value, FlowRun(services, value))
