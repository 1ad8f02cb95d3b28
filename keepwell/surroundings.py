"""What a runtime gives to the flows that run in it: its stores, turn gates and agents (E7, D10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .actors import Future
from .actors.errors import KeepwellError, RequestError, Unavailable
from .memory.token_counter import approx_token_count
from .memory.turn import Turn, message_turn, turn_messages
from .memory.turn_gate import turn_gates
from .sessions.flow_body import FlowBody
from .sessions.flow_services import AgentAnswer, FlowServices
from .sessions.session import Session
from .sessions.turn_loop import body_for
from .stores import DiskStore
from .stores.conversation_id import TEMPORARY_PREFIX
from .stores.disk_session_store import DiskSessionStore, still_holds
from .stores.memory_session_store import MemorySessionStore
from .stores.session_state import LogRecords

if TYPE_CHECKING:
    from .agent.spec import AgentSpec
    from .runtime import Runtime
    from .sessions.session_home import SessionHome
    from .sessions.turn_body import TurnBody
    from .stores.session_store import RowsSessionStore

FIRST_DELAY = 0.05
MAX_DELAY = 5.0


def session_store_of(runtime: Runtime) -> RowsSessionStore:
    """Where the runtime keeps sessions and blobs: on its default store's disk, or in memory."""
    store = runtime.store
    if isinstance(store, DiskStore):
        return DiskSessionStore(store)

    def append(log: LogRecords) -> Future[None]:
        return runtime.system.run(append_until_acknowledged(store, log))

    return MemorySessionStore(
        wall=runtime.system.clock.time, append_log=append, holds=partial(still_holds, store)
    )


async def append_until_acknowledged(store: Any, log: LogRecords) -> None:
    """Add a turn's records to its conversation, once, however long the store is away (E7).

    What the store refuses (the log was cleared meanwhile) is not added.
    """
    delay = FIRST_DELAY
    while True:
        try:
            await store.add(
                log.conversation_id, list(log.records), append_id=log.append_id, epoch=log.epoch
            )
        except Unavailable:
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_DELAY)
        except KeepwellError:
            return
        else:
            return


def services_of(runtime: Runtime, blobs: RowsSessionStore) -> FlowServices:
    """The surroundings of a flow that has no session."""
    store: Any = runtime.store
    port = getattr(store, "port", None)
    return FlowServices(
        count_tokens=port.counter() if port is not None else approx_token_count,
        blobs=blobs,
        summaries=blobs,
        run_agent=partial(_run_agent, runtime),
    )


def make_body_of(
    runtime: Runtime, blobs: RowsSessionStore, home: SessionHome
) -> Callable[[Session], TurnBody]:
    """What makes the body of a session's turns: a flow gets its conversation and its turn gate."""
    if not home.session.is_flow:
        return body_for
    services = services_of(runtime, blobs)
    store: Any = runtime.store
    conversation_id = home.conversation_id
    gates = turn_gates(store)

    async def conversation() -> tuple[Any, int]:
        log = await store.read(conversation_id)
        return log, log.epoch

    services.conversation_id = conversation_id
    services.tenant = home.settings.tenant
    services.conversation = conversation
    # The home holds the gate: it outlives the incarnations of the session's actor.
    services.acquire = partial(gates.acquire, conversation_id, home)
    services.release = partial(gates.release, conversation_id, home)
    home.on_end.append(services.release)
    return lambda session: FlowBody(session, services)


async def _run_agent(
    runtime: Runtime, spec: AgentSpec, text: Any, turn_id: str, earlier: Sequence[Turn]
) -> AgentAnswer:
    """Run an agent on a conversation of its own, which goes when it is done."""
    conversation_id = f"{TEMPORARY_PREFIX}{turn_id}"
    agent = await runtime.spawn(spec, conversation_id)
    try:
        if earlier and not await agent.messages():
            await agent.add_messages(turn_messages(earlier))
        result = await agent.run(text, turn_id=turn_id)
        if result.status != "completed":
            raise RequestError(f"agent {spec.name!r} is {result.status}: it has no answer")
        turns = [message_turn(message) for message in result.messages]
        return AgentAnswer(result.text, turns, result.usage)
    finally:
        await agent.stop()
        await runtime.store.clear(conversation_id)
