"""Actor systems: several in one process, closing, loops that close, forks, the process's end."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest

import keepwell
from keepwell.actors import (
    ActorDied,
    ActorSystem,
    AskedItself,
    AsyncActor,
    BlockingOnLoop,
    StartFailed,
    Unavailable,
    current_system,
)
from keepwell.actors.process_bound import NotPicklable
from keepwell.stores import MemoryStore

SOON = 10.0
ROOT = Path(keepwell.__file__).parents[1]


# -- two of them -------------------------------------------------------------------------------


def test_closing_one_system_leaves_the_other_alone(kind: Any) -> None:
    """F58."""
    with ActorSystem(name="other") as other:
        survivor = kind.start()
        with ActorSystem(name="short") as short:
            gone = kind.start()
            assert gone.system is current_system() is short
        assert not gone.is_alive()
        assert survivor.ask("alive", timeout=SOON) == "alive"
        assert current_system() is other
    assert not survivor.is_alive()


def test_closing_answers_everybody_at_once(spawn: Any, gate: Any, system: Any) -> None:
    """F48."""
    ref = spawn()
    asked = ref.call(gate, timeout=None)
    assert gate.entered.wait(SOON)
    system.close(timeout=0.01)
    with pytest.raises(ActorDied):
        asked.get(timeout=SOON)
    assert system.abandoned_threads == 1
    system.close()


def test_closing_runs_on_stop_of_all_the_youngest_told_first(kind: Any) -> None:
    notes: list[Any] = []
    with ActorSystem(name="short"):
        for number in range(3):
            kind.start(lambda note, number=number: notes.append((number, note)))
    assert sorted(notes) == [(number, ("on_stop", "shutdown")) for number in range(3)]


def test_what_on_stop_starts_is_stopped_too(light: Any) -> None:
    notes: list[Any] = []

    class Starting(light):  # type: ignore[misc]  # a class that the fixture gives
        def on_stop(self) -> None:
            light.start(notes.append)

    with ActorSystem(name="short") as system:
        Starting.start()
    assert notes == [("on_stop", "shutdown")]
    assert not system.actors


async def test_closing_on_a_loop(kind: Any) -> None:
    notes: list[Any] = []
    async with ActorSystem(name="short") as system:
        ref = await kind.spawn(notes.append)
        own = await kind.options(system=system).spawn(notes.append)
        assert await ref.call("answer") == "answer"
        with pytest.raises(BlockingOnLoop, match="aclose"):
            system.close()
        assert own.is_alive()
    assert system.closed
    assert notes == ["answer", ("on_stop", "shutdown"), ("on_stop", "shutdown")]


def test_an_actor_may_not_wait_for_the_end_of_its_own_system(spawn: Any, system: Any) -> None:
    ref = spawn()
    with pytest.raises(ActorDied) as died:
        ref.ask(lambda _: system.close(), timeout=SOON)
    assert isinstance(died.value.reason, (AskedItself, BlockingOnLoop))


# -- coroutines --------------------------------------------------------------------------------


def test_coroutines_run_on_the_systems_loop(system: ActorSystem) -> None:
    async def work(value: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(value, BaseException):
            raise value
        return value

    assert system.run(work("done")).get(timeout=SOON) == "done"
    with pytest.raises(KeyError):
        system.run(work(KeyError("k"))).get(timeout=SOON)
    with pytest.raises(SystemExit):
        system.run(work(SystemExit(3))).get(timeout=SOON)
    assert system.run(work("still there")).get(timeout=SOON) == "still there"


async def test_a_coroutine_whose_awaiter_is_cancelled_is_cancelled(system: ActorSystem) -> None:
    """CN-2."""

    async def work() -> None:
        entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    entered, ended = threading.Event(), threading.Event()
    future = system.run(work())
    task = asyncio.create_task(future)
    await asyncio.to_thread(entered.wait, SOON)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, SOON)
    await system.aclose()


def test_a_closed_system_runs_none(system: ActorSystem) -> None:
    async def work() -> None: ...

    system.close()
    coroutine = work()
    with pytest.raises(Unavailable):
        system.run(coroutine)
    coroutine.close()


# -- loops that close --------------------------------------------------------------------------


class Looped(AsyncActor):
    def __init__(self, notes: list[Any]) -> None:
        super().__init__()
        self.notes = notes

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, asyncio.Event):
            message.set()
            await asyncio.get_running_loop().create_future()
        return message

    async def on_stop(self) -> None:
        await asyncio.sleep(0)
        self.notes.append(self.exit_reason)


def test_a_loop_that_is_about_to_close_stops_its_actors(system: ActorSystem) -> None:
    """With `on_stop`, which may await; nobody is left waiting."""
    notes: list[Any] = []

    async def main() -> Any:
        ref = await Looped.options(system=system).spawn(notes)
        assert await ref.call("alive") == "alive"
        return ref

    ref = asyncio.run(main())
    assert notes == ["shutdown"]
    assert ref.ended().get(timeout=0) == "shutdown"
    with pytest.raises(ActorDied):
        ref.ask("anyone?", timeout=SOON)
    assert not system.actors


def test_a_handler_that_is_suspended_then_is_cancelled(system: ActorSystem) -> None:
    notes: list[Any] = []

    async def main() -> Any:
        ref = await Looped.options(system=system).spawn(notes)
        suspended = asyncio.Event()
        asked = ref.call(suspended, timeout=None)
        await suspended.wait()
        return ref, asked

    ref, asked = asyncio.run(main())
    with pytest.raises(ActorDied):
        asked.get(timeout=SOON)
    assert not ref.is_alive()


def test_a_loop_that_is_just_closed_is_noticed_by_who_sends_next(system: ActorSystem) -> None:
    notes: list[Any] = []
    loop = asyncio.new_event_loop()

    async def start() -> list[Any]:
        return [await Looped.options(system=system).spawn(notes) for _ in range(4)]

    async def suspend(ref: Any) -> Any:
        suspended = asyncio.Event()
        asked = ref.call(suspended, timeout=None)
        await suspended.wait()
        return asked

    idle, asked_later, stopped, suspended = loop.run_until_complete(start())
    waiting = loop.run_until_complete(suspend(suspended))
    loop.close()
    idle.tell("hello")
    assert idle.ended().get(timeout=SOON) == "killed"
    with pytest.raises(ActorDied):
        asked_later.ask("hello", timeout=SOON)
    assert stopped.stop(timeout=SOON) in (True, False)
    with pytest.raises(ActorDied):
        suspended.ask("hello", timeout=SOON)
    with pytest.raises(ActorDied):
        waiting.get(timeout=SOON)
    for task in list(asyncio.all_tasks(loop)):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is left on purpose


def test_closed_loops_are_forgotten(system: Any) -> None:
    """A program may call asyncio.run many times."""
    notes: list[Any] = []

    async def main() -> None:
        await Looped.options(system=system).spawn(notes)

    for _ in range(5):
        asyncio.run(main())
    assert len(system.scheduler._homes) == 1


# -- what is left behind -----------------------------------------------------------------------


def test_10_000_actors_leave_nothing_behind(
    kind: Any, light: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F63: memory, threads, registries; a few with failed asks."""
    # pytest would keep the records of all crashes, and with them the errors.
    monkeypatch.setattr(logging.getLogger("keepwell.actors"), "disabled", True)
    number = 10_000 if kind is light else 200
    threads = set(threading.enumerate())
    with ActorSystem(name="measured") as system:
        gc.collect()
        before = len([obj for obj in gc.get_objects() if isinstance(obj, kind)])
        for _ in range(0, number, 100):
            refs = [kind.start() for _ in range(100)]
            for ref in refs[:3]:
                with pytest.raises(ActorDied):
                    ref.ask(lambda _: 1 / 0, timeout=SOON)
            for ref in refs[3:50]:
                ref.stop(block=False)
            for ref in refs[3:]:
                ref.stop()
            del ref, refs
        assert not system.actors
    for thread in set(threading.enumerate()) - threads:
        thread.join(SOON)
        assert not thread.is_alive(), thread
    gc.collect()
    alive = [obj for obj in gc.get_objects() if isinstance(obj, kind)]
    assert len(alive) <= before


def test_an_idle_actor_is_small(system: ActorSystem, light: Any) -> None:
    """The issue's bound, by the sizes of what one is made of; the benchmark measures memory."""
    from keepwell.actors import Actor

    ref = Actor.start()
    parts = [ref, ref._actor, ref._queue, ref._batch]
    assert sum(sys.getsizeof(part) for part in parts) < 600
    assert ref._life is None
    assert ref._control is None


# -- processes ---------------------------------------------------------------------------------


def child(code: str, *, signal_when: str = "", timeout: float = 30) -> tuple[int, str, str]:
    """Run `code` in a child process; returns its exit status and what it wrote.

    With `signal_when` it gets SIGINT as soon as it has written that line.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    said = ""
    if signal_when:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if line.strip() == signal_when:
                process.send_signal(signal.SIGINT)
                break
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"the child did not end: {said + out}\n{err}")
    return process.returncode, said + out, err


PRELUDE = """
import asyncio, os, sys, threading, time
from keepwell.actors import *
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
class Noting:
    def on_receive(self, message):
        return message(self) if callable(message) else message
    def on_stop(self):
        say("on_stop", type(self).__name__, self.exit_reason)
class Light(Noting, Actor): ...
class Own(Noting, ThreadActor): ...
class Loop(Noting, AsyncActor): ...
KINDS = (Light, Own, Loop)
"""


def test_the_interpreter_exits_with_live_actors_and_open_asks() -> None:
    """F60: in bounded time, `on_stop` runs, no late tracebacks."""
    status, out, err = child("""
refs = [kind.start() for kind in KINDS]
held = refs[0].call(lambda actor: actor.defer() and None, timeout=None)
assert refs[0].ask("taken") == "taken"
say("main ends")
""")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "main ends"
    assert sorted(lines[1:]) == [f"on_stop {kind} shutdown" for kind in ("Light", "Loop", "Own")]


def test_the_interpreter_exits_though_a_handler_is_stuck() -> None:
    """F60: its `on_stop` cannot run, and that is said."""
    status, out, err = child("""
from keepwell.actors import system as systems
systems.STOP_SECONDS = 0.2
systems.ActorSystem.close.__defaults__ = (0.2,)
entered = threading.Event()
def stuck(actor):
    entered.set()
    time.sleep(60)
ref = Light.start()
ref.tell(stuck)
entered.wait()
Own.start()
say("main ends")
""")
    assert status == 0
    assert out.splitlines() == ["main ends", "on_stop Own shutdown"]
    assert "1 actors did not stop in time" in err
    assert "Traceback" not in err


def test_an_exit_code_and_a_traceback_of_the_main_program_stand() -> None:
    status, out, err = child("Light.start()\nsys.exit(7)")
    assert (status, out, err) == (7, "on_stop Light shutdown\n", "")
    status, out, err = child("Light.start()\nraise ValueError('v')")
    assert (status, out) == (1, "on_stop Light shutdown\n")
    assert err.strip().endswith("ValueError: v")


@pytest.mark.parametrize("kind", ["Light", "Own", "Loop"])
@pytest.mark.parametrize("waits", ["ref.ask('x', timeout=60)", "ref.call('x', timeout=60).get()"])
def test_ctrl_c_wakes_who_waits_and_stops_the_rest(kind: str, waits: str) -> None:
    """F59: exit code as usual."""
    status, out, _ = child(
        f"""
class Silent({kind}):
    def on_receive(self, message):
        self.defer()
ref = Silent.start()
say("waiting")
{waits}
""",
        signal_when="waiting",
    )
    assert status in (130, -signal.SIGINT, 1)
    assert out.splitlines() == ["waiting", "on_stop Silent shutdown"]


@pytest.mark.parametrize("timeout", ["None", "60"])
def test_ctrl_c_that_does_not_interrupt_the_wait_wakes_it_all_the_same(timeout: str) -> None:
    """F59: one that comes just before the wait begins, or, as here, to another thread."""
    status, out, _ = child(f"""
import signal
class Silent(Light):
    def on_receive(self, message):
        self.defer()
        threading.Thread(target=interrupt, daemon=True).start()
def interrupt():
    while not ref.statistics().get()["handled"]: pass
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
ref = Silent.start()
ref.ask("x", timeout={timeout})
""")
    assert status in (130, -signal.SIGINT, 1)
    assert out.splitlines() == ["on_stop Silent shutdown"]


def test_ctrl_c_in_asyncio_run() -> None:
    """F59."""
    status, out, err = child(
        """
async def main():
    async with ActorSystem():
        ref = await Loop.spawn()
        say("waiting")
        await asyncio.Event().wait()
asyncio.run(main())
""",
        signal_when="waiting",
    )
    assert status in (130, -signal.SIGINT, 1)
    assert out.splitlines() == ["waiting", "on_stop Loop shutdown"]
    assert "KeyboardInterrupt" in err


def test_a_forked_child_gets_an_error_and_not_a_hang() -> None:
    """Design §3, pitfall of pykka: whatever it does with the parent's actors; its own work."""
    status, out, err = child("""
import warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
refs = [kind.start() for kind in KINDS]
held = [ref.call(lambda actor: actor.defer() and None, timeout=None) for ref in refs]
for ref in refs: ref.ask("taken")
names.register("desk", refs[0])
groups.join("g", refs[0])
pid = os.fork()
if pid == 0:
    for ref in refs:
        ref._put = None  # what would wake the parent's threads and loops
        for use in (lambda: ref.tell(1), lambda: ref.ask(1), lambda: ref.call(1).get(),
                    ref.stop, ref.kill, lambda: ref.exit("boom"), ref.get_state,
                    lambda: ref.stop(block=False)):
            try:
                use()
            except ForkedProcess as error:
                assert str(os.getppid()) in str(error)
            else:
                say("no error from", use)
        assert not ref.is_alive()
    for future in held:
        try:
            future.get()
        except ForkedProcess:
            pass
    own = [kind.start() for kind in KINDS]
    say("child", [ref.ask("own") for ref in own])
    assert [ref.stop() for ref in own] == [True] * 3
    sys.exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
say("parent", [ref.ask("alive") for ref in refs])
""")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert "child ['own', 'own', 'own']" in lines
    assert "parent ['alive', 'alive', 'alive']" in lines
    assert not [line for line in lines if line.startswith("no error")]
    # The parent's three and the child's three, each once.
    assert len([line for line in lines if line.startswith("on_stop")]) == 6


def test_a_fork_while_other_threads_hold_our_locks() -> None:
    """The child must not inherit a lock that nobody there will release."""
    status, out, err = child("""
import warnings
warnings.simplefilter("ignore")
def churn():
    for number in range(10**9):
        ref = Light.start()
        names.register(f"n{number} of {threading.get_ident()}", ref)
        groups.join("g", ref)
        ref.on_exit(lambda reason: None)
        ref.stop()
for _ in range(3):
    threading.Thread(target=churn, daemon=True).start()
for _ in range(15):
    pid = os.fork()
    if pid == 0:
        ref = Light.start()
        names.register("own", ref)
        groups.join("own", ref)
        assert ref.ask("x", timeout=10) == "x"
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
say("done")
os._exit(0)
""")
    assert (status, err) == (0, "")
    assert "done" in out.splitlines()  # the others say things until the very end


def test_a_start_after_the_default_system_has_ended_fails_cleanly() -> None:
    """In an exit hook of the program's own, which runs after ours."""
    status, out, err = child("""
import atexit
from keepwell.actors import system as systems
atexit.unregister(systems._close_all)
def late():
    try:
        Light.start()
    except StartFailed as error:
        say("refused")
    else:
        say("started")
ref = Light.start()
system = ref.system
atexit.register(late)
atexit.register(systems._close_all)
""")
    assert status == 0, err
    assert out.splitlines()[0] == "on_stop Light shutdown"
    assert StartFailed is not None


async def test_handlers_are_in_the_context_of_their_own_system(kind: Any, system: Any) -> None:
    """Whoever sends, from wherever: also where an idle actor is run in place."""
    with ActorSystem(name="other") as other:
        ref = await kind.options(system=system).spawn()
        own = await kind.options(system=other).spawn()
        for _ in range(3):
            assert await ref.call(lambda _: current_system()) is system
            assert await own.call(lambda _: current_system()) is other
            assert await asyncio.to_thread(ref.ask, lambda _: current_system()) is system
        assert current_system() is other
        await other.aclose()
    await system.aclose()


def test_an_address_is_copied_as_itself_and_never_pickled(spawn: Any) -> None:
    ref = spawn()
    assert copy.copy(ref) is ref
    assert copy.deepcopy({"to": [ref]})["to"][0] is ref
    # What a process start does to its arguments.
    with pytest.raises(NotPicklable, match="socket or queue") as refused:
        ForkingPickler.dumps(ref)
    assert isinstance(refused.value, TypeError)
    store = MemoryStore()
    assert copy.deepcopy(store) is store
    with pytest.raises(NotPicklable, match="readonly=True"):
        ForkingPickler.dumps(store)
