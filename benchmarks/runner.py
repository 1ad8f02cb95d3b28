"""Runs benchmarks for the command line: progress while they run, a table each, JSON at the end."""

from __future__ import annotations

import argparse
import json
import sys
import time

from keepwell.actors.errors import InvalidValue
from keepwell.terminal import style_for

from . import catalog, compare, page
from .benchmark import Scale
from .machine import machine, one_line
from .measure import Progress, measure
from .report import Report


def run(args: argparse.Namespace) -> int:
    """Run the benchmarks `args.names` and return 1 if a contender failed, else 0.

    An opponent that is not installed is no failure: the table says what is missing and why.
    Raises RequestError for a name that does not exist.
    """
    wanted = catalog.check(args.names)
    if args.list:
        for name in wanted:
            print(f"{name:12} {catalog.title(name)}")
        return 0
    if args.json is not None:
        try:
            args.json.touch()  # better known before a quarter of an hour than after
        except OSError as error:
            raise InvalidValue(
                f"--json {str(args.json)!r} cannot be written: {error.strerror}"
            ) from error
    earlier = compare.load(args.compare) if args.compare is not None else None
    if args.report is not None:
        page.prepare(args.report)
    if args.soak_seconds is not None and not 1 <= args.soak_seconds <= 7 * 24 * 3600:
        raise InvalidValue(f"--soak-seconds is {args.soak_seconds:g}, not 1 to 604800 (a week)")
    scale = Scale(quick=args.quick, soak_seconds=args.soak_seconds)
    style = style_for()
    described = machine()
    print(style.dim(one_line(described)))
    reports: list[Report] = []
    for name in wanted:
        started = time.monotonic()
        report = benchmark(name, scale, progress=_progress(name))
        _clear_progress()
        reports.append(report)
        print(f"\n{report.to_text(style)}")
        if earlier is not None:
            print(earlier.to_text(report, style))
        print(style.dim(f"  {time.monotonic() - started:.1f} s"), flush=True)
    if args.json is not None:
        written = [report.to_dict() for report in reports]
        body = json.dumps(written[0] if len(written) == 1 else written, indent=1)
        args.json.write_text(body + "\n", encoding="utf-8")
    if args.report is not None:
        print(f"\nthe report is {page.write(args.report, reports)}")
    return int(any(report.failed for report in reports))


def benchmark(name: str, scale: Scale, progress: Progress) -> Report:
    """Run the benchmark `name` and return its report."""
    answers = [
        (question, measure(question, scale, progress))
        for question in catalog.questions(name, scale)
    ]
    return Report(name, catalog.title(name), machine(), answers)


def _progress(name: str) -> Progress:
    if not sys.stderr.isatty():
        return lambda _: None

    def show(text: str) -> None:
        print(f"\r\x1b[K{name}: {text}", end="", file=sys.stderr, flush=True)

    return show


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
