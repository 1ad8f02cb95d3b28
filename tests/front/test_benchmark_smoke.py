"""Every benchmark gets through a small round of every question, and its ratios come out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from keepwell.benchmarks import append_opponents, catalog
from keepwell.benchmarks.benchmark import Contender, Question, Scale, Stopwatch
from keepwell.benchmarks.measure import measure
from keepwell.benchmarks.report import Report

pytestmark = [pytest.mark.bench, pytest.mark.usefixtures("without_collection")]

# Other processes, and an import, that take longer than what a smoke test asks of them.
ELSEWHERE = {"erlang", "ets", "dets", "redis", "openai-agents session"}


def small(question: Question) -> Question:
    """The same question with a fraction of the work, one round, and nobody from elsewhere."""
    return replace(question, rounds=1, contenders=list(_small(question.contenders)))


def _small(contenders: Sequence[Contender]) -> Iterator[Contender]:
    for contender in contenders:
        if contender.name in ELSEWHERE:
            yield replace(contender, missing="not in the smoke test")
        else:
            yield replace(contender, operations=max(2, contender.operations // 20), rounds=1)


@pytest.mark.parametrize("name", catalog.names())
def test_benchmark_runs(name: str) -> None:
    scale = Scale(quick=True)
    answers = [
        (question, measure(question, scale, lambda _: None, warm_up=False))
        for question in map(small, catalog.questions(name, scale))
    ]
    for question, results in answers:
        failed = {n: r.missing for n, r in results.items() if r.failed}
        assert failed == {}, question.name
    report = Report(name, catalog.title(name), {}, answers)
    assert set(report.to_dict()) == {"benchmark", "machine", "rows", "ratios"}
    assert report.ratios(), "nothing was compared"
    assert all(value >= 0 for value in report.ratios().values())
    installed = {n for _, results in answers for n, r in results.items() if not r.missing}
    assert installed, "nobody ran"


@pytest.mark.parametrize("name", [
    "redis", "dets", pytest.param("openai-agents session", marks=pytest.mark.soak)])
def test_an_opponent_appends(name: str) -> None:
    found = {each.name: each for each in append_opponents.opponents(4, 8)}[name]
    if found.missing:
        pytest.skip(found.missing)
    watch = Stopwatch()
    found.run(watch, 8)
    assert watch.wall > 0  # not cpu: another process counts it in ticks, here perhaps none


async def test_the_private_redis_flushes_before_it_answers(tmp_path: Path) -> None:
    if reason := append_opponents.redis_missing():
        pytest.skip(reason)
    async with append_opponents.redis_server(tmp_path) as client:
        settings = await client.config_get("append*")
        assert settings["appendonly"] == "yes" and settings["appendfsync"] == "always"
        assert await client.config_get("port") == {"port": "0"}
