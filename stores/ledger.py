"""What an append or a clear does, decided without touching a table (CS-4, CS-15…18).

`Plan` takes requests in queue order. Each sees what those before it in the same commit would do,
and nothing is changed until the whole plan is published: a commit that fails leaves no trace in
memory. Both engines use it, so they cannot differ in what they accept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .conversation import Conversation
from .errors import AppendConflict, CursorConflict, PredecessorMissing, StaleEpoch
from .record import Appended
from .request import Append, Clear, Request
from .row import IdEntry


class Stage:
    """The state of one conversation as the plan would leave it."""

    __slots__ = ("conversation", "created", "cursor", "epoch", "tokens", "total", "updated")

    def __init__(self, conversation: Conversation) -> None:
        view = conversation.view
        self.conversation = conversation
        self.epoch, self.cursor = view.epoch, view.cursor
        self.total, self.tokens = view.total, view.tokens
        self.created, self.updated = view.created, view.updated


class Written:
    """An accepted append: the request, and where its records go."""

    __slots__ = ("append_id", "conversation", "count_before", "epoch", "first_seq", "micros",
                 "request", "tokens_before")

    def __init__(self, request: Append, conversation: Conversation, epoch: int, first_seq: int,
                 append_id: bytes | None, count_before: int, tokens_before: int,
                 micros: int) -> None:
        self.request = request
        self.conversation = conversation
        self.epoch, self.first_seq = epoch, first_seq
        self.append_id = append_id
        self.count_before, self.tokens_before = count_before, tokens_before
        self.micros = micros


class Cleared:
    """An accepted clear: the conversation gets this epoch, what it had before goes."""

    __slots__ = ("conversation", "epoch", "had_records", "micros")

    def __init__(self, conversation: Conversation, epoch: int, had_records: bool,
                 micros: int) -> None:
        self.conversation = conversation
        self.epoch = epoch
        self.had_records = had_records
        self.micros = micros


def append_key(append_id: str) -> bytes:
    """An append id as bytes."""
    return append_id.encode("utf-8", "surrogatepass")


class Plan:
    """The effects of one commit, and the answer to each of its requests.

    `find` gives the conversation of a request (a new one with number 0 if there is none),
    `number` a new conversation number, `find_id` what the table knows of an append id.
    """

    def __init__(self, micros: int, find: Callable[[Request], Conversation],
                 number: Callable[[], int],
                 find_id: Callable[[int, bytes], IdEntry | None]) -> None:
        self.micros = micros
        self.entries: list[Written | Cleared] = []
        self.answers: list[Any] = []
        self.stages: dict[bytes, Stage] = {}
        self._ids: dict[tuple[int, bytes], IdEntry] = {}
        self._find, self._number, self._find_id = find, number, find_id

    def take(self, request: Request) -> None:
        """Decide one request; its answer (a result or an exception) goes to `answers`."""
        stage = self.stages.get(request.key)
        if stage is None:
            stage = self.stages[request.key] = Stage(self._find(request))
        if type(request) is Append:
            self.answers.append(self._append(request, stage))
        elif type(request) is Clear:
            self.answers.append(self._clear(request, stage))
        else:
            raise TypeError(f"not a request for a conversation: {request!r}")

    def _append(self, request: Append, stage: Stage) -> Any:
        conversation_id = request.conversation_id
        if request.epoch is not None and request.epoch != stage.epoch:
            return StaleEpoch(conversation_id, request.epoch, stage.epoch)
        key = None
        if request.append_id is not None:
            key = append_key(request.append_id)
            found = self._lookup(stage, key)
            if found is not None and (found.epoch == stage.epoch or request.epoch is None):
                if found.digest != request.digest:
                    return AppendConflict(conversation_id, request.append_id)
                return Appended(found.first_seq, found.first_seq + found.size - 1, found.epoch,
                                found.size, replayed=True)
        if request.follows is not None:
            before = self._lookup(stage, append_key(request.follows))
            if before is None or before.epoch != stage.epoch:
                return PredecessorMissing(conversation_id, request.follows)
        if request.cursor is not None and request.cursor != stage.cursor:
            return CursorConflict(conversation_id, request.cursor, stage.cursor)
        count = len(request.bodies)
        first = stage.cursor + 1
        if not count:
            return Appended(first, stage.cursor, stage.epoch, 0)
        conversation = stage.conversation
        if not conversation.number:
            conversation.number = self._number()
        self.entries.append(Written(request, conversation, stage.epoch, first, key, stage.total,
                                    stage.tokens, self.micros))
        stage.created = stage.created or self.micros
        stage.updated = self.micros
        if key is not None:
            self._ids[conversation.number, key] = IdEntry(stage.epoch, first, count, request.digest)
        stage.cursor += count
        stage.total += sum(message is not None for message in request.messages) \
            if None in request.messages else count
        stage.tokens += sum(request.tokens)
        return Appended(first, stage.cursor, stage.epoch, count)

    def _clear(self, request: Clear, stage: Stage) -> Any:
        if request.expected is not None and request.expected != stage.epoch:
            return StaleEpoch(request.conversation_id, request.expected, stage.epoch)
        if not stage.conversation.number:
            stage.conversation.number = self._number()
        self.entries.append(Cleared(stage.conversation, stage.epoch + 1, stage.cursor > 0,
                                    self.micros))
        stage.epoch += 1
        stage.cursor = stage.total = stage.tokens = stage.created = stage.updated = 0
        return None

    def _lookup(self, stage: Stage, key: bytes) -> IdEntry | None:
        number = stage.conversation.number
        if not number:  # never written to: it has no append ids
            return None
        return self._ids.get((number, key)) or self._find_id(number, key)
