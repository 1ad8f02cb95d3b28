"""The kernel: one invocation of a model with tools, stateless, wrapped by filters (KF-1…11).

Without a memory filter (*full mode*) each round passes everything so far, and nothing outlives the
invocation. With one (*delta mode*) each round passes what is new, and the history is the store's.
"""

from __future__ import annotations

import asyncio
import uuid
from asyncio import _get_running_loop
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..actors import current_system, telemetry
from ..actors.errors import InvalidValue
from ..actors.future import Future
from ..memory.call_threads import call_threads
from ..stores.conversation_id import TEMPORARY_PREFIX, conversation_key
from ..stores.grouping import grouped
from ..stores.message import Message, checked_messages
from . import tool_result
from .events import StepRestarted, TextDelta
from .filters import (
    ChatRequest,
    DeltaChain,
    Filter,
    SystemPromptFilter,
    ToolRequest,
    chat_chain,
    in_order,
    tool_chain,
)
from .memory_filter import MemoryFilter
from .model import ModelReply, ModelRequest, Usage
from .model_call import ModelCall
from .output import OutputForm, fitting, invalid_output, output_form
from .tool import Tool, as_tools
from .tool_context import ToolContext
from .tool_loop import ToolJob, ToolLoop
from .tool_source import LiveTools, tools_now
from .turn_errors import LimitReached

if TYPE_CHECKING:
    from .model import ChatModel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KernelResult:
    """What an invocation gave. `messages`: its own, from the input to the answer.

    `conversation_id` is None if none was given. `usage` sums its model calls. `output`: the value
    of the answer in the form of `output=`, None without.
    """

    text: str
    messages: tuple[Message, ...]
    usage: Usage
    rounds: int
    invocation_id: str
    conversation_id: str | None = None
    output: Any = None

    @property
    def turn_id(self) -> str:
        """The invocation id, where a turn's is asked for."""
        return self.invocation_id


class Kernel:
    """A model with tools and filters, for use without an agent. Immutable, and holds no state.

    instructions: a system prompt, as a filter at SYSTEM_PROMPT_ORDER (KF-4). Limits as in
    AgentSpec (LM-1). Raises InvalidValue when it is built: two memory filters, equal names, …
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        tools: Iterable[Any] = (),
        filters: Iterable[Filter] = (),
        instructions: str = "",
        max_rounds: int = 25,
        max_tool_calls: int | None = None,
        model_timeout: float = 120.0,
        tool_timeout: float = 60.0,
        parallel_tools: bool = True,
    ) -> None:
        missing = [m for m in ("complete", "stream") if not callable(getattr(model, m, None))]
        if missing or isinstance(model, type):
            raise InvalidValue(f"model={model!r} is no ChatModel: pass for example OpenAIModel(…)")
        self.model = model
        self.given_tools = as_tools(tools)
        self.instructions = instructions
        given = list(filters)
        memories = [one for one in given if isinstance(one, MemoryFilter)]
        if len(memories) > 1:
            raise InvalidValue(f"{len(memories)} memory filters: a kernel has at most one")
        if instructions:
            given.append(SystemPromptFilter(instructions))
        self.filters = in_order(given)
        self._memory = memories[0] if memories else None
        self._max_rounds = max_rounds
        self._max_tool_calls = max_tool_calls
        self._model_timeout = model_timeout
        self._tool_timeout = tool_timeout
        self._parallel = parallel_tools

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, those of sources as they are now."""
        return tools_now(self.given_tools)

    @property
    def uses_memory(self) -> bool:
        """Whether it runs in delta mode."""
        return self._memory is not None

    def invoke(
        self,
        messages: str | Iterable[Message | Mapping[str, Any]],
        *,
        conversation_id: str | None = None,
        invocation_id: str | None = None,
        output: object = None,
        output_repairs: int = 2,
    ) -> Future[KernelResult]:
        """Run the tool loop to its answer; await it, or `.get()` it in a thread.

        messages: the input, also a str for one user message; in delta mode it may be empty.
        conversation_id: where the memory filter keeps it; a temporary one if absent, cleared at
        the end. invocation_id: makes a repeated call store its input once (KF-5). output,
        output_repairs: the form of the answer, as in AgentSpec; its value is `result.output`.
        Answers that do not fit are not stored.

        Raises through the future ModelError ("invalid_output" among others), LimitReached,
        StoreError, StoreUnavailable; what a filter raises. Raises InvalidValue (InvalidMessage) at
        once.
        """
        run = self._prepare(messages, conversation_id, invocation_id, output, output_repairs)
        return _started(run.run())

    def stream(
        self,
        messages: str | Iterable[Message | Mapping[str, Any]],
        *,
        conversation_id: str | None = None,
        invocation_id: str | None = None,
        output: object = None,
        output_repairs: int = 2,
    ) -> AsyncIterator[TextDelta | StepRestarted | KernelResult]:
        """As `invoke`, showing text as it comes; the last item is the KernelResult (KF-10).

        StepRestarted: a model call is repeated, the deltas of its `step` (the round) are void.
        Filters change what is shown by `transform_delta`, never what is stored. Closing it early
        cancels the invocation: the input stays stored, no reply is.
        """
        run = self._prepare(messages, conversation_id, invocation_id, output, output_repairs)
        return run.stream()

    def _prepare(
        self,
        messages: Any,
        conversation_id: str | None,
        invocation_id: str | None,
        output: object,
        output_repairs: object,
    ) -> _Invocation:
        if isinstance(messages, str):
            messages = [Message("user", messages)]
        checked = tuple(checked_messages(messages))
        if not checked and self._memory is None:
            raise InvalidValue("nothing to ask: without a memory filter messages must not be empty")
        if conversation_id is not None:
            conversation_key(conversation_id)
        form = self._form(output, output_repairs)
        return _Invocation(self, self._memory, checked, conversation_id, invocation_id, form)

    def _form(self, output: object, repairs: object) -> tuple[OutputForm | None, int]:
        if not isinstance(repairs, int) or isinstance(repairs, bool) or repairs < 0:
            raise InvalidValue(f"output_repairs={repairs!r}: pass an int of at least 0")
        return output_form(output), repairs


class _Invocation:
    """One invocation in progress."""

    def __init__(
        self,
        kernel: Kernel,
        memory: MemoryFilter | None,
        messages: tuple[Message, ...],
        conversation_id: str | None,
        invocation_id: str | None,
        form: tuple[OutputForm | None, int],
    ) -> None:
        self._kernel = kernel
        self._form, self._repairs = form
        self._memory = memory
        self._given = conversation_id
        self._id = invocation_id or uuid.uuid4().hex
        self._conversation = conversation_id or (f"{TEMPORARY_PREFIX}{self._id}" if memory else "")
        self._messages = list(messages)
        self._state: dict[str, Any] = {}
        self._usage = Usage()
        self._rounds = 0
        self._calls = 0
        self._open: list[Message] = []
        self._seen = -1  # the newest round of which text was shown
        self._deltas = DeltaChain(kernel.filters, self._state)
        self._shown: asyncio.Queue[str | StepRestarted | None] | None = None
        self._live = LiveTools(kernel.given_tools)
        self._tools = ToolLoop(
            self._live.now(), call_threads(), timeout=kernel._tool_timeout,
            parallel=kernel._parallel, around=self._around_tool,
        )  # fmt: skip
        self._chain = chat_chain(kernel.filters, self._ask_model)

    async def run(self) -> KernelResult:
        memory = self._memory
        if memory is None:
            return await self._loop()
        gate = memory.gates.acquire(self._conversation, self)
        try:
            if not gate.done():
                await gate
            return await self._loop()
        finally:
            # Whatever ended it, and whoever cancels: what was begun is closed before others enter.
            await asyncio.shield(asyncio.ensure_future(self._close(memory)))

    async def _close(self, memory: MemoryFilter) -> None:
        try:
            if self._given is None:
                await memory.store.clear(self._conversation)
            elif self._open:
                # Results that a model call was to see may have been stored before it failed.
                ours = {call.id for message in self._open for call in message.tool_calls}
                groups = grouped(await memory.store.get(self._conversation)).groups
                results = [
                    Message("tool", tool_result.cancelled(started=True), tool_call_id=call.id)
                    for group in groups[-2:]
                    for call in group.open_calls
                    if call.id in ours
                ]
                await memory.store.add(
                    self._conversation, results, append_id=f"{self._id}/closed",
                    epoch=self._state.get("memory.epoch"),
                )  # fmt: skip
        except Exception as error:
            # It must not mask how the invocation ended.
            telemetry.emit("keepwell.kernel.close_failed", invocation_id=self._id, error=error)
        finally:
            memory.gates.release(self._conversation, self)

    async def _loop(self) -> KernelResult:
        kernel = self._kernel
        new = tuple(self._messages)
        while True:
            if self._rounds >= kernel._max_rounds:
                raise LimitReached("max_rounds", self._result(""))
            if self._live.sources:
                await self._live.settled()
                self._tools.use(self._live.now())
            request = ChatRequest(
                new if self._memory is not None else tuple(self._messages), self._tools.schemas,
                self._conversation, self._id, self._rounds, self._shown is not None, self._state,
            )  # fmt: skip
            reply = await self._chain(request)
            self._open = []
            self._rounds += 1
            self._usage = self._usage + reply.usage
            message = reply.message
            if message.content or message.tool_calls:
                self._messages.append(message)
            if not message.tool_calls:
                for piece in self._deltas.flush() if self._shown is not None else ():
                    self._show(piece)
                return self._result(message.text, self._value(message.text))
            self._open = [message]
            new = await self._run_tools(message)
            self._messages.extend(new)

    async def _run_tools(self, message: Message) -> tuple[Message, ...]:
        kernel = self._kernel
        last_round = self._rounds >= kernel._max_rounds
        limit = kernel._max_tool_calls
        results: dict[int, str] = {}
        jobs: list[ToolJob] = []
        for index, call in enumerate(message.tool_calls):
            if last_round or (limit is not None and self._calls >= limit):
                name = "max_rounds" if last_round else "max_tool_calls"
                results[index] = tool_result.skipped(name)
                continue
            self._calls += 1
            context = ToolContext(
                "" if self._given is None else self._given, self._id, self._rounds, call.id
            )
            jobs.append(ToolJob(index, call.name, call.arguments, context))
        skipped = len(results)
        batch = self._tools.run(jobs)
        try:
            while (finished := await batch.next()) is not None:
                job, text = finished
                results[job.key] = text
        finally:
            batch.abandon()
        messages = tuple(
            Message("tool", results[i], tool_call_id=call.id)
            for i, call in enumerate(message.tool_calls)
        )
        if skipped:
            await self._store_results(messages)
            self._messages.extend(messages)
            raise LimitReached("max_rounds" if last_round else "max_tool_calls", self._result(""))
        return messages

    async def _store_results(self, messages: tuple[Message, ...]) -> None:
        """At a limit no model call follows that would store them."""
        if self._memory is not None and self._given is not None:
            await self._memory.store.add(
                self._conversation, messages, append_id=f"{self._id}/{self._rounds}/in",
                epoch=self._state.get("memory.epoch"),
            )  # fmt: skip
        self._open = []

    async def _ask_model(self, request: ChatRequest) -> ModelReply:
        kernel, form = self._kernel, self._form
        call = ModelCall(kernel.model, kernel._model_timeout)
        asked = ModelRequest(
            request.messages, request.tools, None if form is None else form.schema,
            request.conversation_id, request.invocation_id, request.round,
        )  # fmt: skip

        async def on_delta(text: str) -> None:
            self._seen = request.round
            for piece in self._deltas.show(text):
                self._show(piece)

        async def on_restart() -> None:
            if self._shown is None:
                return
            self._deltas.flush()  # what filters hold back of it is void too
            self._show(StepRestarted(request.round))

        async def ask(asked: ModelRequest) -> ModelReply:
            return await call.run(asked, on_delta if self._shown is not None else None, on_restart)

        if self._seen == request.round:  # a filter asks again
            await on_restart()
        try:
            reply = await ask(asked)
            if form is not None:
                # Inside the filters, so that a memory stores nothing but the answer that fits.
                reply = await fitting(
                    form, reply, asked, ask,
                    repairs=self._repairs, call=call, model=kernel.model.name,
                )  # fmt: skip
        finally:
            self._usage = self._usage + call.usage
        return reply

    def _value(self, text: str) -> object:
        """The answer's value; a filter may have made another answer of it."""
        if self._form is None:
            return None
        try:
            return self._form.read(text)
        except ValueError as error:
            raise invalid_output("behind the filters", str(error), text) from error

    async def _around_tool(
        self, tool: Tool, kwargs: dict[str, object], context: ToolContext, run: Any
    ) -> object:
        async def innermost(request: ToolRequest) -> object:
            return await run(request.tool, dict(request.arguments))

        chain = tool_chain(self._kernel.filters, innermost)
        return await chain(ToolRequest(tool, kwargs, context))

    def _result(self, text: str, output: object = None) -> KernelResult:
        return KernelResult(
            text, tuple(self._messages), self._usage, self._rounds, self._id, self._given, output
        )

    # -- streaming -------------------------------------------------------------------------------

    def _show(self, piece: str | StepRestarted) -> None:
        if self._shown is not None:
            self._shown.put_nowait(piece)

    async def stream(self) -> AsyncIterator[TextDelta | StepRestarted | KernelResult]:
        shown: asyncio.Queue[str | StepRestarted | None] = asyncio.Queue()
        self._shown = shown
        task = asyncio.ensure_future(self.run())
        task.add_done_callback(lambda _: shown.put_nowait(None))
        try:
            while (piece := await shown.get()) is not None:
                yield TextDelta(self._rounds, piece) if isinstance(piece, str) else piece
            yield task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


def _started(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine on the running loop, else on the system's; cancelled with its last waiter."""
    loop = _get_running_loop()
    if loop is None:
        return current_system().run(coroutine)
    future: Future[T] = Future()
    task = loop.create_task(coroutine)

    def finished(done: asyncio.Task[T]) -> None:
        if done.cancelled():
            future.fail(asyncio.CancelledError())
        elif (error := done.exception()) is not None:
            future.fail(error)
        else:
            future.complete(done.result())

    task.add_done_callback(finished)
    future.on_abandoned(task.cancel)
    return future
