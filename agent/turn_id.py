"""Ids of turns that nobody has named: unique for ever, and cheap."""

from __future__ import annotations

import itertools
import os
import secrets

_prefix = secrets.token_hex(10)
_numbers = itertools.count(1)


def new_turn_id() -> str:
    """A random prefix of this process (80 bits) and a count: no system call for each turn."""
    return f"{_prefix}{next(_numbers):x}"


def _after_fork() -> None:
    global _prefix
    _prefix = secrets.token_hex(10)


os.register_at_fork(after_in_child=_after_fork)
