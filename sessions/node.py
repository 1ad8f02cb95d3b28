"""The base of flow nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .flow_run import FlowRun


class Node:
    """A step of a flow: a value goes in, a value comes out. Nodes are immutable and reusable.

    `kind` names it in findings and traces; `children` are the nodes inside, in order.
    """

    kind: ClassVar[str] = "node"

    @property
    def children(self) -> tuple[Node, ...]:
        """The nodes directly inside this one."""
        return ()

    async def run(self, value: Any, run: FlowRun) -> Any:
        """Compute the value that comes out."""
        raise NotImplementedError
