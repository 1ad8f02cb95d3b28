"""Large tool results: shown cut with a note, kept whole beside the log, read on by portions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepwell import (
    AgentSpec,
    DiskStore,
    InvalidValue,
    MemoryStore,
    Runtime,
    ScriptedModel,
    tool,
)
from keepwell.actors import failpoint
from keepwell.agent.kept_results import PORTION, result_reader
from keepwell.agent.scripted_model import Call
from keepwell.memory.context_policy import ContextPolicy
from keepwell.memory.default_provider import DefaultProvider
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.session_errors import BlobNotFound
from keepwell.stores.transfer import InvalidExport, export, import_lines

WHOLE = "0123456789" * 500 + "\ud83d the end"
MOST = 1000


@tool(idempotent=True)
async def dump() -> str:
    """Give a lot."""
    return WHOLE


def spec(model: Any, **options: Any) -> AgentSpec:
    return AgentSpec(model, **{"tools": [dump], "max_result_characters": MOST} | options)


def result(messages: Any) -> Any:
    return next(m for m in reversed(messages) if m.role == "tool")


async def test_a_large_result_is_shown_cut_and_kept_whole(tmp_path: Path) -> None:
    model = ScriptedModel([Call("dump")], "done", "again")
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec(model), "c")
        turn = await agent.run("q")
        message = result(turn.messages)
        left = len(WHOLE) - MOST
        assert message.content.startswith(WHOLE[:MOST] + f"\n[{left} of {len(WHOLE)} characters")
        assert len(message.content) < MOST + 200
        assert result(model.requests[-1].messages).content == message.content
        assert await agent.whole_result(message) == WHOLE
        assert await agent.whole_result(turn.messages[0]) == "q"
        (stored,) = [m for m in await runtime.store.get("c") if m.role == "tool"]
        assert stored == message  # the log has no more of it
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec(model), "c")
        await agent.run("again")
        shown = result(model.requests[-1].messages)
        assert shown.content == message.content  # not cut a second time
        assert await agent.whole_result(shown.extra["content_ref"]) == WHOLE


async def test_what_fits_is_left_alone() -> None:
    model = ScriptedModel([Call("dump")], "done")
    async with Runtime() as runtime:
        agent = await runtime.spawn(spec(model, max_result_characters=len(WHOLE)), "c")
        message = result((await agent.run("q")).messages)
        assert (message.content, dict(message.extra)) == (WHOLE, {})
        assert await agent.whole_result(message) == WHOLE


@pytest.mark.parametrize("most", [MOST * 10, MOST * 30])
async def test_a_model_reads_on_where_it_was_cut(most: int) -> None:
    big = "".join(f"{n:06}" for n in range(10_000))

    @tool
    async def giant() -> str:
        """Give more than a portion."""
        return big

    got: list[str] = []

    def read(request: Any) -> Any:
        content = result(request.messages).content
        got.append(content.partition("\n[")[0])
        if "read_result(" not in content:
            return "done"
        note = content.rpartition("read_result(")[2]
        fields = dict(part.split("=") for part in note.partition(")")[0].split(", "))
        arguments = {"result": fields["result"].strip('"'), "offset": int(fields["offset"])}
        return Call("read_result", arguments)

    model = ScriptedModel([Call("giant")], *[read] * 8)
    async with Runtime() as runtime:
        agent = await runtime.spawn(
            spec(model, tools=[giant, result_reader()], max_result_characters=most), "c"
        )
        assert (await agent.run("q")).text == "done"
    assert "".join(got) == big
    assert max(len(part) for part in got[1:]) == min(PORTION, most - 120)


@pytest.mark.parametrize(
    "arguments",
    [{"result": "ffff"}, {"result": ""}, {"result": "x", "offset": -1},
     {"result": "x", "length": 0}],
    ids=str,
)  # fmt: skip
async def test_a_model_reads_its_own_conversations_results_only(arguments: Any) -> None:
    model = ScriptedModel([Call("dump")], "kept")
    async with Runtime() as runtime:
        other = await runtime.spawn(spec(model), "other")
        kept = result((await other.run("q")).messages).extra["content_ref"].rpartition(":")[2]
        for name in (arguments["result"], kept):
            asks = ScriptedModel([Call("read_result", {**arguments, "result": name})], "fine")
            agent = await runtime.spawn(spec(asks, tools=[result_reader()]))
            message = result((await agent.run("q")).messages)
            assert '"invalid_arguments"' in message.content
            assert WHOLE[:20] not in message.content


@pytest.mark.parametrize("how", ["direct", "stateless", "provider", "foreign"])
async def test_where_it_cannot_be_kept_elsewhere_the_log_has_it_whole(how: str) -> None:
    @tool(return_direct=True)
    async def direct() -> str:
        """Give a lot."""
        return WHOLE

    async with Runtime() as runtime:
        memory: Any = {
            "direct": "default", "stateless": False, "provider": Mine(runtime.store),
            "foreign": Foreign(runtime.store),
        }[how]  # fmt: skip
        called = "direct" if how == "direct" else "dump"
        model = ScriptedModel([Call(called)], "done")
        agent = await runtime.spawn(spec(model, tools=[dump, direct], memory=memory), "c")
        turn = await agent.run("q")
        message = result(turn.messages)
        assert message.content == WHOLE
        assert await agent.whole_result(message) == WHOLE
        if how == "direct":
            assert turn.text == WHOLE
        else:
            shown = result(model.requests[-1].messages).content
            assert shown.startswith(WHOLE[:MOST]) and len(shown) < MOST + 200
        with pytest.raises(BlobNotFound):
            await agent.whole_result(f"default/sha256:{'0' * 64}")


class Foreign:
    """A store of somebody else's, for all that is known of it."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name == "port":
            raise AttributeError(name)
        return getattr(self._store, name)


class Shows(DefaultProvider):
    """A custom provider that stores as the default one."""

    def prepare(self, conversation_id: str, messages: Any) -> Any:
        return messages


class Mine(DefaultProvider):
    """A custom provider that stores in its own way."""

    def append(self, *args: Any, **options: Any) -> Any:
        return super().append(*args, **options)


async def test_a_provider_that_stores_as_the_default_one_has_it_beside_the_log() -> None:
    """What it prepares, and fits into its budget, is the result as it is shown."""
    model = ScriptedModel([Call("dump")], "done")
    async with Runtime() as runtime:
        agent = await runtime.spawn(spec(model, memory=Shows(runtime.store)), "c")
        message = result((await agent.run("q")).messages)
        assert len(message.content) < MOST + 200
        assert await agent.whole_result(message) == WHOLE
        assert (await runtime.session_store.collect(0)).blobs == 0
        await agent.clear()
        assert (await runtime.session_store.collect(0)).blobs == 1


async def test_c16_it_is_held_until_the_conversation_is_cleared(tmp_path: Path) -> None:
    model = ScriptedModel([Call("dump")], "done")
    for place in (tmp_path, None):
        async with Runtime(place) as runtime:
            agent = await runtime.spawn(spec(model), f"c{place is None}")
            message = result((await agent.run("q")).messages)
            assert (await runtime.session_store.collect(0)).blobs == 0
            assert await agent.whole_result(message) == WHOLE
            await agent.clear()
            assert (await runtime.session_store.collect(0)).blobs == 1
            with pytest.raises(BlobNotFound):
                await agent.whole_result(message)


async def test_it_is_kept_with_the_store_that_has_the_conversation(tmp_path: Path) -> None:
    for number, store in enumerate((DiskStore(tmp_path / "other"), MemoryStore())):
        model = ScriptedModel([Call("dump")], "done")
        async with Runtime(tmp_path / f"{number}") as runtime:
            agent = await runtime.spawn(spec(model, memory=store), "c")
            message = result((await agent.run("q")).messages)
            assert await agent.whole_result(message) == WHOLE
            with pytest.raises(BlobNotFound):
                await runtime.session_store.get("default", message.extra["content_ref"])


@pytest.mark.parametrize("point", ["turn.result_kept", "turn.result"])
async def test_a_crash_around_it_leaves_one_result(tmp_path: Path, point: str) -> None:
    model = ScriptedModel([Call("dump")], "done")
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec(model), "c")
        crash = failpoint.on_hit(1, failpoint.raise_error)
        with failpoint.active({point: crash}):
            turn = await agent.run("q")
        assert [m.role for m in turn.messages] == ["user", "assistant", "tool", "assistant"]
        assert await agent.whole_result(result(turn.messages)) == WHOLE
        assert (await runtime.session_store.collect(0)).blobs == 0


async def test_f14_a_context_policy_counts_and_shows_what_is_stored(tmp_path: Path) -> None:
    model = ScriptedModel([Call("dump")], "done", "next")
    policy = ContextPolicy("whole_session", 3000)
    async with Runtime(tmp_path) as runtime:
        agent = await runtime.spawn(spec(model, context=policy, count_tokens=len), "c")
        message = result((await agent.run("q")).messages)
        await agent.run("q2")
        assert result(model.requests[-1].messages) == message


async def test_an_export_has_it_and_an_import_holds_it(tmp_path: Path) -> None:
    model = ScriptedModel([Call("dump"), Call("dump")], "done")
    async with Runtime(tmp_path / "a") as runtime:
        agent = await runtime.spawn(spec(model), "c")
        message = result((await agent.run("q")).messages)
    source = DiskEngine(tmp_path / "a", readonly=True)
    lines = list(export(source))
    source.close()
    assert sum('"blob"' in line for line in lines) == 1  # once, though two records have it
    target = DiskEngine(tmp_path / "b")
    for _ in range(2):  # an import that was interrupted is run again
        import_lines(target, lines)
    target.settle()
    target.close()
    async with Runtime(tmp_path / "b") as runtime:
        agent = await runtime.spawn(spec(model), "c")
        assert result(await agent.messages()) == message
        assert (await runtime.session_store.collect(0)).blobs == 0
        assert await agent.whole_result(message) == WHOLE


def test_an_import_refuses_a_blob_that_is_none(tmp_path: Path) -> None:
    target = DiskEngine(tmp_path)
    head = ['{"keepwell":"conversations","format":2}\n', '{"conversation":"c","records":1}\n']
    ref = f"default/sha256:{'0' * 64}"
    for bad in (
        f'{{"blob":"{ref}","data":"eA=="}}', f'{{"blob":"{ref}","data":"%"}}',
        '{"blob":"x","data":"eA=="}', '{"blob":5,"data":"eA=="}', f'{{"blob":"{ref}"}}',
    ):  # fmt: skip
        with pytest.raises(InvalidExport, match="line 3"):
            import_lines(target, [*head, bad])
    target.close()


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "9", None])
def test_the_limit_is_a_number(bad: Any) -> None:
    with pytest.raises(InvalidValue, match="max_result_characters"):
        AgentSpec(ScriptedModel("x"), max_result_characters=bad)
