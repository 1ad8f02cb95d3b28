"""The turn gate: one holder a conversation, in the order of asking (KF-9)."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from keepwell.memory.turn_gate import TurnGates, turn_gates

A, B, C = object(), object(), object()


def test_kf_9_first_come_first_served() -> None:
    gates = TurnGates()
    asked = [gates.acquire("c", name) for name in (A, B, C)]
    assert [future.done() for future in asked] == [True, False, False]
    gates.release("c", A)
    assert [future.done() for future in asked] == [True, True, False]
    gates.release("c", B)
    assert asked[2].done()
    gates.release("c", C)
    assert gates.held() == 0


def test_kf_9_conversations_do_not_wait_for_each_other() -> None:
    gates = TurnGates()
    assert gates.acquire("c", A).done()
    assert gates.acquire("d", B).done()


def test_a_holder_may_take_its_own_gate_again_and_gives_it_back_once() -> None:
    gates = TurnGates()
    holder = object()
    gates.acquire("c", holder)
    waiting = gates.acquire("c", B)
    assert gates.acquire("c", holder).done()
    gates.release("c", holder)
    assert waiting.done()
    assert gates.holder("c") is B


def test_whoever_gives_up_waiting_is_passed_over() -> None:
    gates = TurnGates()
    gates.acquire("c", A)
    gives_up, waits = gates.acquire("c", B), gates.acquire("c", C)
    gates.release("c", B)
    gates.release("c", A)
    assert waits.done()
    assert not gives_up.done()


def test_releasing_what_one_does_not_hold_changes_nothing() -> None:
    gates = TurnGates()
    gates.release("c", A)
    gates.acquire("c", A)
    gates.release("c", B)
    assert gates.holder("c") is A


@given(st.lists(st.tuples(st.sampled_from("ar"), st.sampled_from("abcd")), max_size=60))
def test_never_two_holders_and_nobody_is_forgotten(calls: list[tuple[str, str]]) -> None:
    gates = TurnGates()
    order: list[str] = []  # the model: who holds, then who waits
    futures = {}
    for call, who in calls:
        if call == "a":
            futures[who] = gates.acquire("c", who)
            if who not in order:
                order.append(who)
        else:
            gates.release("c", who)
            if who in order:
                order.remove(who)
        assert gates.holder("c") == (order[0] if order else None)
        assert all(futures[name].done() == (name == order[0]) for name in order)


def test_threads_take_turns() -> None:
    gates = TurnGates()
    inside, most = [0], [0]

    def turn(name: str) -> None:
        for i in range(200):
            holder = (name, i)
            gates.acquire("c", holder).get(timeout=10)
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1
            gates.release("c", holder)

    threads = [threading.Thread(target=turn, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (most[0], gates.held()) == (1, 0)


def test_one_store_one_set_of_gates() -> None:
    class Store:
        pass

    class Handle:
        def __init__(self, store: Store) -> None:
            self.port = store

    store, other = Store(), Store()
    assert turn_gates(Handle(store)) is turn_gates(store) is turn_gates(Handle(store))
    assert turn_gates(store) is not turn_gates(other)
