"""The tree as data and as text; it can be looked at whatever its actors are doing."""

from __future__ import annotations

import functools
import json
import threading
from typing import Any

import pytest

from keepwell.actors import Actor, ActorSystem, InvalidValue, names
from keepwell.supervision import (
    Backoff,
    ChildSpec,
    DynamicSupervisor,
    Supervisor,
    tree,
    tree_text,
)

SOON = 10


def test_data_and_text(simulation: Any, nursery: Any, toy: Any) -> None:
    sub = functools.partial(
        DynamicSupervisor, ChildSpec("toy", functools.partial(toy, nursery)), per_child=True
    )
    supervisor = Supervisor.start(
        [
            nursery.spec("a"),
            ChildSpec("fleet", sub, type="supervisor"),
            nursery.spec("done", restart="transient"),
        ],
        "rest_for_one",
        name="top",
    )
    fleet = supervisor.which_children().get()[1].child
    fleet.start_child("one").get()
    nursery.ref("one").tell(("exit", "boom"))
    nursery.ref("done").tell(("exit", "normal"))
    nursery.ref("a").ask("hello")
    simulation.advance(2.5)
    node = tree("top")
    assert node == tree(names.named("top")) == tree(supervisor)
    assert [n.id for n in node.walk()] == [None, "a", "fleet", None, "done"]
    a, fleet_node, done = node.children
    assert (a.status, a.handled, a.uptime, a.restarts) == ("running", 1, 2.5, 0)
    assert a.links == (supervisor,)
    assert a.last_error is None
    (one,) = fleet_node.children
    assert (one.restarts, one.last_error, one.type) == (1, "'boom'", "worker")
    assert (done.status, done.ref, done.last_error) == ("stopped", None, "'normal'")
    assert tree_text(node) == str(node)
    lines = str(node).splitlines()
    assert lines[0].startswith("Supervisor as 'top'  rest_for_one  running  up 2.5 s")
    assert lines[1] == "├─ a (Toy)  running  up 2.5 s  mailbox 0  handled 1"
    assert lines[3].startswith("│  └─ Toy  running")
    assert lines[3].endswith("restarts 1  last ended with 'boom'")
    assert lines[4] == "└─ done (worker)  stopped  last ended with 'normal'"


def test_restarting_and_the_dead(simulation: Any, nursery: Any) -> None:
    supervisor = Supervisor.start(nursery.specs("ab"), backoff=Backoff(first=30, longest=30))
    nursery.plans["b"] = ["ok", RuntimeError("x" * 1_000)]
    nursery.ref("b").kill()
    simulation.run_until_idle()
    b = tree(supervisor).children[1]
    assert (b.status, b.ref) == ("restarting", None)
    assert b.last_error is not None
    assert len(b.last_error) == 120
    supervisor.suspend().get()
    nursery.ref("a").kill()
    simulation.run_until_idle()
    node = tree(supervisor)
    assert node.suspended
    assert node.children[0].status == "ended", "its supervisor has not dealt with it yet"
    supervisor.kill()
    simulation.run_until_idle()
    assert (tree(supervisor).status, tree(supervisor).children) == ("ended", ())


def test_a_stuck_tree_can_be_looked_at(system: ActorSystem, nursery: Any) -> None:
    """The supervisor waits for a child that does not stop; both have something in the mailbox."""
    entered, release = threading.Event(), threading.Event()

    def stick(_: Any) -> None:
        entered.set()
        release.wait(30)

    supervisor = Supervisor.start([nursery.spec("a", shutdown="infinity")])
    nursery.ref("a").tell(stick)
    assert entered.wait(SOON)
    nursery.ref("a").tell("waits")
    terminated = supervisor.terminate_child("a")
    waiting = supervisor.which_children()
    try:
        node = tree(supervisor)
        assert node.children[0].mailbox == 1
        assert "mailbox 1" in str(node)
        assert not waiting.done()
    finally:
        release.set()
    terminated.get(timeout=SOON)


def test_refs_are_shown_and_not_followed(simulation: Any, nursery: Any) -> None:
    """F61: an actor that keeps its own ref, and one to somebody who refers back."""
    supervisor = Supervisor.start(nursery.specs("ab"))
    a, b = nursery.ref("a"), nursery.ref("b")
    for one, other in ((a, b), (b, a)):
        one.ask(lambda actor, peer=other: vars(actor).update(me=actor.actor_ref, peer=peer) or 0)
    assert a.get_state().get()["peer"] is b
    assert "a (Toy)" in str(tree(supervisor))


def test_plain_data_can_be_made_of_it(simulation: Any, nursery: Any) -> None:
    supervisor = Supervisor.start(nursery.specs("ab"))
    facts = [(n.id, n.actor, n.status, n.mailbox) for n in tree(supervisor).walk()]
    assert json.loads(json.dumps(facts))[1] == ["a", "Toy", "running", 0]


@pytest.mark.parametrize("what", [None, 7, "nobody here"])
def test_what_is_no_supervisor_is_refused(simulation: Any, what: Any) -> None:
    with pytest.raises(Exception, match=r"no supervisor|registered"):
        tree(what)
    with pytest.raises(InvalidValue):
        tree(Actor.start())
