"""Callbacks observe and never hurt a turn (CB-1)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent import callbacks as callbacks_module
from keepwell.agent.callbacks import CALLBACK_NAMES, CallbackInfo
from keepwell.agent.errors import ModelError
from keepwell.agent.scripted_model import Call, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool


@tool
async def work() -> str:
    """Work."""
    return "worked"


def recorder(kind: str) -> tuple[dict[str, Any], list[CallbackInfo]]:
    seen: list[CallbackInfo] = []
    if kind == "sync":

        def record(info: CallbackInfo) -> None:
            seen.append(info)

        return dict.fromkeys(CALLBACK_NAMES, record), seen

    async def record_async(info: CallbackInfo) -> None:
        seen.append(info)

    return dict.fromkeys(CALLBACK_NAMES, record_async), seen


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_cb_1_each_gets_conversation_turn_and_step_in_order(bench: Any, kind: str) -> None:
    callbacks, seen = recorder(kind)
    agent = await bench.agent(
        ScriptedModel([Call("work")], "done"), tools=[work], callbacks=callbacks
    )
    await agent.run("go", turn_id="T")
    assert [info.name for info in seen] == [
        "on_turn_start", "on_model_call", "on_model_result", "on_tool_call", "on_tool_result",
        "on_model_call", "on_token", "on_model_result", "on_turn_end",
    ]  # fmt: skip
    assert {(info.conversation_id, info.turn_id) for info in seen} == {("c", "T")}
    assert [info.step for info in seen] == [0, 1, 1, 2, 2, 3, 3, 3, 3]


async def test_cb_1_errors_have_their_own(bench: Any) -> None:
    callbacks, seen = recorder("async")
    agent = await bench.agent(ScriptedModel(ModelError("down")), callbacks=callbacks)
    with pytest.raises(ModelError):
        await agent.run("go")
    assert [info.name for info in seen] == ["on_turn_start", "on_model_call", "on_turn_error"]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_cb_1_a_raising_callback_is_logged_and_the_turn_goes_on(
    bench: Any, kind: str, caplog: Any
) -> None:
    def fail(_info: CallbackInfo) -> None:
        raise SystemExit(1)

    async def fail_async(_info: CallbackInfo) -> None:
        raise ValueError("observer")

    callback = fail if kind == "sync" else fail_async
    agent = await bench.agent(ScriptedModel("done"), callbacks={"on_turn_start": callback})
    with caplog.at_level(logging.ERROR):
        assert (await agent.run("go")).text == "done"
    assert "on_turn_start" in caplog.text


async def test_cb_1_a_slow_callback_is_left_behind(
    bench: Any, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(callbacks_module, "CALLBACK_TIMEOUT", 0.02)

    async def slow(_info: CallbackInfo) -> None:
        await asyncio.Event().wait()

    agent = await bench.agent(ScriptedModel("done"), callbacks={"on_model_call": slow})
    with caplog.at_level(logging.ERROR):
        assert (await agent.run("go")).text == "done"
    assert "more than" in caplog.text


async def test_ag_3_a_callback_runs_only_after_what_it_is_told_is_stored(bench: Any) -> None:
    stored: list[str] = []

    async def look(info: CallbackInfo) -> None:
        stored.append(bench.store.shape("c"))

    agent = await bench.agent(
        ScriptedModel([Call("work")], "done"), tools=[work],
        callbacks={"on_model_result": look, "on_tool_result": look, "on_turn_end": look},
    )  # fmt: skip
    await agent.run("go")
    assert stored == [
        "u a(call_1)", "u a(call_1) t(call_1)", "u a(call_1) t(call_1) a",
        "u a(call_1) t(call_1) a",
    ]  # fmt: skip


@pytest.mark.parametrize("callbacks", [{"on_tokens": print}, {"on_token": 3}, [print], None])
def test_cb_1_what_is_no_callback_is_refused(callbacks: Any) -> None:
    with pytest.raises(InvalidValue):
        AgentSpec(ScriptedModel("x"), callbacks=callbacks)
