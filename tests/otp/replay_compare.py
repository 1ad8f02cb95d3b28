"""Terms of the traces, and the comparison of a recorded trace with what was seen.

Both sides are brought to one normal form of JSON and then compared as text, so that 1, 1.0 and
true differ. Python has no atoms: `{"a": w}` and the string w are the same in the normal form, as
they are the same `str` in the product.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

EXCEPTION = "exception"
"""Normal form of the reason `{r, Stacktrace}` and of a Python exception: `{"exception": r}`."""

TRACE_KEYS = {
    "v",
    "id",
    "family",
    "title",
    "rules",
    "timing",
    "scenario",
    "trace",
    "meta",
    "keepwell",
}
KEEPWELL_KEYS = {"why", "skip", "skip_steps", "results"}
STEP_RECORD_KEYS = {"op", "result", "events"}
FINAL_KEYS = {"root", "tree", "reason"}


class BadTrace(Exception):
    """The file asks for something that the format does not know; it counts as a failure."""


def normal(term: Any) -> Any:
    """Bring a recorded term to the normal form. Unknown shapes raise BadTrace."""
    if isinstance(term, list):
        return [normal(item) for item in term]
    if not isinstance(term, dict):
        return term
    if len(term) == 1:
        (kind, value) = next(iter(term.items()))
        if kind == "a":
            return None if value == "undefined" else value
        if kind == "t":
            items = [normal(item) for item in value]
            if len(items) == 2 and value[1] == {"a": "stacktrace"}:
                return {EXCEPTION: items[0]}
            return {"t": items}
        if kind in ("p", "v", "s"):
            return {"p": value} if kind == "p" else {"v": value} if kind == "v" else value
        if kind == "ref":
            return {"ref": True}
        if kind in ("raise", "exited"):
            return {kind: normal(value)}
    raise BadTrace(f"unknown term {term!r}")


def text(value: Any) -> str:
    """One line of JSON in which equal values have equal text."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def differences(line: Mapping[str, Any], seen: Mapping[str, Any]) -> list[str]:
    """Compare the recorded trace in `line` with the trace that was `seen`; [] if they agree.

    `seen` has the shape of a recorded trace, its terms in the normal form. `keepwell` says which
    steps were not run and where another result is expected.
    """
    is_supervision = line["family"] == "supervision"
    notes: Mapping[str, Any] = line.get("keepwell", {})
    skipped = set(notes.get("skip_steps", ()))
    other = {int(index): result for index, result in notes.get("results", {}).items()}
    steps, recorded = line["scenario"]["steps"], line["trace"]["steps"]
    found: list[str] = []
    for index, (step, record) in enumerate(zip(steps, recorded, strict=True)):
        if record["op"] != step["op"]:
            found.append(f"step {index}: the trace has {record['op']}, the scenario {step['op']}")
        if index in skipped:
            continue
        if index >= len(seen["steps"]):
            found.append(f"step {index} {step['op']}: never came to this step")
            break
        actual = seen["steps"][index]
        if "error" in actual:
            found.append(f"step {index} {text(step)}: {actual['error']}")
            break
        if not step.get("quiet"):
            expected = other.get(index, record["result"])
            expected = expected if is_supervision else normal(expected)
            pair = [expected, actual["result"]]
            if step.get("sort"):
                pair = [_as_multiset(side) for side in pair]
            elif step["op"] == "which_children" and _is_dynamic(line):
                pair = [_unordered(side) if isinstance(side, list) else side for side in pair]
            if text(pair[0]) != text(pair[1]):
                found += _diff(f"step {index} {text(step)}: result", [pair[0]], [pair[1]])
        events = [_events(side.get("events", []), step) for side in (record, actual)]
        if [text(e) for e in events[0]] != [text(e) for e in events[1]]:
            found += _diff(f"step {index} {text(step)}: events", *events)
    if not found and "final" in line["trace"]:
        pair = [line["trace"]["final"], seen.get("final")]
        if _is_dynamic(line):
            pair = [_unordered_tree(side) for side in pair]
        if text(pair[0]) != text(pair[1]):
            found += _diff("final", [pair[0]], [pair[1]])
    return found


def check_shape(line: Mapping[str, Any]) -> None:
    """Raise BadTrace for a scenario with unknown keys or of an unknown version."""
    if line.get("v") != 1:
        raise BadTrace(f"version {line.get('v')!r}, not 1")
    _known("scenario line", line, TRACE_KEYS)
    _known("keepwell", line.get("keepwell", {}), KEEPWELL_KEYS)
    _known("scenario", line["scenario"], {"supervisor", "steps"})
    _known("trace", line["trace"], {"steps", "final"})
    _known("final", line["trace"].get("final") or {}, FINAL_KEYS)
    for record in line["trace"]["steps"]:
        _known("trace step", record, STEP_RECORD_KEYS)
    if len(line["trace"]["steps"]) != len(line["scenario"]["steps"]):
        raise BadTrace("trace and scenario have different numbers of steps")


def _known(what: str, given: Iterable[str], known: set[str]) -> None:
    unknown = set(given) - known
    if unknown:
        raise BadTrace(f"unknown key in {what}: {', '.join(sorted(unknown))}")


def _events(events: Sequence[Any], step: Mapping[str, Any]) -> list[Any]:
    dropped = step.get("drop_events", ())
    kept = [event for event in events if event["ev"] not in dropped]
    return sorted(kept, key=text) if step.get("unordered") else kept


def _as_multiset(side: Any) -> Any:
    return sorted(side, key=text) if isinstance(side, list) else side


def _is_dynamic(line: Mapping[str, Any]) -> bool:
    return '"simple_one_for_one"' in text(line["scenario"].get("supervisor"))


def _unordered_tree(final: Any) -> Any:
    if not isinstance(final, dict) or "tree" not in final:
        return final
    return {**final, "tree": _unordered(final["tree"])}


def _unordered(tree: list[Any]) -> list[Any]:
    nodes = [
        {**node, "children": _unordered(node["children"])} if node.get("children") else node
        for node in tree
    ]
    # Only dynamic children have no order, and they have no id.
    return sorted(nodes, key=text) if all(node["id"] is None for node in nodes) else nodes


def _diff(title: str, expected: Sequence[Any], actual: Sequence[Any]) -> list[str]:
    lines = difflib.unified_diff(
        [line for item in expected for line in _pretty(item)],
        [line for item in actual for line in _pretty(item)],
        "recorded on OTP",
        "keepwell",
        lineterm="",
        n=3,
    )
    return [title, *(f"    {line}" for line in lines)]


def _pretty(item: Any) -> list[str]:
    line = text(item)
    if len(line) <= 110:
        return [line]
    return json.dumps(item, sort_keys=True, ensure_ascii=False, indent=1).splitlines()
