"""Carries out what the turn's state machine decides, for the turns of one conversation.

The runner is the impure half of `turn.py`: it calls the model, runs tools, appends each step to the
journal, and tells callbacks and streams. One invariant binds every method: the state and the
journal are changed together, in one go without an await between, so that whatever interrupts a
turn finds a state that is the fold of what was appended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ..actors.errors import ActorDied, KeepwellError
from ..actors.exits import KILLED, describe
from ..actors.failpoint import failpoint
from ..memory.budget import ContextTooLarge
from ..memory.provider import ProviderError
from ..stores.message import Message
from ..stores.record import NewRecord
from .approval import decision_to_plain, match_decisions
from .audience import Audience
from .delegation import Place, clear_children
from .errors import ModelError
from .events import (
    Paused,
    TurnEnded,
)
from .gate import check_decision
from .handoff import team_of
from .journal import Journal
from .result import TurnResult, turn_result
from .turn import TurnState
from .turn_action import (
    AwaitDecision,
    CallModel,
    ComposeAnswer,
    Ended,
    EndTurn,
    RunCalls,
    StoreQuestion,
    next_action,
    resume_action,
)
from .turn_closing import closing_records, take_closing
from .turn_errors import (
    ConversationCleared,
    LimitReached,
    Superseded,
    TurnCancelled,
    TurnConflict,
    TurnNotRunning,
)
from .turn_queue import Stop, TurnQueue, TurnRequest
from .turn_steps import TurnSteps

if TYPE_CHECKING:
    from ..memory.call_threads import CallThreads
    from ..memory.provider_handle import NoMemory, ProviderHandle
    from .spec import AgentSpec
    from .turn import EndStatus

CANCEL_SECONDS: Final = 5.0
"""How long a cancelled turn may take to store its ending before its caller is told (CN-1)."""


class _Stopped(Exception):
    """The request was stopped before a point at which that is looked at."""


class TurnRunner:
    """Runs the requests of one conversation, one at a time."""

    def __init__(
        self,
        spec: AgentSpec,
        conversation_id: str,
        memory: ProviderHandle | NoMemory,
        queue: TurnQueue,
        threads: CallThreads,
        place: Place | None = None,
    ) -> None:
        self._place = place
        self._spec = spec
        self._id = conversation_id
        self._memory = memory
        self._queue = queue
        self._threads = threads
        self._mark = None if spec.name == "agent" else {"agent": spec.name}
        team = team_of(spec)
        cut = [one.context is not None for one in team.values()]
        self.journal = Journal(
            memory, conversation_id, lazy=memory.window is None and all(cut), reads_log=any(cut),
            most=spec.max_result_characters,
        )  # fmt: skip
        self._audience = Audience(spec.callbacks, self.journal, conversation_id, threads)
        self._members = {
            name: TurnSteps(member, conversation_id, memory, self.journal, self._audience, threads)
            for name, member in team.items()
        }
        self._steps = self._members[""]
        self._watched = bool(spec.callbacks)
        self._is_team = len(self._members) > 1
        self._delegates = any(steps.delegates for steps in self._members.values())
        self.turn: TurnState | None = None
        self.request: TurnRequest | None = None
        self.stoppable = False
        """Whether cancelling the task that runs `serve` now stops the turn, and nothing else."""

    def show_late(self) -> None:
        """A stream may have joined the running turn. Rule: EV-2."""
        self._audience.late()

    # -- requests --------------------------------------------------------------------------------

    async def serve(self, request: TurnRequest) -> Any:
        """Do what a request asks for and return its result, or raise what its caller gets.

        Holds the conversation's turn gate meanwhile. JournalBroken and what is no `Exception` are
        crashes: the gate stays held then, for the incarnation that resumes.
        """
        self.request = request
        self.turn = None
        self._steps.reset()
        self._audience.dismiss()
        timer = None
        try:
            self.stoppable = True
            gate = self._memory.gates.acquire(self._id, self._queue)
            if not gate.done():
                await gate
            if self._spec.turn_timeout is not None and request.kind in ("run", "resume", "recover"):
                timer = asyncio.get_running_loop().call_later(
                    self._spec.turn_timeout, self._queue.stop_running, Stop("turn_timeout")
                )
            result = await self._serve(request)
        except (asyncio.CancelledError, _Stopped):
            if request.stop is None:
                raise  # the actor ends
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            self.stoppable = False
            result = await self._stop(request, request.stop)
        except (ModelError, ProviderError, ContextTooLarge) as error:
            result = await self._failed(error)
        except KeepwellError:
            self.journal.lost()
            self._release()
            raise
        finally:
            self.stoppable = False
            self._steps.reset()
            if timer is not None:
                timer.cancel()
        self._release()
        if self._delegates:
            await self._clear_children()
        if isinstance(result, BaseException):
            raise result
        return result

    async def _clear_children(self) -> None:
        """The turn has ended: what its sub-agents wrote is not needed any more (SA-1).

        The ids follow from the turn, so that a turn that was resumed clears those of all its lives.
        """
        turn, place = self.turn, self._place
        if turn is None or turn.ended is None or place is None:
            return
        steps = [steps for steps in self._members.values() if steps.delegates]
        by_name = {name: tool for one in steps for name, tool in one.tools.by_name.items()}
        await clear_children(turn, by_name, self._id, self._spec.name, place.host)

    def _release(self) -> None:
        self._memory.gates.release(self._id, self._queue)

    async def _serve(self, request: TurnRequest) -> Any:
        self._look_for_stop()
        if request.kind == "add":
            return await self._add(request)
        self._steps.base = await self.journal.open()
        last = self.journal.last
        match request.kind:
            case "run":
                return await self._run(request, last)
            case "recover":
                return await self._recover(request, last)
            case "resume":
                return await self._decide(request, last)
            case _:
                return await self._close_paused(request, last)

    def _look_for_stop(self) -> None:
        if self.request is not None and self.request.stop is not None:
            raise _Stopped

    async def _add(self, request: TurnRequest) -> None:
        await self._memory.append(
            self._id, [NewRecord(message) for message in request.messages],
            append_id=request.turn_id,
        )  # fmt: skip

    async def _run(self, request: TurnRequest, last: TurnState | None) -> Any:
        if request.epoch is not None and request.epoch != self.journal.epoch:
            raise ConversationCleared(self._id, request.turn_id)  # while the agent was down (RS-8)
        if last is not None and last.turn_id == request.turn_id:
            return await self._run_again(request, last)
        question = NewRecord(request.text, turn_id=request.turn_id, mark=self._mark)
        if request.explicit and self.journal.durable and self._memory.probes:
            found = await self.journal.find(request.turn_id, question)
            if found is not None:
                if found.ended == "completed":
                    return await self._retold(request, found)
                raise TurnConflict(
                    request.turn_id, "it is unfinished and other turns came after it"
                )
        if last is not None and last.ended is None:
            await self._with_member(last)
            await self._abandon(last)
            self._steps.base = await self.journal.open()
        if await self.journal.heal():
            self._steps.base = await self.journal.open()
        turn = self.turn = TurnState(request.turn_id)
        turn.began = "" if last is None else last.member
        turn.before = self.journal.total
        self.journal.begin(turn)
        await self._audience.attend(request, turn)
        if self._watched:
            await self._audience.tell("on_turn_start", 0, request.text)
        turn.ask(request.text)
        request.epoch = self.journal.epoch
        self.journal.append(turn.append_id(0), [question])
        failpoint("turn.question")
        return await self._go_on(turn)

    async def _run_again(self, request: TurnRequest, last: TurnState) -> Any:
        """The same turn id as the newest turn in the log. Rule: AG-6."""
        if last.question != request.text:
            raise TurnConflict(request.turn_id, "it has another input")
        if last.ended == "completed" or (last.ended is None and last.pending()):
            return await self._retold(request, last)
        if last.ended == "abandoned":
            raise TurnConflict(request.turn_id, "it was abandoned for a newer turn")
        return await self._resume(last)

    async def _retold(self, request: TurnRequest, turn: TurnState) -> TurnResult:
        """The result of a turn that has ended or is paused; streams see what it did. AG-6."""
        result = self._result_of(turn)
        if request.listeners:
            await self._audience.retell(request, turn)
            paused = result.status == "paused"
            self._audience.push(Paused(result.pending, result) if paused else TurnEnded(result))
        return result

    async def _recover(self, request: TurnRequest, last: TurnState | None) -> Any:
        """The log's newest turn, if nobody has ended it and it is this agent's."""
        if last is None or last.ended is not None:
            return None
        agent = self.journal.owner(last)
        if agent != self._spec.name:
            return None
        await self._with_member(last)
        if isinstance(next_action(last, self._steps.rules), AwaitDecision):
            return None
        self._queue.resumes(request, last.turn_id)
        if request.text is not None and request.text != last.question:
            request.fail(TurnConflict(last.turn_id, "it has another input"))
        return await self._resume(last)

    async def _resume(self, turn: TurnState) -> Any:
        """Go on with a turn from the log, as RS-1…10 have it."""
        self.turn = turn
        turn.before = self.journal.total.less(turn.usage)
        await self._with_member(turn)
        self._look_for_stop()
        self._steps.base = await self.journal.before(turn.first_seq)
        await self._audience.attend(self.request, turn)
        action = resume_action(turn, self._steps.rules)
        if isinstance(action, EndTurn) and action.status == "failed":
            return await self._end(turn, action)
        mark = {"resumed": turn.next_step}
        self.journal.append(turn.mark_id(), [NewRecord(None, turn_id=turn.turn_id, mark=mark)])
        turn.marked(mark)
        failpoint("turn.resumed")
        return await self._go_on(turn)

    async def _decide(self, request: TurnRequest, last: TurnState | None) -> Any:
        """A human's decision. Rule: HP-4."""
        pending = last.pending() if last is not None else ()
        decided = last.decided() if last is not None else {}
        fresh = match_decisions(request.decision, pending, decided, self._id)
        assert last is not None  # match_decisions has refused what no turn asked for
        self._queue.resumes(request, last.turn_id)
        if not fresh:
            if last.ended is not None or last.pending():
                return self._result_of(last)
            return await self._resume(last)
        await self._with_member(last)
        marks: dict[str, object] = {}
        assert last.batch is not None
        for call in last.batch.calls:
            decision = fresh.get(call.call.id)
            if decision is not None and call.awaiting:
                check_decision(self._steps.tools, call, decision)
                marks[str(call.index)] = decision_to_plain(decision)
        self.turn = last
        last.before = self.journal.total.less(last.usage)
        self._steps.base = await self.journal.before(last.first_seq)
        mark = {"decision": marks}
        self.journal.append(last.mark_id(), [NewRecord(None, turn_id=last.turn_id, mark=mark)])
        last.marked(mark)
        for call in last.batch.calls:
            if str(call.index) in marks:
                call.started = False
        failpoint("turn.decision")
        await self._audience.attend(request, last)
        await self._audience.tell("on_resume", last.batch.step, fresh)
        return await self._go_on(last)

    async def _close_paused(self, request: TurnRequest, last: TurnState | None) -> None:
        """Cancel a turn that is paused. Rule: CN-1."""
        if last is None or last.ended is not None or request.turn_id not in ("", last.turn_id):
            raise TurnNotRunning(request.turn_id or None)
        self._close(last, "cancelled")
        await self.journal.settled()
        self.journal.turn_ended(last)

    # -- the turn --------------------------------------------------------------------------------

    async def _go_on(self, turn: TurnState) -> Any:
        while True:
            self._look_for_stop()
            if self._is_team:
                self._give_to(turn.stepping)
            action = next_action(turn, self._steps.rules)
            match action:
                case CallModel():
                    await self._steps.model_step(turn)
                    self.stoppable = turn.ended is None
                case RunCalls():
                    await self._steps.run_calls(turn, action)
                case ComposeAnswer(text):
                    self._steps.answer(turn, Message("assistant", text), {"direct": True})
                    self.stoppable = False
                case EndTurn():
                    return await self._end(turn, action)
                case AwaitDecision():
                    return await self._pause(turn)
                case Ended():
                    return await self._completed(turn)
                case StoreQuestion():
                    raise AssertionError("a turn goes on from its question")

    async def _with_member(self, turn: TurnState) -> None:
        """A turn from the log: the member of the team whose step it is makes the next one."""
        if self._is_team:
            turn.began = await self.journal.member_before(turn)
        self._give_to(turn.stepping)
        await self._steps.refresh_tools()  # which of its calls may be run again

    def _give_to(self, member: str) -> None:
        # One that the team has no more is replaced by the first.
        steps = self._members.get(member) or self._members[""]
        if steps is not self._steps:
            steps.base = self._steps.base
            self._steps = steps

    def _result_of(self, turn: TurnState) -> TurnResult:
        steps = self._members.get(turn.member) or self._members[""]
        return turn_result(turn, self._id, steps.output, steps.name)

    # -- endings ---------------------------------------------------------------------------------

    async def _completed(self, turn: TurnState) -> TurnResult:
        self.stoppable = False
        await self.journal.settled()
        failpoint("turn.before_answer")
        self.journal.turn_ended(turn)
        result = self._result_of(turn)
        if self._watched:
            await self._audience.tell("on_turn_end", turn.next_step - 1, result)
        if self._audience.listening:
            self._audience.push(TurnEnded(result))
        return result

    async def _pause(self, turn: TurnState) -> TurnResult:
        await self.journal.settled()
        self.stoppable = False
        if not self.journal.durable:
            self.journal.turn_ended(turn)
        result = self._result_of(turn)
        await self._audience.tell("on_pause", turn.next_step - 1, result)
        self._audience.push(Paused(result.pending, result))
        return result

    async def _end(self, turn: TurnState, action: EndTurn) -> Any:
        """A limit, or too many resumes: close the turn and return the error its caller gets."""
        self.stoppable = False
        mark: dict[str, object] = {}
        if action.limit:
            mark["limit"] = action.limit
        message = action.message
        # In the log of another process's turn only the count is known.
        death = self._queue.last_death
        if message and death is not None:
            message = f"{message}, the last time by {describe(death)}"
        if message:
            mark["error"] = {"type": "ActorDied", "message": message[:2000]}
        self._close(turn, action.status, mark)
        await self.journal.settled()
        self.journal.turn_ended(turn)
        error: KeepwellError
        if action.status == "limit":
            error = LimitReached(action.limit, self._result_of(turn))
        else:
            error = ActorDied(
                f"turn {turn.turn_id!r} ended failed: {message}",
                reason=KILLED if death is None else death,
            )
        await self._audience.tell("on_turn_error", turn.next_step - 1, error)
        return error

    async def _failed(self, error: KeepwellError) -> KeepwellError:
        """A model or provider error ends the turn; the question stays (AG-7)."""
        self.stoppable = False
        turn = self.turn
        if turn is None or turn.question is None:
            return error
        mark: dict[str, object] = {
            "error": {"type": type(error).__name__, "message": str(error)[:2000]}
        }
        mark |= self._steps.used_in_vain(error)
        try:
            self._close(turn, "failed", mark)
            await self.journal.settled()
            self.journal.turn_ended(turn)
        except KeepwellError as worse:
            self.journal.lost()
            error.add_note(f"the turn could not be closed: {worse}")
        await self._audience.tell("on_turn_error", turn.next_step, error)
        return error

    async def _stop(self, request: TurnRequest, stop: Stop) -> BaseException:
        """Cancelled, superseded, out of time or cleared. Rules: CN-1, BZ-3, LM-1, AG-10."""
        call = self._steps.partial
        self._steps.reset()
        turn = self.turn
        if stop.kind == "cleared":
            self.journal.lost()
            return ConversationCleared(self._id, request.turn_id)
        error: BaseException
        if stop.kind == "superseded":
            error = Superseded(request.turn_id, stop.by)
        else:
            error = TurnCancelled(request.turn_id)
        if turn is not None and turn.question is not None and turn.ended is None:
            partial = call.partial if call is not None else ""
            mark: dict[str, object] = {}
            status: EndStatus = "cancelled"
            if stop.kind == "turn_timeout":
                status, mark["limit"] = "limit", "turn_timeout"
            if stop.by:
                mark["superseded_by"] = stop.by
            self._close(turn, status, mark, partial)
            try:
                async with asyncio.timeout(CANCEL_SECONDS):
                    await self.journal.settled()
                self.journal.turn_ended(turn)
            except TimeoutError:
                self.journal.lost()  # the store goes on; the caller has waited enough
            except KeepwellError as worse:
                self.journal.lost()
                return worse
            if stop.kind == "turn_timeout":
                error = LimitReached("turn_timeout", self._result_of(turn))
            await self._audience.tell("on_turn_error", turn.next_step - 1, error)
        elif stop.kind == "turn_timeout" and turn is None:  # nothing of it is in the log
            unborn = TurnState(request.turn_id)
            unborn.ended = "limit"
            error = LimitReached("turn_timeout", self._result_of(unborn))
        return error

    def _close(
        self,
        turn: TurnState,
        status: EndStatus,
        mark: dict[str, object] | None = None,
        partial: str = "",
        *,
        interrupted: bool = False,
    ) -> None:
        mark = {**(mark or {}), "total": self.journal.total.to_dict()}
        if turn.member:
            mark["active"] = turn.member
        records = closing_records(turn, status, mark=mark, partial=partial, interrupted=interrupted)
        self.journal.append(turn.mark_id(), records)
        take_closing(turn, records)

    async def _abandon(self, last: TurnState) -> None:
        """A new turn comes while the log's newest has not ended. Rules: HP-5, AG-5."""
        paused = bool(last.pending())
        self._close(last, "abandoned", interrupted=not paused)
        await self.journal.settled()
        self.journal.turn_ended(last)
