"""The results as one HTML page with charts: no script, no network, readable on a phone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from keepwell.actors.errors import InvalidValue

from .benchmark import Question, Ratio, Result, Results
from .chart import Bar, Curve, bars, curves
from .machine import one_line
from .report import Report, cells, compact, number

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2430; --quiet: #66707f;
  --rule: #d8dee6; --ours: #1f7a5a; --theirs: #9aa7b8; --second: #3c6eb4; --third: #b0622a;
  --fourth: #a03c78; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --ink: #e4e8ee;
  --quiet: #97a1af; --rule: #313a45; --ours: #46b58c; --theirs: #5d6a7a; --second: #7aa5e0;
  --third: #dd9a63; --fourth: #d57fb2; } }
* { box-sizing: border-box; }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  margin: 0 auto; max-width: 720px; padding: 16px; }
h1 { font-size: 1.6rem; } h2 { border-top: 1px solid var(--rule); margin-top: 2.5rem;
  padding-top: 1.5rem; font-size: 1.3rem; } h3 { font-size: 1.05rem; margin-bottom: .3rem; }
p { margin: .4rem 0; } .quiet { color: var(--quiet); font-size: .9rem; }
svg { display: block; width: 100%; height: auto; margin: .6rem 0; }
ul { padding-left: 1.2rem; } .missed { color: var(--third); }
details { margin: .4rem 0; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
td, th { border-bottom: 1px solid var(--rule); padding: .25rem .6rem .25rem 0; text-align: left;
  white-space: nowrap; }
"""
_LATENCIES = (("p50_ms", "p50"), ("p99_ms", "p99"), ("p999_ms", "p99.9"))


def prepare(folder: Path) -> None:
    """Make `folder`; InvalidValue if that cannot be, before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidValue(f"--report {str(folder)!r} cannot be made: {error.strerror}") from error


def write(folder: Path, reports: Sequence[Report]) -> Path:
    """Write `index.html` and one SVG a question into `folder`; return the page's path."""
    for report in reports:
        for question, results in report.answers:
            if drawn := chart(question, results):
                target = folder / f"{report.benchmark}-{question.name}.svg"
                target.write_text(drawn + "\n", encoding="utf-8")
    target = folder / "index.html"
    target.write_text(html(reports), encoding="utf-8")
    return target


def html(reports: Sequence[Report]) -> str:
    """Return the whole page."""
    machine = one_line(reports[0].machine) if reports else ""
    body = "\n".join(part for report in reports for part in _benchmark(report))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>keepwell benchmarks</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>keepwell benchmarks</h1>
<p class="quiet">{escape(machine)}</p>
<p>Every figure is a median over rounds in which the contenders took turns, so believe the ratios
more than the rates. Where nothing else is said, a bar is work done a second: longer is better.
Spread is the slowest round minus the fastest, over the median.</p>
{body}
</body>
</html>
"""


def chart(question: Question, results: Results) -> str:
    """Return the chart of one question as SVG, "" if nobody got through it."""
    ran = [result for result in results.values() if result.samples]
    if not ran:
        return ""
    if question.chart == "curve":
        figures = sorted((r.figures() for r in ran), key=lambda each: each["arrivals_per_s"])
        lines = [
            Curve(label, [(each["arrivals_per_s"], each[key]) for each in figures])
            for key, label in _LATENCIES
        ]
        return curves(question.asks, lines, x=f"{question.unit}s a second", y="milliseconds")
    return bars(question.asks, [
        Bar(result.contender.name, *_charted(question, result), ours=not result.contender.opponent)
        for result in ran
    ])


def _reading(charted: str) -> str:
    if charted == "curve":
        return "Latency over load: where the lines bend up, the system stops keeping up."
    return f"The bars show {escape(charted.replace('_', ' '))}: shorter is better."


def _charted(question: Question, result: Result) -> tuple[float, str]:
    """The value that the chart shows, and its text."""
    if question.chart:
        value = result.figures().get(question.chart, 0.0)
        return value, f"{compact(value)} {question.chart.replace('_', ' ')}"
    rate = 1e6 / max(result.median(lambda sample: sample.wall_us), 1e-9)
    return rate, f"{compact(rate)}/s"


def _benchmark(report: Report) -> Iterator[str]:
    yield f'<h2 id="{escape(report.benchmark)}">{escape(report.benchmark)}</h2>'
    yield f"<p>{escape(report.title)}</p>"
    for question, results in report.answers:
        yield f"<h3>{escape(question.asks)}</h3>"
        if question.chart:
            yield f'<p class="quiet">{_reading(question.chart)}</p>'
        yield chart(question, results)
        sentences = "".join(_sentence(question, ratio, results) for ratio in question.ratios)
        if sentences:
            yield f"<ul>{sentences}</ul>"
        for result in results.values():
            if not result.samples:
                yield (f'<p class="quiet">{escape(result.contender.name)} is not in the chart: '
                       f"{escape(result.missing)}.</p>")
        yield _details(question, results)


def _sentence(question: Question, ratio: Ratio, results: Results) -> str:
    value = ratio.value(results)
    if value is None:
        return ""
    text = escape(ratio.sentence.format(value=number(value), unit=question.unit))
    if ratio.holds(value):
        return f"<li>{text}</li>"
    return f'<li class="missed">{text} That is outside of what should hold ({_bounds(ratio)}).</li>'


def _bounds(ratio: Ratio) -> str:
    if ratio.floor is not None:
        return f"at least {ratio.floor:g}"
    return f"at most {ratio.ceiling:g}"


def _details(question: Question, results: Results) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(question, result)) + "</tr>"
        for result in results.values() if result.samples
    )
    head = "".join(f"<th>{name}</th>" for name in
                   ("", "per second", "wall µs", "spread", "CPU µs", "also"))
    return (f'<details><summary class="quiet">figures</summary><div class="wide"><table>'
            f"<tr>{head}</tr>{rows}</table></div></details>")
