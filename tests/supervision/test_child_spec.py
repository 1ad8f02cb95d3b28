"""Child specs and settings: what is refused, with which word, and when (SPEC-1 to SPEC-3)."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest

from keepwell.actors import Actor, ActorSystem, RequestError, StartFailed
from keepwell.supervision import (
    Backoff,
    ChildSpec,
    DynamicSupervisor,
    InvalidChildSpec,
    InvalidSetting,
    InvalidSupervisor,
    Supervisor,
    check_childspecs,
    get_childspec,
)
from keepwell.supervision.child_spec import checked_spec

GOOD = {"id": "a", "start": Actor}


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in GOOD.items() if name != key}


BAD = {
    "missing_id": without("id"),
    "missing_start": without("start"),
    "invalid_id": {**GOOD, "id": []},
    "invalid_start": {**GOOD, "start": "module:Class"},
    "invalid_restart_type": {**GOOD, "restart": "sometimes"},
    "invalid_significant": {**GOOD, "significant": "maybe"},
    "invalid_child_type": {**GOOD, "type": "manager"},
    "invalid_shutdown": {**GOOD, "shutdown": "soon"},
    "bad_combination": {**GOOD, "significant": True},
    "invalid_child_spec": {**GOOD, "shutdwon": 3},
}


@pytest.mark.parametrize(("code", "spec"), BAD.items(), ids=BAD)
def test_a_bad_spec_is_named_by_otps_word(code: str, spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidChildSpec) as caught:
        check_childspecs([spec])
    assert caught.value.code == code
    assert isinstance(caught.value, RequestError)
    assert caught.value.remedy in str(caught.value)


@pytest.mark.parametrize("shutdown", [-1, -0.5, float("nan"), True, None, "kill", [5]])
def test_bad_shutdown_times(shutdown: Any) -> None:
    with pytest.raises(InvalidChildSpec) as caught:
        check_childspecs([{**GOOD, "shutdown": shutdown}])
    assert caught.value.code == "invalid_shutdown"


@pytest.mark.parametrize("shutdown", [0, 0.25, 5, "brutal_kill", "infinity"])
def test_good_shutdown_times(shutdown: Any) -> None:
    assert checked_spec({**GOOD, "shutdown": shutdown}).shutdown == shutdown


def test_the_first_fault_is_reported_in_otps_order() -> None:
    worst = {"restart": "x", "significant": "x", "type": "x", "shutdown": "x"}
    order = ["missing_id", "missing_start", "invalid_restart_type", "invalid_significant"]
    repairs = [{"id": 1}, {"start": Actor}, {"restart": "temporary"}, {"significant": False}]
    for code, repair in zip(order, repairs, strict=True):
        with pytest.raises(InvalidChildSpec) as caught:
            check_childspecs([worst])
        assert caught.value.code == code
        worst = {**worst, **repair}
    for code, repair in (("invalid_child_type", {"type": "worker"}), ("invalid_shutdown", {})):
        with pytest.raises(InvalidChildSpec) as caught:
            check_childspecs([worst])
        assert caught.value.code == code
        worst = {**worst, **repair}


def test_defaults() -> None:
    """SPEC-1, SHUT-4."""
    spec = checked_spec(GOOD)
    assert (spec.restart, spec.type, spec.significant, spec.shutdown) == (
        "permanent", "worker", False, 5.0,
    )  # fmt: skip
    assert checked_spec({**GOOD, "type": "supervisor"}).shutdown == "infinity"
    assert checked_spec(ChildSpec("a", Actor)) == spec


def test_significant_needs_a_supervisor_that_heeds_it() -> None:
    spec = {**GOOD, "restart": "transient", "significant": True}
    check_childspecs([spec])
    check_childspecs([spec], "all_significant")
    with pytest.raises(InvalidChildSpec) as caught:
        check_childspecs([spec], "never")
    assert caught.value.value == {"auto_shutdown": "never", "significant": True}
    with pytest.raises(InvalidChildSpec) as caught:
        check_childspecs([spec], "sometimes")  # type: ignore[arg-type]  # is refused
    assert caught.value.code == "badarg"


def test_nothing_is_checked_when_a_spec_is_made() -> None:
    bad = ChildSpec(None, None, "x", "y", "z", "w")  # type: ignore[arg-type]  # every field is bad
    with pytest.raises(dataclasses.FrozenInstanceError):
        bad.id = "a"  # type: ignore[misc]  # is frozen


def test_a_spec_prints_without_the_arguments_of_its_start() -> None:
    """Specs are logged, and arguments may be secrets."""
    text = repr(ChildSpec("a", partial(Actor, "sk-secret", key="sk-secret"), "transient"))
    assert text == "ChildSpec('a', Actor, transient worker)"


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"strategy": "two_for_one"}, "invalid_strategy"),
        ({"strategy": "simple_one_for_one"}, "invalid_strategy"),
        ({"max_restarts": -1}, "invalid_intensity"),
        ({"max_restarts": 1.5}, "invalid_intensity"),
        ({"max_restarts": True}, "invalid_intensity"),
        ({"max_seconds": 0}, "invalid_period"),
        ({"max_seconds": 2.0}, "invalid_period"),
        ({"auto_shutdown": "maybe"}, "invalid_auto_shutdown"),
    ],
)
def test_bad_settings_are_start_errors(
    system: ActorSystem, settings: dict[str, Any], code: str, nursery: Any
) -> None:
    Supervisor(nursery.specs("a"), **settings)  # not an error of the constructor
    with pytest.raises(StartFailed) as caught:
        Supervisor.start(nursery.specs("a"), **settings)
    reason = caught.value.reason
    assert isinstance(reason, InvalidSupervisor)
    assert (reason.code, reason.fault.code) == ("supervisor_data", code)
    assert nursery.take() == []


def test_bad_specs_are_start_errors_and_nothing_is_started(
    system: ActorSystem, nursery: Any
) -> None:
    with pytest.raises(StartFailed) as caught:
        Supervisor.start([nursery.spec("a"), nursery.spec("b"), nursery.spec("a")])
    assert caught.value.reason.code == "start_spec"
    assert caught.value.reason.fault.code == "duplicate_child_name"
    assert nursery.take() == []


def test_dynamic_supervisor_wants_one_template_and_no_significant_children(
    system: ActorSystem, nursery: Any
) -> None:
    with pytest.raises(StartFailed) as caught:
        DynamicSupervisor.start(nursery.specs("ab"))
    assert (caught.value.reason.code, caught.value.reason.fault) == ("bad_start_spec", ("a", "b"))
    with pytest.raises(StartFailed) as caught:
        DynamicSupervisor.start({"id": "a"})
    assert caught.value.reason.fault.code == "missing_start"
    with pytest.raises(StartFailed) as caught:
        DynamicSupervisor.start(nursery.spec("a"), auto_shutdown="any_significant")
    assert caught.value.reason.fault.code == "bad_combination"


def test_get_childspec_gives_the_spec_with_its_shutdown_time(
    system: ActorSystem, nursery: Any
) -> None:
    supervisor = Supervisor.start([{"id": "a", "start": nursery.spec("a").start}])
    assert get_childspec(supervisor, "a").get(timeout=5).shutdown == 5.0


@pytest.mark.parametrize("wrong", [{"first": 0}, {"factor": 0.5}, {"first": 5, "longest": 1}])
def test_backoff_is_checked_when_it_is_made(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting):
        Backoff(**wrong)


def test_backoff_grows_to_its_limit_and_never_overflows() -> None:
    backoff = Backoff(first=0.1, factor=3, longest=2)
    assert [round(backoff.delay(n), 3) for n in range(1, 6)] == [0.1, 0.3, 0.9, 2, 2]
    assert backoff.delay(10**9) == 2


@pytest.mark.parametrize("given", [ChildSpec("a", Actor), {"id": "a", "start": Actor}, 5])
def test_children_that_are_no_list(system: ActorSystem, given: Any) -> None:
    """SPEC-2: `bad_start_spec`, and what to write instead."""
    with pytest.raises(StartFailed, match="no list of child specs: pass one in brackets") as caught:
        Supervisor.start(given)
    assert isinstance(caught.value.reason, InvalidSupervisor)
    assert caught.value.reason.code == "bad_start_spec"
