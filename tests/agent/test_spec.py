"""A spec is checked when it is built (MF-1…6, LM-1, BZ)."""

from __future__ import annotations

from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.agent.scripted_model import ScriptedModel
from keepwell.agent.spec import AgentSpec
from keepwell.memory.default_provider import DefaultProvider
from keepwell.memory.forms import FORMS, memory_form
from keepwell.memory.provider import check_provider
from keepwell.memory.window import Window
from keepwell.stores import MemoryStore

MODEL = ScriptedModel("x")


def give() -> str:
    """Give."""
    return ""


class Provider:
    def history(self, conversation_id: str) -> Any: ...
    def append(self, conversation_id: str, messages: Any) -> Any: ...
    def prepare(self, conversation_id: str, messages: Any) -> Any: ...
    def clear(self, conversation_id: str) -> Any: ...


class Three:
    def history(self, conversation_id: str) -> Any: ...
    def append(self, conversation_id: str, messages: Any) -> Any: ...
    def clear(self, conversation_id: str) -> Any: ...


class Plain:
    def get(self, conversation_id: str) -> Any: ...
    def add(self, conversation_id: str, messages: Any) -> Any: ...
    def clear(self, conversation_id: str) -> Any: ...


def test_mf_1_absent_or_default_is_the_default_store() -> None:
    for spec in (AgentSpec(MODEL), AgentSpec(MODEL, memory="default")):
        form = spec.memory_form
        assert (form.kind, form.target, form.window) == ("store", None, None)


def test_mf_2_a_window() -> None:
    form = memory_form(Window(7))
    assert (form.kind, form.target, form.window) == ("store", None, Window(7))


def test_mf_3_a_store() -> None:
    store = MemoryStore()
    form = memory_form(store)
    assert (form.kind, form.target, form.window) == ("store", store, None)


def test_mf_4_a_provider_as_it_is() -> None:
    provider = Provider()
    assert (memory_form(provider).kind, memory_form(provider).target) == ("provider", provider)
    store = MemoryStore()
    form = memory_form(DefaultProvider(store, window=3))
    assert (form.kind, form.target, form.window) == ("store", store, Window(3))


@pytest.mark.parametrize("value", [False, "none"])
def test_mf_5_stateless(value: Any) -> None:
    assert memory_form(value).kind == "none"


@pytest.mark.parametrize(
    "value",
    [None, True, 0, 20, "", "Default", {}, ("window", 20), Window, Three(), Plain(), object(), 0.0],
)
def test_mf_6_anything_else_is_refused_naming_value_and_forms(value: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        AgentSpec(MODEL, memory=value)
    text = str(caught.value)
    assert FORMS in text
    shown = value.__name__ if isinstance(value, type) else repr(value)
    assert shown in text
    if isinstance(value, Three):
        assert "lacks prepare" in text
    if isinstance(value, Plain):
        assert "SimpleStore" in text
    if value is None:
        assert '"none"' in text


def test_pv_1_a_missing_method_is_named() -> None:
    with pytest.raises(InvalidValue, match="lacks prepare"):
        check_provider(Three())


@pytest.mark.parametrize("window", [0, -1, 2.0, True, "5"])
def test_pv_5_a_window_is_an_int_of_at_least_1(window: Any) -> None:
    with pytest.raises(InvalidValue):
        DefaultProvider(MemoryStore(), window=window)


@pytest.mark.parametrize(
    "options",
    [
        {"max_rounds": 0},
        {"max_rounds": True},
        {"max_rounds": 2.0},
        {"max_tool_calls": -1},
        {"turn_timeout": 0},
        {"model_timeout": None},
        {"tool_timeout": "5"},
        {"tool_timeout": float("nan")},
        {"on_busy": "wait"},
        {"max_queue": -1},
        {"parallel_tools": 1},
        {"gate": 5},
        {"name": ""},
        {"name": 5},
        {"instructions": None},
        {"tools": [5]},
        {"tools": [give, give]},
        {"on_environment_error": "ask"},
        {"output": {"type": "string"}},
        {"tool_values": 5},
    ],
)
def test_each_option_is_checked(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        AgentSpec(MODEL, **options)
    (name,) = options
    assert name.rstrip("s") in str(caught.value)


@pytest.mark.parametrize("model", [None, "gpt", object(), ScriptedModel])
def test_a_model_is_one(model: Any) -> None:
    with pytest.raises(InvalidValue, match="model="):
        AgentSpec(model)
