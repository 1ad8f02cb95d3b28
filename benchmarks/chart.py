"""Charts as SVG text: bars, latency over load, and figures over time. No script, no network.

Colours are CSS variables, so that a page gives them for both of its themes; `standalone` makes a
picture that needs no page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType

from .report import compact

# Narrow, so that the text is still readable where the whole width is a phone's.
WIDTH = 400
_ROW = 42
_BAR = 12

LIGHT: Mapping[str, str] = MappingProxyType({
    "paper": "#ffffff", "ink": "#1c2430", "quiet": "#5d6775", "rule": "#dfe4ea",
    "track": "#eef1f5", "ours": "#1f7a5a", "theirs": "#9aa7b8", "second": "#3c6eb4",
    "third": "#b0622a"})  # fmt: skip
DARK: Mapping[str, str] = MappingProxyType({
    "paper": "#14181d", "ink": "#e6eaf0", "quiet": "#9aa4b2", "rule": "#2f3843",
    "track": "#222a33", "ours": "#46b58c", "theirs": "#647284", "second": "#7aa5e0",
    "third": "#dd9a63"})  # fmt: skip

_LINES = ("ours", "second", "third")


@dataclass(frozen=True)
class Bar:
    """One bar; `ours` colours it."""

    label: str
    value: float
    text: str
    ours: bool = False


@dataclass(frozen=True)
class Curve:
    """A line through (x, y) points, x ascending."""

    label: str
    points: Sequence[tuple[float, float]]


def variables(theme: Mapping[str, str]) -> str:
    """Return `theme` as CSS declarations."""
    return " ".join(f"--{name}: {value};" for name, value in theme.items())


def standalone(svg: str, theme: Mapping[str, str] | None = None) -> str:
    """Return `svg` with its colours inside: those of `theme`, or both, chosen by the reader's."""
    if theme is not None:
        return re.sub(r"var\(--(\w+)\)", lambda found: theme[found[1]], svg)
    style = (f"<style>svg {{ {variables(LIGHT)} }} @media (prefers-color-scheme: dark) "
             f"{{ svg {{ {variables(DARK)} }} }}</style>")
    return svg.replace("</title>", f"</title>{style}", 1)


def bars(title: str, given: Sequence[Bar]) -> str:
    """Return horizontal bars. Where the longest is more than 30 times the shortest the scale is
    logarithmic, and the chart says so."""
    top = max(bar.value for bar in given)
    low = min((bar.value for bar in given if bar.value > 0), default=top)
    logarithmic = top > 30 * low > 0
    height = _ROW * len(given) + (20 if logarithmic else 0)
    parts = [_open(title, height)]
    for index, bar in enumerate(given):
        if logarithmic and bar.value > 0:
            # A decade of margin below the smallest, or its bar would have no length.
            share = (math.log10(bar.value / low) + 1) / (math.log10(top / low) + 1)
        else:
            share = bar.value / top if top else 0
        y = index * _ROW
        parts += [
            _text(0, y + 16, bar.label, bold=bar.ours),
            _text(WIDTH, y + 16, bar.text, anchor="end", bold=bar.ours),
            _rectangle(y + 23, WIDTH, "track"),
            _rectangle(y + 23, max(4, share * WIDTH), "ours" if bar.ours else "theirs"),
        ]
    if logarithmic:
        parts.append(_text(0, height - 4, "logarithmic scale: a step is a factor", quiet=True,
                           size=13))
    return "".join([*parts, "</svg>"])


def curves(
    title: str, given: Sequence[Curve], *, x: str, y: str, mark: tuple[float, str] | None = None
) -> str:
    """Return lines over two logarithmic axes, with a legend; `mark` is an x and what it is."""
    left, right, top, bottom = 50, 14, 62, 270
    xs = [point[0] for curve in given for point in curve.points]
    ys = [max(point[1], 1e-6) for curve in given for point in curve.points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    high = max(high, low + 1)
    first, last = math.log10(min(xs)), math.log10(max(xs))

    def across(value: float) -> float:
        share = (math.log10(value) - first) / ((last - first) or 1)
        return left + 8 + share * (WIDTH - left - right - 16)

    def up(value: float) -> float:
        share = (math.log10(max(value, 1e-6)) - low) / (high - low)
        return bottom - share * (bottom - top)

    parts = [_open(title, bottom + 44)]
    parts += _legend([curve.label for curve in given], left)
    parts.append(_text(left - 8, top - 18, y, quiet=True, size=13, anchor="end"))
    for decade in range(low, high + 1):
        level = up(10.0**decade)
        parts += [
            _level(left, WIDTH - right, level),
            _text(left - 8, level + 4, f"{10.0**decade:,g}", anchor="end", quiet=True, size=13),
        ]
    free = 0.0
    for value in sorted(set(xs)):
        place = across(value)
        if place >= free:  # labels that would touch are left out
            parts.append(_text(place, bottom + 18, f"{value:,.0f}", anchor="middle", quiet=True,
                               size=13))
            free = place + 50
    if mark is not None:
        place = across(mark[0])
        anchor = "end" if place > WIDTH * 0.6 else "start"
        parts += [
            (f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{top - 8}" y2="{bottom}" '
             'stroke="var(--quiet)" stroke-dasharray="3 4"/>'),
            _text(place + (-6 if anchor == "end" else 6), top + 2, mark[1], anchor=anchor, size=13),
        ]
    for index, curve in enumerate(given):
        points = [(across(px), up(py)) for px, py in curve.points]
        parts += _line(points, _LINES[index % len(_LINES)])
    parts.append(_text(WIDTH - right, bottom + 38, x, anchor="end", quiet=True, size=13))
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True)
class Panel:
    """One small chart of a series: lines over the same seconds, from 0 up."""

    label: str
    unit: str
    curves: Sequence[Curve]


def series(title: str, panels: Sequence[Panel], *, x: str) -> str:
    """Return one small chart a panel, below each other, over the same linear x axis."""
    left, right, tall, gap = 50, 14, 66, 40
    height = len(panels) * (tall + gap) + 30
    parts = [_open(title, height)]
    for index, panel in enumerate(panels):
        top = index * (tall + gap) + 26
        bottom = top + tall
        xs = [point[0] for curve in panel.curves for point in curve.points]
        most = max(point[1] for curve in panel.curves for point in curve.points) or 1.0
        most = _round_up(most)
        first, last = min(xs), max(xs)
        parts.append(_text(0, top - 10, panel.label))
        if len(panel.curves) > 1:
            parts += _legend([curve.label for curve in panel.curves], 170, y=top - 10)
        for level in (0.0, most):
            y = bottom - level / most * tall
            parts += [_level(left, WIDTH - right, y),
                      _text(left - 8, y + 4, compact(level) if level else "0", anchor="end",
                            quiet=True, size=13)]
        for number, curve in enumerate(panel.curves):
            points = [
                (left + 6 + (px - first) / ((last - first) or 1) * (WIDTH - left - right - 12),
                 bottom - py / most * tall)
                for px, py in curve.points
            ]  # fmt: skip
            parts += _line(points, _LINES[number % len(_LINES)])
        parts.append(_text(WIDTH - right, top - 10, panel.unit, anchor="end", quiet=True, size=13))
    times = [point[0] for panel in panels for curve in panel.curves for point in curve.points]
    parts += [
        _text(left, height - 12, f"{min(times):.0f}", quiet=True, size=13),
        _text(WIDTH - right, height - 12, f"{max(times):.0f} {x}", anchor="end", quiet=True,
              size=13),
    ]
    return "".join([*parts, "</svg>"])


def _round_up(value: float) -> float:
    """The next of 1, 2, 3, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 5, 10) if value <= step * power * (1 + 1e-9))


def _open(title: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'font-family="system-ui, -apple-system, \'Segoe UI\', sans-serif">'
        f"<title>{escape(title)}</title>"
    )


def _legend(labels: Sequence[str], left: float, *, y: float = 17) -> list[str]:
    return [
        f'<circle cx="{left + 5 + index * 78}" cy="{y - 5}" r="4.5" '
        f'fill="var(--{_LINES[index % len(_LINES)]})"/>'
        + _text(left + 15 + index * 78, y, label, size=13)
        for index, label in enumerate(labels)
    ]


def _line(points: Sequence[tuple[float, float]], colour: str) -> list[str]:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return [
        (f'<polyline points="{joined}" fill="none" stroke="var(--{colour})" stroke-width="2.5" '
         'stroke-linejoin="round" stroke-linecap="round"/>'),
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="var(--{colour})"/>' for x, y in points),
    ]


def _rectangle(y: float, length: float, colour: str) -> str:
    return (
        f'<rect x="0" y="{y:g}" width="{length:.1f}" height="{_BAR}" rx="3" '
        f'fill="var(--{colour})"/>'
    )


def _level(left: float, right: float, y: float) -> str:
    return (
        f'<line x1="{left:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--rule)"/>'
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", quiet: bool = False, size: int = 15,
    bold: bool = False,
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight} '
        f'fill="var(--{"quiet" if quiet else "ink"})">{escape(text)}</text>'
    )
