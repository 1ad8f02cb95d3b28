"""Every adapter passes the suite; the endpoints are a third-party mock server's, or the model's."""

from __future__ import annotations

import pytest
from llmock.scenarios import Fail, Match, Reply, StreamFault, ToolFault
from llmock.scenarios import ToolCall as MockCall

from keepwell.agent.anthropic_model import AnthropicModel
from keepwell.agent.circuit_breaker import BreakerPolicy, CircuitBreaker
from keepwell.agent.errors import ModelError
from keepwell.agent.fallback_model import FallbackModel
from keepwell.agent.function_model import FunctionModel
from keepwell.agent.local_model import LocalModel
from keepwell.agent.openai_model import OpenAIModel
from keepwell.agent.retry import RetryPolicy
from keepwell.agent.scripted_model import Broken, Call, ScriptedModel
from keepwell.testing.model_contract import (
    ALL,
    BROKEN_STREAMS,
    EMPTY,
    FAULTS,
    GARBLED,
    SCRIPT,
    TOOLS,
    Breaks,
    Calls,
    ModelContract,
    Says,
)

FAST = RetryPolicy(retries=1, base=0.0)


def scripted(*script: object) -> ScriptedModel:
    """The script for a ScriptedModel; its last item again and again."""
    items: list[object] = []
    for item in script:
        if isinstance(item, Says):
            error = ModelError("empty", code="empty_reply", retryable=True)
            items.append(item.text or error)
        elif isinstance(item, Calls):
            items.append(Call(item.name, '{"city": "Par' if item.garbled else dict(item.arguments)))
        else:
            assert isinstance(item, Breaks)
            passing = item.kind not in ("unauthorized", "context_too_large")
            error = ModelError(item.kind, code=item.kind, retryable=passing)
            items.append(Broken(item.text[:9], error) if item.text else error)
    return ScriptedModel(*items, *[items[-1]] * 50, shared=True)


class TestScriptedModel(ModelContract):
    @pytest.fixture
    def connect(self):
        return scripted


class TestFunctionModel(ModelContract):
    capabilities = frozenset({SCRIPT})

    @pytest.fixture
    def connect(self):
        return lambda *script: FunctionModel(lambda request: script[-1].text)


class TestFallbackModel(ModelContract):
    """Behind a model that is down: nothing of it may show."""

    @pytest.fixture
    def connect(self):
        down = ModelError("down", code="server_error", retryable=True)
        return lambda *script: FallbackModel(
            ScriptedModel(down, repeat=True, shared=True, name="first"), scripted(*script)
        )

    async def test_faults_are_typed(self):
        pytest.skip("it counts the attempts of all models: see test_fallback_model")


class TestCircuitBreaker(ModelContract):
    @pytest.fixture
    def connect(self):
        return lambda *script: CircuitBreaker(scripted(*script), BreakerPolicy(failures=9))


STATUS = {"rate_limited": 429, "server_error": 500, "unauthorized": 401, "context_too_large": 400}
FAULT = {"truncated": "truncate", "disconnected": "disconnect", "corrupt": "malformed"}


def play(llmock, *script: object) -> None:
    """Queue a script at the mock server; its last item for good."""
    for place, item in enumerate(script):
        times = None if place == len(script) - 1 else 1
        if isinstance(item, Says):
            llmock.add(Reply(text=item.text, times=times))
        elif isinstance(item, Calls):
            call = MockCall(item.name, dict(item.arguments))
            llmock.add(Reply(tool_calls=(call,), times=times))
            if item.garbled:
                llmock.add(ToolFault("malformed_arguments", times=times))
        elif item.text:
            llmock.add(Reply(text=item.text, times=times))
            fault = StreamFault(
                FAULT[item.kind], after_chunks=4, times=times, match=Match(stream=True)
            )
            llmock.add(fault)
        else:
            code = "context_length_exceeded" if item.kind == "context_too_large" else None
            message = "prompt is too long: context length exceeded" if code else None
            status = STATUS[item.kind]
            wait = 0.01 if status == 429 else None
            llmock.add(Fail(status, times=times, code=code, message=message, retry_after=wait))


class TestOpenAIModel(ModelContract):
    capabilities = ALL - {EMPTY}

    @pytest.fixture
    def connect(self, llmock):
        def connect(*script):
            play(llmock, *script)
            return OpenAIModel(
                "gpt-test", base_url=llmock.base_url("openai"), api_key="k", timeout=20, retry=FAST
            )

        return connect


class TestAnthropicModel(ModelContract):
    capabilities = ALL - {EMPTY}

    @pytest.fixture
    def connect(self, llmock):
        def connect(*script):
            play(llmock, *script)
            return AnthropicModel(
                "claude-test",
                base_url=llmock.base_url("anthropic"),
                api_key="k",
                timeout=20,
                retry=FAST,
            )

        return connect


LOCAL = frozenset(ALL - {SCRIPT, TOOLS, GARBLED, EMPTY, FAULTS, BROKEN_STREAMS})
needs_weights = pytest.mark.skipif(
    LocalModel.missing() is not None, reason=str(LocalModel.missing())
)


@pytest.fixture(scope="module")
def engine():
    """Holds the weights loaded for the tests of this file."""
    held = LocalModel()
    yield held.load()
    held.close()


@pytest.mark.local_model
@needs_weights
class TestLocalModel(ModelContract):
    capabilities = LOCAL

    @pytest.fixture
    def connect(self, engine):
        return lambda *script: LocalModel(max_output_tokens=8)


@pytest.mark.local_model
@needs_weights
@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
class TestLocalServer(ModelContract):
    """The local model's own server, by both protocols."""

    capabilities = LOCAL

    @pytest.fixture
    def connect(self, engine, protocol):
        def connect(*script):
            options = {"api_key": engine.api_key, "max_output_tokens": 8, "timeout": 40}
            if protocol == "openai":
                return OpenAIModel("local", base_url=f"{engine.url}/v1", **options)
            return AnthropicModel("local", base_url=engine.url, **options)

        return connect
