"""`think`: one model call inside a flow (D5, E7, E8)."""

from __future__ import annotations

import json
from typing import Any

from ..agent.model import ChatModel, ModelRequest
from ..agent.model_call import ModelCall
from ..memory.budget import Fit
from ..memory.context import ContextReport, JoinedTurns, Source, cut_context, reported
from ..memory.context_policy import ContextPolicy
from ..memory.turn import Turn, TurnCost, turn_messages
from ..stores.errors import shown
from ..stores.message import Message
from .errors import SessionDefinitionError
from .flow_run import FlowRun, StepNote
from .node import Node
from .plain_call import step_threads

MODEL_SECONDS = 120.0


class Think(Node):
    """One model call: instructions, what the policy shows, the input as user turn; gives text.

    A failed call raises ModelError. What it was shown is reported (`context_report`).
    """

    kind = "think"

    def __init__(
        self, model: ChatModel, instructions: str = "", policy: ContextPolicy | None = None
    ) -> None:
        wanted = ("complete", "stream")
        missing = [name for name in wanted if not callable(getattr(model, name, None))]
        if missing:
            raise SessionDefinitionError(f"think takes a ChatModel, not {shown(model)}")
        if not isinstance(instructions, str):
            raise SessionDefinitionError(f"instructions are a str, not {shown(instructions)}")
        policy = ContextPolicy() if policy is None else policy
        if not isinstance(policy, ContextPolicy):
            raise SessionDefinitionError(f"policy is a ContextPolicy, not {shown(policy)}")
        self.model = model
        self.instructions = instructions
        self.policy = policy

    async def run(self, value: Any, run: FlowRun) -> Any:
        """See Node."""
        question = as_user_text(value)
        messages, report = await self._shown(question, run)
        run.reports.append(report)
        request = ModelRequest(
            messages, conversation_id=run.services.conversation_id, turn_id=run.turn_id
        )
        call = ModelCall(self.model, MODEL_SECONDS)
        try:
            reply = await call.run(request)
        except BaseException:
            run.usage = run.usage + call.usage
            run.steps.append(StepNote("think", self.model.name, False))
            raise
        run.usage = run.usage + call.usage + reply.usage
        run.steps.append(StepNote("think", self.model.name, True))
        return reply.message.text

    async def _shown(
        self, question: str, run: FlowRun
    ) -> tuple[tuple[Message, ...], ContextReport]:
        policy, services = self.policy, run.services
        where: dict[str, Any] = {
            "conversation_id": services.conversation_id, "turn_id": run.turn_id,
        }  # fmt: skip
        asked: Turn = {"role": "user", "content": question}
        if not policy.reads:
            turns = [asked]
            if self.instructions:
                turns.insert(0, {"role": "system", "content": self.instructions})
            cost = TurnCost(services.count_tokens)
            report = ContextReport(
                "think", policy.scope, 1, 0, sum(map(cost, turns)), policy.max_tokens, **where
            )
            return turn_messages(turns), report
        seen = await run.transcript(policy)
        fit = await cut_context(
            _asking(seen, asked), policy, services.count_tokens, system=self.instructions or None,
            source=Source(services.conversation_id, run.epoch, run.logged),
            summaries=services.summaries, threads=step_threads,
        )  # fmt: skip
        return messages_of(fit), reported(fit, policy, by="think", **where)


def _asking(seen: JoinedTurns, asked: Turn) -> JoinedTurns:
    """The transcript with the question behind it; once, if the run's own input is the question."""
    more = list(seen._more)
    if len(more) == 1 and as_user_text(more[0].get("content")) == asked["content"]:
        more = []
    return JoinedTurns(seen._first, [*more, asked], seen._fetch)


def messages_of(fit: Fit) -> tuple[Message, ...]:
    """A cut context as the messages of a request."""
    return turn_messages(fit.shown)


def as_user_text(value: Any) -> str:
    """A value as the text of a user turn: a str as it is, else compact JSON (D5)."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
