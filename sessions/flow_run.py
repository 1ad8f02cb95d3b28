"""One run of a flow: its surroundings, its trace, what it has cost (E1, F13a)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..actors.errors import RequestError
from ..agent.model import Usage
from ..memory.context import ContextReport, JoinedTurns
from ..memory.context_policy import ContextPolicy
from ..memory.transcript import TraceEntry, conversation_transcript, transcript_for
from ..memory.turn import Turn
from ..stores.plain import NotPlain, canonical_json, copy_plain
from .errors import error_text
from .flow_services import INLINE_BYTES, FlowServices
from .turn_context import Turn as RunningTurn


class StepNote(NamedTuple):
    """One step as a compressed trace shows it: no arguments, contents or error texts (D7)."""

    kind: str
    name: str
    ok: bool


class FlowRun:
    """What the nodes of a running flow share.

    `message`: what `recv` gives. `base`: turns of whoever called this flow that it may read (D10).
    `trace` has an entry for each call and child; `steps` one for each leaf, for compressed traces.
    """

    def __init__(
        self,
        services: FlowServices,
        value: Any,
        *,
        turn: RunningTurn | None = None,
        message: Any = None,
        base: Sequence[Turn] | None = None,
        turn_id: str = "",
    ) -> None:
        self.services = services
        self.input = value
        self.turn = turn
        self.message = message
        self.turn_id = turn.turn_id if turn is not None else turn_id
        self.trace: list[TraceEntry] = []
        self.steps: list[StepNote] = []
        self.reports: list[ContextReport] = []
        self.usage = Usage()
        self.epoch = 0
        """The epoch of the conversation's log as it was last read."""
        self.began_in: int | None = None
        """Its epoch when the turn began: what is added later is for that one only."""
        self.logged = 0
        self.answer: list[Turn] | None = None
        """The transcript of an agent that ran as this child."""
        self._base = base
        self._numbers = [0]

    def branch(self) -> FlowRun:
        """A run for one branch of a par or race: same surroundings, a trace of its own."""
        other = FlowRun.__new__(FlowRun)
        other.__dict__.update(self.__dict__)
        other.trace, other.steps, other.reports = list(self.trace), [], []
        other.usage = Usage()
        return other

    def join(self, branch: FlowRun, before: int) -> None:
        """Take over what a branch has done; `before` is how long the trace was when it began."""
        self.trace += branch.trace[before:]
        self.steps += branch.steps
        self.reports += branch.reports
        self.usage = self.usage + branch.usage

    def child(self, value: Any, base: Sequence[Turn] | None, number: int) -> FlowRun:
        """A run behind the firewall: it sees its input, and `base` if that is given (D9, D10)."""
        services = FlowServices(
            conversation_id=self.services.conversation_id, tenant=self.services.tenant,
            count_tokens=self.services.count_tokens, blobs=self.services.blobs,
            run_agent=self.services.run_agent,
        )  # fmt: skip
        return FlowRun(services, value, base=base or (), turn_id=f"{self.turn_id}/sub/{number}")

    def next_number(self) -> int:
        """A number for the next call, equal in every run of a turn that goes the same way."""
        self._numbers[0] += 1
        return self._numbers[0]

    # -- the trace -----------------------------------------------------------------------------

    async def note(
        self, decision: str, ref: str, call_id: str, arguments: Any, output: Any,
        error: BaseException | None = None, step: str | None = None,
    ) -> None:  # fmt: skip
        """Note a call or child with its result, for transcripts; large outputs go to blobs (E5)."""
        if error is not None:
            output = {"error": error_text(error)}
        shown, output_ref = await self._kept(output)
        kept_arguments, _ = await self._kept(arguments, inline=True)
        self.trace.append(
            TraceEntry(
                decision, ref, call_id, kept_arguments, None, output_ref, shown,
                output_ref is None, step,
            )
        )  # fmt: skip
        self.steps.append(StepNote(decision, ref, error is None))

    async def _kept(self, value: Any, *, inline: bool = False) -> tuple[Any, str | None]:
        try:
            plain = copy_plain(value)
        except NotPlain:
            return repr(value)[:2_000], None
        if inline or len(canonical_json(plain)) <= INLINE_BYTES:
            return plain, None
        return None, await self.services.blobs.put_blob(self.services.tenant, plain)

    # -- transcripts ---------------------------------------------------------------------------

    async def transcript(self, policy: ContextPolicy) -> JoinedTurns:
        """What a reading leaf sees: the conversation, then this run so far (E7)."""
        earlier: Sequence[Turn] = self._base if self._base is not None else ()
        if self._base is None and self.services.conversation is not None:
            log, self.epoch = await self.services.conversation()
            earlier = conversation_transcript(log, policy)
        self.logged = len(earlier)
        given = self.message if self.turn is not None else self.input
        return JoinedTurns(
            earlier, transcript_for(self, policy, input=_as_text(given)), self.services.fetch
        )

    def own_transcript(self) -> list[Turn]:
        """The turns of this run alone, for a child's blob (D8)."""
        everything = ContextPolicy("whole_session", 1)
        return transcript_for(self, everything, input=_as_text(self.input))

    # -- the session ---------------------------------------------------------------------------

    @property
    def session_turn(self) -> RunningTurn:
        """The session's turn. Raises RequestError for recv and emit outside of one."""
        if self.turn is None:
            raise RequestError("recv and emit belong into a session's flow: this one has no turn")
        return self.turn


def _as_text(value: Any) -> Any:
    try:
        return copy_plain(value)
    except NotPlain:
        return repr(value)[:2_000]
