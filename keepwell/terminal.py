"""What the command line prints with: emphasis that respects NO_COLOR, and plain text tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


@dataclass(frozen=True)
class Style:
    """Wraps text in terminal escapes, or leaves it alone when `enabled` is false.

    The text comes back unchanged for pipes and files, for `TERM=dumb` and when NO_COLOR is set
    to anything but the empty string (https://no-color.org).
    """

    enabled: bool

    def bold(self, text: str) -> str:
        """Emphasise `text`."""
        return self._wrap("bold", text)

    def dim(self, text: str) -> str:
        """Push `text` into the background."""
        return self._wrap("dim", text)

    def red(self, text: str) -> str:
        """Mark `text` as a failure."""
        return self._wrap("red", text)

    def green(self, text: str) -> str:
        """Mark `text` as a success."""
        return self._wrap("green", text)

    def yellow(self, text: str) -> str:
        """Mark `text` as a warning."""
        return self._wrap("yellow", text)

    def cyan(self, text: str) -> str:
        """Mark `text` as a name."""
        return self._wrap("cyan", text)

    def _wrap(self, code: str, text: str) -> str:
        return f"\x1b[{_CODES[code]}m{text}\x1b[0m" if self.enabled and text else text


def style_for(stream: TextIO | None = None) -> Style:
    """Return the style for `stream` (standard output if None), see `Style`."""
    to = sys.stdout if stream is None else stream
    return Style(
        to.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()
) -> str:
    """Lay out `rows` under `header`, two spaces between columns, no trailing spaces or newline.

    Columns whose index is in `numbers` are aligned to the right. Every row has as many cells as
    the header; ValueError otherwise.
    """
    lines = [header, *rows]
    for row in lines:
        if len(row) != len(header):
            raise ValueError(f"row {list(row)!r} has {len(row)} cells, the header {len(header)}")
    widths = [max(len(row[column]) for row in lines) for column in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    right = set(numbers)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in lines
    )
