"""The part that the families share: playing a scenario step by step."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from typing import Any, ClassVar

from replay_compare import BadTrace
from replay_stage import Stage

RENAMED = {"as": "as_", "from": "from_"}
"""Fields whose names are keywords in Python."""


class Scenario:
    """Plays one scenario. A step `{"op": "x", …}` is the method `op_x` with its fields.

    A field that the method does not take is an unknown one, hence a failure.
    """

    comparing: ClassVar[frozenset[str]] = frozenset({"quiet", "sort", "unordered", "drop_events"})
    """Fields that concern the comparison only."""

    def __init__(self, line: Mapping[str, Any], stage: Stage) -> None:
        self.line = line
        self.stage = stage

    def run(self) -> dict[str, Any]:
        """Play all steps; returns what was seen in the shape of a trace."""
        skipped = set(self.line.get("keepwell", {}).get("skip_steps", ()))
        steps: list[dict[str, Any]] = []
        for index, step in enumerate(self.line["scenario"]["steps"]):
            if index in skipped:
                steps.append({"op": step["op"]})
                continue
            try:
                steps.append({"op": step["op"], **self.play(step)})
            except BadTrace as bad:
                steps.append({"op": step["op"], "error": str(bad)})
                break
            except Exception:
                steps.append({"op": step["op"], "error": traceback.format_exc()})
                break
        seen: dict[str, Any] = {"steps": steps}
        if "error" not in steps[-1] and "final" in self.line["trace"]:
            seen["final"] = self.final()
        return seen

    def play(self, step: Mapping[str, Any]) -> dict[str, Any]:
        """Play one step: at least its `result`."""
        return {"result": self.call(step)}

    def call(self, step: Mapping[str, Any]) -> Any:
        method = getattr(self, f"op_{step['op']}", None)
        if method is None:
            raise BadTrace(f"unknown op {step['op']!r}")
        fields = {
            RENAMED.get(key, key): value
            for key, value in step.items()
            if key != "op" and key not in self.comparing
        }
        try:
            inspect.signature(method).bind(**fields)
        except TypeError as error:
            raise BadTrace(f"unknown or missing field in {dict(step)}: {error}") from None
        return method(**fields)

    def final(self) -> Any:
        raise BadTrace("this family has no final state")
