"""`sub`: a child flow or agent behind a firewall (D6…D11)."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..agent.spec import AgentSpec
from ..memory.context import JoinedTurns, Source, cut_context, reported
from ..memory.context_policy import ContextPolicy
from ..memory.turn import Turn
from ..stores.errors import shown
from ..stores.plain import copy_plain
from .errors import SessionDefinitionError, SubFailed
from .flow_run import FlowRun
from .flow_services import registered
from .flow_think import as_user_text
from .node import Node
from .payload_type import payload_check
from .plain_call import step_threads
from .turn_context import enter_turn

SummaryPolicy = Literal["result_only", "compressed_trace", "full_child_ref"]
SUMMARY_POLICIES: Final = ("result_only", "compressed_trace", "full_child_ref")

TRACE_STEPS: Final = 50
"""Steps of a child that a compressed trace shows (D7)."""


@dataclass(frozen=True, slots=True)
class SubContract:
    """What a child gives its parent.

    summary_policy: "result_only" the child's value; "compressed_trace" also what its first 50 steps
    were, without their contents; "full_child_ref" also a blob of its transcript. result_schema: a
    type or JSON Schema that the value must match, else the child has failed. Rules: D6…D8, D11.
    """

    summary_policy: SummaryPolicy = "result_only"
    result_schema: object = None

    def __post_init__(self) -> None:
        if self.summary_policy not in SUMMARY_POLICIES:
            raise SessionDefinitionError(
                f"summary_policy must be one of {', '.join(SUMMARY_POLICIES)}, not "
                f"{shown(self.summary_policy)}"
            )
        payload_check(self.result_schema)


class Sub(Node):
    """A child: it sees its input, and with a reading policy what its parent may see, read-only.

    Nothing of it reaches its parent but what the contract says, its token usage, and, if it fails,
    class and text of the error (SubFailed). Its nodes are not its parent's: `children` is empty.
    """

    kind = "sub"

    def __init__(
        self,
        child: Node | str | AgentSpec,
        contract: SubContract | None = None,
        policy: ContextPolicy | None = None,
    ) -> None:
        if not isinstance(child, Node | str | AgentSpec):
            raise SessionDefinitionError(
                "sub takes a flow, the name of a registered one, or an AgentSpec, not "
                f"{shown(child)}"
            )
        contract = SubContract() if contract is None else contract
        policy = ContextPolicy() if policy is None else policy
        if not isinstance(contract, SubContract):
            raise SessionDefinitionError(f"contract is a SubContract, not {shown(contract)}")
        if not isinstance(policy, ContextPolicy):
            raise SessionDefinitionError(f"policy is a ContextPolicy, not {shown(policy)}")
        self.child = child
        self.contract = contract
        self.policy = policy
        self._check = payload_check(contract.result_schema)

    @property
    def name(self) -> str:
        """What the child is called in transcripts, traces and errors."""
        child = self.child
        if isinstance(child, str):
            return child
        return child.name if isinstance(child, AgentSpec) else child.kind

    async def run(self, value: Any, run: FlowRun) -> Any:
        """See Node."""
        number = run.next_number()
        call_id = f"sub_{number}"
        try:
            base = await self._base(run)
            inner = run.child(value, base, number)
            try:
                result = await self._result(inner, value)
            finally:
                run.usage = run.usage + inner.usage
            given = await self._given(inner, result)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            failure = SubFailed(self.name, *_told(error))
            await run.note("sub", self.name, call_id, _arguments(value), None, failure)
            raise failure from None  # the child's own traceback stays behind the firewall
        await run.note("sub", self.name, call_id, _arguments(value), given)
        return given

    async def _base(self, run: FlowRun) -> list[Turn]:
        if not self.policy.reads:
            return []
        services = run.services
        turns = await run.transcript(self.policy)
        fit = await cut_context(
            JoinedTurns(turns), self.policy, services.count_tokens,
            source=Source(services.conversation_id, run.epoch, run.logged),
            summaries=services.summaries, threads=step_threads,
        )  # fmt: skip
        run.reports.append(
            reported(fit, self.policy, by=self.name, conversation_id=services.conversation_id,
                     turn_id=run.turn_id)
        )  # fmt: skip
        return fit.shown

    async def _result(self, inner: FlowRun, value: Any) -> Any:
        child = registered(self.child) if isinstance(self.child, str) else self.child
        if child is None:
            raise SessionDefinitionError(f"no flow is registered as {self.child!r}")
        if isinstance(child, AgentSpec):
            answer = await inner.services.run_agent(
                child, as_user_text(value), inner.turn_id, inner._base or ()
            )
            inner.usage = inner.usage + answer.usage
            inner.answer = answer.transcript
            return answer.text
        # A task of its own: what the child sets in context variables stays there.
        context = contextvars.copy_context()
        context.run(enter_turn, None)
        work = _guarded(child, value, inner)
        task = asyncio.get_running_loop().create_task(work, context=context)
        try:
            result, error = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        if error is not None:
            raise error
        return result

    async def _given(self, inner: FlowRun, result: Any) -> Any:
        if self.contract.result_schema is not None:
            problem = self._check(copy_plain(result))
            if problem is not None:
                raise ValueError(f"result_schema: {problem}")
        policy = self.contract.summary_policy
        if policy == "compressed_trace":
            shown_steps = inner.steps[:TRACE_STEPS]
            return {
                "result": result,
                "trace": [step._asdict() for step in shown_steps],
                "omitted": len(inner.steps) - len(shown_steps),
            }
        if policy == "full_child_ref":
            turns = inner.answer if inner.answer is not None else inner.own_transcript()
            ref = await inner.services.blobs.put_blob(inner.services.tenant, turns)
            return {"result": result, "child_ref": ref}
        return result


async def _guarded(child: Node, value: Any, inner: FlowRun) -> tuple[Any, BaseException | None]:
    try:
        return await child.run(value, inner), None
    except BaseException as error:  # noqa: BLE001 - a value: SystemExit must not leave a task
        return None, error


def _told(error: BaseException) -> tuple[str, str]:
    if isinstance(error, SubFailed):
        return error.error_class, error.text
    text = str(error).encode("utf-8", "replace").decode()[:2_000]
    return type(error).__name__, text


def _arguments(value: Any) -> Any:
    return value if isinstance(value, Mapping) else {"input": value}
