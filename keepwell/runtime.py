"""The runtime: one supervision tree with the default store, providers, agents and your children.

root (one_for_one)
├── default store supervisor (5 in 10 s) ── keepwell.default_store
├── supervisors of further stores
├── circuit_breakers (per child 5 in 10 s)
├── providers (per child 5 in 10 s)
├── agents (per child 5 in 10 s)
├── sessions (per child 5 in 10 s)
├── tool_sources (per child 5 in 10 s), if an agent has any
└── what `start_child` adds
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from .actors import ActorSystem, Future, telemetry
from .actors.clock import limit_of
from .actors.context import entered_system
from .actors.errors import ActorDied, InvalidValue
from .agent.agent import Agent
from .agent.agent_supervisor import AgentSupervisor
from .agent.breaker_supervisor import BreakerSupervisor, circuits_of
from .agent.delegation import Place
from .agent.fleet import IDLE_SECONDS, WAIT_SECONDS, Fleet
from .agent.open_turns import OpenTurn, find_open_turns
from .agent.spec import AgentSpec
from .agent.turn_queue import TurnQueue
from .health import Draining, Health, all_done, health
from .memories import Memories
from .memory.call_threads import call_threads
from .memory.provider_handle import NoMemory, ProviderHandle
from .memory.provider_supervisor import ProviderSupervisor
from .runtime_tree import RuntimeTree, running_runtimes
from .sessions.flow_services import FlowServices, default_services
from .sessions.open_sessions import MAX_ERRORS, OpenSessions
from .sessions.session_actor import SessionSupervisor
from .sessions.turn_loop import MAX_DELIVERIES
from .stores import DiskStore, MemoryStore, Store, StoreHandle
from .stores.conversation_id import conversation_key
from .stores.session_state import DEDUPE_WINDOW, DEFAULT_TENANT, RETAIN_EVENTS
from .stores.store import check_startable
from .supervision import ChildSpec, Supervisor, terminate_child
from .surroundings import make_body_of, services_of, session_store_of
from .tool_sources import ToolSources

if TYPE_CHECKING:
    from .actors.clock import Clock
    from .actors.scheduler import Scheduler
    from .sessions import Session
    from .sessions.session_handle import SessionHandle
    from .stores.environment import Durability
    from .stores.port import Port
    from .stores.session_store import RowsSessionStore
    from .stores.token_counter import TokenCounter

T = TypeVar("T")

DEFAULT_STORE: Final = "keepwell.default_store"
"""The name of the default store (DF-1)."""
STORE_RESTARTS: Final = 5
STORE_SECONDS: Final = 10
DRAIN_SECONDS: Final = 25.0
"""How long running turns may take after SIGTERM; service managers kill after 30 s or more."""

logger = logging.getLogger("keepwell")


class Runtime:
    """Owns a tree of actors; `async with` in your event loop, or `with` on a loop of its own.

    data_dir: where conversations are kept, on disk (one process owns it: StoreInUse otherwise);
    None keeps them in memory. durability: "power" (acknowledged means flushed) or "process". store:
    another default store. counter: the token counter of the default store.

    Every call starts at once and returns a Future: await it, or `.get()` it in a thread. Entering
    raises StartFailed with the cause (StoreInUse, NewerFormat, ReadOnlyStore, …). Leaving stops
    agents, providers and stores in this order; a turn that had not ended stays in the log and is
    resumed when its agent is spawned again. Rules: DF-1…4, FL-3.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        name: str = "keepwell",
        durability: Durability = "power",
        store: Store | None = None,
        counter: TokenCounter | None = None,
        clock: Clock | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        if data_dir is not None and store is not None:
            raise InvalidValue("data_dir= and store= both choose the default store: pass one")
        if store is not None:
            self._default: Store = store
        elif data_dir is not None:
            self._default = DiskStore(data_dir, durability=durability, counter=counter)
        else:
            self._default = MemoryStore(counter=counter)
        self.name = name
        self.data_dir = None if data_dir is None else os.fsdecode(data_dir)
        self._tree = RuntimeTree(
            self, clock=clock, scheduler=scheduler, children=self._children,
            branches=self._start_branches, on_end=self._tree_ended,
        )  # fmt: skip
        self._agents: Any = None
        self._providers: Any = None
        self._sessions: OpenSessions | None = None
        self._memories = Memories(self)
        self._tool_sources = ToolSources(self)
        self._queues: set[TurnQueue] = set()
        self._fleets: list[Fleet] = []
        self._ports: set[Port] = set()
        """The ports of the stores that this runtime has started."""
        self._draining: Draining | None = None
        self._threads = call_threads()
        self.ended: Future[Any] = self._tree.ended
        """Done when the tree has ended, with the reason: "shutdown", or why it gave up (F67)."""

    def __repr__(self) -> str:
        where = "memory" if self.data_dir is None else self.data_dir
        return f"<Runtime {self.name!r} in {where}>"

    # -- entering and leaving --------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._tree.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._tree.leave()

    async def __aenter__(self) -> Self:
        await self._tree.aenter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tree.aleave()

    def close(self) -> None:
        """Stop the tree and wait for it, in a thread. Does nothing the second time."""
        self._tree.close()

    async def aclose(self) -> None:
        """Stop the tree and wait for it, in the event loop."""
        await self._tree.aclose()

    def _children(self) -> list[ChildSpec]:
        return [self._store_child(DEFAULT_STORE, self._default)]

    async def _start_branches(self) -> None:
        await self.supervisor.start_child(
            ChildSpec("circuit_breakers", BreakerSupervisor, type="supervisor")
        )
        self._providers = await self.supervisor.start_child(
            ChildSpec("providers", ProviderSupervisor, type="supervisor")
        )
        self._agents = await self.supervisor.start_child(
            ChildSpec("agents", AgentSupervisor, type="supervisor")
        )
        kept = session_store_of(self)
        self._sessions = OpenSessions(kept, self.system, partial(make_body_of, self, kept))
        await self.supervisor.start_child(
            ChildSpec("sessions", partial(SessionSupervisor, self._sessions), type="supervisor")
        )
        if self.data_dir is not None:
            _ = self.system.run(self._report_open_turns())

    def _tree_ended(self, reason: Any) -> None:
        for fleet in self._fleets:
            fleet.close(ActorDied(f"{self!r} has ended", reason=reason))
        for queue in list(self._queues):
            queue.close(reason)
        self._memories.close(reason)
        if self._sessions is not None:
            self._sessions.close(reason)

    # -- health ----------------------------------------------------------------------------------

    def health(self) -> Health:
        """Whether the runtime is alive and ready for new turns, as it looks now; never waits."""
        return health(
            tree_stands=self._tree.stands,
            store_open=self._default.port.engine is not None,
            draining=self._draining is not None,
            open_circuits=circuits_of(self.system).not_closed() if self._tree.stands else (),
        )

    def drain(self, timeout: float = DRAIN_SECONDS) -> Future[bool]:
        """Refuse new turns (`Draining`) and wait for those that run or wait.

        True when all have ended, False after `timeout` seconds; what is left then stays in the log
        and is resumed by the next process. Cannot be taken back; `close` comes next.
        """
        limit = limit_of(timeout)
        if self._draining is None:
            self._draining = Draining(self.name)
        if not self.supervisor.is_alive():
            return Future.of(True)  # the tree has ended, and every turn with it
        # At once, before anything can be awaited: whoever calls next is refused.
        idle = [queue.drain(self._draining) for queue in list(self._queues)]
        return self._run(all_done, idle, limit)

    # -- what is in it ---------------------------------------------------------------------------

    @property
    def system(self) -> ActorSystem:
        """The actor system. Raises InvalidValue before the runtime is entered."""
        return self._tree.system

    @property
    def supervisor(self) -> Any:
        """The ref of the root supervisor. Raises InvalidValue before the runtime is entered."""
        return self._tree.supervisor

    @property
    def providers(self) -> Any:
        """The ref of the supervisor of memory providers."""
        return self._providers

    @property
    def store(self) -> StoreHandle:
        """The default store (DF-1)."""
        return self._default

    def is_unknown(self, store: Store) -> bool:
        """Whether nobody has started this store (one of ours may just be restarting)."""
        return store.port.ref is None and store.port not in self._ports

    def start_child(self, spec: ChildSpec) -> Future[Any]:
        """Start a child under the root supervisor; the future gets its ref."""
        future: Future[Any] = self.supervisor.start_child(spec)
        return future

    def start_store(self, store: Store, name: str | None = None) -> Future[StoreHandle]:
        """Start a store under a supervisor of its own (5 in 10 s); the future gets its handle.

        `name`: reaches it by `StoreHandle(name)`; made if absent. Raises StartFailed with the cause
        through the future.
        """
        check_startable(store)
        name = name or f"store.{uuid.uuid4().hex[:12]}"
        return self.system.run(self._start_store(store, name))

    async def _start_store(self, store: Store, name: str) -> StoreHandle:
        await self.supervisor.start_child(self._store_child(name, store))
        return store

    def _store_child(self, name: str, store: Store) -> ChildSpec:
        child = ChildSpec(name, store.child_start(name, self.system))
        self._ports.add(store.port)
        start = partial(Supervisor, [child], max_restarts=STORE_RESTARTS, max_seconds=STORE_SECONDS)
        return ChildSpec(("store", name), start, type="supervisor")

    # -- agents ----------------------------------------------------------------------------------

    def spawn(self, spec: AgentSpec, conversation_id: str | None = None) -> Future[Agent]:
        """Start an agent of a conversation; the future gets it. An unfinished turn is resumed.

        `conversation_id`: a random one if absent; agents may share one and then take turns. Raises
        InvalidValue (InvalidConversationId) at once, StartFailed through the future. Rule: AG-1.
        """
        if not isinstance(spec, AgentSpec):
            raise InvalidValue(f"{spec!r} is no AgentSpec: pass AgentSpec(model, …)")
        if conversation_id is None:
            conversation_id = uuid.uuid4().hex
        else:
            conversation_key(conversation_id)
        return self._run(self._spawn, spec, conversation_id)

    async def _spawn(self, spec: AgentSpec, conversation_id: str, depth: int = 0) -> Agent:
        if self._draining is not None and depth == 0:
            raise self._draining  # sub-agents of running turns still come
        memory = await self._memories.of(spec)
        if spec.has_sources:
            await self._tool_sources.of(spec)
        queue = TurnQueue(conversation_id, spec.on_busy, spec.max_queue, memory.gates)
        queue.on_close.append(lambda: self._forget(queue, memory))
        self._queues.add(queue)
        try:
            await self._agents.start_child(
                spec, conversation_id, memory, queue, self._threads, Place(self, depth)
            )
        except BaseException:
            self._queues.discard(queue)
            raise
        return Agent(queue, memory, partial(self._stop_agent, queue), spec.name)

    def child_agent(self, spec: AgentSpec, conversation_id: str, depth: int) -> Future[Agent]:
        """Start a sub-agent for a delegating tool, `depth` delegations deep."""
        return self._run(self._spawn, spec, conversation_id, depth)

    async def clear_child(self, spec: AgentSpec, conversation_id: str) -> None:
        """Forget what a sub-agent wrote."""
        memory = await self._memories.of(spec)
        await memory.clear(conversation_id)

    def end_child(self, spec: AgentSpec, conversation_id: str) -> Future[None]:
        """Stop the sub-agents of a conversation and forget what they wrote.

        Not while the runtime ends: what they wrote then tells the next process that it interrupted
        them (SA-3).
        """
        if self._tree.closing:
            return Future.of(None)
        return self._run(self._end_child, spec, conversation_id)

    async def _end_child(self, spec: AgentSpec, conversation_id: str) -> None:
        for queue in [q for q in self._queues if q.conversation_id == conversation_id]:
            await self._stopped_agent(queue)
        await self.clear_child(spec, conversation_id)

    async def has_conversations(self, prefix: str) -> bool:
        """Whether the default store has conversations whose ids begin so."""
        return bool(await self.store.conversations(prefix=prefix, limit=1))

    def fleet(
        self,
        spec: AgentSpec,
        *,
        idle_timeout: float = IDLE_SECONDS,
        max_active: int | None = None,
        wait_timeout: float = WAIT_SECONDS,
    ) -> Fleet:
        """One agent of this spec per conversation, activated on demand. See `Fleet`. Rule: FL-1."""
        if not isinstance(spec, AgentSpec):
            raise InvalidValue(f"{spec!r} is no AgentSpec: pass AgentSpec(model, …)")
        fleet = Fleet(
            spec, self, self._memories.now(spec), idle_timeout=idle_timeout, max_active=max_active,
            wait_timeout=wait_timeout,
        )  # fmt: skip
        self._fleets.append(fleet)
        _ = self._run(
            self._memories.of, spec
        )  # reads must find a provider before any agent is there
        return fleet

    def fleet_spawn(self, spec: AgentSpec, conversation_id: str) -> Future[Agent]:
        """Start an agent for a fleet; on any thread."""
        return self._run(self._spawn, spec, conversation_id)

    @property
    def clock(self) -> Clock:
        """The runtime's clock."""
        return self.system.clock

    def open_turns(self) -> Future[tuple[OpenTurn, ...]]:
        """The unfinished turns in the default store; spawning their agent resumes them (FL-3).

        Found by an index: costs what the turns found cost, however many conversations there are.
        """
        return self._run(find_open_turns, self.store)

    async def _report_open_turns(self) -> None:
        turns = [turn for turn in await find_open_turns(self.store) if not turn.paused]
        if turns:
            telemetry.emit("keepwell.runtime.open_turns", runtime=self, turns=turns)
            logger.warning(
                "%d unfinished turns were found in %s: they are resumed when their agents are "
                "spawned (or by fleet.recover()), for example %r", len(turns), self.data_dir,
                turns[0].conversation_id,
            )  # fmt: skip

    def _forget(self, queue: TurnQueue, memory: ProviderHandle | NoMemory) -> None:
        self._queues.discard(queue)
        memory.gates.release(queue.conversation_id, queue)

    def _stop_agent(self, queue: TurnQueue) -> Future[None]:
        return self._run(self._stopped_agent, queue)

    async def _stopped_agent(self, queue: TurnQueue) -> None:
        try:
            if queue.closed is None:
                await terminate_child(self._agents, queue.ref)
        except ActorDied:
            pass  # the whole tree ends
        queue.close("shutdown")

    # -- sessions --------------------------------------------------------------------------------

    def open_session(
        self,
        session: Session,
        session_id: str,
        *,
        tenant: str = DEFAULT_TENANT,
        conversation_id: str | None = None,
        max_consecutive_turn_errors: int | None = MAX_ERRORS,
        max_deliveries: int = MAX_DELIVERIES,
        retain_events: int = RETAIN_EVENTS,
        dedupe_window: int = DEDUPE_WINDOW,
    ) -> Future[SessionHandle]:
        """Open a durable session; the future gets its handle. It goes on where it was.

        tenant: of the blobs it may mention. conversation_id: whose log a flow session reads and
        adds its turns to (default: the session's id). max_consecutive_turn_errors: so many failed
        turns in a row end it, None: never. max_deliveries: times that a message is taken up again
        after its turn has died. retain_events, dedupe_window: how many events and idempotency keys
        are kept. A closed session gives a handle for reading. Raises InvalidValue, SessionConflict,
        StoreUnavailable. Rules: B6…B23, C1…C7.
        """
        start = partial(
            self._opened().open, session, session_id, tenant=tenant,
            conversation_id=conversation_id,
            max_consecutive_turn_errors=max_consecutive_turn_errors, max_deliveries=max_deliveries,
            retain_events=retain_events, dedupe_window=dedupe_window,
        )  # fmt: skip
        return self._run(start)

    def pending_sessions(self) -> Future[list[str]]:
        """Ids of the sessions with messages that no turn has taken: open them to go on (C6)."""
        return self._run(self._opened().pending)

    def delete_session(self, session_id: str) -> Future[None]:
        """Stop a session, remove all of it, and free its id (B22). Raises NotFound."""
        return self._run(self._opened().delete, session_id)

    @property
    def session_store(self) -> RowsSessionStore:
        """Where sessions and blobs are kept: on disk with a data_dir, else in memory."""
        return self._opened().store

    def _opened(self) -> OpenSessions:
        if self._sessions is None:
            raise InvalidValue(f"{self!r} is not running: enter it with `async with` or `with`")
        return self._sessions

    def _run(self, start: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        """Run a coroutine function on the system's loop, unless the tree has ended."""
        if self._tree.has_ended:
            return Future.failed(ActorDied(f"{self!r} has ended", reason="noproc"))
        return self.system.run(start(*args))


def _flow_services() -> FlowServices:
    """What `run_flow` and driven sessions find around them: the runtime that runs here, if any."""
    system = entered_system.get()
    runtime = running_runtimes.get(system) if system is not None else None
    if runtime is None and len(running_runtimes) == 1:
        runtime = next(iter(running_runtimes.values()))
    if runtime is None or runtime.system.closed or runtime._sessions is None:
        return FlowServices()
    return services_of(runtime, runtime._sessions.store)


default_services[:] = [_flow_services]
