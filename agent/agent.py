"""The agent as its callers hold it: a place, not an incarnation."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..actors.derived import then
from ..actors.errors import InvalidValue
from ..actors.future import Future
from ..actors.ref import AskedItself
from ..stores.blob_store import parse_ref
from ..stores.errors import InvalidMessage
from ..stores.message import Message, checked_messages
from ..stores.session_errors import BlobNotFound
from ..stores.session_state import DEFAULT_TENANT
from .approval import PendingCall
from .conversation_usage import conversation_usage
from .journal import newest_turn
from .kept_results import decoded, ref_of
from .model import Usage
from .stream import EventStream, Listener, OnAbandon
from .tool_loop import running_turn
from .turn import fold
from .turn_errors import TurnNotRunning
from .turn_id import new_turn_id
from .turn_queue import Stop, TurnQueue, TurnRequest

if TYPE_CHECKING:
    from ..memory.provider_handle import NoMemory, ProviderHandle
    from .result import TurnResult

Question = str | Sequence[Mapping[str, Any]] | Message


class Agent:
    """An agent of one conversation. Survives restarts of the actor behind it.

    Whatever takes time returns a Future: await it, or `.get()` it in a thread. A turn goes on
    whether or not anyone waits for it; only cancelling the one task that awaits `run` cancels it
    (CN-2).
    """

    def __init__(
        self,
        queue: TurnQueue,
        memory: ProviderHandle | NoMemory,
        stopper: Callable[[], Future[None]],
        name: str = "agent",
    ) -> None:
        self._queue = queue
        self._memory = memory
        self._stopper = stopper
        self.name = name

    def __repr__(self) -> str:
        return f"<Agent {self.name!r} of {self.conversation_id!r}>"

    @property
    def conversation_id(self) -> str:
        """The conversation this agent holds."""
        return self._queue.conversation_id

    @property
    def ref(self) -> Any:
        """The ref of the present incarnation."""
        return self._queue.ref

    def run(self, question: Question, *, turn_id: str | None = None) -> Future[TurnResult]:
        """Ask, and get the turn's result.

        `question`: a non-empty str, content parts, or a user Message. `turn_id`: makes the call
        idempotent, also across restarts and processes, until clear: a completed turn gives its
        result again, a running one is joined, one that failed goes on from the log (AG-6).

        Raises through the future: ModelError, LimitReached, TurnCancelled, Superseded, Busy,
        TurnConflict, ConversationCleared, ProviderError; a StoreError or StoreUnavailable leaves
        the turn open: run it again with the same turn_id. Raises InvalidValue at once.

        If the agent crashes, its successor resumes the turn and this future gets its result; past
        the restart intensity it fails with ActorDied.
        """
        request = self._request(question, turn_id)
        self._not_from_inside()
        accepted = self._queue.submit(request)
        self._cancel_if_abandoned(accepted)
        return accepted.future

    def stream(
        self,
        question: Question | None = None,
        *,
        turn_id: str | None = None,
        on_abandon: OnAbandon = "continue",
    ) -> EventStream:
        """Ask, and get the turn's events as they happen (EV-1). An iterator and async iterator.

        With `turn_id` and no question: re-attach to that turn; what it did so far is shown first.
        on_abandon="cancel": the turn is cancelled when the stream is closed or dropped early.
        Raises InvalidValue or TurnNotRunning at once, and from the iterator what `run` raises.
        """
        if on_abandon not in ("continue", "cancel"):
            raise InvalidValue(f'on_abandon={on_abandon!r}: pass "continue" or "cancel"')
        listener = Listener()
        if question is None:
            if turn_id is None:
                raise InvalidValue("stream() needs a question, or the turn_id of a running turn")
            if not self._queue.attach(turn_id, listener):
                raise TurnNotRunning(turn_id)
            return EventStream(listener, turn_id, self._queue, on_abandon)
        request = self._request(question, turn_id)
        self._not_from_inside()
        self._queue.submit(request, listener)
        return EventStream(listener, request.turn_id, self._queue, on_abandon)

    def resume(self, decision: object) -> Future[TurnResult]:
        """Decide what a paused turn waits for, and get the turn's result (HP-4).

        `decision`: Approve(arguments=None), Reject(message), Answer(text) or a str, Retry(),
        Proceed(), or a mapping of call id to one of these. The same decision again gives the same
        result. Raises through the future NotPaused, InvalidValue (the turn stays paused),
        DecisionConflict, and what `run` raises.
        """
        self._not_from_inside()
        return self._queue.submit(TurnRequest("resume", decision=decision)).future

    def pending(self) -> Future[tuple[PendingCall, ...]]:
        """The calls that wait for a human, also after a restart (HP-3); () if none do."""
        return self._log_then(_pending)

    def cancel(self, turn_id: str | None = None) -> Future[None]:
        """Stop the running (or the named waiting or paused) turn; done within about 5 s (CN-1).

        What it has stored stays; open calls get "cancelled", partial text is kept. Its `run` raises
        TurnCancelled. Raises TurnNotRunning through the future.
        """
        return self._queue.cancel(turn_id)

    def messages(self) -> Future[tuple[Message, ...]]:
        """All messages of the conversation, in log order. Stateless agents: ()."""
        return self._log_then(_messages)

    def whole_result(self, message: Message | str) -> Future[str]:
        """The whole text of a tool result that was too large for the log.

        `message`: the tool message, or the ref in its extra field `content_ref`. A message that is
        whole gives its own text. Raises BlobRefError at once or, through the future, BlobNotFound,
        StoreUnavailable.
        """
        ref = ref_of(message)
        if ref is None:
            assert isinstance(message, Message)
            return Future.of(message.text)
        store = self._memory.contents
        if store is None:
            return Future.failed(BlobNotFound(ref))
        parse_ref(DEFAULT_TENANT, ref)
        return then(store.get(DEFAULT_TENANT, ref), decoded)

    def usage(self) -> Future[Usage]:
        """What all turns in the log have used, and cost by `price=` (US-1).

        Since the conversation was begun or cleared. Each turn stores the sum as it ends: one record
        is read, whatever the length of the log.
        """
        return self._log_then(_usage)

    def add_messages(self, messages: Iterable[Message | Mapping[str, Any]]) -> Future[None]:
        """Store messages after the running turn (AG-10). Raises InvalidMessage at once."""
        self._not_from_inside()
        checked = tuple(checked_messages(messages))
        request = TurnRequest("add", f"added/{uuid.uuid4().hex}", messages=checked)
        return self._queue.submit(request).future

    def clear(self) -> Future[None]:
        """Empty the conversation at once; a running turn ends with ConversationCleared (AG-10)."""
        cleared = self._memory.clear(self.conversation_id)
        done: Future[None] = Future()

        def then(future: Future[None]) -> None:
            error = future.error()
            if error is not None:
                done.fail(error)
                return
            self._queue.stop_running(Stop("cleared"))
            done.complete(None)

        cleared.add_done_callback(then)
        return done

    def stop(self) -> Future[None]:
        """End the agent in order. An unfinished turn stays in the log, to be resumed."""
        return self._stopper()

    # -- inside --------------------------------------------------------------------------------

    def _request(self, question: Question, turn_id: str | None) -> TurnRequest:
        given: object = turn_id
        if given is not None and (not isinstance(given, str) or not given):
            raise InvalidValue(f"turn_id={turn_id!r}: pass a non-empty str, or leave it out")
        explicit = turn_id is not None
        return TurnRequest(
            "run", turn_id or new_turn_id(), text=_user_message(question), explicit=explicit
        )

    def _not_from_inside(self) -> None:
        queue = running_turn.get()
        if queue is not None and queue in (self._queue, getattr(self._queue, "real", None)):
            raise AskedItself(self.ref)

    def _cancel_if_abandoned(self, request: TurnRequest) -> None:
        queue = self._queue

        def abandoned() -> None:
            if not request.listeners:
                _ = queue.cancel(request.turn_id)

        request.future.on_abandoned(abandoned)

    def _log_then(self, function: Callable[[Any], Any]) -> Future[Any]:
        marks = function is not _messages and self._memory.journal
        log = self._memory.history(self.conversation_id, marks=marks)
        result: Future[Any] = Future()

        def then(future: Future[Any]) -> None:
            error = future.error()
            if error is not None:
                result.fail(error)
                return
            try:
                result.complete(function(future.get()))
            except BaseException as raised:
                result.fail(raised)

        log.add_done_callback(then)
        return result


def _messages(log: Any) -> tuple[Message, ...]:
    return tuple(getattr(item, "message", item) for item in log)


def _usage(log: Any) -> Usage:
    return conversation_usage(log) if hasattr(log, "cursor") else Usage()


def _pending(log: Any) -> tuple[PendingCall, ...]:
    turn_id, records = newest_turn(log)
    return () if turn_id is None else fold(turn_id, records).pending()


def _user_message(question: object) -> Message:
    """The question as a user message. Raises InvalidValue if it is empty or no question. AG-1."""
    if isinstance(question, Message):
        message = question
    else:
        if isinstance(question, list | tuple) and any(
            isinstance(part, Message) or (isinstance(part, Mapping) and "role" in part)
            for part in question
        ):
            raise InvalidValue(
                "pass the new message only, as a str or one user Message: the log has "
                "the earlier ones (add_messages imports others)"
            )
        try:
            message = Message("user", question)  # type: ignore[arg-type]  # checked by Message
        except InvalidMessage as error:
            raise InvalidValue(f"a question is a str or content parts: {error}") from error
    content = message.content
    if message.role != "user":
        raise InvalidValue(f"a question is from the user, this message from {message.role}")
    if not content or (isinstance(content, str) and not content.strip()):
        raise InvalidValue(f"an empty question starts no turn: {question!r}")
    return message
