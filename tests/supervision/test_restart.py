"""The restart decision: a table of cases, laws that hold for all cases, and mutants.

Table and laws are written against a module, so that the last test can hand them a deliberately
wrong copy of it and see that they notice.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwell.actors.exits import Shutdown
from keepwell.supervision import restart as real
from keepwell.supervision.child_spec import ChildSpec

PERMANENT, TRANSIENT, TEMPORARY = "permanent", "transient", "temporary"
BOOM = RuntimeError("boom")
ABNORMAL = ("killed", "boom", "noproc", "kill", "timeout", BOOM)
ORDERLY = ("normal", "shutdown", Shutdown("why"))


@dataclass
class Kid:
    spec: ChildSpec
    status: Any


def kids(module: ModuleType, text: str) -> dict[str, Kid]:
    """`"a b:transient c:temporary- d!"`: - is stopped, ! restarting, * significant."""
    children = {}
    for word in text.split():
        name, _, flags = word.partition(":")
        marks = {mark for mark in "-!*" if mark in word}
        restart = flags.rstrip("-!*") or PERMANENT
        status = module.ChildStatus.RUNNING
        if "-" in marks:
            status = module.ChildStatus.STOPPED
        if "!" in marks:
            status = module.ChildStatus.RESTARTING
        name = name.rstrip("-!*")
        children[name] = Kid(ChildSpec(name, dict, restart, significant="*" in marks), status)
    return children


# rule, strategy, children, who ended, why, restarts so far (of at most 2 in 5 s, now = 10.7)
#   -> verdict, stop, remove, start. "retry" stands for the next try after a failed restart.
TABLE = [
    ("TYPE-1", "one_for_one", "a b c", "b", "normal", (), "RESTART", "", "", "b"),
    ("TYPE-1", "one_for_one", "a b c", "b", Shutdown("x"), (), "RESTART", "", "", "b"),
    ("TYPE-2", "one_for_one", "a b:transient c", "b", "normal", (), "LEAVE", "", "", ""),
    ("TYPE-2", "one_for_one", "a b:transient c", "b", "shutdown", (), "LEAVE", "", "", ""),
    ("TYPE-2", "one_for_one", "a b:transient c", "b", Shutdown(1), (), "LEAVE", "", "", ""),
    ("TYPE-4", "one_for_one", "a b:transient c", "b", "killed", (), "RESTART", "", "", "b"),
    ("TYPE-4", "one_for_one", "a b:transient c", "b", BOOM, (), "RESTART", "", "", "b"),
    ("TYPE-3", "one_for_one", "a b:temporary c", "b", "boom", (), "LEAVE", "", "b", ""),
    ("TYPE-3", "one_for_one", "a b:temporary c", "b", "normal", (), "LEAVE", "", "b", ""),
    ("STRAT-2", "one_for_all", "a b c", "b", "boom", (), "RESTART", "c a", "", "a b c"),
    ("STRAT-3", "rest_for_one", "a b c", "b", "boom", (), "RESTART", "c", "", "b c"),
    ("STRAT-3", "rest_for_one", "a b c", "a", "boom", (), "RESTART", "c b", "", "a b c"),
    ("STRAT-3", "rest_for_one", "a b c", "c", "boom", (), "RESTART", "", "", "c"),
    (
        "STRAT-4, 5",
        "one_for_all",
        "a b:transient c:temporary d",
        "a",
        "boom",
        (),
        "RESTART",
        "d c b",
        "c",
        "a b d",
    ),
    (
        "STRAT-5",
        "rest_for_one",
        "a:temporary b c:temporary",
        "b",
        "boom",
        (),
        "RESTART",
        "c",
        "c",
        "b",
    ),
    ("STRAT-6", "one_for_all", "a b:transient- c", "a", "boom", (), "RESTART", "c", "", "a b c"),
    ("STRAT-6", "rest_for_one", "a b- c", "a", "boom", (), "RESTART", "c", "", "a b c"),
    ("STRAT-7", "one_for_all", "a b:temporary c", "b", "boom", (), "LEAVE", "", "b", ""),
    ("STRAT-7", "rest_for_one", "a b:transient c", "b", "normal", (), "LEAVE", "", "", ""),
    ("STRAT-8", "one_for_all", "a- b c", "a", "killed", (), "IGNORE", "", "", ""),
    ("STRAT-8", "one_for_one", "a b", "zz", "killed", (), "IGNORE", "", "", ""),
    ("RINIT-1", "one_for_one", "a b! c", "b", "retry", (10,), "RESTART", "", "", "b"),
    ("RINIT-1", "one_for_one", "a b- c", "b", "retry", (10,), "IGNORE", "", "", ""),
    ("RINIT-1", "one_for_one", "a b c", "b", "retry", (10,), "IGNORE", "", "", ""),
    ("RINIT-1", "one_for_one", "a c", "b", "retry", (10,), "IGNORE", "", "", ""),
    ("RINIT-2", "one_for_all", "a b! c-", "b", "retry", (10,), "RESTART", "a", "", "a b c"),
    ("RINIT-3", "rest_for_one", "a b! c-", "b", "retry", (10,), "RESTART", "", "", "b c"),
    ("RINIT-1", "one_for_one", "a b! c", "b", "retry", (9, 10), "GIVE_UP", "", "", ""),
    ("STRAT-8", "one_for_one", "a b! c", "b", "boom", (), "IGNORE", "", "", ""),
    ("INT-1", "one_for_one", "a b", "b", "boom", (10,), "RESTART", "", "", "b"),
    ("INT-1", "one_for_one", "a b", "b", "boom", (10, 10), "GIVE_UP", "", "", ""),
    ("INT-1", "one_for_all", "a b", "b", "boom", (10, 10), "GIVE_UP", "", "", ""),
    ("INT-4", "one_for_one", "a b:temporary", "b", "boom", (10, 10), "LEAVE", "", "b", ""),
    ("INT-9", "one_for_one", "a b", "b", "boom", (4, 10), "RESTART", "", "", "b"),
    ("INT-9", "one_for_one", "a b", "b", "boom", (5, 10), "GIVE_UP", "", "", ""),
    ("DYN-2", "simple_one_for_one", "a b c", "b", "boom", (), "RESTART", "", "", "b"),
    ("DYN-2", "simple_one_for_one", "a b:transient", "b", "normal", (), "LEAVE", "", "b", ""),
    ("DYN-2", "simple_one_for_one", "a b", "b", "boom", (9, 9), "GIVE_UP", "", "b", ""),
]
# rule, auto_shutdown, children, who ended, why, other significant children -> verdict, remove
AUTO = [
    ("AUTO-1", "any_significant", "a b:transient*", "b", "normal", 1, "AUTO_SHUTDOWN", ""),
    ("AUTO-1", "any_significant", "a b:temporary*", "b", "boom", 1, "AUTO_SHUTDOWN", "b"),
    ("AUTO-1", "any_significant", "a b:transient*", "b", "boom", 0, "RESTART", ""),
    ("AUTO-2", "all_significant", "a b:transient*", "b", "normal", 1, "LEAVE", ""),
    ("AUTO-2", "all_significant", "a b:transient*", "b", "normal", 0, "AUTO_SHUTDOWN", ""),
    ("AUTO-3", "any_significant", "a b:transient", "b", "normal", 0, "LEAVE", ""),
    ("AUTO-3", "all_significant", "a b:temporary", "b", "boom", 0, "LEAVE", "b"),
    ("AUTO-6", "any_significant", "a b:temporary*", "a", "boom", 1, "RESTART", ""),
    ("SPEC-1", "never", "a b:transient*", "b", "normal", 0, "LEAVE", ""),
]


def outcome(decision: Any) -> tuple[str, str, str, str]:
    return (
        decision.verdict.name,
        " ".join(decision.stop),
        " ".join(decision.remove),
        " ".join(decision.start),
    )


def row_outcome(module: ModuleType, row: tuple[Any, ...]) -> tuple[str, str, str, str]:
    _, strategy, text, who, why, restarts, *_ = row
    event = module.StartFailedAgain(who) if why == "retry" else module.Ended(who, why)
    window = module.RestartWindow(2, 5, restarts)
    return outcome(module.decide(strategy, kids(module, text), event, window, 10.7))


def auto_outcome(module: ModuleType, row: tuple[Any, ...]) -> tuple[str, str]:
    _, auto, text, who, why, others, *_ = row
    decision = module.decide(
        "one_for_one",
        kids(module, text),
        module.Ended(who, why),
        module.RestartWindow(2, 5),
        0,
        auto_shutdown=auto,
        other_significant=others,
    )
    return outcome(decision)[0], outcome(decision)[2]


def check_table(module: ModuleType) -> None:
    for row in TABLE:
        assert row_outcome(module, row) == row[6:], row
    for row in AUTO:
        assert auto_outcome(module, row) == row[6:], row
    # A run of failed starts ends by its length when a back-off spreads it beyond the window (F73).
    waiting = kids(module, "a b!")
    for tries, verdict in ((1, "RESTART"), (2, "GIVE_UP")):
        retry = module.StartFailedAgain("b", tries)
        late = module.decide("one_for_one", waiting, retry, module.RestartWindow(2, 5), 999)
        assert late.verdict.name == verdict
    # The restart that is too many is in the window that the decision hands back.
    last = module.decide(
        "one_for_one", kids(module, "a"), module.Ended("a", "x"), module.RestartWindow(0, 5), 1.5
    )
    assert last.window.restarts == (1,)
    assert last.ends_supervisor


@st.composite
def situations(
    draw: st.DrawFn,
) -> tuple[str, dict[str, tuple[str, str]], str, Any, tuple[int, ...]]:
    names = [f"c{n}" for n in range(draw(st.integers(1, 6)))]
    children = {
        name: (
            draw(st.sampled_from([PERMANENT, TRANSIENT, TEMPORARY])),
            draw(st.sampled_from(["RUNNING", "RUNNING", "STOPPED", "RESTARTING"])),
        )
        for name in names
    }
    strategy = draw(
        st.sampled_from(["one_for_one", "one_for_all", "rest_for_one", "simple_one_for_one"])
    )
    restarts = tuple(sorted(draw(st.lists(st.integers(0, 20), max_size=4))))
    reason = draw(st.sampled_from([*ORDERLY, *ABNORMAL]))
    return strategy, children, draw(st.sampled_from(names)), reason, restarts


def check_laws(module: ModuleType) -> None:
    quiet = settings(
        max_examples=200, deadline=None, database=None, derandomize=True, report_multiple_bugs=False
    )

    @quiet
    @given(situations(), st.integers(0, 4))
    def one_decision(situation: Any, allowed: int) -> None:
        strategy, drawn, who, reason, restarts = situation
        children = {
            name: Kid(ChildSpec(name, dict, restart), module.ChildStatus[status])
            for name, (restart, status) in drawn.items()
        }
        order = list(children)
        window = module.RestartWindow(allowed, 5, restarts)
        decision = module.decide(strategy, children, module.Ended(who, reason), window, 20.5)
        restart, status = drawn[who]
        verdict = decision.verdict.name
        assert list(children) == order
        assert window.restarts == restarts, "the decision changed what it was given"
        if status != "RUNNING":
            assert verdict == "IGNORE"
        elif restart == TEMPORARY:
            assert verdict == "LEAVE", "a temporary child is never restarted"
        elif restart == TRANSIENT and reason in ORDERLY:
            assert verdict == "LEAVE"
        else:
            counted = [t for t in restarts if t >= 20 - 5]
            assert verdict == ("GIVE_UP" if len(counted) + 1 > allowed else "RESTART")
        if verdict != "RESTART":
            assert (decision.stop, decision.start) == ((), ()), "a sibling was touched"
            return
        assert len(decision.window.restarts) <= allowed
        # Stops are an exact reverse of the start order, starts follow it.
        assert list(decision.stop) == sorted(decision.stop, key=order.index, reverse=True)
        assert list(decision.start) == sorted(decision.start, key=order.index)
        assert who in decision.start
        assert who not in decision.stop
        assert all(drawn[i][1] == "RUNNING" for i in decision.stop)
        assert all(drawn[i][0] == TEMPORARY for i in decision.remove)
        assert all(drawn[i][0] != TEMPORARY for i in decision.start)
        # Each child in range is started or forgotten, whoever runs there is stopped first.
        reach = {
            "one_for_all": order,
            "rest_for_one": order[order.index(who) :],
        }.get(strategy, [who])
        assert {*decision.start, *decision.remove} == set(reach)
        assert set(decision.stop) == {i for i in reach if drawn[i][1] == "RUNNING"} - {who}

    @quiet
    @given(st.integers(0, 3), st.integers(1, 4), st.lists(st.integers(0, 3_000), max_size=25))
    def many_restarts(allowed: int, seconds: int, gaps_ms: list[int]) -> None:
        """However the deaths fall, no window of whole seconds holds more than is allowed."""
        window, granted = module.RestartWindow(allowed, seconds), []
        children = kids(module, "a")
        for now_ms in itertools.accumulate(gaps_ms):
            decision = module.decide(
                "one_for_one", children, module.Ended("a", BOOM), window, now_ms / 1000
            )
            window = decision.window
            recent = [t for t in granted if t >= now_ms // 1000 - seconds]
            if decision.verdict.name == "GIVE_UP":
                assert len(recent) == allowed, "it gave up too early"
                return
            granted.append(now_ms // 1000)
            assert len(recent) + 1 <= allowed, "more restarts than allowed"

    one_decision()
    many_restarts()


def check_all(module: ModuleType) -> None:
    check_table(module)
    check_laws(module)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]} {row[1]} {row[2]} {row[4]!r}")
def test_table(row: tuple[Any, ...]) -> None:
    assert row_outcome(real, row) == row[6:]


@pytest.mark.parametrize("row", AUTO, ids=lambda row: f"{row[0]} {row[1]} {row[2]} {row[4]!r}")
def test_auto_shutdown_table(row: tuple[Any, ...]) -> None:
    assert auto_outcome(real, row) == row[6:]


def test_the_whole_table_at_once() -> None:
    check_table(real)


def test_laws() -> None:
    check_laws(real)


MUTANTS = [
    ("len(self.restarts) > self", "len(self.restarts) >= self"),
    ("if t >= oldest", "if t > oldest"),
    ("if t >= oldest", "if True"),
    ("math.floor(now)", "now"),
    ("event.tries >= max", "event.tries > max"),
    ("for i in reversed(siblings)", "for i in siblings"),
    ("if children[i].status is ChildStatus.RUNNING", "if True"),
    ("remove=tuple(temporary)", "remove=()"),
    ("for i in group if i not in temporary", "for i in group"),
    ("for i in group if i not in temporary", "for i in group if i not in siblings"),
    ('if spec.restart == "temporary":\n        return False', "if False:\n        return False"),
    ("or not is_orderly(reason)", "or True"),
    ("or not is_orderly(reason)", "or is_orderly(reason)"),
    ("or child.status is not ChildStatus.RESTARTING", "or False"),
    ("or child.status is not ChildStatus.RUNNING", "or False"),
    ("other_significant == 0", "other_significant <= 1"),
    ('auto_shutdown == "any_significant"\n', 'auto_shutdown != "never"\n'),
    ("spec.significant and", "True and"),
    ('if strategy == "one_for_all"', 'if strategy != "one_for_one"'),
    ("other != child_id, reversed(children)", "other != child_id, children"),
    ("[child_id, *reversed(newer)]", "[child_id, *newer]"),
    ("Verdict.GIVE_UP, grown", "Verdict.GIVE_UP, window"),
    ('or strategy == "simple_one_for_one"', ""),
]


@pytest.mark.parametrize(("code", "mutation"), MUTANTS, ids=lambda text: text.split("\n")[0])
def test_mutants_are_caught(code: str, mutation: str, tmp_path: Path) -> None:
    source = Path(str(real.__file__)).read_text("utf-8")
    assert source.count(code) == 1, "the mutation no longer names one place of the source"
    path = tmp_path / "mutant.py"
    path.write_text(source.replace(code, mutation), "utf-8")
    name = "keepwell.supervision.mutant"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    mutant = importlib.util.module_from_spec(spec)
    sys.modules[name] = mutant  # dataclasses look their module up
    try:
        spec.loader.exec_module(mutant)
        with pytest.raises(AssertionError):
            check_all(mutant)
    finally:
        del sys.modules[name]
