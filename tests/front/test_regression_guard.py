"""Fails on what noise cannot explain: counts, growth with size, and ratios with a wide margin.

The figures that users are promised come from `make bench`; here the bounds are several times wider,
so that a busy machine passes and a change of kind (a thread an actor, a lock a message, a cost that
grows with the population) does not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from keepwell.benchmarks import catalog
from keepwell.benchmarks.benchmark import Scale
from keepwell.benchmarks.child import in_child
from keepwell.benchmarks.measure import measure
from keepwell.benchmarks.spawn import idle

pytestmark = pytest.mark.bench

# benchmark, question, what its work is divided by, ratio, its least and its greatest value
GUARDED: list[tuple[str, str, int, str, float, float]] = [
    ("messaging", "tell", 1, "tell_vs_pykka", 2.5, float("inf")),
    ("messaging", "tell_to_1000", 2, "tell_to_1000_vs_pykka", 8, float("inf")),
    ("messaging", "ask_pipelined", 1, "ask_pipelined_vs_pykka_cpu", 1.5, float("inf")),
    ("messaging", "ring", 2, "ring_vs_pykka", 2, float("inf")),
    ("messaging", "telemetry", 1, "telemetry_share_of_tell", 0, 0.03),
    ("spawn", "start", 1, "spawn_vs_pykka", 8, float("inf")),
    ("spawn", "neighbours", 1, "tell_growth_with_live_actors", 0, 3),
]
ELSEWHERE = {"erlang", "keepwell, uvloop"}


def measured() -> dict[str, float]:
    """The guarded ratios, from three small rounds each."""
    found: dict[str, float] = {}
    scale = Scale(quick=True)
    for benchmark, name, divide, _, _, _ in GUARDED:
        question = next(q for q in catalog.questions(benchmark, scale) if q.name == name)
        question = replace(question, rounds=3, contenders=[
            replace(each, operations=each.operations // divide)
            for each in question.contenders if each.name not in ELSEWHERE])
        results = measure(question, scale, lambda _: None)
        values = {ratio.name: ratio.value(results) for ratio in question.ratios}
        found |= {name: value for name, value in values.items() if value is not None}
    return found


def test_the_ratios() -> None:
    """They hold in one of three runs; what is really slower is so every time.

    A neighbour on the machine is not there three times. Each run is a process of its own: the
    garbage collector walks whatever the other tests have left. One test, or each process of a
    parallel run would measure all of them, at the others' expense.
    """
    failed: list[str] = []
    for _ in range(3):
        found = in_child(measured)
        failed = [
            f"{name} is {found[name]:.3g}, not in {least}…{greatest}"
            for *_, name, least, greatest in GUARDED
            if not least <= found[name] <= greatest
        ]
        if not failed:
            return
    pytest.fail("; ".join(failed))


def test_an_idle_actor_takes_less_than_a_thousand_bytes() -> None:
    assert in_child(idle, 20_000)["bytes"] <= 1_000
