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
from .request import Append, Clear, Request, shown_id
from .row import IdEntry, id_key


class Stage:
    """The state of one conversation as the plan would leave it."""

    __slots__ = ("conversation", "created", "cursor", "epoch", "tokens", "total", "updated")

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        (self.epoch, self.cursor, self.total, self.tokens, _, _, _, _, _, _, self.created,
         self.updated) = conversation.view


class Written:
    """An accepted append: the request, and where its records go."""

    # With `size` and `digest` it is also what is known of its append id, like an `IdEntry`.
    __slots__ = ("conversation", "count_before", "digest", "epoch", "first_seq", "id_key", "micros",
                 "request", "size", "tokens_before")

    def __init__(self, request: Append, conversation: Conversation, epoch: int, first_seq: int,
                 id_key: bytes | None, count_before: int, tokens_before: int, micros: int) -> None:
        self.request = request
        self.conversation = conversation
        self.epoch = epoch
        self.first_seq = first_seq
        self.id_key = id_key
        self.count_before = count_before
        self.tokens_before = tokens_before
        self.micros = micros
        self.size = len(request.parts)
        self.digest = request.digest


class Cleared:
    """An accepted clear: the conversation gets this epoch, what it had before goes."""

    __slots__ = ("conversation", "epoch", "had_records", "micros")

    def __init__(self, conversation: Conversation, epoch: int, had_records: bool,
                 micros: int) -> None:
        self.conversation = conversation
        self.epoch = epoch
        self.had_records = had_records
        self.micros = micros


class Plan:
    """The effects of one commit, and the answer to each of its requests.

    `find` gives the conversation of a request (a new one with number 0 if there is none),
    `number` a new conversation number, `find_id` what the table knows of an append id's key.
    """

    def __init__(self, micros: int, find: Callable[[Request], Conversation],
                 number: Callable[[], int],
                 find_id: Callable[[bytes], IdEntry | Written | None]) -> None:
        self.micros = micros
        self.entries: list[Written | Cleared] = []
        self.answers: list[Any] = []
        self.stages: dict[bytes, Stage] = {}
        self._ids: dict[bytes, Written] = {}
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
        conversation, epoch, append_id = stage.conversation, stage.epoch, request.append_id
        if request.epoch is not None and request.epoch != epoch:
            return StaleEpoch(conversation.conversation_id, request.epoch, epoch)
        key: bytes | None = None
        if append_id is not None and conversation.number:
            key = id_key(conversation.number, append_id)
            found = self._ids.get(key) or self._find_id(key)
            if found is not None and (found.epoch == epoch or request.epoch is None):
                if found.digest != request.digest:
                    return AppendConflict(conversation.conversation_id, shown_id(append_id))
                return Appended(found.first_seq, found.first_seq + found.size - 1, found.epoch,
                                found.size, replayed=True)
        if request.follows is not None:
            before = self._known(conversation, request.follows)
            if before is None or before.epoch != epoch:
                return PredecessorMissing(conversation.conversation_id, request.follows)
        cursor = stage.cursor
        if request.cursor is not None and request.cursor != cursor:
            return CursorConflict(conversation.conversation_id, request.cursor, cursor)
        count = len(request.parts)
        if not count:
            return Appended(cursor + 1, cursor, epoch, 0)
        if not conversation.number:
            conversation.number = self._number()
            if append_id is not None:
                key = id_key(conversation.number, append_id)
        micros = self.micros if request.micros is None else request.micros
        entry = Written(request, conversation, epoch, cursor + 1, key, stage.total, stage.tokens,
                        micros)
        self.entries.append(entry)
        if key is not None:
            self._ids[key] = entry
        if not stage.created:
            stage.created = micros
        stage.updated = micros
        stage.cursor = cursor + count
        stage.total += request.spoken
        stage.tokens += request.tokens
        return Appended(cursor + 1, cursor + count, epoch, count)

    def _clear(self, request: Clear, stage: Stage) -> Any:
        if request.epoch is not None and request.epoch != stage.epoch:
            return StaleEpoch(request.conversation_id, request.epoch, stage.epoch)
        if request.cursor is not None and request.cursor != stage.cursor:
            return CursorConflict(request.conversation_id, request.cursor, stage.cursor)
        epoch = stage.epoch + 1 if request.to is None else request.to
        if epoch <= stage.epoch:
            return None
        if not stage.conversation.number:
            stage.conversation.number = self._number()
        self.entries.append(Cleared(stage.conversation, epoch, stage.cursor > 0, self.micros))
        stage.epoch = epoch
        stage.cursor = stage.total = stage.tokens = stage.created = stage.updated = 0
        return None

    def _known(self, conversation: Conversation, append_id: str) -> IdEntry | Written | None:
        if not conversation.number:  # never written to: it has no append ids
            return None
        key = id_key(conversation.number, append_id)
        return self._ids.get(key) or self._find_id(key)
