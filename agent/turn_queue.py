"""What an agent has accepted: the running turn, those that wait, and who waits for them.

The queue outlives the agent's incarnations, as an ETS table outlives its owner through an heir: an
agent that crashed finds here the request whose turn it resumes, with its callers and streams still
attached. It is also what holds the conversation's turn gate meanwhile.

The order of turns is fixed when they are submitted, in the caller's thread, and so is what becomes
of a message that finds the conversation busy (BZ-1…4).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ..actors.errors import ActorDied
from ..actors.future import Future
from .busy import OnBusy, admit
from .turn_errors import Busy, Superseded, TurnCancelled, TurnConflict, TurnNotRunning

if TYPE_CHECKING:
    from ..memory.turn_gate import TurnGates
    from ..stores.message import Message
    from .stream import Listener

RequestKind = Literal["run", "resume", "add", "recover", "close"]


@dataclass(frozen=True, slots=True)
class Wake:
    """Tells the agent that there is something to do in its queue."""


@dataclass(frozen=True, slots=True)
class Attend:
    """Tells the agent to look at its running turn: it is to be stopped (see the request's `stop`),
    or a stream has joined it."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a running turn is to stop. `by`: the turn that supersedes it."""

    kind: Literal["cancelled", "superseded", "cleared", "turn_timeout"]
    by: str = ""


class TurnRequest:
    """One accepted request, and who waits for it.

    `run`: a user message. `resume`: a decision. `add`: messages to store between turns.
    `recover`: look for an unfinished turn and resume it. `close`: cancel a paused turn.
    """

    __slots__ = (
        "decision", "epoch", "explicit", "future", "kind", "listeners", "messages", "stop", "text",
        "turn_id",
    )  # fmt: skip

    def __init__(
        self,
        kind: RequestKind,
        turn_id: str = "",
        *,
        text: Any = None,
        explicit: bool = False,
        decision: object = None,
        messages: tuple[Message, ...] = (),
    ) -> None:
        self.kind: RequestKind = kind
        self.turn_id = turn_id
        self.text = text
        self.explicit = explicit
        self.decision = decision
        self.messages = messages
        self.stop: Stop | None = None
        self.epoch: int | None = None  # of the conversation when the question was stored
        self.listeners: list[Listener] = []
        self.future: Future[Any] = Future()

    @property
    def is_turn(self) -> bool:
        """Whether it runs a turn: a message, a decision, or a turn that was found in the log."""
        return self.kind in ("run", "resume") or (self.kind == "recover" and bool(self.turn_id))

    def complete(self, value: Any) -> None:
        """Answer everyone who waits."""
        self.future.complete(value)
        for listener in self.listeners:
            listener.finish(None)

    def fail(self, error: BaseException) -> None:
        """Tell everyone who waits what went wrong."""
        self.future.fail(error)
        for listener in self.listeners:
            listener.finish(error)


WAKE: Final = Wake()
ATTEND: Final = Attend()


class TurnQueue:
    """The requests of one agent. Any thread may submit; the agent alone takes."""

    def __init__(
        self,
        conversation_id: str,
        on_busy: OnBusy,
        max_queue: int,
        gates: TurnGates | None = None,
    ) -> None:
        """`gates`: of the store, which tell whether another agent's turn runs; None: nobody's."""
        self._gates = gates
        self.conversation_id = conversation_id
        self._on_busy: OnBusy = on_busy
        self._max_queue = max_queue
        self._lock = threading.Lock()
        self._waiting: deque[TurnRequest] = deque()
        self._by_turn: dict[str, TurnRequest] = {}
        self.running: TurnRequest | None = None
        self.ref: Any = None
        self.closed: BaseException | None = None
        self.last_death: Any = None
        """Why the last incarnation died; None if none has."""
        self.on_close: list[Callable[[], object]] = []
        self.on_idle: Callable[[], object] | None = None
        self._refusing: BaseException | None = None
        self._idle_waiters: list[Future[None]] = []

    # -- callers -------------------------------------------------------------------------------

    def submit(self, request: TurnRequest, listener: Listener | None = None) -> TurnRequest:
        """Accept a request, or join the one of the same turn; returns the one to wait for.

        What is refused has a failed future: Busy, TurnConflict, ActorDied.
        """
        superseded: list[TurnRequest] = []
        rival = self._rival() if request.kind == "run" else None
        with self._lock:
            if self.closed is not None:
                _refuse(request, listener, self.closed)
                return request
            if request.kind == "run":
                joined = self._by_turn.get(request.turn_id)
                if joined is not None:
                    joined = self._join(joined, request, listener)
                    if listener is not None and self.ref is not None:
                        self.ref.tell(ATTEND)
                    return joined
            if self._refusing is not None and request.kind in ("run", "resume", "add"):
                _refuse(request, listener, self._refusing)
                return request
            if request.kind == "run":
                refusal = self._admit(request, superseded, rival)
                if refusal is not None:
                    _refuse(request, listener, refusal)
                    return request
                self._by_turn[request.turn_id] = request
            if listener is not None:
                request.listeners.append(listener)
            self._waiting.append(request)
            ref, stop = self.ref, bool(self.running and self.running.stop)
        for other in superseded:
            other.fail(Superseded(other.turn_id, request.turn_id))
        if request.kind == "run" and self._on_busy == "interrupt" and isinstance(rival, TurnQueue):
            rival.stop_running(Stop("superseded", request.turn_id))
        if ref is not None:
            ref.tell(ATTEND if stop else WAKE)
        return request

    def _join(
        self, joined: TurnRequest, request: TurnRequest, listener: Listener | None
    ) -> TurnRequest:
        if joined.text is None:
            joined.text = request.text  # a recovered turn: checked against the log when it runs
        elif joined.text != request.text:
            _refuse(request, listener, TurnConflict(request.turn_id, "it has another input"))
            return request
        if listener is not None:
            joined.listeners.append(listener)
            listener.attached(joined)
        return joined

    def _rival(self) -> object | None:
        """Who else has the conversation's turn: another agent's queue, a kernel, a session."""
        holder = None if self._gates is None else self._gates.holder(self.conversation_id)
        return None if holder is self else holder

    def _admit(
        self, request: TurnRequest, superseded: list[TurnRequest], rival: object | None
    ) -> BaseException | None:
        running = self.running if self.running is not None and self.running.is_turn else None
        turns = [waiting for waiting in self._waiting if waiting.kind == "run"]
        match admit(
            self._on_busy, running=running is not None or rival is not None,
            waiting=len(turns), max_queue=self._max_queue,
        ):  # fmt: skip
            case "refuse":
                turn_id = _turn_in_the_way(running, turns, rival)
                why = (
                    f"{len(turns)} messages wait (max_queue={self._max_queue})"
                    if self._on_busy == "queue"
                    else f"turn {turn_id!r} runs"
                    if turn_id
                    else "a kernel or a session is at work"
                )
                return Busy(self.conversation_id, turn_id, why)
            case "interrupt" | "replace" as how:
                for waiting in turns:
                    self._waiting.remove(waiting)
                    self._by_turn.pop(waiting.turn_id, None)
                superseded.extend(turns)
                if how == "interrupt" and running is not None and running.stop is None:
                    running.stop = Stop("superseded", request.turn_id)
        return None

    def attach(self, turn_id: str, listener: Listener) -> bool:
        """Add a stream to a turn that runs or waits; False if there is none such."""
        with self._lock:
            request = self._by_turn.get(turn_id)
            if request is None:
                return False
            request.listeners.append(listener)
            listener.attached(request)
            ref = self.ref
        if ref is not None:
            ref.tell(ATTEND)
        return True

    def cancel(self, turn_id: str | None) -> Future[None]:
        """Stop a running or waiting turn; done when it has ended. See `Agent.cancel`."""
        done: Future[None] = Future()
        with self._lock:
            running = self.running
            if self.closed is not None:
                done.fail(self.closed)
                return done
            request = self._to_cancel(turn_id)
            if request is not None and request is not running:
                self._waiting.remove(request)
                self._by_turn.pop(request.turn_id, None)
            if request is None:
                # Nothing runs here; a paused turn may still be open in the log.
                closing = TurnRequest("close", turn_id or "")
                self._waiting.appendleft(closing)
                ref = self.ref
                if ref is not None:
                    ref.tell(WAKE)
                answer: Future[None] = closing.future
                return answer
            ref = self.ref
            if request is running and request.stop is None:
                request.stop = Stop("cancelled")
            waiters = self._take_idle_waiters()
        if request is not running:
            request.fail(TurnCancelled(request.turn_id))
            done.complete(None)
            for waiter in waiters:
                waiter.complete(None)
            return done

        def ended(future: Future[Any]) -> None:
            if isinstance(future.error(), TurnCancelled):
                done.complete(None)
            else:
                done.fail(TurnNotRunning(request.turn_id))

        request.future.add_done_callback(ended)
        if ref is not None:
            ref.tell(ATTEND)
        return done

    def _to_cancel(self, turn_id: str | None) -> TurnRequest | None:
        """The named turn; without a name the running one, else the next."""
        running = self.running
        turns = [waiting for waiting in self._waiting if waiting.kind in ("run", "resume")]
        if running is not None and running.kind != "add" and running.turn_id:
            turns.insert(0, running)
        for request in turns:
            if turn_id is None or request.turn_id == turn_id:
                return request
        return None

    def stop_running(self, stop: Stop) -> None:
        """Stop the running turn for another reason than a cancel."""
        with self._lock:
            running, ref = self.running, self.ref
            if running is None or running.kind == "add":
                return
            if running.stop is None or stop.kind == "cleared":
                running.stop = stop
        if ref is not None:
            ref.tell(ATTEND)

    # -- the agent -----------------------------------------------------------------------------

    def moved_in(self, ref: Any) -> None:
        """An incarnation has started: what ran in the one before is first again."""
        with self._lock:
            self.ref = ref
            if self.running is not None:
                self._waiting.appendleft(self.running)
                self.running = None

    def take(self) -> TurnRequest | None:
        """The next request, which is running from now on; None if nothing waits."""
        with self._lock:
            if not self._waiting:
                return None
            self.running = self._waiting.popleft()
            return self.running

    def recover_first(self, request: TurnRequest) -> None:
        """Let the agent look for an unfinished turn before anything else."""
        with self._lock:
            self._waiting.appendleft(request)

    def resumes(self, request: TurnRequest, turn_id: str) -> None:
        """The request turned out to be about `turn_id`: callers of that turn join it."""
        with self._lock:
            request.turn_id = turn_id
            self._by_turn.setdefault(turn_id, request)
            if self._on_busy == "interrupt" and request.stop is None:
                # Found in the log only now, and a message that interrupts it waits already.
                waiting = (one for one in self._waiting if one.kind == "run")
                newer = next((one for one in waiting if one.turn_id != turn_id), None)
                if newer is not None:
                    request.stop = Stop("superseded", newer.turn_id)

    def done(self, request: TurnRequest) -> None:
        """The request has been answered, or is about to be."""
        with self._lock:
            if self.running is request:
                self.running = None
            if self._by_turn.get(request.turn_id) is request:
                del self._by_turn[request.turn_id]
            idle = self.on_idle if not self._waiting else None
            waiters = self._take_idle_waiters()
        if idle is not None:
            idle()
        for waiter in waiters:
            waiter.complete(None)

    def _take_idle_waiters(self) -> list[Future[None]]:
        if self.running is not None or self._waiting:
            return []
        waiters, self._idle_waiters = self._idle_waiters, []
        return waiters

    def drain(self, refusal: BaseException) -> Future[None]:
        """Refuse what is new with `refusal`; done when nothing runs or waits any more."""
        idle: Future[None] = Future()
        with self._lock:
            self._refusing = refusal
            self._idle_waiters.append(idle)
            waiters = self._take_idle_waiters()
        for waiter in waiters:
            waiter.complete(None)
        return idle

    def close(self, reason: Any) -> None:
        """No incarnation will come any more: fail everyone who waits."""
        error = ActorDied(f"the agent of {self.conversation_id!r} ended: {reason}", reason=reason)
        with self._lock:
            if self.closed is not None:
                return
            self.closed = error
            left = [*([self.running] if self.running is not None else []), *self._waiting]
            self._waiting.clear()
            self._by_turn.clear()
            self.running = None
            waiters = self._take_idle_waiters()
        for waiter in waiters:
            waiter.complete(None)
        for request in left:
            request.fail(error)
        for callback in self.on_close:
            callback()

    @property
    def busy(self) -> bool:
        """Whether a turn runs or waits."""
        return self.running is not None or bool(self._waiting)


def _turn_in_the_way(
    running: TurnRequest | None, waiting: list[TurnRequest], rival: object | None
) -> str:
    """The id of the turn that a refused message is told of; "" if it is no agent's."""
    if running is None and isinstance(rival, TurnQueue):
        running = rival.running
    if running is not None:
        return running.turn_id
    return waiting[0].turn_id if waiting else ""


def _refuse(request: TurnRequest, listener: Listener | None, error: BaseException) -> None:
    request.future.fail(error)
    if listener is not None:
        listener.finish(error)
