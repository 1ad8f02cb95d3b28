"""Token budgets: what of a transcript one model call is shown.

The ceiling is hard: pinned turns, announcement and what is kept never cost more than
`max_tokens`; what does not fit is announced, never silently left out; if not even the pinned
turns fit, that is an error. Everything is read from the newest turn backwards and only as far as
it may be shown, so that cutting a context from a long log costs what is kept. Pure. Rules: F4 to
F11, F14.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final, NamedTuple

from ..actors.errors import InvalidValue, RequestError
from .token_counter import approx_token_count
from .turn import CountTokens, Turn, TurnCost, call_ids, has_id, system_turns

ELLIPSIS: Final = "…"


class ContextTooLarge(RequestError):
    """What must be shown does not fit: `needed` tokens against `max_tokens`.

    `part` is the first of "system", "question" and "announcement" that overflows; with an agent's
    `context=` also "result of the last tool calls". Raise the budget, or shorten that part (results
    by `max_result_characters`). Rule: F9.
    """

    def __init__(self, needed: int, max_tokens: int, part: str) -> None:
        super().__init__(
            f"the context needs at least {needed} tokens, {max_tokens} are allowed: the {part} "
            "does not fit; raise max_tokens or shorten it",
            code="context_too_large",
        )
        self.needed, self.max_tokens, self.part = needed, max_tokens, part


def split_to_budget(
    turns: Sequence[Turn], max_tokens: int, count_tokens: CountTokens = approx_token_count
) -> tuple[list[Turn], list[Turn]]:
    """`(elided, kept)`: kept is the longest suffix of turns that costs at most `max_tokens`.

    elided + kept = turns. Then the cut moves on past results whose call was elided and past
    leading results with an id; nothing is refilled, pinned or announced. Raises InvalidValue for
    a bad budget or counter. Rules: F4, F5.
    """
    _budget(max_tokens)
    cost = TurnCost(count_tokens)
    cut = len(turns)
    room = max_tokens
    for turn in reversed(turns):
        room -= cost(turn)
        if room < 0:
            break
        cut -= 1
    elided_ids = {i for turn in turns[:cut] for i in call_ids(turn)}
    moved = True
    while moved:
        moved = False
        kept_ids: set[str] = set()
        for place in range(cut, len(turns)):
            turn = turns[place]
            kept_ids.update(call_ids(turn))
            if turn["role"] != "tool" or not has_id(turn) or turn["tool_call_id"] in kept_ids:
                continue
            if place == cut or turn["tool_call_id"] in elided_ids:
                for passed in turns[cut : place + 1]:
                    elided_ids.update(call_ids(passed))
                cut = place + 1
                moved = True
                break
    return list(turns[:cut]), list(turns[cut:])


@dataclass(frozen=True, slots=True)
class Fit:
    """A context that fits its budget.

    `shown`: the turns in the order for the model: system prompt, system turns, announcement, the
    rest. `elided_count`: what the announcement says: turns left out, and those elided before.
    `tokens`: the cost of `shown`. `elided`: the turns left out, read when asked for.
    """

    shown: list[Turn]
    elided_count: int
    tokens: int
    max_tokens: int
    _turns: Sequence[Turn] = field(repr=False)
    _cost: TurnCost = field(repr=False)
    _announced_at: int | None = field(repr=False)
    """Place of the announcement in `shown`, None without."""
    _kept: frozenset[int] = field(repr=False)
    """Places in the transcript of the turns shown."""
    cut: int
    """Place in the transcript where the run of newest groups begins: what stands before it is left
    out, but for system turns and the question; a summary has to cover it."""

    @property
    def places(self) -> list[int]:
        """Places in the transcript of the turns shown, in order; without system turns."""
        return sorted(self._kept)

    @property
    def elided(self) -> list[Turn]:
        """The turns left out, in order; system turns are never among them."""
        return [
            turn
            for place, turn in enumerate(self._turns)
            if place not in self._kept and turn["role"] != "system"
        ]

    def with_summary(self, text: object) -> Fit:
        """The same context with a summary in place of the marker.

        It is cut, with "…", to the room that is left. Nothing elided, an empty text, no str or no
        room for a character: the same context with its marker. Rules: F11, F13.
        """
        if self._announced_at is None or not isinstance(text, str) or not text.strip():
            return self
        others = self.tokens - self._cost(self.shown[self._announced_at])
        room = self.max_tokens - others
        turn = _summary_within(text, self.elided_count, room, self._cost)
        if turn is None:
            return self
        shown = [*self.shown]
        shown[self._announced_at] = turn
        return replace(self, shown=shown, tokens=others + self._cost(turn))


def fit_context(
    turns: Sequence[Turn],
    max_tokens: int,
    count_tokens: CountTokens,
    *,
    system: str | Turn | None = None,
    elided_before: int = 0,
    reserve: int = 0,
) -> Fit:
    """Cut a transcript to at most `max_tokens`, never silently and never without the question.

    Pinned are `system`, all system turns and the last user turn. Beside them stands the longest
    run of newest groups that fits together with the announcement (at least `reserve` tokens are
    held for it), and begins with a user turn if the transcript has one. A group is an assistant
    turn with the results of its calls; groups with an unanswered call and results without call
    are never shown. If nothing is left out, now or before (`elided_before`), nothing is announced.

    Raises ContextTooLarge if the pinned turns and the announcement do not fit, InvalidValue for
    bad numbers. `turns` may be lazy (`conversation_transcript` of a log): only what may be shown
    is read, and stored counts are taken as they are. Rules: F6...F9, F14.
    """
    _budget(max_tokens)
    for name, value in (("elided_before", elided_before), ("reserve", reserve)):
        number: object = value
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise InvalidValue(f"{name} must be an int of at least 0, got {number!r}")
    cost = TurnCost(count_tokens)
    head = system_turns(turns)
    if system is not None:
        head.insert(0, {"role": "system", "content": system} if isinstance(system, str) else system)
    head_cost = sum(map(cost, head))
    total = len(turns)
    own_head = len(head) - (system is not None)

    newest, backwards, question = _question(turns)
    pinned = head_cost + (0 if question is None else cost(question.turns[0]))

    # One pass backwards: all runs that could be shown, with what they cost and where they begin.
    run: list[TurnGroup] = []
    spent = pinned
    shown_turns = 0 if question is None else 1
    runs = [_Run(0, pinned, shown_turns, True)]
    question_passed = question is None
    whole = True
    for group in groups_backwards(chain(newest, backwards), total):
        if question is not None and group.places[0] == question.places[0]:
            question_passed = True
            # From here on the question stands inside the run, which must begin with a user turn.
            runs[-1] = runs[-1]._replace(admissible=True)
            continue
        if not group.showable:
            continue
        for turn in group.turns:
            spent += cost(turn)
        if spent > max_tokens:
            whole = False
            break
        run.append(group)
        shown_turns += len(group.turns)
        admissible = question is None or not question_passed or group.role == "user"
        runs.append(_Run(len(run), spent, shown_turns, admissible))

    left_out_of_all = total - own_head - shown_turns + elided_before
    if whole and left_out_of_all == 0 and spent <= max_tokens:
        return _fit(turns, max_tokens, cost, head, None, run, question, 0, spent)

    for candidate in reversed(runs):
        if not candidate.admissible:
            continue
        count = total - own_head - candidate.shown + elided_before
        if count == 0:  # all of it, which does not fit, or it would have been returned
            continue
        marker = elision_marker(count)
        marker_cost = cost(marker)
        if candidate.cost + max(marker_cost, reserve) <= max_tokens:
            chosen = run[: candidate.groups]
            tokens = candidate.cost + marker_cost
            return _fit(turns, max_tokens, cost, head, marker, chosen, question, count, tokens)

    count = total - own_head - (question is not None) + elided_before
    announcement = max(cost(elision_marker(count)), reserve) if count else 0
    part = "system" if head_cost > max_tokens else "question"
    if pinned <= max_tokens:
        part = "announcement"
    raise ContextTooLarge(pinned + announcement, max_tokens, part)


def elision_marker(n: int) -> Turn:
    """The system turn that announces n elided turns, n >= 1. Rule: F10."""
    number: object = n
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidValue(f"a marker is for at least 1 elided turn, got {number!r}")
    return {"role": "system", "content": f"{n} earlier turn{'s' if n > 1 else ''} elided"}


def summary_turn(text: str, n: int | None = None) -> Turn:
    """The system turn that carries a summary of n earlier turns. Rule: F11."""
    if n is None:
        head = "Summary of earlier turns:"
    else:
        head = f"Summary of {n} earlier turn{'s' if n > 1 else ''}:"
    return {"role": "system", "content": f"{head}\n{text}"}


class TurnGroup(NamedTuple):
    """A group of turns that is never parted; `showable`: none of its calls is unanswered."""

    places: tuple[int, ...]
    turns: tuple[Turn, ...]
    showable: bool

    @property
    def role(self) -> object:
        """The role of its first turn."""
        return self.turns[0]["role"]


class _Run(NamedTuple):
    groups: int
    cost: int
    shown: int
    admissible: bool


def _question(
    turns: Sequence[Turn],
) -> tuple[list[Turn], Iterator[Turn], TurnGroup | None]:
    """What was read to find the last user turn, newest first; the iterator behind; the turn."""
    backwards = iter(reversed(turns))
    read: list[Turn] = []
    for turn in backwards:
        read.append(turn)
        if turn["role"] == "user":
            return read, backwards, TurnGroup((len(turns) - len(read),), (turn,), True)
    return read, backwards, None


def groups_backwards(backwards: Iterator[Turn], total: int) -> Iterator[TurnGroup]:
    """The groups of a transcript, newest first, without system turns.

    Results find their call as brackets do: seen from the end, a call takes the nearest result of
    its id that waits. What still waits at the end has no call and is in no group.
    """
    place = total
    waiting: dict[str, list[tuple[int, Turn]]] = {}
    without_id: list[tuple[int, Turn]] = []
    for turn in backwards:
        place -= 1
        role = turn["role"]
        if role == "system":
            continue
        if role == "tool":
            if has_id(turn):
                waiting.setdefault(turn["tool_call_id"], []).append((place, turn))
            else:
                without_id.append((place, turn))
            continue
        if role != "assistant":
            yield TurnGroup((place,), (turn,), True)
            continue
        ids = call_ids(turn)
        if not ids and not without_id:
            yield TurnGroup((place,), (turn,), True)
            continue
        results = [stack.pop() for i in ids if (stack := waiting.get(i))]
        showable = len(results) == len(ids)
        results = sorted([*results, *without_id], key=lambda result: result[0])
        without_id = []
        places = (place, *(at for at, _ in results))
        yield TurnGroup(places, (turn, *(result for _, result in results)), showable)


def _fit(
    turns: Sequence[Turn],
    max_tokens: int,
    cost: TurnCost,
    head: list[Turn],
    marker: Turn | None,
    run: list[TurnGroup],
    question: TurnGroup | None,
    count: int,
    tokens: int,
) -> Fit:
    groups = sorted(run if question is None else [*run, question], key=lambda g: g.places[0])
    if run:
        cut = run[-1].places[0]
    else:  # a question that stands last is shown and new; else what follows it is left out
        last = question is not None and question.places[0] == len(turns) - 1
        cut = len(turns) - last
    shown = [*head]
    if marker is not None:
        shown.append(marker)
    shown.extend(turn for group in groups for turn in group.turns)
    return Fit(
        shown,
        count,
        tokens,
        max_tokens,
        turns,
        cost,
        None if marker is None else len(head),
        frozenset(place for group in groups for place in group.places),
        cut,
    )


def _summary_within(text: str, n: int, room: int, cost: TurnCost) -> Turn | None:
    """The summary turn that costs at most `room`, cut if it must be; None if there is no room."""
    whole = summary_turn(text, n)
    if cost(whole) <= room:
        return whole
    low, high = 0, len(text)  # the longest prefix known to fit, the shortest known not to
    while high - low > 1:
        middle = (low + high) // 2
        if cost(summary_turn(text[:middle] + ELLIPSIS, n)) <= room:
            low = middle
        else:
            high = middle
    # The last length tried as fitting did fit: the ceiling holds for any counter.
    return summary_turn(text[:low] + ELLIPSIS, n) if low else None


def _budget(max_tokens: int) -> None:
    number: object = max_tokens
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InvalidValue(f"max_tokens must be an int of at least 0, got {number!r}")


def shows_results(turns: Sequence[Turn], fit: Fit) -> bool:
    """Whether what the last calls gave is shown, if the transcript ends with that."""
    last = len(turns) - 1
    return last < 0 or turns[last]["role"] != "tool" or last in fit.places


def check_results(
    turns: Sequence[Turn], fit: Fit, cost: TurnCost, max_tokens: int, reserved: int = 0
) -> None:
    """Raise ContextTooLarge if what the last calls gave is not shown.

    A model that never sees it would call again, round after round. `reserved`: tokens of the
    budget that were held free.
    """
    if shows_results(turns, fit):
        return
    last = len(turns) - 1
    needed = reserved + fit.tokens + cost(turns[last])
    while last > 0 and turns[last]["role"] == "tool":
        last -= 1
        needed += cost(turns[last])
    # By no more than the room that is held for a summary, perhaps.
    raise ContextTooLarge(max(needed, max_tokens + 1), max_tokens, "result of the last tool calls")
