"""What a caller of an agent may be told instead of a result (branch `RequestError`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..actors.errors import RequestError

if TYPE_CHECKING:
    from .kernel import KernelResult
    from .result import TurnResult


class Busy(RequestError):
    """The conversation is busy and `on_busy`, `max_queue` or `max_active` leaves no room.

    `turn_id`: the turn that runs, of whichever agent; "" if a kernel or a session is at work.
    Rules: BZ-1, BZ-2, FL-2.
    """

    def __init__(self, conversation_id: str, turn_id: str, why: str) -> None:
        super().__init__(
            f"conversation {conversation_id!r} is busy: {why}. Wait for the running "
            "turn, or choose another on_busy.",
            code="busy",
        )
        self.conversation_id, self.turn_id = conversation_id, turn_id


class Superseded(RequestError):
    """A newer message took its place (`on_busy` "interrupt" or "latest"). Rules: BZ-3, BZ-4."""

    def __init__(self, turn_id: str, by: str) -> None:
        super().__init__(f"turn {turn_id!r} gave way to the newer turn {by!r}", code="superseded")
        self.turn_id, self.by = turn_id, by


class TurnConflict(RequestError):
    """The turn id is taken by another input, or by an unfinished turn that is not last. AG-6."""

    def __init__(self, turn_id: str, why: str) -> None:
        super().__init__(
            f"turn {turn_id!r} cannot be run: {why}. Use a new turn_id.", code="conflict"
        )
        self.turn_id = turn_id


class TurnCancelled(RequestError):
    """The turn was cancelled; what it had stored stays, with every call answered. Rule: CN-1."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id!r} was cancelled", code="cancelled")
        self.turn_id = turn_id


class TurnNotRunning(RequestError):
    """`cancel` or a re-attaching `stream` named a turn that is not running. Rule: CN-1."""

    def __init__(self, turn_id: str | None) -> None:
        what = "no turn is running" if turn_id is None else f"turn {turn_id!r} is not running"
        super().__init__(what, code="not_running")
        self.turn_id = turn_id


class NotPaused(RequestError):
    """`resume` was called, and nothing waits for a decision. Rule: HP-4."""

    def __init__(self, conversation_id: str) -> None:
        super().__init__(
            f"conversation {conversation_id!r} has no call that waits for a decision",
            code="not_paused",
        )
        self.conversation_id = conversation_id


class DecisionConflict(RequestError):
    """The call has been decided, otherwise. The first decision stands. Rule: HP-4."""

    def __init__(self, call_id: str, recorded: object, given: object) -> None:
        super().__init__(
            f"call {call_id!r} was decided as {recorded!r}; {given!r} comes too late",
            code="conflict",
        )
        self.call_id, self.recorded, self.given = call_id, recorded, given


class ConversationCleared(RequestError):
    """The conversation was cleared while the turn ran; nothing is stored after. AG-10, RS-8."""

    def __init__(self, conversation_id: str, turn_id: str) -> None:
        super().__init__(
            f"conversation {conversation_id!r} was cleared while turn {turn_id!r} ran: "
            "run it again if it is still wanted",
            code="cleared",
        )
        self.conversation_id, self.turn_id = conversation_id, turn_id


class LimitReached(RequestError):
    """The turn used up `limit` ("max_rounds", "max_tool_calls", "turn_timeout",
    "max_turn_tokens", "max_turn_cost"), or the conversation did ("max_conversation_tokens",
    "max_conversation_cost").

    `result` holds what the turn did so far; the history is valid, the next message is accepted.
    Rule: LM-1.
    """

    def __init__(self, limit: str, result: TurnResult | KernelResult) -> None:
        # Another message to a conversation that is at its limit would end at it, too.
        of_conversation = limit.startswith("max_conversation")
        otherwise = "clear the conversation" if of_conversation else "send a new message"
        super().__init__(
            f"turn {result.turn_id!r} ended at its limit: {limit}. Raise it in AgentSpec, "
            f"or {otherwise}.",
            code="limit",
        )
        self.limit, self.result = limit, result
