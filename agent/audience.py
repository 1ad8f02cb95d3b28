"""Who is told what a turn does: streams and callbacks, never before it is stored (AG-3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from .callbacks import Callback, CallbackInfo, fire
from .events import (
    Event,
    ModelEnded,
    ModelStarted,
    StepRestarted,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from .turn import Batch, TurnState, call_arguments

if TYPE_CHECKING:
    from ..memory.call_threads import CallThreads
    from .journal import Journal
    from .stream import Listener
    from .turn_queue import TurnRequest


class Audience:
    """The streams and callbacks of the running turn."""

    def __init__(
        self,
        callbacks: Mapping[str, Callback],
        journal: Journal,
        conversation_id: str,
        threads: CallThreads,
    ) -> None:
        self._callbacks = callbacks
        self._journal = journal
        self._id = conversation_id
        self._threads = threads
        self._listeners: list[Listener] = []
        self._turn: TurnState | None = None
        self.calling = 0
        """The step of the model call under way, 0 if none is."""
        self._streamed = ""  # the deltas of the running model call so far

    async def attend(self, request: TurnRequest | None, turn: TurnState) -> None:
        """A turn begins or goes on: streams of this request see it from here on."""
        self._turn = turn
        self.calling, self._streamed = 0, ""
        self._listeners = request.listeners if request is not None else []
        if self._listeners:
            if self._journal.unsettled:
                await self._journal.settled()
            self._catch_up(None)

    def dismiss(self) -> None:
        """No turn runs."""
        self._turn = None
        self._listeners = []

    async def retell(self, request: TurnRequest, turn: TurnState) -> None:
        """A turn that needs no running is asked for again: show what it did. EV-1, AG-6."""
        await self.attend(request, turn)
        self._catch_up(None)

    def late(self) -> None:
        """A stream may have come in the middle: show it what was so far, once that is stored."""
        if self._turn is None or not any(listener.fresh for listener in self._listeners):
            return
        again = partial(call_in, asyncio.get_running_loop(), self.late)
        for append in self._journal.pending:
            if not append.done():
                append.add_done_callback(lambda _: again())
                return
            if append.error() is not None:
                return  # the turn is about to meet it
        self._catch_up(None)

    @property
    def listening(self) -> bool:
        """Whether any stream is open: streams may come and go while a turn runs."""
        return bool(self._listeners)

    async def show(self, event: Event) -> None:
        """Show an event after everything before it is stored.

        The deltas of the running model call are kept for those who come in the middle of it.
        """
        if isinstance(event, StepRestarted):
            self._streamed = ""
        if self._listeners:
            if self._journal.unsettled:
                await self._journal.settled()
            self.push(event)
        if isinstance(event, TextDelta):
            self._streamed += event.text

    async def model_started(self, step: int) -> None:
        """Show that a model call begins; that it is repeated to who has seen it begin. EV-1."""
        self._streamed = ""
        for listener in self._listeners:
            if not listener.fresh and listener.model_step == step:
                await self.show(StepRestarted(step))
                return
        await self.show(ModelStarted(step))
        for listener in self._listeners:
            listener.model_step = step

    def push(self, event: Event) -> None:
        """Show an event now; everything before it is stored."""
        self._catch_up(event)
        for listener in self._listeners:
            listener.push(event)

    def _catch_up(self, coming: Event | None) -> None:
        for listener in self._listeners:
            if listener.fresh and self._turn is not None:
                listener.fresh = False
                events = past_events(self._turn, self._id, coming, self.calling, self._streamed)
                for event in events:
                    listener.push(event)
                    if isinstance(event, ModelStarted):
                        listener.model_step = event.step

    async def tell(self, name: str, step: int, value: object) -> None:
        """Run a callback, if there is one of this name, after everything before it is stored."""
        callback = self._callbacks.get(name)
        if callback is None:
            return
        if self._journal.unsettled:
            await self._journal.settled()
        turn_id = self._turn.turn_id if self._turn is not None else ""
        await fire(callback, CallbackInfo(name, self._id, turn_id, step, value), self._threads)


def past_events(
    turn: TurnState, conversation_id: str, coming: Event | None, calling: int, streamed: str
) -> Iterator[Event]:
    """The events of a turn up to, and without, the one that comes now: for a late stream.

    `calling`: the step of the model call under way or 0. `streamed`: what it has said so far.
    """
    yield TurnStarted(conversation_id, turn.turn_id)
    before = getattr(coming, "step", 1 << 62)
    for step, entry in turn.entries():
        if not step or step > before:
            continue
        message = entry.message if isinstance(entry, Batch) else entry
        if step < before:
            yield ModelStarted(step)
            if message.text:
                yield TextDelta(step, message.text)
            yield ModelEnded(step, message)
        if isinstance(entry, Batch):
            for call in entry.calls:
                started = call.started or call.result is not None
                if started and not (isinstance(coming, ToolStarted) and call.step >= before):
                    arguments = call_arguments(call)
                    yield ToolStarted(call.step, call.call.id, call.call.name, arguments)
                if call.result is not None and call.step != before:
                    yield ToolEnded(
                        call.step, call.call.id, call.call.name, call.result.text, call.error
                    )
    if isinstance(coming, TextDelta | StepRestarted | ModelEnded):
        calling = coming.step
    elif coming is not None:
        return
    if calling:
        yield ModelStarted(calling)
        if streamed:
            yield TextDelta(calling, streamed)


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call the function on its loop, from any thread, unless the loop has been closed."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        pass  # nobody is left to show anything to
