"""What a benchmark run leaves behind: the page with charts, the comparison, the load curve."""

from __future__ import annotations

import asyncio
import json
import re
import selectors
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.benchmarks import catalog, compare, page
from keepwell.benchmarks.benchmark import (
    Contender,
    Question,
    Result,
    Sample,
    Scale,
    Stopwatch,
    faster,
)
from keepwell.benchmarks.chart import DARK, LIGHT, Bar, Curve, bars, curves, standalone
from keepwell.benchmarks.headlines import HEADLINES
from keepwell.benchmarks.machine import machine
from keepwell.benchmarks.measure import measure
from keepwell.benchmarks.open_loop import Load, arrivals, at_knee, knee, open_loop, percentile, run
from keepwell.benchmarks.report import Report
from keepwell.terminal import Style

pytestmark = pytest.mark.usefixtures("without_collection")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
               None)


def taking(
    wall_us: float, figures: Mapping[str, float] | None = None
) -> Callable[[Stopwatch, int], Mapping[str, float] | None]:
    def run(watch: Stopwatch, operations: int) -> Mapping[str, float] | None:
        watch.record(wall=operations * wall_us / 1e6, cpu=operations * wall_us / 1e6)
        return figures

    return run


def report(*, ours_us: float = 1, floor: float = 5) -> Report:
    load = {"arrivals_per_s": 100.0, "completed_per_s": 99.0, "p50_ms": 1.0, "p99_ms": 3.0,
            "p999_ms": 9.0}
    more = {**load, "arrivals_per_s": 200.0, "completed_per_s": 199.0}
    moment = {"turns_per_s": 900.0, "p50_ms": 1.0, "p99_ms": 3.0, "anon_mib": 80.0, "file_mib": 2.0}
    asked = [
        Question("speed", "How <fast>?", "thing",
                 [Contender("keepwell", taking(ours_us), 10),
                  Contender("theirs & co", taking(10), 10, opponent=True,
                            note="weaker: nothing is flushed"),
                  Contender("redis", taking(1), 10, missing="no server", opponent=True)],
                 [faster("ratio", "keepwell", "theirs & co", floor=floor)]),
        Question("weight", "How heavy?", "thing",
                 [Contender("keepwell", taking(1, {"bytes": 373.0}), 10)], chart="bytes"),
        Question("load", "How late?", "thing",
                 [Contender("100/s", taking(1, load), 10),
                  Contender("200/s", taking(1, more), 10)],
                 chart="curve"),
        Question("time", "What changes?", "thing",
                 [Contender("from 0 s", taking(1, {**moment, "at_s": 1.0}), 10),
                  Contender("from 1 s", taking(1, {**moment, "at_s": 2.0}), 10)],
                 chart="series", rounds=1, warm_up=False),
    ]
    return Report("demo", "A demonstration.", machine(),
                  [(each, measure(each, Scale(quick=True), lambda _: None)) for each in asked])


def test_the_page_is_self_contained_and_explains_its_figures() -> None:
    text = page.html([report(floor=20)])
    assert not re.search(r"<script|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "In the same time keepwell does 10 times as many things as theirs &amp; co." in text
    assert "outside of what should hold (at least 20)" in text
    assert "redis is not in the chart: no server." in text
    assert "How &lt;fast&gt;?" in text
    assert text.count("<svg") == 4
    assert "theirs &amp; co (weaker)" in text
    assert "knee: 200/s" in text


def test_the_page_has_the_headlines_on_top_and_says_how_each_was_measured() -> None:
    asked = Question("tell", "How fast?", "message", [
        Contender("keepwell", taking(1), 10), Contender("pykka", taking(30), 10, opponent=True)],
        [faster("tell_vs_pykka", "keepwell", "pykka")])
    results = measure(asked, Scale(quick=True), lambda _: None)
    text = page.html([Report("messaging", "How fast?", machine(), [(asked, results)])])
    assert '<b>30x</b><span>as many messages a second as pykka</span>' in text
    assert "how it is measured" in text and "What it does not say: what real handlers cost" in text


def test_every_headline_is_a_ratio_of_its_benchmark() -> None:
    for benchmark in {each.benchmark for each in HEADLINES}:
        known = {ratio.name for question in catalog.questions(benchmark, Scale())
                 for ratio in question.ratios}
        assert {each.ratio for each in HEADLINES if each.benchmark == benchmark} <= known


def test_a_picture_of_its_own_has_its_colours_in_it() -> None:
    drawn = bars("t", [Bar("a", 2, "2", ours=True), Bar("b", 1, "1")])
    assert "var(--ours)" in drawn
    for theme in (LIGHT, DARK):
        alone = standalone(drawn, theme)
        assert "var(" not in alone and theme["ours"] in alone and theme["ink"] in alone
    assert "prefers-color-scheme: dark" in standalone(drawn)


def test_each_chart_is_written_as_a_picture_of_its_own(tmp_path: Path) -> None:
    page.prepare(tmp_path / "out")
    page.write(tmp_path / "out", [report()])
    drawn = {path.name for path in (tmp_path / "out").glob("*.svg")}
    assert drawn == {"demo-speed.svg", "demo-weight.svg", "demo-load.svg",
                     "demo-time.svg"}
    for path in (tmp_path / "out").glob("*.svg"):
        ElementTree.parse(path)


def test_a_report_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidValue, match="--report"):
        page.prepare(tmp_path / "file" / "below")


def _widths(svg: str) -> list[float]:
    """Those of the bars, without the tracks that they run in."""
    found = re.findall(r'<rect [^>]*width="([\d.]+)"[^>]*--(?:ours|theirs)', svg)
    return [float(width) for width in found]


def test_bars_are_linear_until_the_short_ones_would_vanish() -> None:
    near = bars("t", [Bar("a", 10, "10"), Bar("b", 5, "5")])
    assert _widths(near)[0] == pytest.approx(2 * _widths(near)[1])
    assert "logarithmic" not in near
    far = bars("t", [Bar("a", 10_000, ""), Bar("b", 100, ""), Bar("c", 1, "")])
    assert "logarithmic scale" in far
    longest, middle, shortest = _widths(far)
    assert longest - middle == pytest.approx(middle - shortest, abs=0.2)


def test_curves_stay_inside_their_frame() -> None:
    svg = curves("t", [Curve("p50", [(1, 0.5), (10, 500)]), Curve("p99", [(1, 3), (10, 3_000)])],
                 x="things a second", y="milliseconds")
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    points = [tuple(map(float, point.split(",")))
              for line in lines for point in line.attrib["points"].split()]
    assert len(lines) == 2
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no chromium on the PATH (Debian: chromium)")
def test_the_page_opens_in_a_browser_without_errors(tmp_path: Path) -> None:
    page.prepare(tmp_path)
    target = page.write(tmp_path, [report()])
    assert BROWSER is not None
    opened = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path / 'profile'}", "--window-size=400,900",
         "--dump-dom", target.as_uri()],
        capture_output=True, text=True, timeout=50, check=False)
    assert opened.returncode == 0, opened.stderr[-2000:]
    assert opened.stdout.count("<svg") == 4
    assert "CONSOLE" not in opened.stderr


def test_a_run_is_set_beside_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "then.json"
    path.write_text(json.dumps(report(ours_us=2).to_dict()))
    text = compare.load(path).to_text(report(ours_us=1), Style(False))
    rows = [line.split() for line in text.splitlines()]
    assert ["speed:", "keepwell", "per", "second", "5e+05", "1e+06", "2.00"] in rows
    assert ["ratio", "5", "10", "2.00"] in rows


@pytest.mark.parametrize(
    ("content", "fault"), [("{", "not JSON"), ("{}", "not a result"), ("[]", "not a result"),
                           ('{"rows": 1}', "not a result"), (None, "cannot be read")])
def test_what_is_no_earlier_run_is_refused(
    content: str | None, fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "then.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidValue, match=fault) as refused:
        compare.load(path)
    assert str(path) in str(refused.value)


def test_an_earlier_run_without_this_benchmark_says_so(tmp_path: Path) -> None:
    path = tmp_path / "then.json"
    path.write_text(json.dumps({**report().to_dict(), "benchmark": "other"}))
    assert "has nothing of demo" in compare.load(path).to_text(report(), Style(False))


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 1_001)]
    assert percentile(values, 0.5) == 500
    assert percentile(values, 0.999) == 999
    assert percentile([7.0], 0.999) == 7.0


def test_arrivals_keep_their_rate_and_their_seed() -> None:
    times = arrivals(1_000, 20_000, seed=3)
    assert times == arrivals(1_000, 20_000, seed=3) != arrivals(1_000, 20_000, seed=4)
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] == pytest.approx(20, rel=0.01)


def loads(*of: tuple[float, float, float]) -> Mapping[str, Result]:
    """Results of (arrivals a second, completed a second, p99 in milliseconds)."""
    return {
        str(rate): Result(Contender(str(rate), taking(1), 1), (Sample(1, 1, 1, {
            "arrivals_per_s": rate, "completed_per_s": done, "p50_ms": p99 / 2, "p99_ms": p99}),))
        for rate, done, p99 in of
    }


@pytest.mark.parametrize(("of", "rate"), [
    ([(100, 99, 2.0), (200, 198, 3.0), (400, 398, 9.9)], 400),
    ([(100, 99, 2.0), (200, 198, 10.1), (400, 398, 3.0)], 100),  # what bends stays bent
    ([(400, 300, 3.0), (100, 99, 2.0), (200, 191, 2.0)], 200),  # it no longer keeps up
    ([(100, 90, 2.0)], None),
])
def test_the_knee_is_the_highest_rate_before_the_curve_bends(of: list, rate: float | None) -> None:
    assert knee("k").value(loads(*of)) == rate
    late = at_knee("l", "p50_ms", "half take at most").value(loads(*of))
    assert late == (None if rate is None else {r: p / 2 for r, _, p in of}[rate])


def test_timers_of_an_open_loop_are_exact() -> None:
    """An append is acknowledged within a millisecond: the load must not come a millisecond late."""
    polled: list[object] = []

    async def work() -> None:
        polled.append(asyncio.get_running_loop()._selector)

    run(work())
    assert isinstance(polled[0], selectors.SelectSelector)


async def test_a_stall_is_charged_to_all_that_were_due_in_it() -> None:
    """Coordinated omission: 100 operations due within a stall have all waited for its end."""
    loop = asyncio.get_running_loop()
    gate = asyncio.Event()
    loop.call_later(0.2, gate.set)

    async def stalled(number: int) -> None:
        await gate.wait()

    load = await open_loop(stalled, rate=1_000, count=100, seed=1)
    assert len(load.latencies) == 100
    # The last was due after about 0.1 s and all were answered at 0.2 s.
    assert percentile(load.latencies, 0.05) > 0.05
    assert percentile(load.latencies, 1.0) > 0.15
    assert not load.kept_up


async def test_an_operation_that_raises_ends_the_run() -> None:
    async def broken(number: int) -> None:
        raise OSError("disk full")

    with pytest.raises(ExceptionGroup) as raised:
        await open_loop(broken, rate=1_000, count=5)
    assert raised.group_contains(OSError, match="disk full")


def test_figures_of_a_load_are_milliseconds() -> None:
    load = Load(100, [0.001, 0.002, 0.003], 0.03)
    assert load.kept_up
    figures = load.figures()
    assert figures["p50_ms"] == pytest.approx(2)
    assert figures["completed_per_s"] == pytest.approx(100)
