"""What is wrong with a flow, all of it at once (D3, D12). Pure; never raises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from ..stores.errors import shown
from .finding import Finding
from .flow_nodes import Emit, Loop, Parallel, Recv, reads
from .flow_services import registered
from .flow_sub import Sub
from .node import Node

Target = Literal["session", "flow"]

LOOP_FIELDS = ("body", "channels", "state_schema", "split")


class _Place(NamedTuple):
    """Where a node stands: what is forbidden there."""

    target: Target
    in_loop: bool
    in_parallel: bool = False
    in_child: bool = False


def validate(
    node: object,
    target: Target = "session",
    *,
    in_channel: str = "in",
    out_channels: Iterable[str] = ("out",),
) -> list[Finding]:
    """All findings about a flow, in tree order; [] if there are none.

    target: "session" for the body of a session (or a whole tree with its LOOP), "flow" for
    `run_flow`. Findings of severity "error" forbid it, warnings do not. Rule: D12.
    """
    if not isinstance(node, Node):
        return [Finding("SESSION_LOOP_BAD_FIELDS", "$", f"{shown(node)} is no flow node")]
    if target not in ("session", "flow"):
        text = f'target is "session" or "flow", not {shown(target)}'
        return [Finding("SESSION_LOOP_BAD_FIELDS", "$", text)]
    checker = _Checker(in_channel, tuple(out_channels))
    if target == "flow":
        checker.walk(node, "$", _Place("flow", in_loop=False))
    elif any(isinstance(each, Loop) for each in _tree(node)):
        checker.walk(node, "$", _Place("session", in_loop=False), root=True)
    else:
        checker.body(node, "$", _Place("session", in_loop=True))
    return checker.findings


def validate_body(node: Node, in_channel: str, out_channels: Iterable[str]) -> list[Finding]:
    """The findings about a session's body over its channels."""
    return validate(node, in_channel=in_channel, out_channels=out_channels)


def _tree(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from _tree(child)


class _Checker:
    def __init__(self, in_channel: str, out_channels: tuple[str, ...]) -> None:
        self._in = in_channel
        self._out = out_channels
        self.findings: list[Finding] = []

    def say(self, code: str, path: str, message: str) -> None:
        self.findings.append(Finding(f"SESSION_{code}", path, message))

    def body(self, node: Node, path: str, place: _Place) -> None:
        """The body of a session's loop."""
        order = list(_guards(node))
        if not any(isinstance(each, Recv) for each in order):
            self.say("LOOP_NOT_RECV_GUARDED", path, "a body takes its message: put a recv into it")
        self._received: Recv | None = None
        self._guarded = any(isinstance(each, Recv) for each in order)
        self.walk(node, path, place)

    def walk(self, node: Node, path: str, place: _Place, *, root: bool = False) -> None:
        """One node, then those inside it."""
        if isinstance(node, Recv):
            self._recv(node, path, place)
        elif isinstance(node, Emit):
            self._emit(node, path, place)
        elif isinstance(node, Loop):
            self._loop(node, path, place, root=root)
            return
        elif isinstance(node, Sub):
            self._sub(node, path, place)
            return
        elif isinstance(node, Parallel):
            for number, child in enumerate(node.children):
                if reads(child):
                    self.findings.append(Finding(
                        "CTX_PAR_DEGRADED", f"{path}[{number}]",
                        f"this branch reads a transcript: the {node.kind} runs one after another",
                        "warning",
                    ))  # fmt: skip
            place = place._replace(in_parallel=True)
        for number, child in enumerate(node.children):
            self.walk(child, f"{path}[{number}]", place)

    def _recv(self, node: Recv, path: str, place: _Place) -> None:
        if self._misplaced("RECV", path, place):
            return
        if place.in_parallel:
            self.say("RECV_IN_PARALLEL", path, "branches share one message: recv stands before")
        elif self._received is not None:
            self.say("LOOP_MULTIPLE_RECV", path, "a turn takes one message")
        else:
            self._received = node
        if node.channel != self._in:
            text = f"the session receives from {self._in!r}, not from {node.channel!r}"
            self.say("CHANNEL_UNDECLARED", path, text)

    def _emit(self, node: Emit, path: str, place: _Place) -> None:
        if self._misplaced("EMIT", path, place):
            return
        if place.in_parallel:
            self.say("EMIT_IN_PARALLEL", path, "the order of emits would depend on who is faster")
        elif self._guarded and self._received is None:
            self.say("LOOP_EMIT_BEFORE_RECV", path, "a turn emits when it has its message")
        if node.channel not in self._out:
            known = ", ".join(map(repr, self._out))
            text = f"the session emits to {known}, not to {node.channel!r}"
            self.say("CHANNEL_UNDECLARED", path, text)

    def _misplaced(self, what: str, path: str, place: _Place) -> bool:
        if place.target == "flow":
            self.say(f"{what}_IN_FLOW", path, f"{what.lower()} belongs into a session")
        elif not place.in_loop or place.in_child:
            self.say(f"{what}_OUTSIDE_LOOP", path, f"{what.lower()} belongs into the LOOP's body")
        else:
            return False
        return True

    def _loop(self, node: Loop, path: str, place: _Place, *, root: bool) -> None:
        if place.in_child:
            self.say("LOOP_IN_EVAL_PLAN", path, "a child's flow has an end: it has no LOOP")
        elif place.target == "flow":
            self.say("LOOP_IN_FLOW", path, "a flow has an end: a LOOP belongs into a session")
        elif place.in_parallel:
            self.say("LOOP_IN_PARALLEL", path, "a LOOP stands at the root")
        elif place.in_loop or not root:
            if place.in_loop:
                self.say("LOOP_NESTED", path, "a LOOP stands in no other LOOP")
        unknown = [name for name in node.fields if name not in LOOP_FIELDS]
        if unknown:
            text = f"unknown: {', '.join(unknown)}; a LOOP has {', '.join(LOOP_FIELDS)}"
            self.say("LOOP_BAD_FIELDS", path, text)
        if not isinstance(node.body, Node):
            self.say("LOOP_BAD_FIELDS", path, "a LOOP has a body, a flow node")
            return
        if place.in_loop or place.in_child or place.target == "flow":
            for number, child in enumerate(node.body.children or (node.body,)):
                if isinstance(child, Loop | Sub):
                    self.walk(child, f"{path}.body[{number}]", place)
            return
        self.body(node.body, f"{path}.body", place._replace(in_loop=True))

    def _sub(self, node: Sub, path: str, place: _Place) -> None:
        child = node.child
        if isinstance(child, str):
            known = registered(child)
            if known is None:
                if place.in_loop and place.target == "session":
                    self.say("LOOP_EVAL_PLAN_CONTROLLER", path,
                             f"no flow is registered as {child!r}: register it first")  # fmt: skip
                return
            child = known
        if isinstance(child, Node):
            inside = _Place(place.target, in_loop=False, in_child=True)
            self.walk(child, f"{path}.child", inside)


def _guards(node: Node) -> Iterator[Node]:
    """Recv and emit nodes that stand in sequence; those below par or race guard nothing."""
    if isinstance(node, Recv | Emit):
        yield node
    if isinstance(node, Parallel | Loop):
        return
    for child in node.children:
        yield from _guards(child)
