"""FallbackModel: the next model answers, and never with half of another's answer before it."""

from __future__ import annotations

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.errors import ModelError
from keepwell.agent.fallback_model import FallbackModel
from keepwell.agent.model import ModelReply, ModelRequest, TextDelta
from keepwell.agent.scripted_model import Broken, ScriptedModel
from keepwell.stores.message import Message

ASK = ModelRequest((Message("user", "hello"),))


def down(attempts: int = 1, **fields: object) -> ModelError:
    return ModelError("down", **{"retryable": True, "attempts": attempts} | fields)


async def text_of(model: FallbackModel, streaming: bool) -> str:
    if not streaming:
        return (await model.complete(ASK)).message.text
    items = [item async for item in model.stream(ASK)]
    assert isinstance(items[-1], ModelReply)
    return "".join(item.text for item in items[:-1])


both_ways = pytest.mark.parametrize("streaming", [False, True])


@both_ways
async def test_the_first_that_answers_answers(streaming):
    second, third = ScriptedModel("two", name="b"), ScriptedModel("three", name="c")
    model = FallbackModel(ScriptedModel(down(), name="a"), second, third)
    assert model.name == "a or b or c"
    assert await text_of(model, streaming) == "two"
    assert (len(second.requests), len(third.requests)) == (1, 0)


@both_ways
async def test_if_all_fail_the_last_error_tells_of_all(streaming):
    model = FallbackModel(
        ScriptedModel(down(3), name="a"), ScriptedModel(down(2, status=503), name="b")
    )
    with pytest.raises(ModelError) as caught:
        await text_of(model, streaming)
    assert (caught.value.status, caught.value.attempts) == (503, 5)
    assert caught.value.__notes__ == ["tried before: a: down"]


@both_ways
async def test_when_decides(streaming):
    model = FallbackModel(
        ScriptedModel(down(code="refused")), ScriptedModel("no"), when=lambda e: e.code != "refused"
    )
    with pytest.raises(ModelError) as caught:
        await text_of(model, streaming)
    assert caught.value.code == "refused"


async def test_a_begun_stream_is_not_gone_on_with():
    model = FallbackModel(ScriptedModel(Broken("half", down())), ScriptedModel("other"))
    stream = model.stream(ASK)
    assert await anext(stream) == TextDelta("half")
    with pytest.raises(ModelError) as caught:
        await anext(stream)
    assert caught.value.partial == "half"


async def test_nor_is_one_whose_error_does_not_say_what_was_shown():
    class Careless:
        name = "careless"

        async def complete(self, request):
            raise down()

        async def stream(self, request):
            yield TextDelta("half")
            raise down()

    stream = FallbackModel(Careless(), ScriptedModel("other")).stream(ASK)
    assert await anext(stream) == TextDelta("half")
    with pytest.raises(ModelError) as caught:
        await anext(stream)
    assert caught.value.partial == "half"


@both_ways
async def test_bugs_are_not_hidden(streaming):
    model = FallbackModel(ScriptedModel(ValueError("a bug")), ScriptedModel("other"))
    with pytest.raises(ValueError, match="a bug"):
        await text_of(model, streaming)


def test_bad_models_are_refused():
    with pytest.raises(InvalidValue, match="at least one"):
        FallbackModel()
    with pytest.raises(InvalidValue, match="'gpt' is no chat model"):
        FallbackModel("gpt")
