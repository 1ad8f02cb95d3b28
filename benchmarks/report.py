"""A benchmark's results as a table for the eye and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keepwell.terminal import Style, table

from .benchmark import Question, Ratio, Result, Results


@dataclass(frozen=True)
class Report:
    """The results of one benchmark, question by question."""

    benchmark: str
    title: str
    machine: dict[str, object]
    answers: Sequence[tuple[Question, Results]]

    @property
    def failed(self) -> bool:
        """True if a contender that is installed did not get through its rounds."""
        return any(r.failed for _, results in self.answers for r in results.values())

    def ratios(self) -> dict[str, float]:
        """Return every ratio whose contenders ran, by name."""
        return {ratio.name: value for _, ratio, value in self.answered() if value is not None}

    def to_dict(self) -> dict[str, object]:
        """Return `{"benchmark", "machine", "rows", "ratios"}`, ready for JSON.

        Rates are per second, times per operation in microseconds, medians over the rounds;
        `spread` is (slowest - fastest) / median. A contender that did not run has `missing`.
        """
        return {
            "benchmark": self.benchmark,
            "machine": self.machine,
            "rows": [
                _row(question, result)
                for question, results in self.answers
                for result in results.values()
            ],
            "ratios": {name: _significant(value) for name, value in self.ratios().items()},
        }

    def to_text(self, style: Style) -> str:
        """Return the table, the ratios and what is missing, for the terminal."""
        lines: list[list[str]] = []
        missing: list[str] = []
        for question, results in self.answers:
            label = question.name
            for result in results.values():
                if result.samples:
                    lines.append([label, *cells(question, result)])
                    label = ""
                else:
                    missing.append(f"{question.name}: {result.contender.name} is not in the table, "
                                   f"{result.missing}")
        header = ["question", "contender", "per second", "wall µs", "spread", "CPU µs", "also"]
        parts = [style.bold(f"{self.benchmark}: {self.title}"),
                 table(header, lines, numbers=(2, 3, 4, 5))]
        parts += [style.yellow(line) for line in missing]
        parts += [_ratio_line(ratio, value, style) for _, ratio, value in self.answered()]
        return "\n".join(parts)

    def answered(self) -> list[tuple[Question, Ratio, float | None]]:
        """Return each ratio with its question and its value, None where it was not measured."""
        return [
            (question, ratio, ratio.value(results))
            for question, results in self.answers
            for ratio in question.ratios
        ]


def _row(question: Question, result: Result) -> dict[str, object]:
    row: dict[str, object] = {
        "question": question.name,
        "contender": result.contender.name,
        "unit": question.unit,
    }
    if result.contender.opponent:
        row["opponent"] = True
    if result.contender.note:
        row["note"] = result.contender.note
    if not result.samples:
        return {**row, "missing": result.missing}
    wall = result.median(lambda sample: sample.wall_us)
    return {
        **row,
        "operations": result.contender.operations,
        "rounds": len(result.samples),
        "per_second": _significant(1e6 / max(wall, 1e-9)),
        "wall_us": _significant(wall),
        "spread": round(result.spread, 3),
        "cpu_us": _significant(result.median(lambda sample: sample.cpu_us)),
        **{name: _significant(value) for name, value in result.figures().items()},
    }


def cells(question: Question, result: Result, *, note: bool = True) -> list[str]:
    """Return contender, rate, wall and spread, CPU and further figures of a result, as text."""
    wall = result.median(lambda sample: sample.wall_us)
    also = [f"{name} {number(value)}" for name, value in result.figures().items()]
    if note and result.contender.note:
        also.append(result.contender.note)
    return [
        result.contender.name,
        f"{number(1e6 / max(wall, 1e-9))} {question.unit}s",
        number(wall),
        f"{result.spread:.0%}",
        number(result.median(lambda sample: sample.cpu_us)),
        ", ".join(also),
    ]


def _ratio_line(ratio: Ratio, value: float | None, style: Style) -> str:
    bounds = [f"at least {ratio.floor:g}"] if ratio.floor is not None else []
    bounds += [f"at most {ratio.ceiling:g}"] if ratio.ceiling is not None else []
    aim = f"  ({', '.join(bounds)})" if bounds else ""
    if value is None:
        return style.yellow(f"  {ratio.name}: not measured{aim}")
    line = f"  {ratio.name}: {number(value)}{aim}"
    if not bounds:
        return line
    return style.green(line + " ok") if ratio.holds(value) else style.red(line + " MISSED")


def number(value: float) -> str:
    """Return `value` with three significant digits, or whole from 1,000 on."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _significant(value: float) -> float:
    return float(f"{value:.4g}")


def compact(value: float) -> str:
    """Return `value` in three digits with k or M, for the little room beside a bar."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"
