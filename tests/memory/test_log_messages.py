"""The lazy view of a log's messages: a sequence like any other, reading only what is touched."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.memory.log_messages import LogBefore, LogMessages
from keepwell.memory.window import apply_window
from keepwell.stores.message import Message
from keepwell.stores.record import Record

NOW = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


class FakeLog:
    """A log over a list that counts the records touched."""

    cursor = epoch = 0

    def __init__(self, messages: Sequence[Message | None]) -> None:
        self.records = [Record(i + 1, m, "t", 1, "n", NOW) for i, m in enumerate(messages)]
        self.touched = 0

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index):
        if isinstance(index, slice):
            found = tuple(self.records[index])
            self.touched += len(found)
            return found
        self.touched += 1
        return self.records[index]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __reversed__(self):
        return (self[i] for i in range(len(self) - 1, -1, -1))

    def systems(self):
        return tuple(
            r for r in self.records if r.message is not None and r.message.role == "system"
        )


def messages(count: int, start: int = 0) -> list[Message]:
    roles = ("user", "assistant", "system")
    return [Message(roles[i % 3], str(i)) for i in range(start, start + count)]


SLICES = st.slices(12)


@given(st.integers(0, 6), st.integers(0, 6), SLICES, st.integers(-13, 13))
def test_it_is_the_list_of_both(stored, more, cut, index):
    both = messages(stored + more)
    view = LogMessages(FakeLog(both[:stored]), both[stored:])
    assert len(view) == len(both)
    assert list(view) == both
    assert list(reversed(view)) == both[::-1]
    assert list(view[cut]) == both[cut]
    assert view.systems() == tuple(m for m in both if m.role == "system")
    if -len(both) <= index < len(both):
        assert view[index] == both[index]
    else:
        with pytest.raises(IndexError):
            view[index]


def test_a_window_over_a_long_log_reads_what_it_shows():
    log = FakeLog(messages(30_000))
    shown = apply_window(LogMessages(log, [Message("user", "now")]), 50)
    assert sum(m.role != "system" for m in shown) == 50
    assert log.touched < 100


def test_a_pure_mark_is_refused():
    with pytest.raises(TypeError, match="record 1 is a pure mark"):
        LogMessages(FakeLog([None]))[0]


@given(st.lists(st.sampled_from(["user", "assistant", "system"]), max_size=200), st.data())
def test_a_log_before_a_record_is_a_prefix_of_it(roles: list[str], data: st.DataObject) -> None:
    log = FakeLog([Message(role, f"{n}") for n, role in enumerate(roles)])
    log.records = [record._replace(seq=2 * record.seq) for record in log.records]  # marks between
    log.cursor = 2 * len(roles)
    seq = data.draw(st.integers(1, 2 * len(roles) + 3))
    before = LogBefore(log, seq)
    expected = [record for record in log.records if record.seq < seq]
    assert list(before) == expected
    assert list(reversed(before)) == expected[::-1]
    assert list(before.systems()) == [r for r in expected if r.message.role == "system"]
    start, stop = data.draw(st.integers(-9, 9)), data.draw(st.integers(-9, 9))
    assert before[start:stop] == tuple(expected[start:stop])
    assert before[::-1] == tuple(expected[::-1])
    assert len(before) == len(expected) and before.epoch == log.epoch
    for place in (0, -1, len(expected)):
        if -len(expected) <= place < len(expected):
            assert before[place] == expected[place]
        else:
            with pytest.raises(IndexError):
                before[place]


def test_a_log_before_a_record_is_found_by_bisection_f14() -> None:
    log = FakeLog([Message("user", f"{n}") for n in range(100_000)])
    before = LogBefore(log, 99_990)
    assert [record.seq for record in before[-2:]] == [99_988, 99_989]
    assert log.touched < 25
