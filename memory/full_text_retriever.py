"""A `Retriever` by words: an actor that owns an FTS5 index and keeps it up to date from the log.

The index follows the logs without a hook in the stores: whoever asks brings the conversation's log
along, and what is new in it is indexed first, a bounded part of it at a time. What was cleared
without the index being told is found by comparing watermarks with the store, at the start and
every minute.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..actors import telemetry
from ..actors.errors import ActorDied, InvalidValue, Unavailable
from ..actors.exits import Reply
from ..actors.future import Future
from ..actors.thread_actor import ThreadActor
from ..stores.errors import StaleEpoch, StoreError, shown
from ..stores.store_handle import StoreHandle
from ..supervision import ChildSpec, Supervisor
from .foreign_store import ForeignStore
from .retriever import Retrieved
from .search_index import SearchIndex, anchor_of, is_damage

if TYPE_CHECKING:
    from ..actors.clock import Timer
    from ..stores.contract import ConversationStore
    from ..stores.record import Log
    from .search_index import Watermark

CATCH_UP: Final = 2_000
"""Messages indexed before a search is answered; what is missing then follows in the background."""
SWEEP_SECONDS: Final = 60.0
SWEEP_PAGE: Final = 100
RESTARTS: Final = 5
RESTART_SECONDS: Final = 10


class RetrieverError(StoreError):
    """The index could not be opened, read or written; the cause is SQLite's or the system's."""

    def __init__(self, directory: object, problem: str) -> None:
        super().__init__(
            f"the index in {directory} failed: {problem}; it can be deleted while it is not in "
            "use, and is made again from the conversations"
        )


@dataclass(frozen=True, slots=True)
class Search:
    """Ask for the best hits among the first `upto` messages of a log."""

    conversation_id: str
    log: Log
    query: str
    upto: int
    limit: int


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Index more of a log."""

    conversation_id: str
    log: Log


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove a conversation."""

    conversation_id: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """Compare the watermarks behind `after` with the store."""

    after: str = ""


class FullTextRetriever:
    """Finds messages by their words (bm25, any language), with SQLite's FTS5. See `Retriever`.

    store: whose conversations are indexed. directory: where the index lies, beside the data
    directory say; it is made if absent (0700, the file 0600), and made again from the conversations
    if it is missing, damaged or behind. None keeps it in memory. It holds the words of messages.

    Start its actor with `runtime.start_child(retriever.child_spec())`; that raises StartFailed, by
    FullTextSearchMissing if there is no FTS5, by RetrieverError if the directory cannot be used.
    The child has a restart budget of its own (5 in 10 s); when that is spent only it is given up.
    """

    def __init__(
        self, store: ConversationStore, directory: str | os.PathLike[str] | None = None
    ) -> None:
        if directory is not None and not isinstance(directory, str | os.PathLike):
            raise InvalidValue(f"directory must be a path or None, not {shown(directory)}")
        if not callable(getattr(store, "read", None)):
            raise InvalidValue(f"{shown(store)} is no conversation store: pass one, or a handle")
        self.store = store
        self.directory = None if directory is None else os.fsdecode(directory)
        self.ref: Any = None

    def __repr__(self) -> str:
        return f"FullTextRetriever({self.store!r}, {self.directory!r})"

    def child_spec(self) -> ChildSpec:
        """The spec of its supervisor, for `start_child`."""
        actor = ChildSpec("index", partial(SearchIndexActor, self))
        start = partial(Supervisor, [actor], max_restarts=RESTARTS, max_seconds=RESTART_SECONDS)
        return ChildSpec(("retriever", self.directory), start, "temporary", type="supervisor")

    def retrieve(
        self, conversation_id: str, log: Log, query: str, *, upto: int, limit: int
    ) -> Future[Retrieved]:
        """See `Retriever`. Indexes at most 2,000 messages first; the note says what is missing.

        Raises, through the future, ActorDied while the actor is down, RetrieverError, StaleEpoch
        and StoreUnavailable.
        """
        return self._ask(Search(conversation_id, log, query, upto, limit))

    def forget(self, conversation_id: str) -> Future[None]:
        """Remove what is indexed of a conversation."""
        return self._ask(Forget(conversation_id))

    def _ask(self, message: object) -> Future[Any]:
        if self.ref is None:
            return Future.failed(
                ActorDied(f"{self!r} is not running: runtime.start_child(retriever.child_spec())")
            )
        answer: Future[Any] = self.ref.ask(message, block=False)
        return answer


class SearchIndexActor(ThreadActor):
    """Owns the index. A damaged one is begun anew; other trouble is the asker's answer."""

    def __init__(self, retriever: FullTextRetriever) -> None:
        super().__init__()
        self._retriever = retriever
        store = retriever.store
        self._store: Any = store if isinstance(store, StoreHandle) else ForeignStore(store)
        self._catching_up: set[str] = set()
        self._timer: Timer | None = None

    def on_start(self) -> None:
        try:
            self._index = SearchIndex(self._retriever.directory)
        except (OSError, sqlite3.Error) as error:
            problem = f"it cannot be opened: {error}"
            raise RetrieverError(self._retriever.directory, problem) from error
        if self._index.rebuilt:
            self._say_rebuilt(None)
        self._retriever.ref = self.actor_ref
        self.actor_ref.tell(Sweep())

    def on_stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._index.close()

    def on_receive(self, message: Any) -> Any:
        if not isinstance(message, Search | CatchUp | Forget | Sweep):
            return super().on_receive(message)
        try:
            return self._serve(message)
        except sqlite3.Error as error:
            if is_damage(error):
                self._index.rebuild()
                self._catching_up.clear()
                self._say_rebuilt(error)
                return Retrieved(note="the index was damaged and is made again")
            raise Reply(self._failure(error)) from error
        except (StoreError, Unavailable) as error:
            raise Reply(error) from error

    def _serve(self, message: Search | CatchUp | Forget | Sweep) -> Retrieved | None:
        match message:
            case Search():
                return self._search(message)
            case CatchUp(conversation_id, log):
                self._catching_up.discard(conversation_id)
                try:
                    self._follow(conversation_id, log)
                except StaleEpoch:
                    pass  # cleared meanwhile
            case Forget(conversation_id):
                self._index.forget(conversation_id)
            case Sweep(after):
                self._sweep(after)
        return None

    def _search(self, asked: Search) -> Retrieved:
        behind = self._follow(asked.conversation_id, asked.log)
        hits = self._index.search(
            asked.conversation_id, asked.log.epoch, asked.query, upto=asked.upto, limit=asked.limit
        )
        return Retrieved(hits, f"the index is {behind} messages behind" if behind else "")

    def _follow(self, conversation_id: str, log: Log) -> int:
        """Catch up by one portion; the rest follows, behind whoever asks meanwhile."""
        behind = self._index.catch_up(conversation_id, log, CATCH_UP)
        if behind and conversation_id not in self._catching_up:
            self._catching_up.add(conversation_id)
            self.actor_ref.tell(CatchUp(conversation_id, log))
        return behind

    def _sweep(self, after: str) -> None:
        following = None
        try:
            page = self._index.watermarks(after, SWEEP_PAGE)
            for mark in page:
                if self._is_gone(mark):
                    self._index.forget(mark.conversation_id)
            if len(page) == SWEEP_PAGE:
                following = Sweep(page[-1].conversation_id)
        finally:  # whatever went wrong, the store's absence say, it is tried again
            if following is not None:
                self.actor_ref.tell(following)
            else:
                self._timer = self.send_after(SWEEP_SECONDS, Sweep())

    def _is_gone(self, mark: Watermark) -> bool:
        """Whether what was indexed is no longer what the store has."""
        try:
            log = self._store.read(mark.conversation_id).get()
            if log.epoch != mark.epoch or len(log) < mark.indexed:
                return True
            return bool(mark.indexed) and anchor_of(log[mark.indexed - 1]) != mark.anchor
        except StaleEpoch:
            return True

    def _failure(self, error: sqlite3.Error) -> RetrieverError:
        return RetrieverError(self._retriever.directory, str(error))

    def _say_rebuilt(self, error: BaseException | None) -> None:
        telemetry.emit(
            "keepwell.recall.rebuilt", directory=self._retriever.directory, error=error
        )
