"""The benchmarks' machinery, on contenders whose figures are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from keepwell import cli
from keepwell.benchmarks import catalog, child, runner
from keepwell.benchmarks.benchmark import (
    Contender,
    Question,
    Scale,
    Stopwatch,
    cheaper,
    faster,
    figure,
    growth,
    missing_module,
)
from keepwell.benchmarks.machine import machine, resident_bytes
from keepwell.benchmarks.measure import measure
from keepwell.benchmarks.report import Report
from keepwell.terminal import Style

pytestmark = pytest.mark.usefixtures("without_collection")


def taking(
    wall_us: float, cpu_us: float = 1.0, *, log: list[str] | None = None, name: str = "",
    figures: Mapping[str, float] | None = None,
) -> Callable[[Stopwatch, int], Mapping[str, float] | None]:
    """A contender whose operations take exactly that long."""

    def run(watch: Stopwatch, operations: int) -> Mapping[str, float] | None:
        if log is not None:
            log.append(name)
        watch.record(wall=operations * wall_us / 1e6, cpu=operations * cpu_us / 1e6)
        return figures

    return run


def quiet(_: str) -> None: ...


def question(*contenders: Contender, ratios: Sequence = ()) -> Question:
    return Question("speed", "How fast?", "thing", contenders, ratios)


def test_rounds_are_interleaved_after_one_for_warming_up() -> None:
    log: list[str] = []
    measure(
        question(Contender("ours", taking(1, log=log, name="a"), 100),
                 Contender("theirs", taking(1, log=log, name="b"), 100)),
        Scale(quick=True), quiet)
    assert log == ["a", "b"] * 3


def test_a_contender_in_processes_of_its_own_is_not_warmed_up() -> None:
    log: list[str] = []
    measure(
        question(Contender("ours", taking(1, log=log, name="a"), 100),
                 Contender("theirs", taking(1, log=log, name="b"), 100, fresh=True)),
        Scale(quick=True), quiet)
    assert log == ["a", "a", "b", "a", "b"]


def test_figures_are_per_operation_so_that_sizes_may_differ() -> None:
    asked = question(
        Contender("ours", taking(2, 3), 1_000), Contender("theirs", taking(20, 60), 10),
        ratios=[faster("wall", "ours", "theirs", floor=5), cheaper("cpu", "ours", "theirs"),
                growth("grown", "ours", "theirs", ceiling=2)])
    report = Report("x", "X", {}, [(asked, measure(asked, Scale(quick=True), quiet))])
    assert report.ratios() == pytest.approx({"wall": 10, "cpu": 20, "grown": 20})
    text = report.to_text(Style(False))
    assert "wall: 10  (at least 5) ok" in text
    assert "grown: 20  (at most 2) MISSED" in text


def test_ratios_divide_within_a_round_so_that_a_slow_minute_cancels() -> None:
    slowness = iter([1, 1, 1, 1, 30, 30])  # ours and theirs in turn, round by round

    def run(factor: float) -> Callable[[Stopwatch, int], None]:
        def once(watch: Stopwatch, operations: int) -> None:
            watch.record(wall=operations * factor * next(slowness), cpu=1)
        return once

    asked = question(Contender("ours", run(1e-6), 100), Contender("theirs", run(4e-6), 100),
                     ratios=[faster("wall", "ours", "theirs")])
    report = Report("x", "X", {}, [(asked, measure(asked, Scale(quick=True), quiet))])
    assert report.ratios() == pytest.approx({"wall": 4})


def test_a_missing_opponent_is_named_with_the_reason() -> None:
    asked = question(
        Contender("ours", taking(1), 10), Contender("redis", taking(1), 10, missing="no server"),
        ratios=[faster("vs_redis", "ours", "redis")])
    report = Report("x", "X", {}, [(asked, measure(asked, Scale(quick=True), quiet))])
    assert "speed: redis is not in the table, no server" in report.to_text(Style(False))
    assert "vs_redis: not measured" in report.to_text(Style(False))
    rows = report.to_dict()["rows"]
    assert isinstance(rows, list)
    assert rows[1]["missing"] == "no server"
    assert report.ratios() == {}
    assert not report.failed


def test_a_contender_that_raises_is_out_and_the_others_go_on() -> None:
    def broken(watch: Stopwatch, operations: int) -> None:
        raise OSError("disk full")

    asked = question(Contender("ours", taking(1), 10), Contender("theirs", broken, 10))
    results = measure(asked, Scale(quick=True), quiet)
    assert len(results["ours"].samples) == 2
    assert "disk full" in results["theirs"].missing
    assert Report("x", "X", {}, [(asked, results)]).failed


def test_further_figures_are_medians_and_reach_the_json() -> None:
    asked = question(Contender("ours", taking(1, figures={"bytes": 373.0}), 10),
                     ratios=[figure("bytes_each", "ours", "bytes", "{value} B.", ceiling=1_000)])
    report = Report("x", "X", {}, [(asked, measure(asked, Scale(quick=True), quiet))])
    written = json.loads(json.dumps(report.to_dict()))
    assert written["ratios"] == {"bytes_each": 373.0}
    assert written["rows"][0]["bytes"] == 373.0
    assert set(written) == {"benchmark", "machine", "rows", "ratios"}


def test_the_stopwatch_times_only_its_regions() -> None:
    watch = Stopwatch()
    with watch:
        pass
    first = watch.wall
    sum(range(100_000))
    assert watch.wall == first
    with watch:
        sum(range(100_000))
    assert watch.wall > first
    assert watch.cpu > 0


def test_the_machine_is_described() -> None:
    described = machine()
    assert {"processor", "cores", "memory_mib", "system", "python", "packages", "load", "date",
            "switch_interval_ms"} == set(described)
    assert resident_bytes() > 2**20


def test_a_child_process_computes_and_a_failing_one_is_quoted() -> None:
    assert child.in_child(figures_of, 20)["doubled"] == 40
    with pytest.raises(RuntimeError, match="ValueError"):
        child.in_child(figures_of, "x")


def figures_of(number: int) -> dict[str, float]:
    return {"doubled": float(int(number) * 2)}


def test_missing_module_says_how_to_get_it() -> None:
    assert missing_module("json") == ""
    assert "pip install" in missing_module("no_such_opponent")


def test_every_benchmark_says_what_it_asks() -> None:
    assert {"messaging", "spawn"} <= set(catalog.names())
    for name in catalog.names():
        assert catalog.title(name).endswith(("?", ".")), name


def test_one_benchmark_writes_an_object_and_several_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [question(Contender("ours", taking(1), 10))]
    monkeypatch.setattr(runner.catalog, "questions", lambda name, scale: asked)
    out = tmp_path / "out.json"
    assert cli.main(["bench", "messaging", "--quick", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["benchmark"] == "messaging"
    assert cli.main(["bench", "messaging", "spawn", "--quick", "--json", str(out)]) == 0
    assert [each["benchmark"] for each in json.loads(out.read_text())] == ["messaging", "spawn"]
    assert "per second" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "benchmark", lambda *_, **__: pytest.fail("measured"))
    out = tmp_path / "no" / "such" / "folder.json"
    assert cli.main(["bench", "messaging", "--json", str(out)]) == cli.USAGE
    assert str(out) in capsys.readouterr().err
