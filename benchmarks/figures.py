"""Puts the figures of a run into the documentation: tables, and pictures for both themes.

    python -m benchmarks.figures bench.json [more.json …]

keeps what `keepwell bench --json` wrote as `docs/figures/<Python>.json`, fills the tables of the
README and of the pages in docs/ that stand between `<!-- figures: … -->` and
`<!-- end of figures -->`, and draws docs/pictures/. Without a file it does so from what is kept.
The first run is the main one; others (of another Python) may be of some benchmarks only and get a
column of their own. What can stand between the marks:

- `headlines`: the ratios of `headlines.py`, with their bounds;
- `machine`: what the main run was measured on, in a sentence;
- `rows BENCHMARK QUESTION`: a contender a line, rate, processor time and note;
- `ratios BENCHMARK [QUESTION]`: its ratios, one a line, in a sentence each.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from keepwell.actors.errors import InvalidValue, KeepwellError

from . import catalog
from .benchmark import Contender, Question, Ratio, Result, Sample, Scale, Stopwatch
from .chart import DARK, LIGHT, standalone
from .drawing import chart
from .headlines import HEADLINES
from .report import compact, number

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/benchmarks.md", "docs/performance.md")
KEPT = "docs/figures"
PICTURES = "docs/pictures"

# What the README shows.
DRAWN = (("messaging", "tell"), ("append", "append_64"), ("append_load", "append_latency"),
         ("turn", "turns_64"), ("turn_load", "turn_latency"), ("soak", "steady"))  # fmt: skip

_MARKED = re.compile(r"(<!-- figures: ([^>]*?) -->\n).*?(<!-- end of figures -->)", re.S)


@dataclass(frozen=True)
class Run:
    """What one `keepwell bench --json` wrote."""

    reports: Sequence[Mapping[str, Any]]

    @property
    def python(self) -> str:
        """Its Python, as "CPython 3.11.7"."""
        return str(self.machine["python"])

    @property
    def machine(self) -> Mapping[str, Any]:
        """The machine that it was measured on."""
        machine: Mapping[str, Any] = self.reports[0]["machine"]
        return machine

    def ratio(self, benchmark: str, name: str) -> float | None:
        """The value of a ratio, None where it was not measured."""
        for report in self.reports:
            if report["benchmark"] == benchmark:
                value: float | None = report["ratios"].get(name)
                return value
        return None

    def rows(self, benchmark: str, question: str) -> list[Mapping[str, Any]]:
        """The rows of a question; [] where it was not asked."""
        return [row for report in self.reports if report["benchmark"] == benchmark
                for row in report["rows"] if row["question"] == question]  # fmt: skip


def load(path: Path) -> Run:
    """Return the run in `path`; InvalidValue if that is not what `--json` wrote."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        reports = read if isinstance(read, list) else [read]
        for report in reports:
            if not {"benchmark", "machine", "rows", "ratios"} <= set(report):
                raise ValueError("a benchmark lacks its machine, rows or ratios")
        run = Run(reports)
        if not run.python:
            raise ValueError("its machine has no Python")
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise InvalidValue(
            f"{str(path)!r} is not a result of `keepwell bench --json`: {error}") from error
    return run


def kept(root: Path) -> list[Run]:
    """Return the runs kept in the documentation, the main one first."""
    return [load(path) for path in sorted((root / KEPT).glob("*.json"))]


def fill(text: str, runs: Sequence[Run]) -> str:
    """Return `text` with what stands between its marks made anew from `runs`.

    Raises InvalidValue for a mark that says nothing known.
    """
    def made(found: re.Match[str]) -> str:
        words = found[2].split()
        make = _TABLES.get(words[0])
        if make is None:
            raise InvalidValue(f"<!-- figures: {found[2]} --> is none of {', '.join(_TABLES)}")
        return f"{found[1]}{make(runs, *words[1:])}\n{found[3]}"

    return _MARKED.sub(made, text)


def pictures(run: Run) -> Iterator[tuple[str, str]]:
    """Yield name and SVG of each picture that the documentation shows, in both themes."""
    for benchmark, name in DRAWN:
        rows = [row for row in run.rows(benchmark, name) if "missing" not in row]
        if not rows:
            continue
        question = _question(benchmark, name)
        results = {row["contender"]: _result(row) for row in rows}
        drawn = chart(question, results)
        for theme, colours in (("light", LIGHT), ("dark", DARK)):
            yield f"{name}-{theme}.svg", standalone(drawn, colours) + "\n"


def write(root: Path, runs: Sequence[Run]) -> list[Path]:
    """Fill the pages below `root` and draw the pictures; return what was written."""
    written: list[Path] = []
    for page in PAGES:
        path = root / page
        before = path.read_text(encoding="utf-8")
        after = fill(before, runs)
        if after != before:
            path.write_text(after, encoding="utf-8")
            written.append(path)
    folder = root / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures(runs[0]):
        (folder / name).write_text(svg, encoding="utf-8")
        written.append(folder / name)
    return written


def main(arguments: Sequence[str]) -> int:
    """Keep the runs in the files named by `arguments`, if any, and bring the documents up to date.

    Returns the exit code: 2 for a file that is no run.
    """
    try:
        if not all((ROOT / page).is_file() for page in PAGES):
            raise InvalidValue(f"no documentation in {ROOT}: this works in a checkout only")
        given = [load(Path(argument)) for argument in arguments]
        folder = ROOT / KEPT
        if given:
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("*.json"):
                old.unlink()
        for number_, run in enumerate(given, 1):
            name = f"{number_}-{run.python.lower().replace(' ', '-')}.json"
            body = json.dumps(list(run.reports), indent=1)
            (folder / name).write_text(body + "\n", encoding="utf-8")
        runs = kept(ROOT)
        if not runs:
            raise InvalidValue(f"no run is kept in {KEPT}: name the file that "
                               "`keepwell bench --json` wrote")
        for path in write(ROOT, runs):
            print(path.relative_to(ROOT))
    except KeepwellError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


# -- tables ----------------------------------------------------------------------------------------


def _headlines(runs: Sequence[Run]) -> str:
    header = ["question", "ratio", *(run.python for run in runs), "bound"]
    lines = []
    for each in HEADLINES:
        ratio = _ratio(each.benchmark, each.ratio)
        cells = []
        for run in runs:
            value = run.ratio(each.benchmark, each.ratio)
            missed = value is not None and not each.holds(value, ratio, run.python)
            cells.append("-" if value is None else
                         each.shown(value) + (" (misses its bound)" if missed else ""))
        bound = f"{each.floors[0]:g}; {each.floors[1]:g} on 3.11" if each.floors else _bound(ratio)
        lines.append([each.asks, f"`{each.ratio}`", *cells, bound])
    return _markdown(header, lines)


def _machine(runs: Sequence[Run]) -> str:
    machine = runs[0].machine
    disk = next((row["note"] for row in runs[0].rows("append", "append_64") if "one-row" in
                 row.get("note", "")), "")
    return (f"Measured on {str(machine['date'])[:10]}: {machine['processor']}, {machine['cores']} "
            f"cores, {machine['system']}, {machine['python']}"
            + (f"; {disk}" if disk else "") + f"; load {machine['load']} at the start.")


def _rows(runs: Sequence[Run], benchmark: str, question: str) -> str:
    lines = []
    for row in runs[0].rows(benchmark, question):
        if "missing" in row:
            lines.append([row["contender"], "-", "-", row["missing"]])
        else:
            lines.append([row["contender"], f"{compact(row['per_second'])} {row['unit']}s",
                          number(row["cpu_us"]), row.get("note", "")])
    return _markdown(["", "a second", "CPU µs", "note"], lines)


def _ratios(runs: Sequence[Run], benchmark: str, name: str = "") -> str:
    lines = []
    for question in _questions(benchmark):
        for ratio in question.ratios if name in ("", question.name) else ():
            value = runs[0].ratio(benchmark, ratio.name)
            if value is not None:
                said = ratio.sentence.format(value=number(value), unit=question.unit)
                lines.append(f"- {said} (`{ratio.name}`)")
    return "\n".join(lines)


_TABLES: dict[str, Callable[..., str]] = {
    "headlines": _headlines, "machine": _machine, "rows": _rows, "ratios": _ratios,
}  # fmt: skip


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|".join("---" for _ in header)
    return "\n".join([f"| {' | '.join(header)} |", f"|{rule}|",
                      *(f"| {' | '.join(line)} |" for line in lines)])


def _bound(ratio: Ratio) -> str:
    if ratio.floor is not None:
        return f"{ratio.floor:g}"
    return f"<= {ratio.ceiling:,g}" if ratio.ceiling is not None else ""


@cache
def _questions(benchmark: str) -> Sequence[Question]:
    return catalog.questions(benchmark, Scale())


def _question(benchmark: str, name: str) -> Question:
    return next(each for each in _questions(benchmark) if each.name == name)


def _ratio(benchmark: str, name: str) -> Ratio:
    return next(ratio for each in _questions(benchmark) for ratio in each.ratios
                if ratio.name == name)


_OWN = {"question", "contender", "unit", "note", "opponent", "operations", "rounds", "per_second",
        "wall_us", "spread", "cpu_us"}  # fmt: skip


def _result(row: Mapping[str, Any]) -> Result:
    """A row as a result of one round, of which the row has the medians."""
    operations = int(row["operations"])
    figures = {name: float(value) for name, value in row.items() if name not in _OWN}
    sample = Sample(operations, row["wall_us"] * operations / 1e6,
                    row["cpu_us"] * operations / 1e6, {**figures, "cpu_us": row["cpu_us"]})
    contender = Contender(row["contender"], _not_again, operations, note=row.get("note", ""),
                          opponent=bool(row.get("opponent")))
    return Result(contender, (sample,))


def _not_again(_watch: Stopwatch, _operations: int) -> None:
    raise AssertionError("a kept run is not run again")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
