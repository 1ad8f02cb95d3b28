"""How a turn ended, and what is therefore committed: one pure table (A9…A20, B3…B5, B15, B16, B20).

No clock, no I/O, no actor: `settle` takes the state before the turn, the message, and how the turn
ended, and gives the state after it with all that is written in the same transaction.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..actors.errors import Unavailable
from ..stores.plain import Plain
from ..stores.session_errors import SessionClosed
from ..stores.session_event import InboxMessage, SessionEvent
from ..stores.session_state import Letter, LogRecords, Outcome, SessionState, TurnWrites
from .errors import SessionTurnError, error_text

TRACEBACK_CHARACTERS = 20_000


@dataclass(frozen=True, slots=True)
class Good:
    """The turn's code came to its end: the new carrier, and the emits in order.

    `closes`: the session ends with this turn, for this reason. `log`: what it adds to its
    conversation.
    """

    carrier: Plain
    emits: Sequence[tuple[str, Plain]] = ()
    closes: str | None = None
    explicit: bool = True
    log: LogRecords | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The turn's code raised, or its result could not be used."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Stopped:
    """The turn's code raised SessionClosed (A20)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The turn was cancelled from outside (B20); `closes`: because the session closes (B21)."""

    reason: str
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Crashed:
    """The turn has died without outcome too often; it is not run again (B18)."""

    deliveries: int


TurnResult = Good | Failed | Stopped | Cancelled | Crashed


@dataclass(frozen=True, slots=True)
class Settled:
    """What is committed for a turn. `fatal`: the error that ends the session, if there is one."""

    state: SessionState
    writes: TurnWrites
    outcome: Outcome
    outputs: tuple[Plain, ...] = ()
    error: str | None = None
    fatal: BaseException | None = None
    events: tuple[SessionEvent, ...] = field(default=())

    @property
    def closed(self) -> bool:
        """Whether the session ends with this turn."""
        return self.writes.closes is not None


@dataclass(frozen=True, slots=True)
class Rules:
    """`out_channel`: its payloads are a turn's outputs. `max_errors`: B16, None for no limit."""

    out_channel: str
    max_errors: int | None = 3


def settle(
    state: SessionState, message: InboxMessage, result: TurnResult, rules: Rules, epoch: int
) -> Settled:
    """What to commit when the turn of `message`, begun in `state`, has ended with `result`."""
    turn = state.turn + 1
    events = [
        SessionEvent("turn_started", state.position + 1, turn, message.channel, message.seq)
    ]
    outcome: Outcome
    closes: str | None = None
    match result:
        case Good():
            return _good(state, message, result, rules, epoch, events)
        case Stopped(reason):
            after = _after(state, state.carrier, events, errors=state.consecutive_errors)
            writes = _writes(epoch, message, "closed", events, error=reason, closes=reason)
            return Settled(after, writes, "closed", error=reason, events=tuple(events))
        case Cancelled(reason, ends):
            closes = "closed" if ends else None
            outcome, errors, fatal = "cancelled", state.consecutive_errors, None
            text, trace, letter = reason, None, "cancelled"
        case Crashed(deliveries):
            outcome, errors, fatal = "failed", state.consecutive_errors, None
            text, letter = f"crashed: died {deliveries} times without outcome", "crashed"
            trace = None
        case Failed(error):
            outcome, letter, text, trace = "failed", "failed", error_text(error), trace_of(error)
            outage = isinstance(error, Unavailable)
            errors = state.consecutive_errors + (0 if outage else 1)
            fatal = error if _is_fatal(error, errors, rules.max_errors, outage=outage) else None
    events.append(
        SessionEvent("error", state.position + 2, turn, message.channel, message.seq, reason=text,
                     fatal=fatal is not None)
    )  # fmt: skip
    if fatal is None:
        events.append(
            SessionEvent("turn_done", state.position + 3, turn, message.channel, message.seq)
        )
    after = _after(state, state.carrier, events, errors=errors)
    writes = _writes(
        epoch, message, outcome, events, error=text, letter=Letter(letter, text, trace),
        closes=closes if fatal is None else text, explicit=fatal is not None,
    )  # fmt: skip
    return Settled(after, writes, outcome, (), text, fatal, tuple(events))


def _good(
    state: SessionState, message: InboxMessage, result: Good, rules: Rules, epoch: int,
    events: list[SessionEvent],
) -> Settled:  # fmt: skip
    turn = state.turn + 1
    sequences = dict(state.sequences)
    for channel, payload in result.emits:
        sequences[channel] = sequences.get(channel, 0) + 1
        position = state.position + 1 + len(events)
        events.append(SessionEvent("emit", position, turn, channel, sequences[channel], payload))
    position = state.position + 1 + len(events)
    events.append(SessionEvent("turn_done", position, turn, message.channel, message.seq))
    outputs = tuple(payload for channel, payload in result.emits if channel == rules.out_channel)
    outcome: Outcome = "done" if result.closes is None else "closed"
    after = _after(state, result.carrier, events, errors=0, sequences=sequences)
    writes = _writes(
        epoch, message, outcome, events, outputs=outputs, closes=result.closes, log=result.log,
        explicit=result.explicit,
    )  # fmt: skip
    return Settled(after, writes, outcome, outputs, events=tuple(events))


def _is_fatal(error: BaseException, errors: int, limit: int | None, *, outage: bool) -> bool:
    if isinstance(error, SessionTurnError) and error.fatal:
        return True
    return limit is not None and not outage and errors >= limit


def _after(
    state: SessionState, carrier: Plain, events: Sequence[SessionEvent], *, errors: int,
    sequences: Mapping[str, int] | None = None,
) -> SessionState:  # fmt: skip
    return SessionState(
        carrier, state.turn + 1, state.position + len(events),
        state.sequences if sequences is None else sequences, errors,
    )  # fmt: skip


def _writes(
    epoch: int, message: InboxMessage, outcome: Outcome, events: Sequence[SessionEvent], *,
    outputs: tuple[Plain, ...] = (), error: str | None = None, letter: Letter | None = None,
    closes: str | None = None, log: LogRecords | None = None, explicit: bool = True,
) -> TurnWrites:  # fmt: skip
    return TurnWrites(
        epoch, message.order, outcome, outputs, error, tuple(events), letter, log, closes, explicit
    )


def result_of(error: BaseException) -> TurnResult:
    """How a turn ended whose code raised: SessionClosed stops the session, else it failed."""
    if isinstance(error, SessionClosed):
        return Stopped(error.reason)
    return Failed(error)


def trace_of(error: BaseException) -> str:
    """The traceback as plain text, its last 20,000 characters."""
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return "".join(lines)[-TRACEBACK_CHARACTERS:].encode("utf-8", "replace").decode()
