"""Agents over custom providers (PV-3, PV-4, PV-8, PV-9, MF-4)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from keepwell.agent.scripted_model import Call, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.memory.default_provider import DefaultProvider
from keepwell.memory.provider import ProviderError
from keepwell.runtime import Runtime
from keepwell.stores import DiskStore
from keepwell.stores.message import Message


@tool
async def work() -> str:
    """Work."""
    return "worked"


class Notes:
    """Keeps messages in a dict, as a first custom provider would."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Message]] = {}
        self.prepared: list[list[str]] = []

    def history(self, conversation_id: str) -> Any:
        return list(self.kept.get(conversation_id, ()))

    def append(self, conversation_id: str, messages: Any) -> None:
        assert all(isinstance(message, Message) for message in messages)
        self.kept.setdefault(conversation_id, []).extend(messages)

    def prepare(self, conversation_id: str, messages: Any) -> Any:
        self.prepared.append([m.role for m in messages])
        return messages

    def clear(self, conversation_id: str) -> None:
        self.kept.pop(conversation_id, None)


async def test_pv_3_prepare_is_asked_before_every_model_call_and_sees_no_marks() -> None:
    notes = Notes()
    model = ScriptedModel([Call("work")], [Call("work")], "done", "next")
    async with Runtime() as runtime:
        spec = AgentSpec(model, tools=[work], memory=notes, instructions="brief")
        agent = await runtime.spawn(spec, "c")
        await agent.run("q")
        assert notes.prepared == [
            ["user"],
            ["user", "assistant", "tool"],
            ["user", "assistant", "tool", "assistant", "tool"],
        ]
        await agent.run("q2")
        assert len(notes.prepared[-1]) == 7
        assert [m.role for m in await agent.messages()][-2:] == ["user", "assistant"]
        assert await runtime.store.conversations() == ()


async def test_pv_9_a_provider_that_is_no_journal_says_so_once(caplog: Any) -> None:
    notes = Notes()
    with caplog.at_level(logging.WARNING):
        async with Runtime() as runtime:
            for _ in range(2):
                agent = await runtime.spawn(AgentSpec(ScriptedModel("x"), memory=notes))
                await agent.run("q")
    assert len([r for r in caplog.records if "no journal" in r.getMessage()]) == 1


@pytest.mark.parametrize(
    "given", [(), None, 5, "text", [5], [{"role": "nobody", "content": "x"}], ValueError("broken")]
)
async def test_pv_4_a_bad_prepare_is_a_provider_error_and_no_model_call(given: Any) -> None:
    class Bad(Notes):
        def prepare(self, conversation_id: str, messages: Any) -> Any:
            if isinstance(given, Exception):
                raise given
            return given

    model = ScriptedModel("never")
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(model, memory=Bad()), "c")
        with pytest.raises(ProviderError):
            await agent.run("q")
        assert model.requests == []


async def test_pv_4_what_prepare_cuts_apart_is_repaired() -> None:
    class Cuts(Notes):
        def prepare(self, conversation_id: str, messages: Any) -> Any:
            return [{"role": "user", "content": "shown"}, messages[-1]]

    model = ScriptedModel([Call("work")], "done")
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(model, tools=[work], memory=Cuts()), "c")
        await agent.run("q")
    assert [m.role for m in model.requests[1].messages] == ["user"]


async def test_mf_4_a_provider_over_a_store_is_a_journal(tmp_path: Path) -> None:
    class Upper(DefaultProvider):
        def prepare(self, conversation_id: str, messages: Any) -> Any:
            return [m.replace(content=m.text.upper()) if m.role == "user" else m for m in messages]

    model = ScriptedModel("one", "two")
    async with Runtime() as runtime:
        store = await runtime.start_store(DiskStore(tmp_path))
        agent = await runtime.spawn(AgentSpec(model, memory=Upper(store)), "c")
        first = await agent.run("q", turn_id="T")
        agent.ref.kill()
        assert await agent.run("q", turn_id="T") == first
        assert [m.content for m in model.requests[0].messages] == ["Q"]
        assert [m.content for m in await store.get("c")] == ["q", "one"]


async def test_mf_3_a_store_that_was_not_started_is_started() -> None:
    from keepwell.stores import MemoryStore

    store = MemoryStore()
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel("x", "y"), memory=store), "c")
        await agent.run("q")
        other = await runtime.spawn(AgentSpec(ScriptedModel("z"), memory=store), "c")
        await other.run("q")
        assert len(await store.get("c")) == 4
        assert await runtime.store.get("c") == ()
