"""Messages and requests: order, answers, failures, time limits (CALL, CAST, MSG)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pykka
import pytest

from keepwell.actors import (
    Actor,
    ActorDied,
    AskedItself,
    AsyncActor,
    BlockingOnLoop,
    CallTimeout,
    ExitActor,
    Reply,
    RequestError,
    current_actor,
)

SOON = 10.0


def raising(error: BaseException) -> Any:
    def handler(_actor: Any) -> None:
        raise error

    return handler


def test_order_between_two_actors_is_kept_across_tell_and_ask(spawn: Any) -> None:
    """MSG-1."""
    ref = spawn()
    for number in range(0, 500, 5):
        for told in range(number, number + 4):
            ref.tell(told)
        assert ref.ask(number + 4) == number + 4
    assert ref.ask(lambda actor: actor.seen) == list(range(500))


def test_a_call_returns_the_reply_in_a_thread_and_on_a_loop(spawn: Any) -> None:
    """CALL-1."""
    ref = spawn()
    assert ref.ask("a") == "a"
    assert ref.ask("b", block=False).get(timeout=SOON) == "b"
    assert ref.call("c").get(timeout=SOON) == "c"

    async def on_a_loop() -> list[Any]:
        return [await ref.call("d"), *await asyncio.gather(*(ref.call(n) for n in range(50)))]

    assert asyncio.run(on_a_loop()) == ["d", *range(50)]


def test_none_is_a_message_and_an_answer(spawn: Any) -> None:
    ref = spawn()
    ref.tell(None)
    assert ref.ask(None) is None
    assert ref.ask(lambda actor: actor.continue_with(None)) is None
    assert ref.ask(lambda actor: actor.seen) == [None, None, None]


def test_the_dead_answer_at_once_with_noproc(spawn: Any) -> None:
    """CALL-2, F70."""
    ref = spawn()
    assert ref.stop()
    for future in (ref.ask(1, block=False), ref.call(1), ref.get_state(), ref.statistics()):
        assert future.done()
        with pytest.raises(ActorDied) as died:
            future.get()
        assert died.value.reason == "noproc"
    with pytest.raises(pykka.ActorDeadError):
        ref.ask(1)
    assert not ref.is_alive()


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (raising(ExitActor("boom")), "boom"),
        (raising(ExitActor()), "normal"),
        (lambda actor: actor.stop() or (actor.defer() and None), "normal"),
        (raising(error := ValueError("broken")), error),
    ],
    ids=["exit", "exit-normal", "stop-without-reply", "exception"],
)
def test_who_ends_before_replying_gives_its_reason(spawn: Any, handler: Any, reason: Any) -> None:
    """CALL-3: and the asker lives."""
    ref, asker = spawn(), spawn()
    if asker.actor_class.on_loop:  # and must not block there
        with pytest.raises(ActorDied) as died:
            ref.call(handler).get(timeout=SOON)
        assert died.value.reason is reason or died.value.reason == reason
    else:

        def ask(_actor: Any) -> Any:
            with pytest.raises(ActorDied) as died:
                ref.ask(handler, timeout=SOON)
            return died.value.reason

        assert asker.ask(ask) == reason
    assert ref.ended().get(timeout=SOON) == reason
    assert asker.ask("alive") == "alive"


def test_a_reply_sent_before_the_end_stands(spawn: Any) -> None:
    """CALL-3."""
    ref = spawn()

    def reply_then_crash(actor: Any) -> None:
        actor.defer().reply("early")
        raise ExitActor("boom")

    assert ref.call(reply_then_crash).get(timeout=SOON) == "early"
    assert ref.ended().get(timeout=SOON) == "boom"


def test_an_exception_is_the_same_end_by_tell_and_by_ask(spawn: Any, events: Any) -> None:
    """F53: the actor dies, one report; the asker gets ActorDied with the exception."""
    by_tell, by_ask = spawn(), spawn()
    error = LookupError("no such key")
    by_tell.tell(raising(error))
    with pytest.raises(ActorDied) as died:
        by_ask.ask(raising(error), timeout=SOON)
    assert died.value.reason is error
    assert died.value.__cause__ is error
    for ref in (by_tell, by_ask):
        assert ref.ended().get(timeout=SOON) is error
        reports = [f for event, f in events if event.endswith(".crashed") and f["ref"] is ref]
        assert len(reports) == 1
        assert reports[0]["message_type"] == "function"


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_base_exception_is_the_crash_of_one_actor(spawn: Any, error: BaseException) -> None:
    """F45: siblings and the process live."""
    ref, sibling = spawn(), spawn()
    with pytest.raises(ActorDied) as died:
        ref.ask(raising(error), timeout=SOON)
    assert type(died.value.reason) is type(error)
    assert sibling.ask("alive", timeout=SOON) == "alive"
    assert spawn().ask("new", timeout=SOON) == "new"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
async def test_nor_does_it_end_the_callers_own_loop(kind: Any, system: Any, error: Any) -> None:
    """F45: asyncio lets these two out of a task and stops its loop with them."""
    ref = await kind.options(system=system).spawn()

    async def later(_actor: Any) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise error

    with pytest.raises(ActorDied) as died:
        await ref.call(later if kind.awaits else raising(error))
    assert died.value.reason is error
    await system.aclose()


def test_two_ways_to_answer_with_an_error_and_live(spawn: Any) -> None:
    """Design §3: RequestError, and Reply for any other."""
    ref = spawn()
    with pytest.raises(RequestError, match="not like this"):
        ref.ask(raising(RequestError("not like this")), timeout=SOON)
    with pytest.raises(ZeroDivisionError):
        ref.ask(raising(Reply(ZeroDivisionError())), timeout=SOON)
    ref.tell(raising(RequestError("for nobody")))
    ref.tell(raising(Reply(OSError("for nobody"))))
    assert ref.ask("alive", timeout=SOON) == "alive"


def test_a_timeout_is_the_askers_alone_and_the_late_reply_leaves_no_trace(
    spawn: Any, gate: Any
) -> None:
    """CALL-4."""
    ref = spawn()
    busy = ref.call(gate, timeout=None)
    assert gate.entered.wait(SOON)
    with pytest.raises(CallTimeout):
        ref.ask("late", timeout=0.01)
    late = ref.call("late", timeout=0.01)
    with pytest.raises(CallTimeout):
        late.get(timeout=SOON)
    gate.open.set()
    assert busy.get(timeout=SOON) == "through"
    assert ref.ask(lambda actor: actor.seen, timeout=SOON) == ["late", "late"]
    with pytest.raises(CallTimeout):  # it stays what it was
        late.get()


def test_a_timeout_of_zero_is_allowed(spawn: Any, gate: Any) -> None:
    """CALL-4."""
    ref = spawn()
    ref.tell(gate)
    assert gate.entered.wait(SOON)
    with pytest.raises(CallTimeout):
        ref.call(1, timeout=0).get()
    with pytest.raises(pykka.Timeout):
        ref.ask(1, timeout=0)


def test_asking_oneself_raises_at_once_and_uncaught_is_a_crash(spawn: Any) -> None:
    """CALL-5, F46."""
    ref = spawn()

    def ask_myself(actor: Any) -> str:
        for wait in (
            lambda: actor.actor_ref.call("me"),
            lambda: actor.actor_ref.ask("me", block=False).get(timeout=SOON),
        ):
            with pytest.raises((AskedItself, RuntimeError), match=r"asked itself|event loop"):
                wait()
        return "refused"

    assert ref.ask(ask_myself, timeout=SOON) == "refused"
    with pytest.raises(ActorDied) as died:
        ref.ask(lambda actor: actor.actor_ref.call("me"), timeout=SOON)
    assert isinstance(died.value.reason, AskedItself)


def test_waiting_for_ones_own_end_raises_at_once(spawn: Any) -> None:
    """F46."""
    ref = spawn()

    def stop_myself(actor: Any) -> Any:
        return actor.actor_ref.stop(block=False).get(timeout=SOON)

    with pytest.raises(ActorDied) as died:
        ref.ask(stop_myself, timeout=SOON)
    assert isinstance(died.value.reason, AskedItself)


async def test_a_coroutine_that_waits_for_its_own_actor_is_told(system: Any) -> None:
    """F46, in a handler that has suspended."""

    class Looped(AsyncActor):
        async def on_start(self) -> None:
            for wait in (self.actor_ref.call, lambda m: self.actor_ref.ask(m, block=False)):
                with pytest.raises(AskedItself):
                    await wait("plain")
                await asyncio.sleep(0)

        async def on_receive(self, message: Any) -> Any:
            if message == "plain":
                return "plain"
            await asyncio.sleep(0)
            with pytest.raises(AskedItself):
                await self.actor_ref.call("plain")
            with pytest.raises(AskedItself):
                await self.actor_ref.ask("plain", block=False)
            if message == "stop":
                with pytest.raises(AskedItself):
                    await self.actor_ref.stop(block=False)
            return "refused"

    ref = await Looped.options(system=system).spawn()
    assert await ref.call("check") == "refused"
    assert await ref.call("stop") == "refused"
    assert await ref.ended() == "normal"
    await system.aclose()


async def test_what_a_handler_has_started_may_ask_its_actor(system: Any) -> None:
    """A task or thread inherits the handler's context, but does not keep the handler waiting."""

    class Looped(AsyncActor):
        async def on_receive(self, message: Any) -> Any:
            if message == "start":
                await asyncio.sleep(0)
                self.started = [
                    asyncio.create_task(self.ask_later()),
                    asyncio.create_task(asyncio.to_thread(self.actor_ref.ask, "from a thread")),
                ]
                return None
            return message if message != "started" else self.started

        async def ask_later(self) -> Any:
            return await self.actor_ref.call("from a task")

    class Starting(Actor):
        def on_receive(self, message: Any) -> Any:
            if message == "start":
                return self.system.run(self.ask_later())
            return message

        async def ask_later(self) -> Any:
            return await self.actor_ref.call("from a coroutine")

    looped = await Looped.options(system=system).spawn()
    await looped.call("start")
    assert [await task for task in await looped.call("started")] == ["from a task", "from a thread"]
    starting = await Starting.options(system=system).spawn()
    assert await (await starting.call("start")) == "from a coroutine"
    await system.aclose()


def test_queued_tells_vanish_and_queued_asks_fail_with_the_actor(
    spawn: Any, gate: Any, system: Any
) -> None:
    """CALL-8, CAST-1: the tells are counted as dead letters."""
    ref = spawn()
    ref.tell(gate)
    assert gate.entered.wait(SOON)
    for number in range(5):
        ref.tell(number)
    asks = [ref.call(number) for number in range(5)]
    stopped = ref.stop(block=False, reason="over")
    gate.open.set()
    assert stopped.get(timeout=SOON) is True
    for ask in asks:
        with pytest.raises(ActorDied) as died:
            ask.get(timeout=SOON)
        assert died.value.reason == "over"
    assert system.dead_letters == 5


def test_a_tell_to_the_dead_is_silent_and_seen(spawn: Any, system: Any, events: Any) -> None:
    """CAST-1, REG-4, F62."""
    ref, sender = spawn(), spawn()
    ref.stop()
    sender.ask(lambda _: ref.tell({"secret": 1}))
    (letter,) = [fields for event, fields in events if event.endswith("dead_letter")]
    assert letter == {"ref": ref, "message_type": "dict", "sender": sender}
    assert system.dead_letters == 1
    assert sender.ask("alive") == "alive"


def test_a_deferred_reply_comes_later_from_anywhere_and_once(spawn: Any) -> None:
    ref = spawn()
    handles: list[Any] = []

    def take(actor: Any) -> str:
        handles.append(actor.defer())
        return "ignored"

    future = ref.call(take)
    assert ref.ask("meanwhile", timeout=SOON) == "meanwhile"
    assert not future.done()
    thread = threading.Thread(target=lambda: handles[0].reply("later"))
    thread.start()
    assert future.get(timeout=SOON) == "later"
    thread.join(SOON)
    assert handles[0].reply("again") is False

    failing = ref.call(take)
    ref.ask("taken", timeout=SOON)
    assert handles[1].fail(KeyError("k")) is True
    with pytest.raises(KeyError):
        failing.get(timeout=SOON)


def test_deferred_requests_fail_with_their_actor(spawn: Any) -> None:
    """F52: whoever was promised an answer gets one."""
    ref = spawn()
    asked = [ref.call(lambda actor: actor.defer() and None) for _ in range(3)]
    ref.ask("taken", timeout=SOON)
    ref.stop(reason="over")
    for future in asked:
        with pytest.raises(ActorDied) as died:
            future.get(timeout=SOON)
        assert died.value.reason == "over"


def test_deferring_a_tell_answers_nobody(spawn: Any) -> None:
    """Neither the tell nor an earlier request of the same batch."""
    ref = spawn()
    first = ref.call("first")
    ref.tell(lambda actor: actor.defer().reply("to nobody"))
    assert first.get(timeout=SOON) == "first"
    assert ref.ask("alive", timeout=SOON) == "alive"


def test_who_runs_is_known_inside_and_only_there(spawn: Any) -> None:
    ref = spawn()
    assert ref.ask(lambda _: current_actor(), timeout=SOON) is ref
    assert current_actor() is None


def test_refs_of_the_dead_answer_what_they_are_asked(spawn: Any) -> None:
    """F64."""
    ref, other = spawn(), spawn()
    other.stop()
    ref.stop()
    assert ref == ref
    assert ref != other
    assert len({ref, other, ref}) == 2
    assert type(ref.actor_class).__name__
    assert ref.actor_class.__name__ in repr(ref)
    assert ref.exit_reason == "normal"
    assert ref.stop() is False
    ref.kill()
    ref.exit("boom")


def test_a_state_that_refers_to_itself_is_shown(spawn: Any) -> None:
    """F61."""
    ref, other = spawn(), spawn()
    ref.ask(lambda actor: setattr(actor, "me", actor.actor_ref) or setattr(actor, "other", other))
    other.ask(lambda actor: setattr(actor, "back", ref))
    state = ref.get_state().get(timeout=SOON)
    assert state["me"] is ref
    assert state["other"] is other
    assert repr(state)


def test_a_crash_tells_the_type_of_the_message_never_its_content(
    spawn: Any, events: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """F56: one report, in telemetry and in the log."""

    class Secret:
        def __call__(self, _actor: Any) -> None:
            raise RuntimeError("boom")

        def __repr__(self) -> str:
            return "hunter2"

    ref = spawn()
    first = ref.call("answered before")
    ref.tell(Secret())
    assert first.get(timeout=SOON)
    ref.ended().get(timeout=SOON)
    (crash,) = [fields for event, fields in events if event.endswith(".crashed")]
    assert crash["message_type"] == "Secret"
    assert str(crash["reason"]) == "boom"
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage() == f"Unhandled exception in {ref}:"
    assert "while it handled a Secret" in caplog.text
    assert "hunter2" not in caplog.text + repr(events)


def test_a_reason_whose_repr_raises_hurts_nobody(spawn: Any) -> None:
    class Broken(Exception):  # noqa: N818 - its repr is what matters
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

        __str__ = __repr__

    ref = spawn()
    waiting = ref.call(raising(Broken()))
    with pytest.raises(ActorDied) as died:
        waiting.get(timeout=SOON)
    assert type(died.value.reason) is Broken


async def test_fault_f57_a_loop_that_waits_for_a_busy_actor_keeps_turning(spawn: Any) -> None:
    """Awaiting holds up nothing else on the loop; a blocking ask there raises at once."""
    ref = await asyncio.to_thread(spawn)
    began, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def busy(_actor: Any) -> str:
        loop.call_soon_threadsafe(began.set)
        assert go_on.wait(SOON)
        return "done"

    answer = ref.call(busy)
    waiting = asyncio.create_task(answered(answer))
    await began.wait()
    ticks = 0
    for _ in range(100):
        await asyncio.sleep(0)
        ticks += not answer.done()
    assert ticks == 100 and not waiting.done()
    with pytest.raises(BlockingOnLoop, match=r"await ref\.call"):
        ref.ask("blocking")
    with pytest.raises(BlockingOnLoop):
        answer.get()
    go_on.set()
    assert await waiting == "done"


async def answered(future: Any) -> Any:
    return await future
