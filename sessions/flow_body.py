"""The turns of a session whose body is a flow (E7)."""

from __future__ import annotations

import asyncio
from typing import Any

from ..actors import Future, telemetry
from ..memory.transcript import TraceEntry
from ..stores.message import Message, ToolCall
from ..stores.plain import Plain
from ..stores.record import NewRecord
from ..stores.session_state import LogRecords
from .flow_nodes import Loop, Recv
from .flow_run import FlowRun
from .flow_services import FlowServices
from .flow_think import as_user_text
from .node import Node
from .session import Session
from .turn_body import finish
from .turn_context import Turn, enter_turn
from .turn_result import Good, TurnResult, result_of


class FlowBody:
    """Runs the flow; see TurnBody. Its turns hold the turn gate of the session's conversation."""

    over: Future[str] | None = None

    def __init__(self, session: Session, services: FlowServices) -> None:
        assert isinstance(session.body, Node)
        body = session.body
        self._node: Node = body.children[0] if isinstance(body, Loop) else body
        self._session = session
        self._services = services
        self._timeout = next((n.timeout for n in _walk(self._node) if isinstance(n, Recv)), None)
        self._alarm: asyncio.TimerHandle | None = None

    def start(self, carrier: Plain) -> None:  # noqa: ARG002 - see TurnBody
        """See TurnBody."""
        self._wait()

    async def run(self, turn: Turn, message: Plain, carrier: Plain) -> TurnResult:
        """See TurnBody."""
        services = self._services
        self._quiet()
        enter_turn(turn)
        run = FlowRun(services, carrier, turn=turn, message=message)
        try:
            if services.acquire is not None:
                await services.acquire()
            if services.conversation is not None:
                _, run.began_in = await services.conversation()
            value = await self._node.run(carrier, run)
            result = finish(self._session, turn, value)
            log = self._log(run, message, result)
            return Good(result.carrier, result.emits, result.closes, result.explicit, log)
        except BaseException as error:  # noqa: BLE001 - see turn_body
            return result_of(error)
        finally:
            turn.end()
            for report in run.reports:
                turn.reports.append(report)
            turn.usage = turn.usage + run.usage

    def committed(self, carrier: Plain) -> None:  # noqa: ARG002 - see TurnBody
        """See TurnBody."""
        self._let_go()
        self._wait()

    def abandon(self) -> None:
        """See TurnBody."""

    async def stop(self, reason: str | None) -> None:  # noqa: ARG002 - see TurnBody
        """See TurnBody."""
        self._quiet()
        self._let_go()

    def _let_go(self) -> None:
        if self._services.release is not None:
            self._services.release()

    # -- recv's timeout: said, and waited on ---------------------------------------------------

    def _wait(self) -> None:
        if self._timeout is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(self._timeout, self._late)

    def _late(self) -> None:
        telemetry.emit(
            "keepwell.session.recv_timeout", channel=self._session.in_channel.name,
            seconds=self._timeout, conversation_id=self._services.conversation_id,
        )  # fmt: skip

    def _quiet(self) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.cancel()

    # -- the conversation's log ----------------------------------------------------------------

    def _log(self, run: FlowRun, message: Plain, result: Good) -> LogRecords | None:
        """What the turn adds to its conversation: message, calls with results, outputs."""
        if self._services.conversation is None:
            return None
        turn_id = run.turn_id
        records = [NewRecord(Message("user", as_user_text(message)), turn_id)]
        for entry in run.trace:
            records += _call_records(entry, turn_id)
        out = self._session.out_channel.name
        outputs = [payload for channel, payload in result.emits if channel == out]
        records += [
            NewRecord(Message("assistant", as_user_text(output)), turn_id) for output in outputs
        ]
        # Marked as an agent's turns are, so that none takes it for one that it must resume.
        mark: dict[str, Any] = {"ended": "completed", "session": True}
        if run.usage.total_tokens:
            mark["usage"] = run.usage.to_dict()
        if run.reports:
            mark["context_report"] = [report.to_dict() for report in run.reports]
        last = records[-1]
        records[-1] = NewRecord(last.message, turn_id, mark)
        blobs = tuple(entry.output_ref for entry in run.trace if entry.output_ref is not None)
        return LogRecords(
            self._services.conversation_id, tuple(records), turn_id, run.began_in, blobs
        )


def _call_records(entry: TraceEntry, turn_id: str) -> list[NewRecord]:
    if entry.decision not in ("call", "sub") or entry.call_id is None:
        return []
    call_id = f"{turn_id}/{entry.call_id}"
    arguments = entry.arguments
    if not isinstance(arguments, dict):
        arguments = {} if arguments is None else {"input": arguments}
    call = ToolCall(call_id, entry.ref, arguments)
    if entry.output_ref is not None:
        answer = Message("tool", None, tool_call_id=call_id, content_ref=entry.output_ref)
    else:
        output = entry.output
        # As the running turn shows it (E3), so that a context begins with the same bytes next time.
        answer = Message("tool", as_user_text(output), tool_call_id=call_id)
    return [
        NewRecord(Message("assistant", None, [call]), turn_id),
        NewRecord(answer, turn_id),
    ]


def _walk(node: Node) -> Any:
    yield node
    for child in node.children:
        yield from _walk(child)

