"""The results as one HTML page with charts: no script, no network, readable on a phone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from keepwell.actors.errors import InvalidValue

from . import catalog
from .benchmark import Question, Ratio, Results
from .chart import DARK, LIGHT, standalone, variables
from .drawing import chart, reading
from .headlines import HEADLINES, Headline
from .machine import one_line
from .report import Report, cells, number

_STYLE = f"""
:root {{ color-scheme: light dark; {variables(LIGHT)} --card: #f7f9fb; }}
@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} --card: #1b2128; }} }}
""" + """
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { background: var(--paper); color: var(--ink); margin: 0 auto; max-width: 1080px;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; padding: 20px 18px 64px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: .4rem 0 .6rem; letter-spacing: -.01em; }
h2 { border-top: 1px solid var(--rule); font-size: 1.35rem; margin: 3rem 0 .3rem;
  padding-top: 1.6rem; }
h3 { font-size: 1.05rem; line-height: 1.35; margin: 0 0 .15rem; }
p { margin: .4rem 0; } .lead { max-width: 68ch; }
.quiet { color: var(--quiet); font-size: .9rem; }
a { color: var(--second); text-decoration: none; } a:hover { text-decoration: underline; }
nav { display: flex; flex-wrap: wrap; gap: .45rem; margin: 1.2rem 0; }
nav a { border: 1px solid var(--rule); border-radius: 99px; font-size: .9rem;
  padding: .2rem .75rem; }
.cards { display: grid; gap: .7rem; grid-template-columns: repeat(auto-fill, minmax(148px, 1fr));
  margin: 1.2rem 0; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: .7rem .85rem .75rem; }
.card b { color: var(--ours); display: block; font-size: 1.55rem; font-weight: 650;
  letter-spacing: -.02em; line-height: 1.25; font-variant-numeric: tabular-nums; }
.card span { display: block; font-size: .86rem; line-height: 1.35; }
.questions { column-gap: 1.1rem; margin-top: 1rem; }
@media (min-width: 900px) { .questions { columns: 2; } }
article { border: 1px solid var(--rule); border-radius: 12px; break-inside: avoid;
  margin-bottom: 1.1rem; padding: 1rem 1.1rem; }
svg { display: block; height: auto; margin: .8rem 0 .4rem; width: 100%; }
ul { margin: .5rem 0; padding-left: 1.15rem; } li { margin: .2rem 0; font-size: .95rem; }
.missed { color: var(--third); }
summary { color: var(--quiet); cursor: pointer; font-size: .9rem; }
details { margin: .5rem 0 0; } details p { max-width: 75ch; font-size: .93rem; }
@media (max-width: 480px) { body { padding: 16px 12px 48px; } article { padding: .85rem .8rem; } }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums; }
td, th { border-bottom: 1px solid var(--rule); padding: .3rem .8rem .3rem 0; text-align: left;
  white-space: nowrap; } td.number, th.number { text-align: right; }
"""


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
                target.write_text(standalone(drawn) + "\n", encoding="utf-8")
    target = folder / "index.html"
    target.write_text(html(reports), encoding="utf-8")
    return target


def html(reports: Sequence[Report]) -> str:
    """Return the whole page."""
    machine = one_line(reports[0].machine) if reports else ""
    body = "\n".join(part for report in reports for part in _benchmark(report))
    links = "".join(f'<a href="#{escape(each.benchmark)}">{escape(each.benchmark)}</a>'
                    for each in reports)  # fmt: skip
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>keepwell benchmarks</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>keepwell benchmarks</h1>
<p class="quiet">{escape(machine)}</p>
<p class="lead">Every figure is a median over rounds in which the contenders took turns on this
machine, so believe the ratios more than the rates. Green is keepwell, grey is what one would use
instead. Spread is the slowest round minus the fastest, over the median.</p>
{_cards(reports)}
<nav aria-label="benchmarks">{links}</nav>
{body}
</body>
</html>
"""


def _cards(reports: Sequence[Report]) -> str:
    """The headlines of this run, as far as they were measured."""
    found = {(each.benchmark, name): value
             for each in reports for name, value in each.ratios().items()}  # fmt: skip
    cards = "".join(_card(each, found[each.benchmark, each.ratio]) for each in HEADLINES
                    if each.card and (each.benchmark, each.ratio) in found)  # fmt: skip
    return f'<div class="cards">{cards}</div>' if cards else ""


def _card(headline: Headline, value: float) -> str:
    return (f'<div class="card"><b>{escape(headline.shown(value))}</b>'
            f"<span>{escape(headline.card)}</span></div>")


def _benchmark(report: Report) -> Iterator[str]:
    yield f'<h2 id="{escape(report.benchmark)}">{escape(report.benchmark)}</h2>'
    yield f'<p class="lead">{escape(report.title)}</p>'
    if how := catalog.method(report.benchmark):
        paragraphs = "".join(f"<p>{escape(each)}</p>" for each in how)
        yield f"<details><summary>how it is measured</summary>{paragraphs}</details>"
    yield '<div class="questions">'
    for question, results in report.answers:
        yield from _article(question, results)
    yield "</div>"


def _article(question: Question, results: Results) -> Iterator[str]:
    yield f"<article><h3>{escape(question.asks)}</h3>"
    yield f'<p class="quiet">{escape(reading(question))}</p>'
    yield chart(question, results)
    sentences = "".join(_sentence(question, ratio, results) for ratio in question.ratios)
    if sentences:
        yield f"<ul>{sentences}</ul>"
    for result in results.values():
        if not result.samples:
            yield (f'<p class="quiet">{escape(result.contender.name)} is not in the chart: '
                   f"{escape(result.missing)}.</p>")
        elif result.contender.note:
            yield (f'<p class="quiet">{escape(result.contender.name)}: '
                   f"{escape(result.contender.note)}.</p>")
    yield _details(question, results)
    yield "</article>"


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
    def row(given: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(
            f"<{tag}{' class=number' if 1 <= place <= 4 else ''}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(given)
        ) + "</tr>"

    rows = "".join(row(cells(question, result, note=False), "td")
                   for result in results.values() if result.samples)  # fmt: skip
    head = row(("", "per second", "wall µs", "spread", "CPU µs", "also"), "th")
    return (f'<details><summary>figures</summary><div class="wide"><table>'
            f"{head}{rows}</table></div></details>")
