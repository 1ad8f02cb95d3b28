"""Sets a run beside an earlier one of the same machine, from the JSON that it wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepwell.actors.errors import InvalidValue
from keepwell.terminal import Style, table

from .report import Report


@dataclass(frozen=True)
class Earlier:
    """An earlier run: rates by (benchmark, question, contender), ratios by (benchmark, name)."""

    rates: Mapping[tuple[str, str, str], float]
    ratios: Mapping[tuple[str, str], float]
    date: str

    def to_text(self, report: Report, style: Style) -> str:
        """Return a table of what `report` measured now over what was measured then."""
        now = report.to_dict()
        lines: list[list[str]] = []
        for row in _rows(now):
            then = self.rates.get((report.benchmark, row["question"], row["contender"]))
            if then and "per_second" in row:
                lines.append([f"{row['question']}: {row['contender']}", "per second",
                              f"{then:,.4g}", f"{row['per_second']:,.4g}",
                              f"{row['per_second'] / then:.2f}"])
        for name, value in report.ratios().items():
            then = self.ratios.get((report.benchmark, name))
            if then:
                lines.append([name, "", f"{then:,.4g}", f"{value:,.4g}", f"{value / then:.2f}"])
        if not lines:
            return style.yellow(f"  the run of {self.date} has nothing of {report.benchmark}")
        return table(["against " + self.date, "", "then", "now", "now / then"], lines,
                     numbers=(2, 3, 4))


def load(path: Path) -> Earlier:
    """Return the run in `path`; InvalidValue if that is not what `--json` wrote."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValue(f"--compare {str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidValue(f"--compare {str(path)!r} is not JSON: {error}") from error
    reports = read if isinstance(read, list) else [read]
    try:
        return Earlier(
            {(report["benchmark"], row["question"], row["contender"]): row["per_second"]
             for report in reports for row in report["rows"] if "per_second" in row},
            {(report["benchmark"], name): value
             for report in reports for name, value in report["ratios"].items()},
            str(reports[0]["machine"]["date"]))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise InvalidValue(
            f"--compare {str(path)!r} is not a result of `keepwell bench --json`"
        ) from error


def _rows(written: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = written["rows"]
    return rows
