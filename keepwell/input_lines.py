"""Lines of standard input for a program on an event loop, which can leave while it waits for one.

A thread in `input()` cannot be called back: a program that ends by Ctrl+C would wait for it until
somebody presses Enter. So a thread waits for input or for being woken, whichever comes first.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import AsyncIterator

_CHUNK = 65536


async def input_lines(prompt: str = "") -> AsyncIterator[str]:
    """The lines that are not blank, stripped; `prompt` is shown before each. Ends with the input.

    On a terminal the system edits the line (backspace, Ctrl+U); Ctrl+D ends the input. Close the
    iterator, or cancel whoever waits for it, at any time.
    """
    woken, wake = os.pipe()
    reading: asyncio.Future[bytes] | None = None
    source = sys.stdin.fileno()
    rest, ended = b"", False
    try:
        while not ended:
            sys.stdout.write(prompt)
            sys.stdout.flush()
            while b"\n" not in rest and not ended:
                reading = asyncio.ensure_future(asyncio.to_thread(_read, source, woken))
                chunk = await asyncio.shield(reading)
                reading = None
                rest, ended = rest + chunk, not chunk
            line, _, rest = rest.partition(b"\n")
            text = line.decode(sys.stdin.encoding or "utf-8", "replace").strip()
            if text:
                yield text
        for line in rest.split(b"\n"):
            if text := line.decode(sys.stdin.encoding or "utf-8", "replace").strip():
                yield text
    finally:
        os.close(wake)
        if reading is None:
            os.close(woken)
        else:
            reading.add_done_callback(lambda _: os.close(woken))


def _read(source: int, woken: int) -> bytes:
    """What has come, b"" at the end of the input or when the other end of `woken` is closed."""
    ready, _, _ = select.select([source, woken], [], [])
    return b"" if woken in ready else os.read(source, _CHUNK)
