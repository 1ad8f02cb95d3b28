"""One agent per conversation, activated on demand, passivated when idle (FL-1…3).

A conversation that nobody talks to costs nothing here: its log is in the store, its agent is not
there. A handle is a conversation id and the fleet; what is asked of it waits for the agent to be
activated, in order.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..actors.errors import ActorDied, InvalidValue
from ..actors.future import Future
from ..stores.conversation_id import conversation_key
from .agent import Agent
from .turn_errors import Busy
from .turn_queue import Stop, TurnQueue, TurnRequest

if TYPE_CHECKING:
    from ..actors.clock import Clock, Timer
    from ..memory.provider_handle import NoMemory, ProviderHandle
    from .open_turns import OpenTurn
    from .spec import AgentSpec
    from .stream import Listener

IDLE_SECONDS: Final = 300.0
WAIT_SECONDS: Final = 30.0

logger = logging.getLogger("keepwell.agent")

Act = Callable[[TurnQueue], object]


class FleetHost(Protocol):
    """What a fleet needs of its runtime."""

    def fleet_spawn(self, spec: AgentSpec, conversation_id: str) -> Future[Agent]:
        """Start an agent."""
        ...

    def open_turns(self) -> Future[tuple[OpenTurn, ...]]:
        """Unfinished turns in the store."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of idle times."""
        ...


class _Place:
    """One conversation of the fleet while it is of any interest."""

    __slots__ = ("agent", "backlog", "conversation_id", "idle_since", "leaving", "waiting")

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self.agent: Agent | None = None
        self.backlog: list[tuple[Act, Callable[[BaseException], object]]] = []
        self.idle_since = 0.0
        self.leaving = False
        self.waiting: Timer | None = None


class Fleet:
    """The agents of one spec, by conversation. Made by `runtime.fleet(spec)`.

    idle_timeout: seconds without running or queued turn after which an agent is passivated; reads
    (`messages`, `pending`) neither activate one nor count as activity. max_active: at most so many
    at once; the one idle for longest gives way, and if all are busy a request waits up to
    `wait_timeout` seconds and then gets Busy.
    """

    def __init__(
        self,
        spec: AgentSpec,
        host: FleetHost,
        memory: ProviderHandle | NoMemory,
        *,
        idle_timeout: float = IDLE_SECONDS,
        max_active: int | None = None,
        wait_timeout: float = WAIT_SECONDS,
    ) -> None:
        for name, value in (("idle_timeout", idle_timeout), ("wait_timeout", wait_timeout)):
            number: object = value
            if not isinstance(number, int | float) or isinstance(number, bool) or not number > 0:
                raise InvalidValue(f"{name}={value!r}: pass seconds above 0")
        limit: object = max_active
        if limit is not None and (
            not isinstance(limit, int) or isinstance(limit, bool) or limit < 1
        ):
            raise InvalidValue(f"max_active={max_active!r}: pass an int of at least 1, or None")
        self.spec = spec
        self._host = host
        self._memory = memory
        self._idle_timeout = idle_timeout
        self._max_active = max_active
        self._wait_timeout = wait_timeout
        self._lock = threading.RLock()
        self._places: dict[str, _Place] = {}
        self._idle: OrderedDict[str, _Place] = OrderedDict()  # longest idle first
        self._queue: deque[_Place] = deque()  # places that wait for room
        self._active = 0
        self._timer: Timer | None = None
        self._closed: BaseException | None = None

    def agent(self, conversation_id: str) -> Agent:
        """The agent of a conversation: the same calls as a spawned one, valid for ever.

        Costs nothing until it is asked something. Raises InvalidConversationId.
        """
        conversation_key(conversation_id)
        queue: Any = _FleetQueue(self, conversation_id)
        return Agent(
            queue, self._memory, lambda: self._passivate_now(conversation_id), self.spec.name
        )

    @property
    def active(self) -> int:
        """How many agents are there now."""
        return self._active

    def statistics(self) -> dict[str, int]:
        """Agents that are there, idle ones among them, conversations that wait for room."""
        with self._lock:
            return {
                "active": self._active, "idle": len(self._idle), "waiting": len(self._queue),
            }  # fmt: skip

    def recover(self) -> Future[int]:
        """Activate the agents of all unfinished turns, which resumes them; gives their number.

        Paused turns are left to whoever decides. Rule: FL-3.
        """
        done: Future[int] = Future()

        def found(future: Future[tuple[OpenTurn, ...]]) -> None:
            error = future.error()
            if error is not None:
                done.fail(error)
                return
            turns = [
                turn for turn in future.get() if turn.agent == self.spec.name and not turn.paused
            ]
            for turn in turns:
                self.ask(turn.conversation_id, lambda _queue: None, lambda _error: None)
            done.complete(len(turns))

        self._host.open_turns().add_done_callback(found)
        return done

    def close(self, error: BaseException) -> None:
        """Take no more requests; those that wait fail with `error`."""
        with self._lock:
            self._closed = error
            places = list(self._places.values())
            self._places.clear()
            self._idle.clear()
            self._queue.clear()
            if self._timer is not None:
                self._timer.cancel()
        for place in places:
            for _act, refuse in place.backlog:
                refuse(error)

    # -- asking --------------------------------------------------------------------------------

    def ask(
        self, conversation_id: str, act: Act, refuse: Callable[[BaseException], object]
    ) -> None:
        """Do `act(queue)` on the agent's queue, now or when it has been activated."""
        with self._lock:
            if self._closed is None:
                place = self._places.get(conversation_id)
                if place is None:
                    place = self._places[conversation_id] = _Place(conversation_id)
                    self._make_room_for(place)
                self._idle.pop(conversation_id, None)
                agent = place.agent
                if agent is not None and not place.leaving:
                    act(agent._queue)
                    self._look_whether_idle(place)
                else:
                    place.backlog.append((act, refuse))
                return
        refuse(self._closed)

    def present(self, conversation_id: str) -> TurnQueue | None:
        """The queue of the conversation's agent if it is there."""
        with self._lock:
            place = self._places.get(conversation_id)
            if place is None or place.agent is None or place.leaving:
                return None
            return place.agent._queue

    # -- coming and going ----------------------------------------------------------------------

    def _make_room_for(self, place: _Place) -> None:
        if self._max_active is not None and self._active >= self._max_active:
            self._queue.append(place)
            place.waiting = self._host.clock.call_later(self._wait_timeout, self._waited, place)
            self._passivate_longest_idle()
            return
        self._activate(place)

    def _activate(self, place: _Place) -> None:
        self._active += 1
        if place.waiting is not None:
            place.waiting.cancel()
            place.waiting = None
        spawned = self._host.fleet_spawn(self.spec, place.conversation_id)
        spawned.add_done_callback(lambda future: self._activated(place, future))

    def _activated(self, place: _Place, future: Future[Agent]) -> None:
        error = future.error()
        with self._lock:
            backlog, place.backlog = place.backlog, []
            if error is not None or self._closed is not None:
                self._active -= 1
                self._places.pop(place.conversation_id, None)
                for _act, refuse in backlog:
                    refuse(error or self._closed or ActorDied("the fleet has ended"))
                if error is None:
                    _ = future.get().stop()
                self._next_in()
                return
            agent = place.agent = future.get()
            queue = agent._queue
            queue.on_idle = lambda: self._turned_idle(place)
            queue.on_close.append(lambda: self._gone(place, agent))
            for act, _refuse in backlog:
                act(queue)
            self._look_whether_idle(place)

    def _turned_idle(self, place: _Place) -> None:
        with self._lock:
            self._look_whether_idle(place)

    def _look_whether_idle(self, place: _Place) -> None:
        agent = place.agent
        if agent is None or place.leaving or agent._queue.busy or self._closed is not None:
            return
        place.idle_since = self._host.clock.monotonic()
        self._idle[place.conversation_id] = place
        self._idle.move_to_end(place.conversation_id)
        if self._queue:
            self._passivate_longest_idle()
        elif self._timer is None:
            self._timer = self._host.clock.call_later(self._idle_timeout, self._sweep)

    def _sweep(self) -> None:
        with self._lock:
            self._timer = None
            now = self._host.clock.monotonic()
            while self._idle:
                place = next(iter(self._idle.values()))
                left = place.idle_since + self._idle_timeout - now
                if left > 0:
                    self._timer = self._host.clock.call_later(left, self._sweep)
                    return
                _ = self._passivate(place)

    def _passivate_longest_idle(self) -> None:
        if self._idle:
            _ = self._passivate(next(iter(self._idle.values())))

    def _passivate(self, place: _Place) -> Future[None]:
        self._idle.pop(place.conversation_id, None)
        agent = place.agent
        assert agent is not None
        place.leaving = True
        return agent.stop()  # its queue is closed at the end of it: `_gone`

    def _passivate_now(self, conversation_id: str) -> Future[None]:
        with self._lock:
            place = self._places.get(conversation_id)
            if place is None or place.agent is None or place.leaving:
                return Future.of(None)
            return self._passivate(place)

    def _gone(self, place: _Place, agent: Agent) -> None:
        """The agent has ended: passivated, given up, or with its runtime."""
        with self._lock:
            if place.agent is not agent:
                return
            place.agent = None
            place.leaving = False
            self._active -= 1
            self._idle.pop(place.conversation_id, None)
            self._places.pop(place.conversation_id, None)
            if place.backlog and self._closed is None:
                # It was asked something while it left: it comes back, after those that wait.
                self._places[place.conversation_id] = place
                if self._queue:
                    self._queue.append(place)
                else:
                    self._make_room_for(place)
            self._next_in()

    def _next_in(self) -> None:
        while self._queue and (self._max_active is None or self._active < self._max_active):
            self._activate(self._queue.popleft())

    def _waited(self, place: _Place) -> None:
        with self._lock:
            if place not in self._queue:
                return
            self._queue.remove(place)
            self._places.pop(place.conversation_id, None)
            backlog, place.backlog = place.backlog, []
        why = f"all {self._max_active} agents of the fleet (max_active) are busy"
        for _act, refuse in backlog:
            refuse(Busy(place.conversation_id, "", why))


class _FleetQueue:
    """What a fleet's handle submits to: the queue of an agent that is activated on demand."""

    def __init__(self, fleet: Fleet, conversation_id: str) -> None:
        self._fleet = fleet
        self.conversation_id = conversation_id

    @property
    def real(self) -> TurnQueue | None:
        """The queue of the agent, if it is there."""
        return self._fleet.present(self.conversation_id)

    @property
    def ref(self) -> Any:
        """The ref of the agent, None if it is passive."""
        queue = self.real
        return None if queue is None else queue.ref

    def submit(self, request: TurnRequest, listener: Listener | None = None) -> TurnRequest:
        """Submit when the agent is there."""

        def act(queue: TurnQueue) -> None:
            accepted = queue.submit(request, listener)
            if accepted is not request:
                accepted.future.add_done_callback(lambda future: _pass_on(future, request.future))

        def refuse(error: BaseException) -> None:
            request.future.fail(error)
            if listener is not None:
                listener.finish(error)

        self._fleet.ask(self.conversation_id, act, refuse)
        return request

    def attach(self, turn_id: str, listener: Listener) -> bool:
        """Join a running turn; a passive agent has none."""
        queue = self.real
        return queue is not None and queue.attach(turn_id, listener)

    def cancel(self, turn_id: str | None) -> Future[None]:
        """Cancel; activates the agent, since a paused turn may be in its log."""
        done: Future[None] = Future()
        self._fleet.ask(
            self.conversation_id,
            lambda queue: queue.cancel(turn_id).add_done_callback(lambda f: _pass_on(f, done)),
            done.fail,
        )
        return done

    def stop_running(self, stop: Stop) -> None:
        """Stop what runs, if the agent is there."""
        queue = self.real
        if queue is not None:
            queue.stop_running(stop)


def _pass_on(source: Future[Any], target: Future[Any]) -> None:
    error = source.error()
    if error is None:
        target.complete(source.get())
    else:
        target.fail(error)
