"""A conversation's log as the journal of its turns.

Appends of a turn are chained (`follows`) and not awaited one by one: `settled()` is awaited before
an outside effect (a tool runs, something is shown, an answer is given), so that a model call, which
may be repeated, overlaps the flush (AG-3). An append that failed fails the next `settled()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ..actors.failpoint import failpoint
from ..memory.log_messages import LogBefore, LogMessages
from ..stores.errors import (
    AppendConflict,
    CursorConflict,
    PredecessorMissing,
    StaleEpoch,
)
from ..stores.record import NewRecord
from .context_view import MAX_SHOWN_CHARACTERS
from .conversation_usage import conversation_usage
from .history import History
from .model import Usage
from .turn import TurnState, fold
from .turn_closing import heal_records
from .turn_errors import ConversationCleared, TurnConflict

if TYPE_CHECKING:
    from ..actors.future import Future
    from ..memory.provider_handle import NoMemory, ProviderHandle
    from ..stores.message import Message
    from ..stores.record import Log, Record

_NO_CURSOR: Final = 1 << 62
"""A cursor that no log has: an append that requires it only asks whether its id is known."""


class JournalBroken(Exception):
    """The log holds another step under this turn's id: the agent must start from the log again."""


class Journal:
    """One conversation's log, as its agent sees it.

    `last`: the newest turn in the log, None before `open` or if there is none. `durable`: whether
    the log is a journal at all (PV-9). `lazy`: contexts are cut from `log`, so no history is kept.
    """

    def __init__(
        self,
        memory: ProviderHandle | NoMemory,
        conversation_id: str,
        *,
        lazy: bool = False,
        reads_log: bool = False,
        most: int = MAX_SHOWN_CHARACTERS,
    ) -> None:
        """`most`: characters of a tool result in the history. `reads_log`: `log` will be used."""
        self._reads_log = reads_log
        self._most = most
        self._memory = memory
        self._id = conversation_id
        self.durable = memory.journal
        self._lazy = lazy or memory.custom
        self.log: Log | None = None
        """The log before the running turn, lazily; None if it is no journal."""
        self.last: TurnState | None = None
        self._records: Sequence[Record] = ()
        # (epoch, cursor) up to which every turn has ended and every call has its result.
        self._clean: tuple[int, int] | None = None
        self._history: History | None = None
        # The turn that the history is the history of.
        self._begun: TurnState | None = None
        self.total = Usage()
        """What the conversation has used, the running turn's appended model calls included."""
        self._epoch: int | None = None
        self._cursor = 0
        self._written = 0
        self._tail: str | None = None
        self.pending: list[Future[Any]] = []
        """Appends that `settled` has not looked at yet; some may be acknowledged."""

    # -- reading ---------------------------------------------------------------------------------

    async def open(self) -> History | Sequence[Message]:
        """Read the log and return the history before the next turn; sets `last`.

        Reads marks only if something was written that this agent has not seen; then back to the
        question of the newest turn, since whatever came before was healed before that turn.
        """
        self.pending.clear()
        self._tail = None
        self._written = 0
        clean, history = self._clean, self._history
        if clean is not None and history is not None and not self._reads_log:
            if self._memory.position(self._id) == clean:
                self._records = ()
                return history  # nobody has written since the last turn, as nearly always
        log = await self._memory.history(self._id)
        if not self.durable:
            return log if isinstance(log, Sequence) else tuple(log)
        if (log.epoch, log.cursor) != self._clean:
            full = await self._memory.history(self._id, marks=True)
            turn_id, self._records = newest_turn(full)
            self.last = None if turn_id is None else fold(turn_id, self._records)
            if full.cursor != log.cursor or full.epoch != log.epoch:
                log = await self._memory.history(self._id)
            self.total = conversation_usage(full)
            self._clean = None
            self._history = None
        else:
            self._records = ()
        self._epoch, self._cursor = log.epoch, log.cursor
        self.log = log
        if self._lazy:
            return LogMessages(log)
        if self._history is None:
            self._history = History.of(log, self._memory.window, self._most)
        return self._history

    async def before(self, first_seq: int) -> History | Sequence[Message]:
        """The history before a turn that is resumed."""
        self._history = None
        if not self.durable:
            return await self.open()
        log = self.log = LogBefore(await self._memory.history(self._id), first_seq)
        return LogMessages(log) if self._lazy else History.of(log, self._memory.window, self._most)

    def begin(self, turn: TurnState) -> None:
        """A new turn follows the history that `open` gave."""
        self._begun = turn

    async def find(self, turn_id: str, question: NewRecord) -> TurnState | None:
        """A turn by its id, however long ago it was; None if the log has none. Rule: AG-6.

        Asks for the question's append under a cursor that no log has: the store looks for the id
        before the cursor (CS-18), so nothing is written. Raises TurnConflict if it had another
        input.
        """
        try:
            known = await self._memory.append(
                self._id, [question], append_id=f"{turn_id}/0", epoch=self._epoch,
                cursor=_NO_CURSOR,
            )  # fmt: skip
        except CursorConflict:
            return None
        except AppendConflict:
            raise TurnConflict(turn_id, "it has another input") from None
        log = await self._memory.history(self._id, marks=True, after=known.first_seq - 1)
        records = []
        for record in log:
            if record.turn_id is not None and record.turn_id != turn_id:
                break
            records.append(record)
        return fold(turn_id, records)

    async def member_before(self, turn: TurnState) -> str:
        """The member of the team (`handoff.py`) that had the conversation when this turn began."""
        if not self.durable:
            return ""
        log: Log = await self._memory.history(self._id, marks=True)
        for record in reversed(log):
            if record.seq < turn.first_seq and record.mark and "ended" in record.mark:
                return str(record.mark.get("active", ""))
        return ""

    def owner(self, turn: TurnState) -> str:
        """The name of the agent whose turn it is, from the mark of its question."""
        return agent_of(turn.turn_id, self._records)

    # -- writing ---------------------------------------------------------------------------------

    def spent(self, usage: Usage) -> None:
        """A model call has cost this much; call it together with the append that says so."""
        self.total = self.total + usage

    def append(self, append_id: str, records: list[NewRecord]) -> None:
        """Add a step; it is stored when `settled()` returns."""
        failpoint("turn.append")
        self.pending.append(
            self._memory.append(
                self._id, records, append_id=append_id, follows=self._tail, epoch=self._epoch
            )
        )
        self._tail = append_id if self.durable else None
        self._written += len(records)

    async def settled(self) -> None:
        """Everything appended so far is acknowledged, or this raises what went wrong first.

        Raises ConversationCleared, a StoreError or StoreUnavailable (the turn stays open then),
        ProviderError; JournalBroken, which no one but the supervisor should see.
        """
        pending = self.pending
        while pending:
            try:
                await pending[0]
            except StaleEpoch:
                self._forget()
                raise ConversationCleared(
                    self._id, self.last.turn_id if self.last else ""
                ) from None
            except (AppendConflict, PredecessorMissing) as error:
                self._forget()
                raise JournalBroken(str(error)) from error
            except Exception:
                self._forget()
                raise
            del pending[0]
        failpoint("turn.settled")

    @property
    def epoch(self) -> int | None:
        """The conversation's epoch at `open`; None if the log is no journal."""
        return self._epoch

    @property
    def unsettled(self) -> bool:
        """Whether an append is not known to be stored."""
        return bool(self.pending)

    def _forget(self) -> None:
        self.pending.clear()
        self._clean = None
        self._history = self._begun = None
        self.last = None

    async def heal(self) -> bool:
        """Answer every call that was left without a result; whether there was any. Rule: CN-3."""
        if not self.durable:
            return False
        records, self._records = self._records, ()
        healing = heal_records(records) if records else []
        for append_id, record in healing:
            self.append(append_id, [record])
        if healing:
            await self.settled()
        return bool(healing)

    def turn_ended(self, turn: TurnState) -> None:
        """Everything up to the turn's end is stored: the next turn need not look at it again."""
        self.last = turn
        if self._epoch is not None:
            self._cursor += self._written
            self._written = 0
            self._clean = (self._epoch, self._cursor)
            history = self._history
            if history is None or self._begun is not turn or not history.extend(turn.messages()):
                self._history = None
            self._begun = None

    def lost(self) -> None:
        """What the log holds is not known any more: read it again before the next turn."""
        self._forget()


def newest_turn(log: Log) -> tuple[str | None, list[Record]]:
    """The id of the newest turn and the records from its question on; all records if there is none.

    `log` was read with marks. Reads backwards, and only as far.
    """
    records: list[Record] = []
    turn_id: str | None = None
    for record in reversed(log):
        records.append(record)
        if record.turn_id is None:
            continue
        if turn_id is None:
            turn_id = record.turn_id
        message = record.message
        if record.turn_id == turn_id and message is not None and message.role == "user":
            break
    records.reverse()
    return turn_id, records


def agent_of(turn_id: str, records: Sequence[Record]) -> str:
    """The name of the agent whose turn this is: in the mark of its question, "agent" without."""
    for record in records:
        if record.turn_id == turn_id:
            name = record.mark.get("agent") if record.mark else None
            return name if isinstance(name, str) else "agent"
    return "agent"
