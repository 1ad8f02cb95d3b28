"""Which chart a question gets, drawn from its results."""

from __future__ import annotations

from .benchmark import Question, Result, Results
from .chart import Bar, Curve, Panel, bars, curves, series
from .open_loop import knee
from .report import compact

_LATENCIES = (("p50_ms", "p50"), ("p99_ms", "p99"), ("p999_ms", "p99.9"))

# What a further figure is counted in, beside a bar.
_UNITS = {"cpu_us": "µs CPU", "p50_ms": "ms", "bytes": "bytes", "bytes_each": "bytes",
          "rss_anon_mib": "MiB"}  # fmt: skip


def chart(question: Question, results: Results) -> str:
    """Return the chart of one question as SVG, "" if nobody got through it."""
    ran = [result for result in results.values() if result.samples]
    if not ran:
        return ""
    if question.chart == "curve":
        return _load_curve(question, results, ran)
    if question.chart == "series":
        return _over_time(question, ran)
    return bars(question.asks, [
        Bar(_label(result), *_charted(question, result), ours=not result.contender.opponent)
        for result in ran
    ])


def _label(result: Result) -> str:
    """The contender's name; one that promises less than the others is marked."""
    return result.contender.name + (" (weaker)" if "weaker" in result.contender.note else "")


def reading(question: Question) -> str:
    """Return the sentence that says how the question's chart is read."""
    if question.chart == "curve":
        return (f"How long {question.unit}s take, over how many arrive a second. Where the lines "
                "bend up the system no longer keeps up.")
    if question.chart == "series":
        return "Each point is a stretch of one run. Level lines mean that nothing builds up."
    if question.chart == "cpu_us":
        return f"Processor time of one {question.unit}: shorter is better."
    if question.chart:
        return f"{_named(question.chart)} of one {question.unit}: shorter is better."
    return f"{question.unit.capitalize()}s a second: longer is better."


def _named(key: str) -> str:
    return {"p50_ms": "Median milliseconds", "bytes": "Bytes", "bytes_each": "Bytes"}.get(
        key, key.replace("_", " ").capitalize())


def _charted(question: Question, result: Result) -> tuple[float, str]:
    """The value that the chart shows, and its text."""
    if question.chart:
        value = result.figures().get(question.chart, 0.0)
        return value, f"{compact(value)} {_UNITS.get(question.chart, question.chart)}"
    rate = 1e6 / max(result.median(lambda sample: sample.wall_us), 1e-9)
    return rate, f"{compact(rate)}/s"


def _load_curve(question: Question, results: Results, ran: list[Result]) -> str:
    figures = sorted((result.figures() for result in ran), key=lambda each: each["arrivals_per_s"])
    lines = [
        Curve(label, [(each["arrivals_per_s"], each[key]) for each in figures])
        for key, label in _LATENCIES
    ]
    bend = knee("").value(results)
    mark = None if bend is None else (bend, f"knee: {bend:,.0f}/s")
    return curves(question.asks, lines, x=f"{question.unit}s a second", y="ms", mark=mark)


def _over_time(question: Question, ran: list[Result]) -> str:
    figures = [result.figures() for result in ran]

    def line(label: str, key: str) -> Curve:
        return Curve(label, [(each["at_s"], each[key]) for each in figures])

    return series(question.asks, [
        Panel("Throughput", f"{question.unit}s a second", [line("", "turns_per_s")]),
        Panel("Latency", "ms", [line("p50", "p50_ms"), line("p99", "p99_ms")]),
        Panel("Memory", "MiB", [line("", "anon_mib")]),
        Panel("Files", "MiB", [line("", "file_mib")]),
    ], x="seconds from the start")
