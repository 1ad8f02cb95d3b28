"""Verdicts of a gate, decisions of a human, and how both stand in a record's mark.

A gate sees every call once and gives a verdict; a call that awaits a human is settled by a
decision. Both are frozen values with a plain form, since the log is where they live: after a
restart the gate is not asked again (HP-3), a repeated decision is recognised (HP-4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..actors.errors import InvalidValue
from .turn_errors import DecisionConflict, NotPaused

WaitKind = Literal["gate", "human", "environment"]


@dataclass(frozen=True, slots=True)
class Allow:
    """The call may run."""


@dataclass(frozen=True, slots=True)
class Deny:
    """The call is not run; the model reads `reason` as its error result."""

    reason: str = "denied"


@dataclass(frozen=True, slots=True)
class Ask:
    """The call waits for a human decision. `kind`: why it waits ("gate" when a gate asked)."""

    reason: str = ""
    kind: WaitKind = "gate"


Verdict = Allow | Deny | Ask
ALLOWED = Allow()


@dataclass(frozen=True, slots=True)
class Approve:
    """Run the call, with other `arguments` if given (they must fit the tool's schema)."""

    arguments: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """Do not run the call; the model reads `message` as the denial."""

    message: str = "rejected"


@dataclass(frozen=True, slots=True)
class Answer:
    """The human's words are the call's result; nothing is run."""

    text: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Run a call again that failed for its environment. Rule: HP-6."""


@dataclass(frozen=True, slots=True)
class Proceed:
    """Let the model see the environment error. Rule: HP-6."""


Decision = Approve | Reject | Answer | Retry | Proceed


@dataclass(frozen=True, slots=True)
class PendingCall:
    """One call that waits for a decision. `kind`: "gate", "human" or "environment"."""

    call_id: str
    name: str
    arguments: Mapping[str, object] | str
    kind: WaitKind
    reason: str


def verdict_to_plain(verdict: Verdict) -> dict[str, object]:
    """The form that stands in the assistant record's mark."""
    if isinstance(verdict, Allow):
        return {"verdict": "allowed"}
    if isinstance(verdict, Deny):
        return {"verdict": "denied", "reason": verdict.reason}
    return {"verdict": "awaiting", "reason": verdict.reason, "kind": verdict.kind}


def verdict_from_plain(data: object) -> Verdict:
    """Read `verdict_to_plain`'s form; anything unknown awaits a human rather than runs (HP-1)."""
    if not isinstance(data, Mapping):
        return Ask("unreadable verdict")
    reason = str(data.get("reason", ""))
    match data.get("verdict"):
        case "allowed":
            return ALLOWED
        case "denied":
            return Deny(reason)
        case _:
            kind = data.get("kind")
            return Ask(reason, kind if kind in ("human", "environment") else "gate")


def decision_to_plain(decision: Decision) -> dict[str, object]:
    """The form that stands in a `decision` mark."""
    match decision:
        case Approve(arguments):
            return {"approve": None if arguments is None else dict(arguments)}
        case Reject(message):
            return {"reject": message}
        case Answer(text):
            return {"answer": text}
        case Retry():
            return {"retry": True}
        case Proceed():
            return {"proceed": True}


def decision_from_plain(data: object) -> Decision | None:
    """Read `decision_to_plain`'s form; None if it is none."""
    if not isinstance(data, Mapping):
        return None
    if "approve" in data:
        arguments = data["approve"]
        return Approve(dict(arguments) if isinstance(arguments, Mapping) else None)
    if "reject" in data:
        return Reject(str(data["reject"]))
    if "answer" in data:
        return Answer(str(data["answer"]))
    if "retry" in data:
        return Retry()
    return Proceed() if "proceed" in data else None


_FITS: dict[WaitKind, tuple[type, ...]] = {
    "gate": (Approve, Reject, Answer),
    "human": (Reject, Answer),
    "environment": (Retry, Proceed),
}


def read_decision(value: object) -> Decision:
    """A decision as a caller gives it: one of the classes, or a non-empty str for `Answer`."""
    if isinstance(value, str):
        value = Answer(value)
    if not isinstance(value, Approve | Reject | Answer | Retry | Proceed):
        raise InvalidValue(
            f"not a decision: {value!r}. Pass Approve(), Reject(…), Answer(…), Retry(), "
            "Proceed(), a str, or {call_id: one of these}."
        )
    text: object = value.text if isinstance(value, Answer) else "-"
    if not (isinstance(text, str) and text.strip()):
        raise InvalidValue(f"an empty answer decides nothing: {value!r}")
    return value


def match_decisions(
    value: object,
    pending: Sequence[PendingCall],
    decided: Mapping[str, Decision],
    conversation_id: str = "",
) -> dict[str, Decision]:
    """The new decisions by call id; empty if all of them were recorded before, equally.

    `pending`: the calls that wait; `decided`: those of the same batch that have been decided.
    Raises NotPaused, InvalidValue (empty, ambiguous, unknown call, a kind that does not fit) or
    DecisionConflict; nothing has been changed then. Rule: HP-4.
    """
    if not pending and not decided:
        raise NotPaused(conversation_id)
    if isinstance(value, Mapping):
        given = {str(call_id): read_decision(one) for call_id, one in value.items()}
        if not given:
            raise InvalidValue(
                "resume({}) decides nothing: name at least one call id of "
                f"{[call.call_id for call in pending]}"
            )
    else:
        one = read_decision(value)
        if len(pending) > 1:
            raise InvalidValue(
                f"{len(pending)} calls wait: pass {{call_id: decision}} with ids of "
                f"{[call.call_id for call in pending]}"
            )
        if pending:
            given = {pending[0].call_id: one}
        elif any(one == earlier for earlier in decided.values()):
            return {}
        elif len(decided) == 1:
            call_id, earlier = next(iter(decided.items()))
            raise DecisionConflict(call_id, earlier, one)
        else:
            raise NotPaused(conversation_id)
    waiting = {call.call_id: call for call in pending}
    fresh: dict[str, Decision] = {}
    for call_id, decision in given.items():
        if call_id in waiting:
            kind = waiting[call_id].kind
            if not isinstance(decision, _FITS[kind]):
                names = " or ".join(cls.__name__ for cls in _FITS[kind])
                raise InvalidValue(
                    f"{decision!r} does not fit call {call_id!r}, which waits for "
                    f"{'a human' if kind != 'environment' else 'its environment'}: "
                    f"pass {names}"
                )
            fresh[call_id] = decision
        elif call_id in decided:
            if decided[call_id] != decision:
                raise DecisionConflict(call_id, decided[call_id], decision)
        elif not pending:
            raise NotPaused(conversation_id)
        else:
            raise InvalidValue(f"no call {call_id!r} waits; waiting: {sorted(waiting)}")
    return fresh
