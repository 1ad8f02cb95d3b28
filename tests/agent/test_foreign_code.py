"""What other people's stores, providers and models do wrong is named, and hits one asker only."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepwell import (
    AgentSpec,
    FunctionModel,
    InvalidValue,
    Message,
    ModelError,
    ModelReply,
    ProviderError,
    Runtime,
    ScriptedModel,
    SimpleStore,
    StoreError,
    Usage,
    telemetry,
)
from keepwell.stores import MemoryStore

FAULTS: list[Any] = [OSError("disk gone"), SystemExit(3), asyncio.CancelledError(), KeyError("k")]


class Shelf:
    """A simple store's object; `fault` is raised by the method that is `broken`."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Any]] = {}
        self.broken = ""
        self.fault: BaseException = OSError()

    def _check(self, method: str) -> None:
        if self.broken == method:
            raise self.fault

    def get(self, conversation_id: str) -> Any:
        self._check("get")
        return self.kept.get(conversation_id, [])

    def add(self, conversation_id: str, messages: Any) -> None:
        self._check("add")
        self.kept.setdefault(conversation_id, []).extend(messages)

    def clear(self, conversation_id: str) -> None:
        self._check("clear")
        self.kept.pop(conversation_id, None)


class AsyncShelf(Shelf):
    async def add(self, conversation_id: str, messages: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().add(conversation_id, messages)


class OtherStore:
    """A whole store of somebody else's: `inner` with faults of its own."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.broken = ""
        self.fault: BaseException = OSError()

    def __getattr__(self, name: str) -> Any:
        if name == self.broken:
            raise self.fault
        return getattr(self.inner, name)


@pytest.fixture
def crashes() -> Any:
    seen: list[Any] = []
    handle = telemetry.attach("keepwell.actor.crashed", lambda *event, **fields: seen.append(event))
    yield seen
    handle.detach()


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@pytest.mark.parametrize("method", ["get", "add"])
@pytest.mark.parametrize("shelf", [Shelf, AsyncShelf])
async def test_a_simple_store_that_raises_fails_the_turn_and_no_actor(
    shelf: Any, method: str, fault: Any, crashes: list[Any]
) -> None:
    """AG-5: the error reaches `run`, the agent lives, the next turn works."""
    kept = shelf()
    async with Runtime() as runtime:
        store = SimpleStore(kept)
        agent = await runtime.spawn(AgentSpec(FunctionModel(lambda _: "hi"), memory=store))
        kept.broken, kept.fault = method, fault
        with pytest.raises(StoreError, match=type(fault).__name__) as failed:
            await agent.run("hello")
        assert failed.value.__cause__ is not None
        kept.broken = ""
        assert (await agent.run("again")).text == "hi"
        assert crashes == []


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
@pytest.mark.parametrize("method", ["read", "add"])
async def test_a_foreign_store_that_raises_fails_the_turn_and_no_actor(
    method: str, fault: Any, crashes: list[Any]
) -> None:
    async with Runtime() as runtime:
        other = OtherStore(await runtime.start_store(MemoryStore()))
        agent = await runtime.spawn(AgentSpec(FunctionModel(lambda _: "hi"), memory=other))
        other.broken, other.fault = method, fault
        with pytest.raises(StoreError, match=type(fault).__name__):
            await agent.run("hello")
        other.broken = ""
        assert (await agent.run("again")).text == "hi"
        assert crashes == []


@pytest.mark.parametrize("given", [5, "text", [5], {"role": "user"}, [{"role": "nobody"}]])
async def test_what_a_simple_store_holds_is_not_the_askers_fault(given: Any) -> None:
    kept = Shelf()
    store = SimpleStore(kept)
    async with Runtime():
        kept.kept["c"] = given
        for ask in (store.get, store.read, store.info):
            with pytest.raises(StoreError, match=r"Shelf\.get"):
                await ask("c")
        assert await store.get("other") == ()
        kept.kept["none"] = None  # type: ignore[assignment]
        assert await store.get("none") == ()


def test_a_class_is_no_simple_store() -> None:
    with pytest.raises(InvalidValue, match="instance"):
        SimpleStore(Shelf)


@pytest.mark.parametrize("given", [None, 5, "text", {"a": 1}, [5], [{"role": "nobody"}]])
@pytest.mark.parametrize("journal", [False, True])
async def test_pv_7_a_history_that_is_none_is_named_and_the_agent_lives(
    given: Any, journal: bool, crashes: list[Any]
) -> None:
    class Notes:
        bad = True

        def history(self, conversation_id: str) -> Any:
            return given if self.bad else [] if not journal else self.log

        def append(self, conversation_id: str, messages: Any) -> None: ...
        def prepare(self, conversation_id: str, messages: Any) -> Any:
            return messages

        def clear(self, conversation_id: str) -> None: ...

    notes = Notes()
    notes.journal = journal  # type: ignore[attr-defined]
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(FunctionModel(lambda _: "hi"), memory=notes))
        for ask in (lambda: agent.run("hello"), agent.messages):
            with pytest.raises(ProviderError, match="history"):
                await ask()
        if not journal:
            notes.bad = False
            assert (await agent.run("again")).text == "hi"
        assert crashes == []


@pytest.mark.parametrize(
    "given",
    [
        Message("user", "I say what you say"),
        Message("system", "obey"),
        Message("tool", "found", tool_call_id="c1"),
        ModelReply(Message("user", "x"), Usage(), "stop", "m"),
    ],
)
async def test_only_the_assistants_word_is_a_reply(given: Any) -> None:
    model = FunctionModel(lambda _: given)
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(model))
        with pytest.raises(ModelError, match=r"role"):
            await agent.run("hello")
        with pytest.raises(ModelError, match=r"role"):
            async for _ in agent.stream("hello"):
                pass
        assert [m.role for m in await agent.messages()] == ["user", "user"]


@pytest.mark.parametrize("given", ["text", None, 5, ModelReply("text", Usage(), "stop", "m"),  # type: ignore[arg-type]
                                   ModelReply(Message("assistant", "x"), None, "stop", "m")])  # type: ignore[arg-type]  # fmt: skip
async def test_a_model_that_gives_no_reply_is_named(given: Any) -> None:
    class Mine:
        name = "mine"

        async def complete(self, request: Any) -> Any:
            return given

        async def stream(self, request: Any) -> Any:
            yield given

    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(Mine()))
        with pytest.raises(ModelError, match="mine gave a "):
            await agent.run("hello")
        with pytest.raises(ModelError, match="mine "):
            async for _ in agent.stream("hello"):
                pass


@pytest.mark.parametrize("given", [print, 5, None, "add", {"add": print}])
def test_tools_are_a_list(given: Any) -> None:
    with pytest.raises(InvalidValue, match="tools="):
        AgentSpec(ScriptedModel("x"), tools=given)
