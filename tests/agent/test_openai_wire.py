"""The chat completions protocol: what is sent is always acceptable, what comes is checked."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.agent.errors import ModelError
from keepwell.agent.model import ModelRequest, Usage
from keepwell.agent.openai_wire import CompletionStream, openai_payload, openai_reply
from keepwell.agent.tool import tool
from keepwell.agent.wire import (
    RAW_ARGUMENTS,
    arguments_object,
    clean_text,
    json_text,
    strict_schema,
    tool_call,
    wire_name,
    with_wire_ids,
)
from keepwell.memory.repair import in_call_order, repair
from keepwell.stores.message import Message, ToolCall
from keepwell.testing.provider_rules import check_requests

ASK = ModelRequest((Message("user", "hello"),))


def sent(*messages: Message) -> list[dict]:
    return openai_payload(ModelRequest(messages))["messages"]


def test_a_whole_turn_on_the_wire():
    messages = (
        Message("system", "be kind"),
        Message("user", "2 + 2?"),
        Message("assistant", "let me see", [ToolCall("c1", "add", {"b": 2, "a": "二"})]),
        Message("tool", "4", tool_call_id="c1"),
        Message("assistant", "4", reasoning="easy"),
    )
    assert sent(*messages) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "2 + 2?"},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"b":2,"a":"二"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]


def test_tools_and_output_schema():
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    closed = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
              "additionalProperties": False}  # fmt: skip
    payload = openai_payload(ModelRequest(ASK.messages, (add.schema,), closed))
    assert payload["tools"] == [
        {"type": "function",
         "function": {"name": "add", "description": "Add.", "parameters": add.parameters}}
    ]  # fmt: skip
    assert payload["response_format"]["json_schema"] == {
        "name": "answer", "schema": closed, "strict": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {}, "required": [], "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"],
          "additionalProperties": False}, False),
        ({"type": "object", "properties": {"a": {"type": "string"}},
          "additionalProperties": False}, False),
        ({"type": "object", "properties": {}, "required": []}, False),
        ({"type": "array", "items": {"type": "object"}}, False),
    ],
)  # fmt: skip
def test_which_schemas_are_enforceable(schema, strict):
    assert strict_schema(schema) is strict


def test_parts_are_translated():
    content = [
        {"type": "text", "text": "what is it?"},
        {"type": "image", "data": b"\x89PNG", "media_type": "image/png"},
        {"type": "image", "url": "https://example.org/a.png"},
        {"type": "image", "data": "QUJD"},
        {"type": "file", "data": b"%PDF", "name": "a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/b.png"}},
    ]
    assert sent(Message("user", content))[0]["content"] == [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "file",
         "file": {"file_data": "data:application/pdf;base64,JVBERg==", "filename": "a.pdf"}},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/b.png"}},
    ]  # fmt: skip


TEXTS = st.text(st.characters(codec=None), max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)
IDS = st.sampled_from(["c1", "c2", "functions.add:0", "x" * 50, "id with space", "中"])
CALLS = st.lists(
    st.builds(
        ToolCall,
        IDS,
        st.sampled_from(["add", "", "lst files!", "x" * 100]),
        st.dictionaries(TEXTS, PLAIN, max_size=2) | TEXTS | st.sampled_from(['{"cmd": "ec', "[1]"]),
    ),
    max_size=2,
)
MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda t: Message("user", t), TEXTS | st.none()),
        st.builds(lambda t, c: Message("assistant", t, c), TEXTS | st.none(), CALLS),
        st.builds(lambda t, i: Message("tool", t, tool_call_id=i), TEXTS, IDS),
        st.builds(
            lambda p: Message("user", [{"type": "text", "text": p}, {"type": "x", "y": p}]), TEXTS
        ),
    ),
    max_size=6,
)


@given(MESSAGES)
def test_any_history_is_acceptable_on_the_wire(messages):
    """F17, F19, F20: whatever the log holds, the request is valid UTF-8 JSON, its names and ids
    are what endpoints accept, its arguments are objects, and calls and results stay paired."""
    check_requests(in_call_order(repair(messages)))


@given(MESSAGES)
def test_ids_stay_as_they_are_where_they_can(messages):
    messages = in_call_order(repair(messages))
    sent_as = with_wire_ids(messages)
    assert with_wire_ids(sent_as) == sent_as
    assert with_wire_ids(messages[:-1]) == sent_as[: len(messages) - 1]  # growing changes nothing
    calls = [call.id for m in messages for call in m.tool_calls]
    renamed = [call.id for m in sent_as for call in m.tool_calls]
    for place, (before, after) in enumerate(zip(calls, renamed, strict=True)):
        if re.fullmatch(r"[a-z0-9_]{1,40}", before) and before not in renamed[:place]:
            assert after == before


def test_an_id_that_comes_again_is_another_one():
    """Servers that count from call_0 in every reply; results follow their calls."""
    batch = [ToolCall("call_0", "f", {}), ToolCall("call_0", "g", {})]
    messages = [
        Message("user", "u"),
        Message("assistant", None, batch),
        Message("tool", "f1", tool_call_id="call_0"),
        Message("tool", "g1", tool_call_id="call_0"),
        Message("assistant", None, batch[:1]),
        Message("tool", "f2", tool_call_id="call_0"),
    ]
    wire = with_wire_ids(messages)
    assert [[c.id for c in m.tool_calls] for m in wire if m.tool_calls] == [
        ["call_0", "call_1"], ["call_2"],
    ]  # fmt: skip
    assert [(m.tool_call_id, m.content) for m in wire if m.role == "tool"] == [
        ("call_0", "f1"), ("call_1", "g1"), ("call_2", "f2"),
    ]  # fmt: skip
    check_requests(messages)


@pytest.mark.parametrize(
    ("arguments", "sent_as"),
    [
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (" ", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"cmd": "ec', {RAW_ARGUMENTS: '{"cmd": "ec'}),
        ("[1]", {RAW_ARGUMENTS: "[1]"}),
        ('{"a": NaN}', {RAW_ARGUMENTS: '{"a": NaN}'}),
        ({"a": float("nan"), "b": b"x", "c": "\ud83d"}, {"a": None, "b": "eA==", "c": "\ufffd"}),
        ("[" * 5_000, {RAW_ARGUMENTS: "[" * 5_000}),
    ],
)
def test_arguments_are_an_object(arguments, sent_as):
    assert arguments_object(arguments) == sent_as


def test_texts_and_names():
    assert clean_text("a\ud83d") == "a\ufffd"
    assert clean_text("\ud83d\ude00") == "😀"
    assert json_text({"v": float("inf")}) == '{"v":null}'
    assert [wire_name(n) for n in ("a-b_1", "a.b c", "", "中")] == [
        "a-b_1",
        "a_b_c",
        "unknown",
        "_",
    ]


@given(
    st.none() | st.integers() | st.text(max_size=3),
    st.none() | st.integers() | st.text(max_size=3),
    st.none() | st.integers() | st.text(max_size=8) | st.dictionaries(st.text(max_size=2), PLAIN),
)
def test_any_call_is_storable(call_id, name, arguments):
    """AG-4."""
    taken = {"a"}
    call = tool_call(call_id, name, arguments, taken)
    assert Message("assistant", None, [call])
    assert call.id != "a"
    assert call.id in taken


def test_deep_or_wide_arguments_stay_raw():
    deep = '{"a":' * 150 + "1" + "}" * 150
    assert tool_call("x", "f", deep, set()).arguments == deep


# -- from the wire ----------------------------------------------------------------------------


def completion(message: object, finish: object = "stop", **fields: object) -> dict:
    return {"choices": [{"message": message, "finish_reason": finish}], "model": "m-1", **fields}


def call(call_id: object, name: object, arguments: object) -> dict:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_reply():
    usage = {
        "prompt_tokens": 10, "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip
    reply = openai_reply(
        completion({"content": "hi", "reasoning_content": "hm"}, usage=usage), ASK, "m"
    )
    assert reply.message == Message("assistant", "hi", reasoning="hm")
    assert reply.usage == Usage(10, 5, 4, 2)
    assert (reply.finish_reason, reply.model) == ("stop", "m-1")


def test_absent_usage_is_estimated():
    """US-1."""
    for usage in (None, {}, {"prompt_tokens": "x"}, {"prompt_tokens": -1}, [1]):
        reply = openai_reply(completion({"content": "12345678"}, usage=usage), ASK, "m")
        assert reply.usage == Usage(2, 2, estimated=True)


def test_calls_get_ids_of_their_own():
    found = [call("a", "f", "{}"), call("a", "g", '{"x": 1}'), call(None, "h", '{"cut'), "odd"]
    reply = openai_reply(completion({"content": None, "tool_calls": found}), ASK, "m")
    calls = reply.message.tool_calls
    assert reply.finish_reason == "tool_calls"
    assert [c.name for c in calls] == ["f", "g", "h", ""]
    assert [c.arguments for c in calls] == [{}, {"x": 1}, '{"cut', '"odd"']
    assert calls[0].id == "a"
    assert len({c.id for c in calls}) == 4


@pytest.mark.parametrize(
    ("data", "code", "retryable"),
    [
        ([], "corrupt", True),
        ("text", "corrupt", True),
        ({}, "corrupt", True),
        ({"choices": []}, "corrupt", True),
        ({"choices": "x"}, "corrupt", True),
        ({"choices": [None]}, "corrupt", True),
        ({"choices": [{"message": None}]}, "corrupt", True),
        (completion({}), "empty_reply", True),
        (completion({"content": ""}), "empty_reply", True),
        (completion({"content": " \n"}), "empty_reply", True),
        (completion({"content": None, "reasoning": "so"}), "empty_reply", True),
        (completion({"content": ""}, "length"), "empty_reply", False),
        (completion({"content": ""}, "content_filter"), "refused", False),
        (completion({"content": 3}), "empty_reply", True),
    ],
)
def test_no_usable_reply_is_an_error(data, code, retryable):
    with pytest.raises(ModelError) as caught:
        openai_reply(data, ASK, "m")
    assert (caught.value.code, caught.value.retryable) == (code, retryable)


def test_a_refusal_is_the_text():
    reply = openai_reply(completion({"content": None, "refusal": "I cannot"}), ASK, "m")
    assert reply.message.text == "I cannot"
    assert reply.finish_reason == "content_filter"


def test_content_in_parts_and_odd_finish_reasons():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, 3]
    reply = openai_reply(completion({"content": parts}, "eos"), ASK, "m")
    assert (reply.message.content, reply.finish_reason) == ("ab", "stop")


# -- streams ----------------------------------------------------------------------------------


def chunk(delta: object = None, finish: object = None, **fields: object) -> dict:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}


def gathered(*chunks: object) -> tuple[str, CompletionStream]:
    stream = CompletionStream(ASK, "m")
    return "".join(stream.add(each) for each in chunks), stream


def delta_call(index: object, call_id: object, name: object, arguments: object) -> dict:
    return {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}


def test_a_stream_is_put_together():
    shown, stream = gathered(
        chunk({"role": "assistant", "content": ""}, model="m-1"),
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    )
    reply = stream.reply()
    assert shown == reply.message.text == "Hello"
    assert reply.message.extra["reasoning"] == "hm"
    assert (reply.usage, reply.model) == (Usage(3, 2), "m-1")
    assert stream.nothing_follows


@pytest.mark.parametrize(
    "deltas",
    [
        # as the protocol says
        [(0, "a", "f", '{"x"'), (0, None, None, ":1}"), (1, "b", "g", ""), (1, None, None, "{}")],
        # interleaved
        [(0, "a", "f", '{"x"'), (1, "b", "g", ""), (0, None, None, ":1}"), (1, None, None, "{}")],
        # every call has the index 0
        [(0, "a", "f", '{"x":1}'), (0, "b", "g", "{}")],
        # no index
        [(None, "a", "f", '{"x"'), (None, None, None, ":1}"), (None, "b", "g", "{}")],
        # id and name repeated in each piece
        [(0, "a", "f", '{"x"'), (0, "a", "f", ":1}"), (1, "b", "g", "{}")],
        # whole calls in one piece, arguments as an object
        [(0, "a", "f", {"x": 1}), (1, "b", "g", {})],
    ],
)
def test_calls_are_put_together_from_any_servers_pieces(deltas):
    _, stream = gathered(
        *(chunk({"tool_calls": [delta_call(*each)]}) for each in deltas), chunk({}, "tool_calls")
    )
    calls = stream.reply().message.tool_calls
    assert calls == (ToolCall("a", "f", {"x": 1}), ToolCall("b", "g", {}))


def test_a_stream_without_a_finish_reason_is_cut_off():
    """F28."""
    _, stream = gathered(chunk({"content": "half an"}))
    with pytest.raises(ModelError) as caught:
        stream.reply()
    assert (caught.value.code, caught.value.partial) == ("truncated", "half an")
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("bad", "code", "retryable"),
    [
        ("x", "corrupt", True),
        ([], "corrupt", True),
        ({"choices": [3]}, "corrupt", True),
        ({"odd": 1}, "corrupt", True),
        (chunk({"tool_calls": [3]}), "corrupt", True),
        ({"error": {"message": "boom"}}, "server_error", True),
        ({"error": "boom"}, "server_error", True),
        ({"error": {"type": "overloaded_error", "message": "busy"}}, "rate_limited", True),
        ({"error": {"type": "invalid_request_error", "message": "no"}}, "bad_request", False),
    ],
)
def test_bad_chunks(bad, code, retryable):
    with pytest.raises(ModelError) as caught:
        gathered(bad)
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
