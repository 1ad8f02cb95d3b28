"""The tool sources of a runtime's agents, each a supervised child, started with its first agent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .actors import Future
from .agent.handoff import team_of
from .agent.tool_source import is_source
from .supervision import ChildSpec, DynamicSupervisor

if TYPE_CHECKING:
    from .actors.system import ActorSystem
    from .agent.spec import AgentSpec
    from .agent.tool_source import ToolSource
    from .runtime import Runtime
    from .supervision.children import ChildRecord


class ToolSourceSupervisor(DynamicSupervisor):
    """One child per source, each with a restart budget of its own (5 in 10 s).

    `start_child(ref, source, system)`. One that is given up gives tool errors, and is
    started again with the next agent that has it.
    """

    def __init__(self, sources: ToolSources) -> None:
        super().__init__(ChildSpec("tool_source", _start), per_child=True)
        self._sources = sources

    def on_start(self) -> Any:
        """Take up what an incarnation before had."""
        started = super().on_start()
        self._sources.moved_in(self.actor_ref)
        return started

    def _give_child_up(self, record: ChildRecord) -> None:
        super()._give_child_up(record)
        self._sources.lost(record.args[0])


def _start(source: ToolSource, system: ActorSystem) -> Any:
    return source.spawn(system)


class ToolSources:
    """Starts the sources that nobody else has started."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._supervisor: Future[Any] | None = None
        self._starting: dict[int, Future[Any]] = {}
        self._ours: dict[int, ToolSource] = {}

    async def of(self, spec: AgentSpec) -> None:
        """Start the sources of a spec and its team. Raises StartFailed; never waits for servers."""
        for member in team_of(spec).values():
            for one in member.given_tools:
                if is_source(one):
                    await self._attend(one)

    def lost(self, source: ToolSource) -> None:
        """A source was given up."""
        self._ours.pop(id(source), None)

    async def _attend(self, source: ToolSource) -> None:
        key, system = id(source), self._runtime.system
        starting = self._starting.get(key)
        if starting is None:
            if key in self._ours:
                return
            if source.is_started(system):
                return  # by hand
            starting = self._starting[key] = system.run(self._begin(source, system))
        try:
            await starting
        finally:
            self._starting.pop(key, None)
        self._ours[key] = source

    async def _begin(self, source: ToolSource, system: ActorSystem) -> None:
        if self._supervisor is None:
            self._supervisor = self._runtime.start_child(
                ChildSpec("tool_sources", partial(ToolSourceSupervisor, self), type="supervisor")
            )
        supervisor = await self._supervisor
        await supervisor.start_child(source, system)

    def moved_in(self, supervisor: Any) -> None:
        """The supervisor has started, perhaps after a crash that ended its children."""
        self._supervisor = Future.of(supervisor)
        system = self._runtime.system
        for source in list(self._ours.values()):
            _ = system.run(_begun(supervisor, source, system))


async def _begun(supervisor: Any, source: ToolSource, system: ActorSystem) -> None:
    await supervisor.start_child(source, system)
