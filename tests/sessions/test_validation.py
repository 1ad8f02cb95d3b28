"""The findings about a flow, all at once (D12)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from keepwell import flow
from keepwell.sessions import (
    Finding,
    SessionDefinitionError,
    SessionValidationError,
    loop,
    scan,
)

from .recorder import reader

# -- D12: validation -----------------------------------------------------------------------------

R, E, ID = flow.recv("in"), flow.emit("out"), flow.ident()


FINDINGS: list[tuple[Any, list[str]]] = [
    (flow.seq(R, E), []),
    (flow.seq(ID, R, flow.par(ID, ID), E), []),
    (ID, ["LOOP_NOT_RECV_GUARDED"]),
    (flow.seq(), ["LOOP_NOT_RECV_GUARDED"]),
    (E, ["LOOP_NOT_RECV_GUARDED"]),
    (flow.seq(E, R), ["LOOP_EMIT_BEFORE_RECV"]),
    (flow.seq(flow.seq(ID, E), flow.seq(R)), ["LOOP_EMIT_BEFORE_RECV"]),
    (flow.seq(R, R), ["LOOP_MULTIPLE_RECV"]),
    (flow.seq(R, R, R), ["LOOP_MULTIPLE_RECV"] * 2),
    (flow.par(R, ID), ["LOOP_NOT_RECV_GUARDED", "RECV_IN_PARALLEL"]),
    (flow.race(ID, flow.seq(R)), ["LOOP_NOT_RECV_GUARDED", "RECV_IN_PARALLEL"]),
    (flow.seq(R, flow.par(E, ID)), ["EMIT_IN_PARALLEL"]),
    (flow.seq(R, flow.race(flow.seq(ID, E))), ["EMIT_IN_PARALLEL"]),
    (flow.par(flow.seq(R, E), reader()), ["LOOP_NOT_RECV_GUARDED", "CTX_PAR_DEGRADED",
                                          "RECV_IN_PARALLEL", "EMIT_IN_PARALLEL"]),
    (flow.seq(flow.recv("other"), E), ["CHANNEL_UNDECLARED"]),
    (flow.seq(flow.recv("out"), E), ["CHANNEL_UNDECLARED"]),
    (flow.seq(R, flow.emit("in")), ["CHANNEL_UNDECLARED"]),
    (flow.seq(R, flow.emit("nowhere")), ["CHANNEL_UNDECLARED"]),
    (flow.seq(R, flow.sub("test.none")), ["LOOP_EVAL_PLAN_CONTROLLER"]),
    (flow.seq(R, flow.sub(flow.seq(R, E))), ["RECV_OUTSIDE_LOOP", "EMIT_OUTSIDE_LOOP"]),
    (flow.seq(R, flow.sub(flow.loop(R))), ["LOOP_IN_EVAL_PLAN"]),
    (flow.loop(flow.seq(R, E)), []),
    (flow.loop(), ["LOOP_BAD_FIELDS"]),
    (flow.loop(5), ["LOOP_BAD_FIELDS"]),
    (flow.loop(R, retries=3), ["LOOP_BAD_FIELDS"]),
    (flow.loop(R, channels=[], state_schema=int, split=True), []),
    (flow.loop(flow.seq(R, flow.loop(R))), ["LOOP_NESTED"]),
    (flow.seq(R, flow.loop(R), E), ["RECV_OUTSIDE_LOOP", "EMIT_OUTSIDE_LOOP"]),
    (flow.par(flow.loop(R), ID), ["LOOP_IN_PARALLEL", "RECV_IN_PARALLEL"]),
    (5, ["LOOP_BAD_FIELDS"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("node", "codes"),
    FINDINGS,
    ids=lambda value: str(value) if isinstance(value, list) else type(value).__name__,
)
def test_d12_findings_of_a_session(node: Any, codes: list[str]) -> None:
    found = [f.code.removeprefix("SESSION_") for f in flow.validate(node)]
    assert found == codes


FLOW_FINDINGS: list[tuple[Any, list[str]]] = [
    (flow.seq(ID, flow.par(ID, flow.sub(ID))), []),
    (flow.seq(R, E, flow.loop(ID)), ["RECV_IN_FLOW", "EMIT_IN_FLOW", "LOOP_IN_FLOW"]),
    (flow.par(R), ["RECV_IN_FLOW"]),
    (flow.sub(R), ["RECV_IN_FLOW"]),
    (flow.sub("test.none"), []),
]


@pytest.mark.parametrize(
    ("node", "codes"),
    FLOW_FINDINGS,
    ids=lambda value: str(value) if isinstance(value, list) else type(value).__name__,
)
def test_d12_findings_of_a_flow(node: Any, codes: list[str]) -> None:
    found = [f.code.removeprefix("SESSION_") for f in flow.validate(node, "flow")]
    assert found == codes


def test_d12_every_code_of_the_contract_is_found_by_one_of_these() -> None:
    contract = Path(__file__).parents[2] / "docs" / "contracts" / "sessions.md"
    _, _, table = contract.read_text(encoding="utf-8").partition("| blocking codes `SESSION_*` |")
    listed = {
        code
        for line in table.partition("\n\n")[0].splitlines()[2:]
        for code in re.findall(r"`([A-Z_]{6,})`", line.split("|")[1])
    }
    assert len(listed) == 16
    found = {code for _node, codes in FINDINGS + FLOW_FINDINGS for code in codes}
    assert found - {"CTX_PAR_DEGRADED"} == listed


def test_d12_a_session_is_refused_with_all_blocking_findings_at_once() -> None:
    bad = flow.seq(E, R, R, flow.par(flow.emit("x"), reader()))
    for make in (scan, loop):
        with pytest.raises(SessionValidationError) as caught:
            make(bad)
        codes = [finding.code for finding in caught.value.findings]
        assert codes == [
            "SESSION_LOOP_EMIT_BEFORE_RECV", "SESSION_LOOP_MULTIPLE_RECV",
            "SESSION_EMIT_IN_PARALLEL", "SESSION_CHANNEL_UNDECLARED",
        ]  # fmt: skip
        assert all(code in str(caught.value) for code in codes)
    finding = flow.validate(bad)[0]
    assert isinstance(finding, Finding) and finding.path == "$[0]" and finding.message


@pytest.mark.parametrize(("make", "said"), [
    (lambda: flow.arr(lambda a, b: a), r"is called with \(value\): missing a required argument"),
    (lambda: flow.arr(lambda: 1), r"is called with \(value\): too many"),
    (lambda: flow.seq([ID, R]), r"pass its nodes one by one, flow.seq\(\*nodes\)"),
    (lambda: flow.par((ID, ID)), r"flow.par\(\*nodes\)"),
])  # fmt: skip
def test_d12_what_could_never_run_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(SessionDefinitionError, match=said):
        make()


def test_d12_a_target_that_does_not_exist_is_a_finding() -> None:
    target: Any = "sessions"
    (finding,) = flow.validate(ID, target)
    assert finding.severity == "error" and "'sessions'" in finding.message


def test_arr_takes_whatever_can_be_called_with_a_value() -> None:
    for function in (str, dict, len, print, lambda v, w=1: v, lambda *a: a):
        flow.arr(function)


def test_d12_channels_are_those_of_the_session() -> None:
    body = flow.seq(flow.recv("questions"), flow.emit("answers"), flow.emit("log"))
    made = loop(body, in_channel="questions", out_channel="answers", extra_channels=["log"])
    assert made.warnings == ()
