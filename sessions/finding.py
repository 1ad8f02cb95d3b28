"""What validation has to say about a flow (D12)."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """A finding: `code` (SESSION_…, CTX_…), `path` in the tree, a sentence, whether it blocks.

    `path` reads like `$.body[0].recv`; findings come in tree order.
    """

    code: str
    path: str
    message: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.code} at {self.path}: {self.message}"
