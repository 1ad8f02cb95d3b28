"""An agent against real HTTP servers of both protocols: every fault ends in a good answer or a
typed ModelError, and the next turn can use the history that it leaves."""

from __future__ import annotations

import json

import pytest
from llmock.scenarios import Fail, Match, Reply, StreamFault, ToolFault
from llmock.scenarios import ToolCall as MockCall

import keepwell
from keepwell.agent.retry import RetryPolicy
from keepwell.memory.repair import repair

CITY = {"city": "Paris"}
CALL = Reply(tool_calls=(MockCall("look_up", CITY),))
FINE = Reply(text="It is fine in Paris.")


def look_up(city: str) -> str:
    """Look up the weather of a city."""
    if city != "Paris":
        raise LookupError(f"no weather for {city}")
    return "21 C"


@pytest.fixture(params=["openai", "anthropic"])
def model(request, llmock):
    options = {"api_key": "k", "timeout": 20, "retry": RetryPolicy(retries=1, base=0.0)}
    kind = {"openai": keepwell.OpenAIModel, "anthropic": keepwell.AnthropicModel}[request.param]
    return kind("test", base_url=llmock.base_url(request.param), **options)


@pytest.fixture
async def agent(model, tmp_path):
    async with keepwell.Runtime(data_dir=tmp_path) as runtime:
        spec = keepwell.AgentSpec(model, tools=[look_up], instructions="Be brief.")
        yield await runtime.spawn(spec, conversation_id="c")


@pytest.fixture(params=["run", "stream"])
def ask(request, agent):
    """One turn, run or streamed; the text of its answer."""

    async def ask(text: str) -> str:
        if request.param == "run":
            return (await agent.run(text)).text
        shown: dict[int, str] = {}
        ended = None
        async for event in agent.stream(text):
            if isinstance(event, keepwell.TextDelta):
                shown[event.step] = shown.get(event.step, "") + event.text
            elif isinstance(event, keepwell.StepRestarted):
                shown.pop(event.step, None)
            elif isinstance(event, keepwell.TurnEnded):
                ended = event.result
        assert ended is not None
        assert ended.text in shown.values()
        return ended.text

    return ask


async def check_history(agent) -> list[keepwell.Message]:
    """The log is a history that every provider accepts as it is, question after question."""
    messages = list(await agent.messages())
    assert list(repair(messages)) == messages
    return messages


WHOLE = {
    "plain": [FINE],
    "a tool": [CALL, FINE],
    "429, then a tool": [Fail(429, retry_after=0.01), CALL, FINE],
    "500": [Fail(500), FINE],
    "500 at a tool": [CALL, Fail(500), FINE],
    "a tool with arguments that are no JSON": [CALL, ToolFault("malformed_arguments"), FINE],
    "a tool that is not there": [CALL, ToolFault("unknown_tool"), FINE],
}


@pytest.mark.parametrize("case", WHOLE)
async def test_it_ends_in_a_good_answer(case, ask, agent, llmock):
    llmock.add(*WHOLE[case])
    assert await ask("How is Paris?") == "It is fine in Paris."
    steps = ["tool", "assistant"] if "tool" in case else []
    assert [m.role for m in await check_history(agent)] == ["user", "assistant", *steps]
    llmock.add(Reply(text="Still fine."))
    assert await ask("And now?") == "Still fine."


@pytest.mark.parametrize("tool", [False, True])
@pytest.mark.parametrize("kind", ["truncate", "malformed", "disconnect"])
async def test_a_broken_stream_is_begun_again(kind, tool, agent, llmock):
    """F28: nothing of the broken one is in the log or in the answer."""
    fault = StreamFault(kind, after_chunks=2, match=Match(stream=True))
    llmock.add(fault, *([CALL, CALL, FINE] if tool else [FINE, FINE]))
    shown, ended = "", None
    async for event in agent.stream("How is Paris?"):
        if isinstance(event, keepwell.StepRestarted):
            shown = ""
        elif isinstance(event, keepwell.TextDelta):
            shown += event.text
        elif isinstance(event, keepwell.TurnEnded):
            ended = event.result
    assert ended is not None
    assert shown == ended.text == "It is fine in Paris."
    steps = ["tool", "assistant"] if tool else []
    assert [m.role for m in await check_history(agent)] == ["user", "assistant", *steps]
    assert "truncated_stream_accepted" not in {f.code for f in llmock.verdict().findings}


@pytest.mark.parametrize(
    ("case", "kind"), [("arguments", "invalid_arguments"), ("tool", "unknown_tool")]
)
async def test_the_model_reads_what_was_wrong(case, kind, agent, llmock):
    """F16, F17."""
    fault = "malformed_arguments" if case == "arguments" else "unknown_tool"
    llmock.add(CALL, ToolFault(fault), FINE)
    await agent.run("How is Paris?")
    (result,) = (m for m in await agent.messages() if m.role == "tool")
    assert json.loads(result.text)["error"]["type"] == kind


ENDS_TYPED = {
    "an outage": ([Fail(503, times=None, retry_after=0.01)], "server_error"),
    "a bad key": ([Fail(401, times=None)], "unauthorized"),
    "an outage after the tool": ([CALL, Fail(503, times=None, retry_after=0.01)], "server_error"),
}


@pytest.mark.parametrize("case", ENDS_TYPED)
async def test_it_ends_in_a_typed_error(case, ask, agent, llmock):
    """AG-7: the question stays, no half answer is stored, the next message is accepted."""
    behaviours, code = ENDS_TYPED[case]
    llmock.add(*behaviours)
    with pytest.raises(keepwell.ModelError) as caught:
        await ask("How is Paris?")
    assert caught.value.code == code
    messages = await check_history(agent)
    assert messages[0].text == "How is Paris?"
    assert messages[-1].role in ("user", "tool")
    llmock.reset()
    llmock.add(FINE)
    assert await ask("Again: how is Paris?") == "It is fine in Paris."
    await check_history(agent)
