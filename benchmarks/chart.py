"""Charts as SVG text: bars of rates, and curves of latency over load. No script, no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# Narrow, so that the text is still readable where the whole width is a phone's.
WIDTH = 480
_LABEL = 142
_ROW = 30
_INK = "var(--ink, #1c2430)"
_QUIET = "var(--quiet, #66707f)"
_OURS = "var(--ours, #1f7a5a)"
_THEIRS = "var(--theirs, #9aa7b8)"
_COLOURS = (_OURS, "var(--second, #3c6eb4)", "var(--third, #b0622a)", "var(--fourth, #a03c78)")


@dataclass(frozen=True)
class Bar:
    """One bar; `ours` colours it."""

    label: str
    value: float
    text: str
    ours: bool = False


@dataclass(frozen=True)
class Curve:
    """A line through (x, y) points, both positive, x ascending."""

    label: str
    points: Sequence[tuple[float, float]]


def bars(title: str, given: Sequence[Bar]) -> str:
    """Return horizontal bars. Where the longest is more than 30 times the shortest the scale is
    logarithmic, and the chart says so."""
    top = max(bar.value for bar in given)
    low = min((bar.value for bar in given if bar.value > 0), default=top)
    logarithmic = top > 30 * low > 0
    room = WIDTH - _LABEL - 92
    height = _ROW * len(given) + (22 if logarithmic else 4)
    parts = [_open(title, height)]
    for index, bar in enumerate(given):
        if logarithmic and bar.value > 0:
            # A decade of margin below the smallest, or its bar would have no length.
            share = (math.log10(bar.value / low) + 1) / (math.log10(top / low) + 1)
        else:
            share = bar.value / top if top else 0
        y = index * _ROW
        length = max(2, share * room)
        parts += [
            _text(_LABEL - 8, y + 20, bar.label, anchor="end"),
            _rectangle(y + 5, length, _OURS if bar.ours else _THEIRS),
            _text(_LABEL + length + 6, y + 20, bar.text, quiet=True),
        ]
    if logarithmic:
        parts.append(_text(_LABEL, height - 6, "logarithmic scale", quiet=True, size=12))
    return "".join([*parts, "</svg>"])


def curves(title: str, given: Sequence[Curve], *, x: str, y: str) -> str:
    """Return lines over a linear x axis and a logarithmic y axis, with a legend."""
    left, bottom, top, right = 56, 240, 28, 16
    xs = [point[0] for curve in given for point in curve.points]
    ys = [max(point[1], 1e-6) for curve in given for point in curve.points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    high = max(high, low + 1)
    widest = max(xs)

    def at(point: tuple[float, float]) -> str:
        across = left + point[0] / widest * (WIDTH - left - right)
        share = (math.log10(max(point[1], 1e-6)) - low) / (high - low)
        return f"{across:.1f},{bottom - share * (bottom - top):.1f}"

    parts = [_open(title, bottom + 44)]
    for decade in range(low, high + 1):
        level = bottom - (decade - low) / (high - low) * (bottom - top)
        parts += [
            _level(left, WIDTH - right, level),
            _text(left - 6, level + 4, f"{10.0 ** decade:g}", anchor="end", quiet=True, size=12),
        ]
    for quarter in range(5):
        across = left + quarter / 4 * (WIDTH - left - right)
        parts.append(_text(across, bottom + 16, f"{widest * quarter / 4:,.0f}",
                           anchor="end" if quarter == 4 else "middle", quiet=True, size=12))
    for index, curve in enumerate(given):
        colour = _COLOURS[index % len(_COLOURS)]
        joined = " ".join(at(point) for point in curve.points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" '
                     'stroke-width="2.5" stroke-linejoin="round"/>')
        parts.append(f'<text x="{left + 8 + index * 90}" y="17" font-size="14" fill="{colour}">'
                     f"{escape(curve.label)}</text>")
    parts.append(_text(WIDTH - right, bottom + 36, f"{x} (across), {y} (up)", anchor="end",
                       quiet=True, size=12))
    return "".join([*parts, "</svg>"])


def _open(title: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'font-family="system-ui, sans-serif"><title>{escape(title)}</title>'
    )


def _rectangle(y: float, length: float, colour: str) -> str:
    return (
        f'<rect x="{_LABEL}" y="{y:g}" width="{length:.1f}" height="{_ROW - 10}" rx="3" '
        f'fill="{colour}"/>'
    )


def _level(left: float, right: float, y: float) -> str:
    return (
        f'<line x1="{left:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}" '
        f'stroke="{_QUIET}" stroke-opacity=".3"/>'
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", quiet: bool = False, size: int = 14
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{_QUIET if quiet else _INK}">{escape(text)}</text>'
    )
