"""The supervision tree, as data and as text.

It is read from outside, at once: nobody is asked and nothing waits, so a tree whose supervisor is
stuck, suspended or busy stopping a child can be looked at too. What is seen is a snapshot that was
right a moment ago. Refs are shown, never followed into an actor's state (F61).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ..actors import ActorRef, InvalidValue, NamedRef, names
from ..actors.inspection import statistics
from ..actors.ref import AnyRef
from .children import ChildRecord
from .requests import SupervisorLike
from .restart import ChildStatus
from .supervisor import Supervisor

NodeType = Literal["worker", "supervisor"]

_REASON_LENGTH = 120


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One child, or the root.

    id: the child's id, None for the root and for dynamic children. name: registered name.
    ref: its actor; None if it has none. actor: the class of the actor.
    status: "running", "stopped", "restarting" (between two tries), or "ended" (its supervisor has
        not dealt with its end yet).
    restarts: by its supervisor. last_error: why the last incarnation ended, as text; None if none
        has. uptime: seconds. mailbox: messages waiting. handled: messages so far.
    links: linked actors. monitors: how many watch it. suspended: see `ActorRef.suspend`.
    strategy: of a supervisor. children: in start order. note: what the actor itself has to say,
        see `Actor.tree_note`.
    """

    id: Hashable
    type: NodeType
    ref: AnyRef | None
    name: str | None = None
    actor: str = ""
    status: Literal["running", "stopped", "restarting", "ended"] = "stopped"
    restarts: int = 0
    last_error: str | None = None
    uptime: float = 0.0
    mailbox: int = 0
    handled: int = 0
    links: tuple[AnyRef, ...] = ()
    monitors: int = 0
    suspended: bool = False
    strategy: str | None = None
    children: tuple[TreeNode, ...] = ()
    note: str = ""

    def walk(self) -> Iterator[TreeNode]:
        """This node and all below, parents before children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def __str__(self) -> str:
        return tree_text(self)


def tree(supervisor: SupervisorLike) -> TreeNode:
    """Return the tree below a supervisor, which may be dead (then it has no children).

    Never waits. Raises InvalidValue for what is no supervisor.
    """
    ref: Any = supervisor
    if isinstance(supervisor, str):
        ref = names.named(supervisor).ref()
    elif isinstance(supervisor, NamedRef):
        ref = supervisor.ref()
    if not isinstance(ref, ActorRef) or not issubclass(ref.actor_class, Supervisor):
        raise InvalidValue(f"{supervisor!r} is no supervisor: pass the ref or name of one")
    return _node(ref, None, "supervisor", None)


def tree_text(node: TreeNode) -> str:
    """Draw a tree, one line a child.

    >>> print(tree_text(TreeNode(None, "supervisor", None, actor="Supervisor", status="running")))
    Supervisor  running  up 0.0 s  mailbox 0  handled 0
    """
    return "\n".join(_lines(node, "", ""))


def _lines(node: TreeNode, first: str, rest: str) -> Iterator[str]:
    yield first + _line(node)
    last = len(node.children) - 1
    for index, child in enumerate(node.children):
        branch, below = ("└─ ", "   ") if index == last else ("├─ ", "│  ")
        yield from _lines(child, rest + branch, rest + below)


def _line(node: TreeNode) -> str:
    kind = node.actor or node.type
    title = kind if node.id is None else f"{node.id} ({kind})"
    parts = [title if node.name is None else f"{title} as {node.name!r}"]
    if node.strategy is not None:
        parts.append(node.strategy)
    parts.append(node.status)
    if node.status == "running":
        parts.append(f"up {node.uptime:.1f} s")
        parts.append(f"mailbox {node.mailbox}")
        parts.append(f"handled {node.handled}")
    if node.note:
        parts.append(node.note)
    if node.suspended:
        parts.append("suspended")
    if node.restarts:
        parts.append(f"restarts {node.restarts}")
    if node.last_error is not None:
        parts.append(f"last ended with {node.last_error}")
    return "  ".join(parts)


def _child(record: ChildRecord, dynamic: bool) -> TreeNode:
    spec = record.spec
    child_id = None if dynamic else spec.id
    if record.status is ChildStatus.RUNNING and record.ref is not None:
        return _node(record.ref, child_id, spec.type, record)
    return TreeNode(
        child_id,
        spec.type,
        None,
        status="restarting" if record.status is ChildStatus.RESTARTING else "stopped",
        restarts=record.restarts,
        last_error=_reason(record),
    )


def _node(ref: AnyRef, child_id: Hashable, kind: NodeType, record: ChildRecord | None) -> TreeNode:
    restarts = record.restarts if record is not None else 0
    last_error = _reason(record) if record is not None else None
    status: Literal["running", "ended"] = "running" if ref.is_alive() else "ended"
    name = ref.actor_class.__name__
    if not isinstance(ref, ActorRef):  # a plain pykka actor: this is all that can be seen
        waiting = getattr(ref.actor_inbox, "qsize", int)()
        return TreeNode(
            child_id,
            kind,
            ref,
            actor=name,
            status=status,
            restarts=restarts,
            last_error=last_error,
            mailbox=waiting,
        )
    facts = statistics(ref)
    actor: Any = ref._actor
    children: tuple[TreeNode, ...] = ()
    strategy = None
    if isinstance(actor, Supervisor):
        strategy = actor._settings.strategy
        dynamic = strategy == "simple_one_for_one"
        children = tuple(_child(record, dynamic) for record in actor._book.records())
    return TreeNode(
        child_id,
        kind,
        ref,
        name=facts["name"],
        actor=name,
        status=status,
        restarts=restarts,
        last_error=last_error,
        uptime=facts["uptime"],
        mailbox=facts["mailbox"],
        handled=facts["handled"],
        links=tuple(facts["links"]),
        monitors=facts["monitors"],
        suspended=facts["suspended"],
        strategy=strategy,
        children=children,
        note=_note(actor),
    )


def _note(actor: Any) -> str:
    try:
        return str(actor.tree_note())
    except Exception:  # it has ended, is half made, or has a bug: the tree is shown all the same
        return ""


def _reason(record: ChildRecord) -> str | None:
    if record.last_reason is None:
        return None
    text = repr(record.last_reason)
    return text if len(text) <= _REASON_LENGTH else text[: _REASON_LENGTH - 1] + "…"
