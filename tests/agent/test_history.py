"""A window over the kept suffix is the window over the log (WN-1…7), however it came about."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keepwell.agent.history import History
from keepwell.memory.repair import in_call_order, repair
from keepwell.memory.window import Window, apply_window
from keepwell.stores.message import Message, ToolCall


@st.composite
def turns(draw: Any) -> list[list[Message]]:
    """Whole turns: a question, batches with their results, an answer; systems now and then."""
    out = []
    number = 0
    for at in range(draw(st.integers(1, 25))):
        turn = [Message("user", f"q{at}")]
        if draw(st.booleans()) and draw(st.booleans()):
            turn.insert(0, Message("system", f"s{at}"))
        for _ in range(draw(st.integers(0, 3))):
            size = draw(st.integers(1, 3))
            ids = [f"c{number + i}" for i in range(size)]
            number += size
            turn.append(Message("assistant", None, [ToolCall(i, "t", {}) for i in ids]))
            turn += [Message("tool", f"r{i}", tool_call_id=i) for i in ids]
        if draw(st.booleans()):
            turn.append(Message("assistant", f"a{at}"))
        out.append(turn)
    return out


class Log(list[Any]):
    """Records with what History asks of a log."""

    touched = 0

    def __init__(self, messages: list[Message]) -> None:
        super().__init__(Rec(m) for m in messages)

    def __getitem__(self, index: Any) -> Any:
        got = super().__getitem__(index)
        self.touched += len(got) if isinstance(index, slice) else 1
        return got

    def systems(self) -> list[Any]:
        return [r for r in self if r.message.role == "system"]


class Rec:
    def __init__(self, message: Message) -> None:
        self.message = message


@given(turns(), st.integers(1, 12), st.integers(0, 20))
@settings(max_examples=150, deadline=None)
def test_wn_a_history_is_the_window_over_everything(
    made: list[list[Message]], n: int, loaded: int
) -> None:
    *before, now = made
    start = [m for turn in before[:loaded] for m in turn]
    history: History | None = History.of(Log(start), Window(n))  # type: ignore[arg-type]  # a list of records
    everything = list(start)
    for turn in before[loaded:]:
        everything += turn
        if history is None or not history.extend(turn):
            history = History.of(Log(everything), Window(n))  # type: ignore[arg-type]  # as above
    assert history is not None
    for length in range(1, len(now) + 1):
        whole = in_call_order(repair([*everything, *now[:length]]))
        expected = apply_window(whole, n)
        got = history.shown_with(in_call_order(repair(now[:length])))
        assert got == expected


@given(turns())
@settings(max_examples=50, deadline=None)
def test_without_a_window_everything_is_shown(made: list[list[Message]]) -> None:
    *before, now = made
    everything = [m for turn in before for m in turn]
    history = History.of(Log(everything), None)  # type: ignore[arg-type]  # a list of records
    assert history.shown_with(now) == (*everything, *now)


def test_cs_21_a_window_reads_a_suffix_only() -> None:
    messages = [Message("user" if i % 2 == 0 else "assistant", f"m{i}") for i in range(10_000)]
    log = Log(messages)
    history = History.of(log, Window(50))  # type: ignore[arg-type]  # a list of records
    shown = history.shown_with([Message("user", "now")])
    assert (len(shown), shown[-1].content) == (50, "now")
    assert log.touched < 200


def test_the_kept_suffix_stays_bounded() -> None:
    history = History.of(Log([]), Window(10))  # type: ignore[arg-type]  # a list of records
    for i in range(2_000):
        assert history.extend([Message("user", f"q{i}"), Message("assistant", f"a{i}")])
    assert len(history._messages) < 400
