"""What a conversation has used so far, kept in its log (US-1).

The mark that ends a turn carries `total`: the usage of all turns of the conversation up to it,
since it was begun or cleared. So the sum is one record away, and as durable as the turn. Records
behind the newest total (of a turn that runs, of a kernel or a session) are added to it; a log that
has no total yet, because it was written by an older version, is added up once.
"""

from __future__ import annotations

from collections.abc import Mapping, Reversible
from typing import TYPE_CHECKING

from .model import Usage

if TYPE_CHECKING:
    from ..stores.record import Record


def conversation_usage(log: Reversible[Record]) -> Usage:
    """The usage of all turns of a log that was read with marks; reads back to the newest total."""
    used = Usage()
    for record in reversed(log):
        mark = record.mark
        if not mark:
            continue
        total = mark.get("total")
        if isinstance(total, Mapping):
            return Usage.from_dict(total) + used
        usage = mark.get("usage")
        if isinstance(usage, Mapping):
            used = used + Usage.from_dict(usage)
    return used
