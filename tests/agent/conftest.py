"""A bench for agents: a store, a provider actor, agents that can be crashed and restarted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from keepwell.actors import ActorSystem, Future
from keepwell.agent import sdk_model
from keepwell.agent.agent import Agent
from keepwell.agent.agent_actor import AgentActor
from keepwell.agent.spec import AgentSpec
from keepwell.agent.turn_queue import TurnQueue
from keepwell.memory.call_threads import call_threads
from keepwell.memory.provider_actor import ProviderActor, StoreProviderActor
from keepwell.memory.provider_handle import NoMemory, ProviderHandle
from keepwell.memory.provider_home import ProviderHome
from keepwell.memory.turn_gate import turn_gates
from keepwell.stores.errors import (
    AppendConflict,
    CursorConflict,
    PredecessorMissing,
    StaleEpoch,
)
from keepwell.stores.memory_session_store import MemorySessionStore
from keepwell.stores.record import Appended, NewRecord, Record


class Records(tuple[Record, ...]):
    """A log, read in full."""

    cursor = 0
    epoch = 1

    def systems(self) -> tuple[Record, ...]:
        return tuple(r for r in self if r.message and r.message.role == "system")


class PlainStore:
    """The store protocol on dicts; every append waits while `held` (its futures are in `queue`)."""

    def __init__(self) -> None:
        self.logs: dict[str, list[Record]] = {}
        self.ids: dict[tuple[str, str], tuple[list[NewRecord], Appended]] = {}
        self.epochs: dict[str, int] = {}
        self.held = False
        self.queue: list[tuple[Future[Any], tuple[Any, ...]]] = []
        self.fail_next: list[BaseException] = []

    def read(
        self, cid: str, *, last: int | None = None, after: int | None = None, marks: bool = False
    ) -> Future[Records]:
        log = Records(
            r
            for r in self.logs.get(cid, ())
            if (marks or r.message is not None) and r.seq > (after or 0)
        )
        log.cursor = len(self.logs.get(cid, ()))
        log.epoch = self.epochs.get(cid, 1)
        return Future.of(log)

    def get(self, cid: str) -> Future[Any]:
        return Future.of(tuple(r.message for r in self.logs.get(cid, ()) if r.message))

    def info(self, cid: str) -> Future[Any]:
        raise NotImplementedError

    def add(
        self,
        cid: str,
        messages: Any,
        *,
        append_id: str | None = None,
        follows: str | None = None,
        epoch: int | None = None,
        cursor: int | None = None,
    ) -> Future[Any]:
        future: Future[Any] = Future()
        self.queue.append((future, (cid, list(messages), append_id, follows, epoch, cursor)))
        if not self.held:
            self.commit()
        return future

    def commit(self) -> None:
        """Commit what waits."""
        queue, self.queue = self.queue, []
        for future, request in queue:
            try:
                if self.fail_next:
                    raise self.fail_next.pop(0)
                future.complete(self._add(*request))
            except Exception as error:
                future.fail(error)

    def _add(
        self, cid: str, messages: Any, append_id: Any, follows: Any, epoch: Any, cursor: Any
    ) -> Appended:
        records = [m if isinstance(m, NewRecord) else NewRecord(m) for m in messages]
        current = self.epochs.get(cid, 1)
        if epoch is not None and epoch != current:
            raise StaleEpoch(cid, epoch, current)
        log = self.logs.setdefault(cid, [])
        if (cid, append_id) in self.ids:
            payload, first = self.ids[cid, append_id]
            if payload != records:
                raise AppendConflict(cid, append_id)
            return Appended(first.first_seq, first.cursor, current, first.count, True)
        if cursor is not None and cursor != len(log):
            raise CursorConflict(cid, cursor, len(log))
        if follows is not None and (cid, follows) not in self.ids:
            raise PredecessorMissing(cid, follows)
        appended = Appended(len(log) + 1, len(log) + len(records), current, len(records))
        for new in records:
            now = datetime.now(UTC)
            log.append(Record(len(log) + 1, new.message, new.turn_id, 1, "t", now, new.mark))
        if append_id is not None:
            self.ids[cid, append_id] = (records, appended)
        return appended

    def clear(self, cid: str) -> Future[None]:
        self.logs.pop(cid, None)
        self.epochs[cid] = self.epochs.get(cid, 1) + 1
        self.ids = {key: value for key, value in self.ids.items() if key[0] != cid}
        return Future.of(None)

    def shape(self, cid: str) -> str:
        """The log in the contract's notation: `u a(c1,c2) t(c2) t(c1) a`, marks left out."""
        words = []
        for record in self.logs.get(cid, ()):
            message = record.message
            if message is None:
                continue
            match message.role:
                case "user":
                    words.append("u")
                case "system":
                    words.append("s")
                case "tool":
                    words.append(f"t({message.tool_call_id})")
                case _:
                    calls = ",".join(call.id for call in message.tool_calls)
                    words.append(f"a({calls})" if calls else "a")
        return " ".join(words)

    def results(self, cid: str) -> dict[str, Any]:
        """The contents of tool results by call id."""
        return {
            r.message.tool_call_id or "": r.message.content
            for r in self.logs.get(cid, ())
            if r.message is not None and r.message.role == "tool"
        }

    def last_mark(self, cid: str) -> Any:
        """The mark of the newest record that has one."""
        return next((r.mark for r in reversed(self.logs.get(cid, [])) if r.mark), None)


class Bench:
    """Makes agents over one store, crashes and restarts them."""

    def __init__(self) -> None:
        self.store = PlainStore()
        self.beside = MemorySessionStore()
        self.custom: Any = None
        self._home: ProviderHome | None = None
        self.specs: dict[int, AgentSpec] = {}

    async def memory(self, spec: AgentSpec) -> Any:
        form = spec.memory_form
        if form.kind == "none":
            return NoMemory()
        home = ProviderHome()
        if form.kind == "provider":
            await ProviderActor.spawn(home, form.target)
            journal = bool(getattr(form.target, "journal", False))
            return ProviderHandle(home, journal=journal, gates=turn_gates(form.target), custom=True)
        await StoreProviderActor.spawn(home, self.store)
        self.home = home
        return ProviderHandle(
            home, journal=True, gates=turn_gates(self.store), window=form.window,
            kept_beside=lambda: self.beside,
        )  # fmt: skip

    async def agent(self, model: Any, cid: str = "c", **options: Any) -> Agent:
        spec = AgentSpec(model, **options)
        memory = await self.memory(spec)
        queue = TurnQueue(cid, spec.on_busy, spec.max_queue, memory.gates)
        await AgentActor.spawn(spec, cid, memory, queue, call_threads())
        agent = Agent(queue, memory, lambda: queue.ref.stop(block=False), spec.name)
        self.specs[id(agent)] = spec
        return agent

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the loop turn until the condition holds."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - what is waited for is state, not an event
                await asyncio.sleep(0)

    async def crash(self, agent: Agent, reason: Any = "killed") -> None:
        """End the present incarnation and start the next, as a supervisor does."""
        ref = agent.ref
        ended: Future[Any] = Future()
        ref.on_exit(ended.complete)
        if reason == "killed":
            ref.kill()
        else:
            ref.exit(reason)
        await ended
        await self.restart(agent)

    async def restart(self, agent: Agent) -> None:
        """Start the next incarnation of an agent whose actor has ended."""
        spec = self.specs[id(agent)]
        queue, memory = agent._queue, agent._memory
        await AgentActor.spawn(spec, queue.conversation_id, memory, queue, call_threads())


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    system = ActorSystem(name="bench")
    system.adopt_loop(asyncio.get_running_loop())
    with_system = system.__enter__()
    try:
        yield Bench()
    finally:
        await asyncio.to_thread(system.close)
        del with_system


@pytest.fixture(scope="session")
def sdks() -> None:
    """The SDKs are loaded: their import, seconds long, is no part of a test's short deadline."""
    for name in ("openai", "anthropic"):
        sdk_model._load(name)
