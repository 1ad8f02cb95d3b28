"""The steps of a turn: a model call, a batch of tool calls, and what each writes and shows.

One invariant binds every method: the turn's state and the journal are changed together, in one go
without an await between, so that whatever interrupts a turn finds a state that is the fold of what
was appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..actors import telemetry
from ..actors.errors import KeepwellError
from ..actors.failpoint import failpoint
from ..stores.errors import StaleEpoch, StoreUnavailable
from ..stores.message import Message
from ..stores.record import NewRecord
from . import tool_result
from .context_budget import ContextBudget
from .context_view import CONTENT_REF, cut_result, shown_by_provider
from .delegation import DelegateTool
from .errors import ModelError
from .events import (
    ModelEnded,
    StepRestarted,
    TextDelta,
    ToolEnded,
    ToolStarted,
)
from .filters import (
    ChatRequest,
    SystemPromptFilter,
    ToolRequest,
    chat_chain,
    tool_chain,
)
from .gate import ask_gate
from .handoff import HandoffTool
from .history import History
from .kept_results import KeptResults, ResultReader, running_results, shown_result
from .model import NO_USAGE, ModelReply, ModelRequest, Usage
from .model_call import ModelCall
from .output import fitting
from .tool import Tool
from .tool_context import ToolContext
from .tool_loop import RunningBatch, ToolJob, ToolLoop
from .tool_source import LiveTools
from .turn import Batch, Call, TurnState, call_arguments, tool_message
from .turn_action import RunCalls
from .turn_errors import ConversationCleared
from .watchdog import Watchdog

if TYPE_CHECKING:
    from ..memory.call_threads import CallThreads
    from ..memory.context import ContextReport, SummaryStore
    from ..memory.provider_handle import NoMemory, ProviderHandle
    from .audience import Audience
    from .journal import Journal
    from .spec import AgentSpec

LOG_TRIES: Final = 5
"""How often a context is cut again because the store went away while its log was read."""


class TurnSteps:
    """Makes the steps of one conversation's turns.

    `base`: the messages before the running turn. `partial`: the model call that runs, `batch`: the
    tool calls that run; None otherwise.
    """

    def __init__(
        self,
        spec: AgentSpec,
        conversation_id: str,
        memory: ProviderHandle | NoMemory,
        journal: Journal,
        audience: Audience,
        threads: CallThreads,
    ) -> None:
        self._spec = spec
        self._id = conversation_id
        self._memory = memory
        self.journal = journal
        self._audience = audience
        self._threads = threads
        self._model = spec.chat_model
        self._watchdog = Watchdog()
        self._watched = bool(spec.callbacks)
        self._streamed = False
        self.name = spec.name
        self.output = spec.output_form
        self._schema = None if self.output is None else self.output.schema
        self._kernel = spec.kernel
        # The agent has a system prompt of its own (AG-8).
        self._filters = tuple(
            one
            for one in (spec.kernel.filters if spec.kernel is not None else ())
            if not isinstance(one, SystemPromptFilter)
        )
        self._state_of: TurnState | None = None
        self._state: dict[str, Any] = {}
        live = LiveTools(spec.given_tools)
        self._live = live if live.sources else None
        self._offered = live.now()
        self.tools = ToolLoop(
            self._offered, threads, timeout=spec.tool_timeout, parallel=spec.parallel_tools,
            around=self._around_tool if self._filters else None,
            most=tool_result.MAX_KEPT_CHARACTERS,
        )  # fmt: skip
        self._most = spec.max_result_characters
        self._results = KeptResults(memory, conversation_id, lambda: journal.epoch, self._most)
        self.rules = spec.rules(None if self._live is None else self.tools.by_name)
        self._reads_results = any(isinstance(tool, ResultReader) for tool in self._offered)
        self._hands_over = any(isinstance(tool, HandoffTool) for tool in self._offered)
        self.delegates = any(isinstance(tool, DelegateTool) for tool in self._offered)
        self.base: History | Sequence[Message] = ()
        instructions = spec.instructions or getattr(spec.kernel, "instructions", "")
        self._instructions = instructions
        self._budget = (
            ContextBudget(
                spec.context,
                self.tools.schemas,
                spec.count_tokens,
                by=spec.name,
                conversation_id=conversation_id,
                shown=partial(cut_result, most=spec.max_result_characters),
            )
            if spec.context is not None
            else None
        )
        self._head = (Message("system", instructions),) if instructions else ()
        self.partial: ModelCall | None = None
        self.batch: RunningBatch | None = None

    def reset(self) -> None:
        """Leave what runs to itself and forget it."""
        if self.batch is not None:
            self.batch.abandon()
        self.partial = self.batch = None

    async def refresh_tools(self) -> None:
        """Look at sources of tools again: the next step sees what there is now."""
        live = self._live
        if live is None:
            return
        await live.settled()
        tools = live.now()
        if tools is not self._offered:
            self._offered = tools
            self.tools.use(tools)
            if self._budget is not None:
                self._budget.offer(self.tools.schemas)

    async def model_step(self, turn: TurnState) -> None:
        step = turn.next_step
        self._streamed = False
        if self._live is not None:
            await self.refresh_tools()
        messages, seen = await self._context(turn)
        request = ModelRequest(
            messages, self.tools.schemas, self._schema, self._id, turn.turn_id, step
        )
        watched = self._watched or self._audience.listening
        if watched:
            await self._audience.tell("on_model_call", step, request)
            await self._audience.model_started(step)
        self._audience.calling = step
        call = self.partial = ModelCall(self._model, self._spec.model_timeout, self._watchdog)
        if watched or self._kernel is not None or self.output is not None:
            reply = await self._ask_watched(turn, call, request)
        else:
            reply = await call.run(request)
        if self.output is not None:
            reply = await fitting(
                self.output, reply, request, partial(self._ask_watched, turn, call),
                repairs=self._spec.output_repairs, call=call, model=self._model.name,
            )  # fmt: skip
        self._audience.calling = 0
        message = reply.message
        used = call.usage = reply.usage if call.usage is NO_USAGE else call.usage + reply.usage
        cost = self.priced(used, reply.model)
        mark: dict[str, object] = {"usage": cost.to_dict()}
        if seen is not None:
            mark["context_report"] = [seen.to_dict()]
        if not message.tool_calls:
            self.partial = None
            self.journal.spent(cost)
            self.answer(turn, message, mark)
        else:
            verdicts = await self._verdicts(turn, message, cost)
            if verdicts:
                mark["verdicts"] = verdicts
            self.partial = None
            self.journal.spent(cost)
            self.journal.append(
                turn.append_id(step), [NewRecord(message, turn_id=turn.turn_id, mark=mark)]
            )
            turn.reply(message, mark)
        failpoint("turn.reply")
        if self._watched:
            await self._audience.tell("on_model_result", step, reply)
        if self._audience.listening:
            await self.journal.settled()
            if not self._streamed and message.text:
                await self._audience.show(TextDelta(step, message.text))
            await self._audience.show(ModelEnded(step, message))

    def priced(self, usage: Usage, model: str = "") -> Usage:
        """Usage of a model call with its cost. Raises ModelError if `price=` gives none."""
        price = self._spec.price
        if price is None:
            return usage
        try:
            cost = float(price(model or self._model.name, usage))
            if not 0 <= cost < float("inf"):
                raise ValueError(f"{cost!r} is no cost")
        except Exception as error:
            raise ModelError(f"price= raised {type(error).__name__}: {error}") from error
        return replace(usage, cost=cost)

    def used_in_vain(self, error: KeepwellError) -> dict[str, object]:
        """The mark of what the model call that failed has used; {} if nothing is known of it."""
        usage = NO_USAGE if self.partial is None else self.partial.usage
        if not usage.total_tokens:
            return {}
        try:
            usage = self.priced(usage)
        except ModelError as unpriced:
            error.add_note(str(unpriced))
        self.journal.spent(usage)
        return {"usage": usage.to_dict()}

    async def _ask_watched(
        self, turn: TurnState, call: ModelCall, request: ModelRequest
    ) -> ModelReply:
        """The model's reply while streams or callbacks see it come, or filters wrap it."""
        step = request.step
        self._streamed = False

        async def on_delta(text: str) -> None:
            self._streamed = True
            await self._audience.show(TextDelta(step, text))
            await self._audience.tell("on_token", step, text)

        async def on_restart() -> None:
            self._streamed = False
            await self._audience.show(StepRestarted(step))

        listening = self._audience.listening or "on_token" in self._spec.callbacks
        run = partial(call.run, on_delta=on_delta if listening else None, on_restart=on_restart)
        return await self._ask(turn, request, run)

    async def _ask(
        self,
        turn: TurnState,
        request: ModelRequest,
        run: Callable[[ModelRequest], Awaitable[ModelReply]],
    ) -> ModelReply:
        """The model's reply, through the kernel's filters if there is one (KF-11)."""
        if self._kernel is None:
            return await run(request)

        async def innermost(chat: ChatRequest) -> ModelReply:
            return await run(request.replace(messages=chat.messages, tools=chat.tools))

        chat = ChatRequest(
            request.messages, request.tools, self._id, turn.turn_id, turn.rounds,
            self._audience.listening, self._filter_state(turn),
        )  # fmt: skip
        try:
            return await chat_chain(self._filters, innermost)(chat)
        except (KeepwellError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise ModelError(f"a filter raised {type(error).__name__}: {error}") from error

    async def _around_tool(
        self, tool: Tool, kwargs: dict[str, object], context: ToolContext, run: Any
    ) -> object:
        async def innermost(request: ToolRequest) -> object:
            return await run(request.tool, dict(request.arguments))

        return await tool_chain(self._filters, innermost)(ToolRequest(tool, kwargs, context))

    def _filter_state(self, turn: TurnState) -> dict[str, Any]:
        if self._state_of is not turn:
            self._state_of, self._state = turn, {}
        return self._state

    def answer(self, turn: TurnState, message: Message, mark: dict[str, object]) -> None:
        ending = {**mark, "ended": "completed", "total": self.journal.total.to_dict()}
        if turn.member:
            ending["active"] = turn.member
        self.journal.append(
            turn.append_id(turn.next_step), [NewRecord(message, turn_id=turn.turn_id, mark=ending)]
        )
        turn.reply(message, ending)

    async def _context(self, turn: TurnState) -> tuple[tuple[Message, ...], ContextReport | None]:
        """What the model is shown: prepare, repair, context policy, instructions (AG-2).

        With it a report, if there is a policy or the provider gave one.
        """
        base, budget = self.base, self._budget
        seen: ContextReport | None = None
        if budget is not None and not self._memory.custom:
            if not budget.reads:
                return await budget.of_turn(turn, self._instructions)
            summaries = self._memory.summaries
            if summaries is not None and self.journal.log is not None:
                return await self._cut_from_log(budget, turn, summaries)
        if isinstance(base, History):
            messages = base.shown_with(turn.messages())
        else:
            messages, seen = await shown_by_provider(
                self._memory, self._id, base, turn.messages(), self._most
            )
        if budget is not None:
            if not budget.reads:
                return await budget.of_turn(turn, self._instructions)
            return await budget.of_messages(messages, turn, self._instructions, seen)
        if seen is not None:
            seen = replace(seen, turn_id=turn.turn_id, step=turn.next_step)
            telemetry.emit("keepwell.context.shown", report=seen)
        return self._head + messages, seen

    async def _cut_from_log(
        self, budget: ContextBudget, turn: TurnState, summaries: SummaryStore
    ) -> tuple[tuple[Message, ...], ContextReport]:
        tries = 0
        while True:
            assert self.journal.log is not None
            try:
                return await budget.of_log(self.journal.log, turn, self._instructions, summaries)
            except StaleEpoch:
                raise ConversationCleared(self._id, turn.turn_id) from None
            except StoreUnavailable:
                tries += 1
                if tries > LOG_TRIES:
                    raise
                # A touch of a log never waits; this does, until the store is there again.
                await self._memory.history(self._id)

    async def _verdicts(
        self, turn: TurnState, message: Message, cost: Usage
    ) -> list[dict[str, object]] | None:
        """The gate's verdicts over all calls, None if nobody is to be asked. HP-1, HP-2.

        `cost`: what this reply has cost.
        """
        if self._spec.gate is None and not self.tools.asks_human:
            return None
        if self._spec.gate is not None:
            await self.journal.settled()
        batch = Batch(message, turn.next_step)
        return await ask_gate(
            self._spec, self.tools, turn, batch, self._id, self._threads, self.rules,
            turn.usage + cost,
        )  # fmt: skip

    async def run_calls(self, turn: TurnState, action: RunCalls) -> None:
        for call, text in action.settle:
            self._result(turn, call, text)
            await self._tool_ended(call)
        if not action.run:
            return
        await self.journal.settled()  # before an outside effect (AG-3)
        jobs = []
        for call in action.run:
            jobs.append(self._job(turn, call))
            if self._watched or self._audience.listening:
                await self._audience.tell("on_tool_call", call.step, call.call)
                await self._audience.show(
                    ToolStarted(call.step, call.call.id, call.call.name, call_arguments(call))
                )
        failpoint("turn.before_tools")
        if self._reads_results:
            running_results.set(self._results)
        batch = self.batch = self.tools.run(jobs, _mark_started)
        environment: dict[str, object] = {}
        while (finished := await batch.next()) is not None:
            job, text = finished
            call = job.key
            if self._pauses(text):
                environment[str(call.index)] = text
                call.environment, call.decision, call.started = text, None, False
                continue
            if len(text) > self._most:
                await self._large_result(turn, call, text)
            else:
                self._result(turn, call, text)
            failpoint("turn.result")
            if self._watched or self._audience.listening:
                await self._tool_ended(call)
        self.batch = None
        if environment:
            mark = {"environment": environment}
            self.journal.append(turn.mark_id(), [NewRecord(None, turn_id=turn.turn_id, mark=mark)])
            turn.marked(mark)

    def _pauses(self, text: str) -> bool:
        return (
            self._spec.on_environment_error == "pause"
            and tool_result.error_type_of(text) == "environment"
        )

    def _job(self, turn: TurnState, call: Call) -> ToolJob:
        context = ToolContext(
            self._id, turn.turn_id, call.step, call.call.id, self._spec.name, self._spec.tool_values
        )
        return ToolJob(call, call.call.name, call_arguments(call), context)

    async def _large_result(self, turn: TurnState, call: Call, text: str) -> None:
        """Keep the whole of it as a blob, and its beginning in the log.

        Not of a tool that returns direct, whose result is the answer; nor where the memory has no
        place for it: then it is in the log whole, and shown cut.
        """
        tool = self.tools.by_name.get(call.call.name)
        if tool is not None and not tool.return_direct:
            ref = await self._results.keep(text)
            failpoint("turn.result_kept")
            if ref is not None:
                shown = shown_result(text, self._most, ref, readable=self._reads_results)
                self._result(turn, call, shown, ref)
                return
        self._result(turn, call, tool_result.cut(text))

    def _result(self, turn: TurnState, call: Call, text: str, ref: str | None = None) -> None:
        message = tool_message(call, text)
        if ref is not None:
            message = message.replace(**{CONTENT_REF: ref})
        mark = self._handoff(call, text) if self._hands_over else None
        self.journal.append(
            turn.append_id(call.step), [NewRecord(message, turn_id=turn.turn_id, mark=mark)]
        )
        turn.result(call, message)
        if mark is not None:
            turn._mark(mark)

    def _handoff(self, call: Call, text: str) -> dict[str, object] | None:
        """The mark of a result that hands the conversation over."""
        tool = self.tools.by_name.get(call.call.name)
        if not isinstance(tool, HandoffTool) or tool_result.error_type_of(text) is not None:
            return None
        return {"active": tool.target}

    async def _tool_ended(self, call: Call) -> None:
        result = call.result
        assert result is not None
        await self._audience.tell("on_tool_result", call.step, result)
        if self._audience.listening:
            await self._audience.show(
                ToolEnded(call.step, call.call.id, call.call.name, result.text, call.error)
            )


def _mark_started(job: ToolJob) -> None:
    job.key.started = True
