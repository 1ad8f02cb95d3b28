"""Answers given here and now, without a request: as a call made in place (CALL, SYS-1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepwell.actors import ActorDied, ActorSystem, AsyncActor, RequestError
from keepwell.actors.async_runner import LATER
from keepwell.actors.request import Request


class Echo(AsyncActor):
    """Answers, refuses or crashes, as it is told; or asks itself for an answer now."""

    def on_receive(self, message: Any) -> Any:
        ref: Any = self.actor_ref
        if isinstance(message, BaseException):
            raise message
        return ref.answer_now("inner") if message == "itself" else f"got {message}"


class ContextFree(Echo):
    """The same, called in its caller's context."""

    _context_free = True


@pytest.fixture(params=[Echo, ContextFree])
async def ref(request: pytest.FixtureRequest) -> Any:
    system = ActorSystem(name="now")
    system.adopt_loop(asyncio.get_running_loop())
    system.__enter__()
    yield await request.param.spawn()
    await asyncio.to_thread(system.close)


async def test_an_idle_actor_answers_here_and_now(ref: Any) -> None:
    assert ref.answer_now("x") == "got x"
    assert ref.answer_now("y") == "got y"
    assert await ref.call("z") == "got z"
    assert (await ref.statistics())["handled"] == 3


async def test_one_that_cannot_is_asked_later(ref: Any) -> None:
    assert ref.answer_now("itself") is LATER  # it is running
    assert await asyncio.to_thread(ref.answer_now, "x") is LATER  # not its loop's thread
    await ref.suspend()
    assert ref.answer_now("x") is LATER
    await ref.resume()
    waiting = asyncio.ensure_future(asyncio.to_thread(ref.ask, "x"))
    assert await waiting == "got x"
    assert ref.answer_now("x") == "got x"


async def test_a_refusal_is_the_answer_and_the_actor_lives(ref: Any) -> None:
    answer = ref.answer_now(RequestError("no"))
    assert isinstance(answer, Request)
    assert isinstance(answer.error(), RequestError)
    assert ref.answer_now("x") == "got x"


async def test_a_crash_ends_the_actor_and_fails_the_request(ref: Any) -> None:
    answer = ref.answer_now(SystemExit(1))
    assert isinstance(answer, Request)
    with pytest.raises(ActorDied):
        await answer
    assert not ref.is_alive()
    assert ref.answer_now("x") is LATER
    with pytest.raises(ActorDied):
        await ref.ask("x", block=False)
