"""What other people's stores, providers and models do wrong is named, and hits one asker only."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepwell import (
    AgentSpec,
    Approve,
    Ask,
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
    tool,
)
from keepwell.agent.scripted_model import Call
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.token_counter import approx_token_count
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
    async def add(self, conversation_id: str, messages: Any) -> None:  # type: ignore[override]  # a Shelf, but async
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
        kept.kept["none"] = None  # type: ignore[assignment]  # is refused
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
    notes.journal = journal  # type: ignore[attr-defined]  # what a provider may have
    async with Runtime() as runtime:
        agent = await runtime.spawn(AgentSpec(FunctionModel(lambda _: "hi"), memory=notes))
        for ask in (lambda: agent.run("hello"), agent.messages):
            with pytest.raises(ProviderError, match="history"):
                await ask()
        if not journal:
            notes.bad = False
            assert (await agent.run("again")).text == "hi"
        assert crashes == []


class OtherLog:
    """A log of somebody else's, read lazily; the touch that is `broken` raises or gives rubbish."""

    def __init__(self, inner: Any, owner: Any) -> None:
        self.inner, self.owner = inner, owner

    def _touch(self, name: str, found: Any) -> Any:
        owner = self.owner
        if owner.broken != name:
            return found
        if isinstance(owner.fault, BaseException):
            raise owner.fault
        return owner.fault

    @property
    def cursor(self) -> Any:
        return self._touch("cursor", self.inner.cursor)

    @property
    def epoch(self) -> Any:
        return self._touch("epoch", self.inner.epoch)

    def __len__(self) -> int:
        return self._touch("len", len(self.inner))  # type: ignore[no-any-return]  # a fault may be anything

    def __getitem__(self, index: Any) -> Any:
        found = self.inner[index]
        if self.owner.broken == "item" and isinstance(index, slice):
            return [self._touch("item", record) for record in found]
        return self._touch("item", found)

    def __iter__(self) -> Any:
        return (self._touch("walk", record) for record in self.inner)

    def __reversed__(self) -> Any:
        return (self._touch("walk", record) for record in reversed(self.inner))

    def systems(self) -> Any:
        return self._touch("systems", self.inner.systems())


class LazyStore(OtherStore):
    """A whole store of somebody else's, whose logs are read lazily and may raise then."""

    async def read(self, conversation_id: str, **options: Any) -> Any:
        return OtherLog(await self.inner.read(conversation_id, **options), self)


class LazyProvider:
    """The same as a provider, with the logs as the store gives them."""

    journal = True

    def __init__(self, store: LazyStore) -> None:
        self.store = store

    async def history(self, conversation_id: str, *, marks: bool = False, after: Any = None) -> Any:
        return await self.store.read(conversation_id, marks=marks, after=after)

    async def append(self, conversation_id: str, messages: Any, **options: Any) -> Any:
        return await self.store.inner.add(conversation_id, messages, **options)

    def prepare(self, conversation_id: str, messages: Any) -> Any:
        return messages

    async def clear(self, conversation_id: str) -> None:
        await self.store.inner.clear(conversation_id)


@pytest.mark.parametrize(
    ("touch", "fault"),
    [
        ("cursor", OSError("gone")), ("epoch", KeyError("k")), ("len", OSError("gone")),
        ("walk", OSError("gone")), ("walk", SystemExit(3)), ("walk", asyncio.CancelledError()),
        ("walk", "no record"), ("systems", OSError("gone")),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("how", ["store", "budget", "provider"])
async def test_a_log_that_raises_when_it_is_read_fails_the_turn_and_no_actor(
    touch: str, fault: Any, how: str, crashes: list[Any]
) -> None:
    """PV-7, AG-5: a typed error of that turn, with the log's own exception as its cause."""
    async with Runtime() as runtime:
        other = LazyStore(await runtime.start_store(MemoryStore()))
        options: dict[str, Any] = {}
        if how == "budget":
            policy = ContextPolicy("whole_session", 1000)
            options = {"context": policy, "count_tokens": approx_token_count}
        memory: Any = other if how != "provider" else LazyProvider(other)
        agent = await runtime.spawn(
            AgentSpec(FunctionModel(lambda _: "hi"), memory=memory, **options), "c"
        )
        await agent.run("first")
        await other.inner.add("c", [Message("user", "beside")])  # so that it looks again
        other.broken, other.fault = touch, fault
        error = ProviderError if how == "provider" else StoreError
        if touch in ("len", "systems") and how != "budget":
            await agent.run("hello")  # a turn that is shown everything has no need of them
        else:
            with pytest.raises(error) as failed:
                await agent.run("hello")
            assert not isinstance(fault, BaseException) or failed.value.__cause__ is fault
        other.broken = ""
        assert (await agent.run("again")).text == "hi"
        assert crashes == []


@pytest.mark.parametrize("fault", [OSError("gone"), SystemExit(3), None], ids=str)
async def test_a_log_that_raises_when_a_turn_is_resumed_fails_that_only(
    fault: Any, crashes: list[Any]
) -> None:
    """The place of a paused turn is found by touching single records."""

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    async with Runtime() as runtime:
        other = LazyStore(await runtime.start_store(MemoryStore()))
        model = ScriptedModel([Call("look")], "done")
        spec = AgentSpec(model, tools=[look], gate=lambda _: Ask(), memory=other)
        agent = await runtime.spawn(spec, "c")
        assert (await agent.run("first")).status == "paused"
        other.broken, other.fault = "item", fault
        with pytest.raises(StoreError):
            await agent.resume(Approve())
        other.broken = ""
        assert (await agent.resume(Approve())).text == "done"
        assert crashes == []


class LazyMessages:
    """What a provider's `prepare` gives: a sequence that raises when it is walked through."""

    def __iter__(self) -> Any:
        yield Message("user", "hello")
        raise OSError("gone")


async def test_pv_4_what_prepare_gives_may_raise_when_it_is_read(crashes: list[Any]) -> None:
    class Notes(LazyProvider):
        bad = True

        def prepare(self, conversation_id: str, messages: Any) -> Any:
            return LazyMessages() if self.bad else messages

    async with Runtime() as runtime:
        notes = Notes(LazyStore(await runtime.start_store(MemoryStore())))
        agent = await runtime.spawn(AgentSpec(FunctionModel(lambda _: "hi"), memory=notes), "c")
        with pytest.raises(ProviderError, match="prepare") as failed:
            await agent.run("hello")
        assert isinstance(failed.value.__cause__, OSError)
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


@pytest.mark.parametrize("given", ["text", None, 5, ModelReply("text", Usage(), "stop", "m"),  # type: ignore[arg-type]  # rubbish
                                   ModelReply(Message("assistant", "x"), None, "stop", "m")])  # type: ignore[arg-type]  # rubbish  # fmt: skip
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
