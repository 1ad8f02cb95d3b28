"""Identity: to which conversation, epoch, turn, call or agent a thing belongs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors import failpoint
from keepwell.actors.clock import SystemClock
from keepwell.actors.errors import InvalidValue
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.kernel import Kernel
from keepwell.agent.memory_filter import memory_filter
from keepwell.agent.scripted_model import Call, ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.agent.tool import tool
from keepwell.agent.turn_errors import ConversationCleared
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.default_provider import DefaultProvider
from keepwell.memory.window import Window
from keepwell.runtime import Runtime
from keepwell.stores import DiskStore, NoCounter, SimpleStore
from keepwell.stores.errors import AppendConflict, StaleEpoch
from keepwell.stores.message import Message, ToolCall
from keepwell.stores.session_state import SessionState
from keepwell.supervision import ChildSpec, Supervisor
from keepwell.surroundings import session_store_of


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Shelf:
    """A store that somebody has written in a minute."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Any]] = {}

    def get(self, conversation_id: str) -> list[Any]:
        return list(self.kept.get(conversation_id, ()))

    def add(self, conversation_id: str, messages: list[Any]) -> None:
        self.kept.setdefault(conversation_id, []).extend(messages)

    def clear(self, conversation_id: str) -> None:
        self.kept.pop(conversation_id, None)


@pytest.mark.parametrize("how", ["agent", "store"])
async def test_fault_f29_what_was_cleared_stays_cleared(how: str, tmp_path: Path) -> None:
    """A clear while a tool runs: nothing of that turn is ever stored, also after a restart."""
    started, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await go_on.wait()
        return "late"

    async with Runtime(tmp_path, counter=NoCounter()) as runtime:
        spec = AgentSpec(ScriptedModel([Call("wait")], "x"), tools=[wait])
        agent = await runtime.spawn(spec, "c")
        running = agent.run("q")
        await started.wait()
        epoch = (await runtime.store.info("c")).epoch
        await (agent.clear() if how == "agent" else runtime.store.clear("c"))
        go_on.set()
        with pytest.raises(ConversationCleared):
            await running
        with pytest.raises(StaleEpoch):
            await runtime.store.add("c", user("late"), epoch=epoch)
        assert await runtime.store.get("c") == ()
    async with Runtime(tmp_path, counter=NoCounter()) as runtime:
        assert await runtime.store.get("c") == ()
        assert (await runtime.open_turns()) == ()


@pytest.mark.parametrize("memory", ["default", "window", "budget", "provider", "kernel"])
async def test_fault_f30_one_system_prompt_that_of_whoever_asks(memory: str) -> None:
    """However the history is cut or handed on, at every model call of the tool loop."""

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    async with Runtime(counter=NoCounter()) as runtime:
        one = await runtime.spawn(
            AgentSpec(ScriptedModel([Call("look")], "x"), instructions="I am A", tools=[look]), "c"
        )
        await one.run("hello")
        model = ScriptedModel([Call("look")], "y")
        options: dict[str, Any] = {
            "default": {},
            "window": {"memory": Window(1)},
            "budget": {"context": ContextPolicy("whole_session", max_tokens=400)},
            "provider": {"memory": DefaultProvider(runtime.store, window=2)},
            "kernel": {},
        }[memory]
        if memory == "kernel":
            kernel = Kernel(
                model, tools=[look], instructions="I am B", filters=[memory_filter(runtime.store)]
            )
            await kernel.invoke("and you?", conversation_id="c")
        else:
            spec = AgentSpec(model, instructions="I am B", tools=[look], **options)
            await (await runtime.spawn(spec, "c")).run("and you?")
        assert len(model.requests) == 2
        for request in model.requests:
            assert [m.text for m in request.messages if m.role == "system"] == ["I am B"]
            assert request.messages[0].role == "system"
        assert all(m.role != "system" for m in await runtime.store.get("c"))


async def test_fault_f31_a_transcript_that_comes_again_is_never_stored_twice() -> None:
    """Whoever passes all of it at every turn is told to pass what is new."""
    async with Runtime(counter=NoCounter()) as runtime:
        agent = await runtime.spawn(AgentSpec(ScriptedModel("one", "two")), "c")
        await agent.run("q1")
        transcript = [*(await agent.messages()), Message("user", "q2")]
        as_dicts = [message.to_dict() for message in transcript]
        kernel = Kernel(FunctionModel(lambda _r: "x"), filters=[memory_filter(runtime.store)])
        for whole in (transcript, as_dicts):
            with pytest.raises(InvalidValue, match="new message"):
                agent.run(whole)
            for part in (whole, whole[1:]):  # also one that was cut at its head
                with pytest.raises(InvalidValue, match="new messages only"):
                    await kernel.invoke(part, conversation_id="c")
        assert [m.text for m in await agent.messages()] == ["q1", "one"]
        simple = SimpleStore(Shelf(), counter=NoCounter())
        kernel_of_simple = Kernel(FunctionModel(lambda _r: "x"), filters=[memory_filter(simple)])
        await kernel_of_simple.invoke("q1", conversation_id="c")
        whole = [*(await simple.get("c")), Message("user", "q2")]
        with pytest.raises(InvalidValue, match="new messages only"):
            await kernel_of_simple.invoke(whole, conversation_id="c")
        assert len(await simple.get("c")) == 2
        # A transcript may begin a conversation, and the same invocation may come again.
        for _ in range(2):
            await kernel.invoke(transcript, conversation_id="d", invocation_id="I")
        assert [m.text for m in await runtime.store.get("d")] == ["q1", "one", "q2", "x"]


async def test_fault_f32_the_same_append_id_is_the_same_append(tmp_path: Path) -> None:
    """The answer is lost after the commit: with the store, and with the process."""
    async with Runtime(tmp_path, counter=NoCounter()) as runtime:
        crash = failpoint.on_hit(1, failpoint.raise_error)
        with failpoint.active({"store.acknowledge": crash}) as hits:
            first = await runtime.store.add("c", user("x"), append_id="k")
            assert hits["store.acknowledge"] >= 1
        assert (first.first_seq, first.cursor) == (1, 1)
    async with Runtime(tmp_path, counter=NoCounter()) as runtime:
        again = await runtime.store.add("c", user("x"), append_id="k")
        assert (again.first_seq, again.cursor, again.replayed) == (1, 1, True)
        with pytest.raises(AppendConflict):
            await runtime.store.add("c", user("y"), append_id="k")
        assert [m.text for m in await runtime.store.get("c")] == ["x"]


async def test_fault_f33_two_commits_within_one_tick(tmp_path: Path) -> None:
    """What is newer is told by the cursor, whatever the clock says."""

    class BackwardClock(SystemClock):
        now = 1_700_000_000.0

        def time(self) -> float:
            BackwardClock.now -= 0.5  # worse than a clock that stands still
            return self.now

    for path in (tmp_path, None):
        async with Runtime(path, clock=BackwardClock(), counter=NoCounter()) as runtime:
            sessions = session_store_of(runtime)
            for n in range(4):
                assert await sessions.commit("s", n, SessionState(n), None) == n + 1
            assert (await sessions.load("s")).carrier == 3
            for n in range(4):
                appended = await runtime.store.add("c", user(str(n)), cursor=n)
                assert appended.cursor == n + 1
            assert [m.text for m in await runtime.store.get("c")] == ["0", "1", "2", "3"]


POINTS = ["store.commit.begin", "store.commit.before_flush", "store.commit.after_flush",
          "store.publish", "store.commit.published", "store.acknowledge"]  # fmt: skip
PLACES = [(f"{point} {hit}", point, hit) for point in POINTS for hit in (1, 2)]


@pytest.mark.usefixtures("bench")
async def test_fault_f35_what_was_replaced_does_not_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A log is replaced (cleared and written anew) while the store dies at every point of it."""
    caplog.set_level("CRITICAL")  # the crashes are meant
    store = DiskStore(tmp_path, counter=NoCounter(), durability="process")
    supervisor = await Supervisor.spawn(
        [ChildSpec("store", store.child_start("s"))], max_restarts=100
    )
    for name, point, hit in PLACES:
        await store.add(name, [*user("old"), *user("old too")])
        assert len(await store.get(name, last=50)) == 2  # it is cached now
        with failpoint.active({point: failpoint.on_hit(hit, failpoint.raise_error)}):
            await store.clear(name)
            await store.add(name, user("new"))
        assert [m.text for m in await store.get(name, last=50)] == ["new"], name
        assert store.port.ref is not None
        store.port.ref.kill()
        assert [m.text for m in await store.get(name, last=50)] == ["new"], name
    await supervisor.stop(block=False)
    async with Runtime(tmp_path, counter=NoCounter()) as runtime:
        for name, _point, _hit in PLACES:
            assert [m.text for m in await runtime.store.get(name)] == ["new"]


async def test_calls_of_one_id_belong_to_their_own_batch(bench: Any) -> None:
    """A server that numbers its calls from nought in every reply: results never change places."""

    @tool
    async def echo(text: str) -> str:
        """Echo."""
        return f"heard {text}"

    sent: list[Any] = []

    def reply(request: Any) -> Any:
        sent.append(request.messages)
        rounds = sum(m.role == "assistant" for m in request.messages)
        if rounds % 3 == 2:
            return "an answer"
        return [ToolCall("call_0", "echo", {"text": f"{rounds} {n}"}) for n in range(2)]

    agent = await bench.agent(FunctionModel(reply), tools=[echo], parallel_tools=False)
    await agent.run("q1")
    await agent.run("q2")
    heard = [m.text for m in sent[-1] if m.role == "tool"]
    assert heard == [f"heard {r} {n}" for r in (0, 1, 3, 4) for n in range(2)]
