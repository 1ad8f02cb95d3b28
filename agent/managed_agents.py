"""Sub-agents that outlive the turn that started them: spawn, list, result, kill, restart (SA-3).

A managed agent belongs to the conversation that spawned it; another conversation does not see it.
It runs in the background in a conversation of its own, which is cleared when its result is here.
What is known of it is kept in memory, for an hour after its end: after a restart of the process an
agent that had not ended is found by its conversation, and is failed.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ..actors.errors import InvalidValue
from ..actors.future import Future
from .delegation import MAX_DEPTH, Place, running_place
from .errors import ToolError
from .tool import Tool, tool
from .tool_context import ToolContext
from .tool_result import error_message

if TYPE_CHECKING:
    from .agent import Agent
    from .spec import AgentSpec

Status = Literal["running", "done", "failed", "killed"]

KEPT_SECONDS: Final = 3600.0
"""How long an agent that has ended is remembered."""


@dataclass(slots=True)
class _Managed:
    id: str
    owner: str
    spec: AgentSpec
    task: str
    generation: int = 0
    status: Status = "running"
    text: str = ""
    ended: float = 0.0
    agent: Agent | None = None

    @property
    def conversation_id(self) -> str:
        return f"{_prefix(self.owner, self.id)}{self.generation}"


def _prefix(owner: str, agent_id: str) -> str:
    return f"{owner}/managed/{agent_id}/"


def managed_agents(*specs: AgentSpec) -> tuple[Tool, ...]:
    """Five tools to run agents of these specs in the background. Their names must be distinct.

    `spawn_agent(agent, task, background)` gives an id at once; `list_agents()`; `agent_result(id)`
    (an error `not_ready` while it runs, `not_found` for an unknown id or another owner's);
    `kill_agent(id)` (nothing happens to one that has ended); `restart_agent(id)` (the same task
    under the same id; a late result of the run before is ignored).
    """
    by_name: dict[str, AgentSpec] = {}
    for spec in specs:
        name = getattr(spec, "name", None)
        if not isinstance(name, str) or not hasattr(spec, "memory_form"):
            raise InvalidValue(f"{spec!r} is no AgentSpec: pass the sub-agents' specs")
        if name in by_name:
            raise InvalidValue(f"two sub-agents are called {name!r}: give one another name")
        by_name[name] = spec
    if not by_name:
        raise InvalidValue("managed_agents() needs at least one AgentSpec")
    return _Register(by_name).tools()


class _Register:
    """The managed agents of one tool set."""

    def __init__(self, specs: dict[str, AgentSpec]) -> None:
        self._specs = specs
        self._lock = threading.Lock()
        self._known: dict[str, _Managed] = {}

    def tools(self) -> tuple[Tool, ...]:
        names = ", ".join(self._specs)

        @tool(description=f"Start a task in the background and get its id. Agents: {names}.")
        async def spawn_agent(
            agent: str, task: str, context: ToolContext, background: str = ""
        ) -> dict[str, str]:
            spec = self._specs.get(agent)
            if spec is None:
                raise ToolError(f"there is no agent {agent!r}; available: {names}")
            question = f"{task}\n\n{background}" if background else task
            one = _Managed(uuid.uuid4().hex[:8], context.conversation_id, spec, question)
            await self._start(one)
            with self._lock:
                self._known[one.id] = one
            return {"id": one.id, "status": one.status}

        @tool
        async def list_agents(context: ToolContext) -> list[dict[str, str]]:
            """List the background agents of this conversation, the oldest first."""
            return [
                {"id": one.id, "agent": one.spec.name, "status": one.status}
                for one in self._of(context.conversation_id)
            ]

        @tool
        async def agent_result(id: str, context: ToolContext) -> dict[str, str]:
            """Get the result of a background agent that has ended."""
            one = await self._find(id, context)
            if one.status == "running":
                raise ToolError(f"not_ready: agent {id} is still running")
            key = "result" if one.status == "done" else "error"
            return {"status": one.status, key: one.text}

        @tool
        async def kill_agent(id: str, context: ToolContext) -> dict[str, str]:
            """Stop a background agent. Nothing happens to one that has ended."""
            one = await self._find(id, context)
            if one.status == "running":
                await self._stop(one)
                one.status, one.text = "killed", "it was killed"
            return {"id": id, "status": one.status}

        @tool
        async def restart_agent(id: str, context: ToolContext) -> dict[str, str]:
            """Run a background agent's task again under the same id."""
            one = await self._find(id, context)
            if one.status == "running":
                await self._stop(one)
            one.generation += 1
            await self._start(one)
            return {"id": id, "status": one.status}

        return (spawn_agent, list_agents, agent_result, kill_agent, restart_agent)

    # -- what the tools do -----------------------------------------------------------------------

    def _of(self, owner: str) -> list[_Managed]:
        now = time.monotonic()
        with self._lock:
            for one in list(self._known.values()):
                if one.status != "running" and now - one.ended > KEPT_SECONDS:
                    del self._known[one.id]
            return [one for one in self._known.values() if one.owner == owner]

    async def _find(self, agent_id: str, context: ToolContext) -> _Managed:
        for one in self._of(context.conversation_id):
            if one.id == agent_id:
                return one
        place = _place()
        prefix = _prefix(context.conversation_id, agent_id)
        if agent_id and "/" not in agent_id and await place.host.has_conversations(prefix):
            raise ToolError(f"failed: agent {agent_id} was interrupted by a restart of the program")
        raise ToolError(f"not_found: there is no agent {agent_id!r} of this conversation")

    async def _start(self, one: _Managed) -> None:
        place = _place()
        if place.depth >= MAX_DEPTH:
            raise ToolError(f"sub-agents are nested at most {MAX_DEPTH} deep")
        one.agent = await place.host.child_agent(one.spec, one.conversation_id, place.depth + 1)
        one.status, one.text = "running", ""
        generation, conversation = one.generation, one.conversation_id
        running = one.agent.run(one.task, turn_id=conversation)
        running.add_done_callback(lambda done: self._ended(one, generation, place, done))

    def _ended(self, one: _Managed, generation: int, place: Place, done: Future[Any]) -> None:
        error = done.error()
        if one.generation == generation and one.status == "running":
            one.ended = time.monotonic()
            if error is not None:
                one.status, one.text = "failed", error_message(error)
            elif done.get().status == "paused":
                one.status, one.text = (
                    "failed",
                    "it stopped to ask a human, which it cannot do here",
                )
            else:
                one.status, one.text = "done", done.get().text
        _ = place.host.end_child(one.spec, f"{_prefix(one.owner, one.id)}{generation}")

    async def _stop(self, one: _Managed) -> None:
        one.ended = time.monotonic()
        agent, one.agent = one.agent, None
        one.generation += 1  # whatever the run gives from here on is ignored
        if agent is not None:
            await agent.stop()


def _place() -> Place:
    place = running_place.get()
    if place is None:
        raise ToolError("sub-agents need an agent in a runtime, and this call has none")
    return place
