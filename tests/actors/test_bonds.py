"""Links, exit signals, monitors, names and groups (LINK, SIG, MON, REG, PG)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from keepwell.actors import (
    ActorRef,
    ActorSystem,
    Down,
    Exit,
    NotRegistered,
    RequestError,
    Shutdown,
    groups,
    names,
)

SOON = 10.0


def seen(ref: ActorRef[Any]) -> list[Any]:
    """What a living actor has noted so far; whatever was sent to it before is noted."""
    return ref.ask(lambda actor: list(actor.seen), timeout=SOON)


def link(one: ActorRef[Any], other: ActorRef[Any]) -> None:
    one.ask(lambda actor: actor.link(other), timeout=SOON)


def crash(ref: ActorRef[Any], reason: Any = "boom") -> None:
    ref.tell(lambda actor: actor.stop(reason))
    assert ref.ended().get(timeout=SOON) == reason


# -- links -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["boom", "shutdown", Shutdown("x"), ValueError("v")])
def test_an_abnormal_end_ends_linked_peers_transitively(spawn: Any, reason: Any) -> None:
    """LINK-1, LINK-5: `shutdown` is abnormal here."""
    one, two, three, stranger = spawn(), spawn(), spawn(), spawn()
    link(one, two)
    link(two, three)
    crash(one, reason)
    assert two.ended().get(timeout=SOON) is reason
    assert three.ended().get(timeout=SOON) is reason
    assert stranger.ask("alive", timeout=SOON) == "alive"


def test_a_normal_end_ends_no_peer(spawn: Any) -> None:
    """LINK-1."""
    one, two = spawn(), spawn()
    link(one, two)
    assert one.stop()
    assert two.ask("alive", timeout=SOON) == "alive"


@pytest.mark.parametrize("reason", ["boom", "normal"])
def test_a_trapping_peer_gets_a_message_with_the_direct_peer(
    spawn: Any, watcher: Any, reason: Any
) -> None:
    """LINK-2: for `normal` too."""
    one, two = spawn(), spawn()
    link(one, two)
    link(two, watcher)
    crash(two, reason)
    assert seen(watcher) == [Exit(two, reason)]


def test_linking_twice_is_one_link_and_either_side_undoes_it(spawn: Any, watcher: Any) -> None:
    """LINK-3."""
    ref = spawn()
    link(watcher, ref)
    link(ref, watcher)
    assert ref.statistics().get(timeout=SOON)["links"] == [watcher]
    ref.ask(lambda actor: actor.unlink(watcher), timeout=SOON)
    crash(ref)
    assert seen(watcher) == []


def test_an_exit_that_waits_is_gone_after_unlink(spawn: Any, watcher: Any) -> None:
    """LINK-3: as in OTP, none comes after unlink has returned."""
    ref = spawn()
    link(watcher, ref)

    def crash_and_unlink(actor: Any) -> None:
        crash(ref)
        actor.unlink(ref)

    watcher.ask(crash_and_unlink, timeout=SOON)
    assert seen(watcher) == []


def test_linking_to_the_dead(spawn: Any, watcher: Any) -> None:
    """LINK-4."""
    dead, ref = spawn(), spawn()
    dead.stop()
    link(watcher, dead)
    assert seen(watcher) == [Exit(dead, "noproc")]

    def refused(actor: Any) -> str:
        with pytest.raises(RequestError) as error:
            actor.link(dead)
        return error.value.code

    assert ref.ask(refused, timeout=SOON) == "noproc"


def test_linking_oneself_is_nothing(spawn: Any) -> None:
    ref = spawn()
    link(ref, ref)
    assert ref.statistics().get(timeout=SOON)["links"] == []


# -- exit signals ------------------------------------------------------------------------------


def test_an_exit_signal_is_a_message_when_trapping_else_the_end(spawn: Any, watcher: Any) -> None:
    """SIG-1."""
    ref = spawn()
    watcher.exit("boom")
    assert seen(watcher) == [Exit(None, "boom")]
    ref.exit("boom")
    assert ref.ended().get(timeout=SOON) == "boom"


def test_normal_is_ignored_unless_sent_to_oneself(spawn: Any) -> None:
    """SIG-2."""
    ref, other = spawn(), spawn()
    ref.exit("normal")
    other.ask(lambda _: ref.exit("normal"), timeout=SOON)
    assert ref.ask("alive", timeout=SOON) == "alive"
    ref.tell(lambda actor: actor.actor_ref.exit("normal"))
    assert ref.ended().get(timeout=SOON) == "normal"


def test_kill_is_not_trappable_and_seen_as_killed(spawn: Any, watcher: Any) -> None:
    """SIG-3, TYPE-4."""
    trapping, peer = spawn(trap_exit=True), spawn()
    link(watcher, trapping)
    link(peer, trapping)
    trapping.exit("kill")
    assert trapping.ended().get(timeout=SOON) == "killed"
    assert peer.ended().get(timeout=SOON) == "killed"
    assert seen(watcher) == [Exit(trapping, "killed")]


def test_an_own_exit_with_reason_kill_is_no_kill(spawn: Any, watcher: Any) -> None:
    """SIG-3: peers see `kill` and may trap it."""
    ref = spawn()
    link(watcher, ref)
    crash(ref, "kill")
    assert seen(watcher) == [Exit(ref, "kill")]


def test_trap_exit_may_change_at_run_time(spawn: Any) -> None:
    ref = spawn()
    ref.ask(lambda actor: setattr(actor, "trap_exit", True), timeout=SOON)
    ref.exit("boom")
    assert seen(ref) == [Exit(None, "boom")]
    ref.ask(lambda actor: setattr(actor, "trap_exit", False), timeout=SOON)
    ref.exit("boom")
    assert ref.ended().get(timeout=SOON) == "boom"


def test_the_exit_signal_of_its_parent_ends_even_who_traps(spawn: Any, kind: Any) -> None:
    """SHUT-8: and runs its hook."""
    notes: list[Any] = []
    parent = spawn()

    class Child(kind):  # type: ignore[misc]  # a class that the fixture gives
        trap_exit = True

    child = Child.options(parent=parent, system=parent.system).start(notes.append)
    other = spawn()
    other.ask(lambda _: child.exit("stranger"), timeout=SOON)
    assert child.ask("alive", timeout=SOON) == "alive"
    parent.ask(lambda _: child.exit("shutdown"), timeout=SOON)
    assert child.ended().get(timeout=SOON) == "shutdown"
    assert notes == [Exit(other, "stranger"), "alive", ("on_stop", "shutdown")]


# -- monitors ----------------------------------------------------------------------------------


def monitor(watcher: ActorRef[Any], target: Any) -> Any:
    return watcher.ask(lambda actor: actor.monitor(target), timeout=SOON)


@pytest.mark.parametrize("reason", ["normal", "boom", "shutdown"])
def test_a_monitor_gives_one_down_and_binds_one_way(
    spawn: Any, watcher: Any, reason: Any
) -> None:
    """MON-1, MON-2: for `normal` too; one for each monitor."""
    ref = spawn()
    first, second = monitor(watcher, ref), monitor(watcher, ref)
    third = monitor(ref, watcher)
    crash(ref, reason)
    assert seen(watcher) == [Down(first, ref, None, reason), Down(second, ref, None, reason)]
    assert third.active  # its watcher is gone, and nobody hears of it any more


def test_a_monitor_on_the_dead_is_answered_at_once(spawn: Any, watcher: Any) -> None:
    """MON-3."""
    ref = spawn()
    ref.stop()
    watch = monitor(watcher, ref)
    assert seen(watcher) == [Down(watch, ref, None, "noproc")]


def test_no_down_comes_after_demonitor(spawn: Any, watcher: Any) -> None:
    """MON-4: not even one that was waiting."""
    ref = spawn()
    watch = monitor(watcher, ref)

    def crash_and_demonitor(actor: Any) -> bool:
        crash(ref)
        return actor.demonitor(watch)

    assert watcher.ask(crash_and_demonitor, timeout=SOON) is True
    assert watcher.ask(lambda actor: actor.demonitor(watch), timeout=SOON) is False
    assert seen(watcher) == []


def test_a_monitor_by_name(spawn: Any, watcher: Any) -> None:
    """MON-5."""
    ref = spawn(name="cash desk")
    watch = monitor(watcher, "cash desk")
    crash(ref)
    unknown = monitor(watcher, "cash desk")
    assert seen(watcher) == [
        Down(watch, ref, "cash desk", "boom"),
        Down(unknown, None, "cash desk", "noproc"),
    ]


def test_a_watcher_that_has_ended_leaves_nothing_behind(spawn: Any) -> None:
    """F63: or one that many have watched would remember them all."""
    ref = spawn()
    for _ in range(5):
        short = spawn()
        monitor(short, ref)
        link(short, ref)
        groups.join("short", short)
        short.stop()
    statistics = ref.statistics().get(timeout=SOON)
    assert (statistics["monitors"], statistics["links"]) == (0, [])
    assert groups.members("short") == []


def test_bonds_made_while_the_other_ends_are_told(spawn: Any, watcher: Any) -> None:
    """MON-3, LINK-4: whoever is first, each monitor gets its Down and each link its Exit."""
    for _ in range(30):
        ref = spawn()
        start = threading.Barrier(2)

        def end(ref: Any = ref, start: Any = start) -> None:
            start.wait(SOON)
            ref.exit("boom")

        thread = threading.Thread(target=end)
        thread.start()

        def bind(actor: Any, ref: Any = ref, start: Any = start) -> Any:
            start.wait(SOON)
            actor.link(ref)
            return actor.monitor(ref)

        watch = watcher.ask(bind, timeout=SOON)
        thread.join(SOON)
        ref.ended().get(timeout=SOON)
        told = seen(watcher)[-2:]
        assert {type(message) for message in told} == {Exit, Down}
        assert all(message.reason in ("boom", "noproc") for message in told)
        assert next(message.monitor for message in told if isinstance(message, Down)) is watch


# -- names -------------------------------------------------------------------------------------


def test_a_name_has_one_actor_an_actor_one_name_freed_at_death(spawn: Any) -> None:
    """REG-1, REG-2."""
    one, two = spawn(), spawn()
    names.register("desk", one)
    assert names.whereis("desk") is one
    assert (one.name, names.registered()) == ("desk", ["desk"])
    for name, ref in (("desk", two), ("desk", one), ("other", one)):
        with pytest.raises(RequestError) as error:
            names.register(name, ref)
        assert error.value.code == "badarg"
    one.stop()
    assert names.whereis("desk") is None
    names.register("desk", two)
    assert names.whereis("desk") is two


def test_neither_the_dead_nor_the_unknown_can_be_registered_or_freed(spawn: Any) -> None:
    """REG-3."""
    dead, ref = spawn(), spawn()
    dead.stop()
    with pytest.raises(RequestError):
        names.register("desk", dead)
    with pytest.raises(NotRegistered):
        names.unregister("desk")
    names.register("desk", ref)
    names.unregister("desk")
    assert names.whereis("desk") is None
    names.register("another", ref)


def test_telling_an_unknown_name_raises(spawn: Any) -> None:
    """REG-4: and a name leads to the incarnation of the moment (F70)."""
    desk = names.named("desk")
    with pytest.raises(NotRegistered):
        desk.tell("anyone?")
    with pytest.raises(NotRegistered):
        desk.call("anyone?").get()
    first = spawn(name="desk")
    assert desk.ask("first", timeout=SOON) == "first"
    first.stop()
    second = spawn(name="desk")
    assert desk.ask(lambda actor: actor.actor_ref, timeout=SOON) is second
    assert desk.ref() is second


# -- groups ------------------------------------------------------------------------------------


def test_groups_count_memberships_and_death_leaves_all(spawn: Any) -> None:
    """PG-1, PG-2, PG-3."""
    one, two = spawn(), spawn()
    groups.join("g", one)
    groups.join("g", two)
    groups.join("g", one)
    groups.join("h", one)
    assert sorted(map(id, groups.members("g"))) == sorted(map(id, [one, one, two]))
    assert groups.groups() == ["g", "h"]
    groups.leave("g", one)
    assert groups.members("g") == [one, two]
    crash(one)
    assert (groups.members("g"), groups.members("h")) == ([two], [])
    with pytest.raises(RequestError) as error:
        groups.leave("g", one)
    assert error.value.code == "not_joined"
    with pytest.raises(RequestError):
        groups.join("g", one)
    assert groups.members("nobody") == []


def test_names_and_groups_belong_to_their_system(spawn: Any, light: Any) -> None:
    """F58: module-level functions act on the one entered."""
    here = spawn(name="desk")
    with ActorSystem(name="other") as other:
        there = light.start(name="desk")
        assert names.whereis("desk") is there
        groups.join("g", there)
        assert names.whereis("desk", system=here.system) is here
        assert groups.members("g", system=here.system) == []
    assert other.closed
    assert not there.is_alive()
    assert names.whereis("desk") is here
