"""Steps and a model for tests of flows; the model remembers what it was shown."""

from __future__ import annotations

import json
from typing import Any

from keepwell import FunctionModel, flow
from keepwell.memory.context_policy import ContextPolicy

READING = ContextPolicy("whole_session", 10_000)


def double(x: int) -> int:
    return 2 * x


def boom(value: Any) -> Any:
    raise ValueError("boom")


class Recorder:
    """A model that remembers what it was shown."""

    def __init__(self, answer: str = "reply") -> None:
        self.requests: list[list[tuple[str, Any]]] = []
        self.model = FunctionModel(self._answer)
        self.answer = answer

    def _answer(self, request: Any) -> str:
        self.requests.append([
            (m.role, m.content if not m.tool_calls else [c.name for c in m.tool_calls])
            for m in request.messages
        ])  # fmt: skip
        return f"{self.answer} {len(self.requests)}"

    @property
    def everything(self) -> str:
        return json.dumps(self.requests)


def reader(policy: ContextPolicy = READING) -> Any:
    return flow.think(Recorder().model, policy=policy)


SUMMARY = ContextPolicy("summary", 1_000, lambda previous, new: "short")
