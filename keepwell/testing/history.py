"""Records what clients of a store did and saw, and finds what no correct store can show (RW-4).

Each add has texts that nobody else uses. Then a read tells by itself which batches it saw, and a
violation needs no knowledge of the store: only when each call began and ended, and its result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..actors.errors import RequestError


@dataclass(slots=True)
class Call:
    """One call of a client: `outcome` is "done", "refused" or "unknown" (nobody can tell)."""

    kind: str
    conversation_id: str
    start: float
    end: float = float("inf")
    outcome: str = "unknown"
    texts: tuple[str, ...] = ()
    first_seq: int = 0
    epoch: int = -1

    def __str__(self) -> str:
        what = f"{self.texts[0]}…{self.texts[-1]}" if self.texts else "nothing"
        return (f"{self.kind} of {what} in {self.conversation_id!r} (epoch {self.epoch}, "
                f"{self.start:.6f} to {self.end:.6f}, {self.outcome})")


@dataclass
class History:
    """Calls through `add`, `read` and `clear` of any store, from any task or thread."""

    store: Any
    calls: list[Call] = field(default_factory=list)

    async def add(self, conversation_id: str, texts: Sequence[str], **how: Any) -> None:
        """Add user messages with these texts, which must be new. Errors are noted, not raised."""
        call = self._begin("add", conversation_id)
        call.texts = tuple(texts)
        try:
            added = await self.store.add(
                conversation_id, [{"role": "user", "content": text} for text in texts], **how)
        except RequestError:
            call.outcome = "refused"
        except Exception:
            return  # unknown: it may show up later, whole, or never
        else:
            call.outcome = "done"
            call.first_seq, call.epoch = added.first_seq, added.epoch
        call.end = time.monotonic()

    async def read(self, conversation_id: str) -> None:
        """Read the whole log."""
        call = self._begin("read", conversation_id)
        try:
            log = await self.store.read(conversation_id)
            texts = tuple(record.message.content for record in log)
        except Exception:
            self.calls.remove(call)  # nothing was seen
            return
        call.texts, call.epoch, call.outcome = texts, log.epoch, "done"
        call.end = time.monotonic()

    async def clear(self, conversation_id: str) -> None:
        """Clear the conversation."""
        call = self._begin("clear", conversation_id)
        try:
            await self.store.clear(conversation_id)
        except Exception:
            return
        call.outcome, call.end = "done", time.monotonic()

    def _begin(self, kind: str, conversation_id: str) -> Call:
        call = Call(kind, conversation_id, time.monotonic())
        self.calls.append(call)
        return call

    def violations(self) -> list[str]:
        """What contradicts RW-1…3, CS-4 or CS-17; empty for a correct store."""
        by_id: dict[str, list[Call]] = {}
        for call in self.calls:
            by_id.setdefault(call.conversation_id, []).append(call)
        return [problem for calls in by_id.values() for problem in _check(calls)]


def _check(calls: list[Call]) -> list[str]:
    adds = [call for call in calls if call.kind == "add" and call.texts]
    reads = sorted((call for call in calls if call.kind == "read"), key=lambda call: call.start)
    clears = [call for call in calls if call.kind == "clear" and call.outcome == "done"]
    problems: list[str] = []
    batch_of = {text: add for add in adds for text in add.texts}
    for read in reads:
        problems += _whole_batches(read, batch_of)
        problems += _sees(read, adds)
    for earlier, later in pairwise(reads):
        problems += _grows(earlier, later)
    for read in reads:
        for other in reads:
            if other.end < read.start:
                problems += _grows(other, read)
        for clear in clears:
            if clear.end < read.start:
                problems += [f"{read} saw an epoch from before {clear}" for seen in adds + reads
                             if seen.end < clear.start and seen.epoch >= read.epoch][:1]
    return problems


def _whole_batches(read: Call, batch_of: dict[str, Call]) -> list[str]:
    """No text that nobody added, none twice, no refused one, batches whole and at their seqs."""
    if len(set(read.texts)) != len(read.texts):
        return [f"{read} saw a record twice"]
    place = 0
    while place < len(read.texts):
        add = batch_of.get(read.texts[place])
        if add is None:
            return [f"{read} saw {read.texts[place]!r}, which nobody added"]
        if add.outcome == "refused":
            return [f"{read} saw what was refused: {add}"]
        if read.texts[place:place + len(add.texts)] != add.texts:
            return [f"{read} saw a part of a batch: {add}"]
        if add.outcome == "done" and (add.first_seq, add.epoch) != (place + 1, read.epoch):
            return [f"{read} saw at {place + 1} what is at {add.first_seq}: {add}"]
        place += len(add.texts)
    return []


def _sees(read: Call, adds: list[Call]) -> list[str]:
    """RW-1: what was acknowledged before the read began is in it, unless its epoch is over."""
    seen = set(read.texts)
    return [f"{read} did not see {add}" for add in adds
            if add.outcome == "done" and add.end < read.start and (
                read.epoch < add.epoch or (read.epoch == add.epoch and add.texts[0] not in seen))]


def _grows(earlier: Call, later: Call) -> list[str]:
    """RW-2: reads of an epoch are prefixes of each other; one that begins later sees no less."""
    problems = []
    if earlier.epoch == later.epoch:
        short, long = sorted((earlier.texts, later.texts), key=len)
        if long[:len(short)] != short:
            problems.append(f"{later} and {earlier} contradict each other")
    if earlier.end < later.start and (later.epoch, len(later.texts)) < (earlier.epoch,
                                                                      len(earlier.texts)):
        problems.append(f"{later} saw less than {earlier}")
    return problems
