"""Prints what long tests count: `record_property("counts", "…")` becomes a line of the summary."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    lines = [
        str(value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "counts"
    ]
    if lines:
        terminalreporter.section("counts")
        for line in lines:
            terminalreporter.write_line(line)
