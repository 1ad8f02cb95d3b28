"""The messages protocol: any repaired history has its strict form, and what comes is checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwell.agent.anthropic_wire import (
    BLANK,
    ELIDED,
    MessageStream,
    anthropic_payload,
    anthropic_reply,
)
from keepwell.agent.errors import ModelError
from keepwell.agent.model import ModelRequest, Usage
from keepwell.agent.tool import tool
from keepwell.agent.tool_result import error_result
from keepwell.memory.repair import repair
from keepwell.stores.message import Message, ToolCall
from keepwell.testing.provider_rules import check_requests

ASK = ModelRequest((Message("user", "hello"),))
THINKING = {"type": "thinking", "thinking": "hm", "signature": "sig"}


def text(value: str) -> dict:
    return {"type": "text", "text": value}


def sent(*messages: Message) -> dict:
    return anthropic_payload(ModelRequest(messages))


def test_a_whole_turn_on_the_wire():
    payload = sent(
        Message("system", "be kind"),
        Message("system", "be brief"),
        Message("user", "2 + 2?"),
        Message("assistant", "so", [ToolCall("c1", "add", {"a": 2})], thinking=[THINKING]),
        Message("tool", "4", tool_call_id="c1"),
        Message("user", "and?"),
        Message("assistant", "4", reasoning="easy"),
    )
    assert payload == {
        "system": "be kind\n\nbe brief",
        "messages": [
            {"role": "user", "content": [text("2 + 2?")]},
            {
                "role": "assistant",
                "content": [
                    THINKING,
                    text("so"),
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [text("4")]},
                    text("and?"),
                ],
            },
            {"role": "assistant", "content": [text("4")]},
        ],
    }


def test_tools_schemas_and_failed_results():
    @tool
    def add(a: int) -> int:
        """Add."""
        return a

    schema = {"type": "object", "properties": {}}
    payload = anthropic_payload(ModelRequest(ASK.messages, (add.schema,), schema))
    assert payload["tools"] == [
        {"name": "add", "description": "Add.", "input_schema": dict(add.parameters)}
    ]
    assert payload["output_config"]["format"] == {"type": "json_schema", "schema": schema}
    failed = Message("tool", error_result("crashed", "x"), tool_call_id="c")
    (block,) = sent(Message("user", "x"), Message("assistant", "", [ToolCall("c", "f")]), failed)[
        "messages"
    ][2]["content"]
    assert block["is_error"] is True


def test_blanks_and_beginnings():
    """WN-7: `a` may come first; the protocol wants `u`."""
    messages = sent(Message("assistant", "welcome"), Message("user", " \n"))["messages"]
    assert messages == [
        {"role": "user", "content": [text(ELIDED)]},
        {"role": "assistant", "content": [text("welcome")]},
        {"role": "user", "content": [text(BLANK)]},
    ]
    assert sent()["messages"][0]["role"] == "user"


def test_parts_are_translated():
    content = [
        {"type": "image", "data": b"\x89PNG", "media_type": "image/png"},
        {"type": "image", "url": "https://example.org/a.png"},
        {"type": "image_url", "image_url": {"url": "data:image/gif;base64,QUJD"}},
        {"type": "file", "data": b"%PDF", "name": "a.pdf"},
        {"type": "document", "source": {"type": "text", "data": "x"}},
        {"type": "text", "text": ""},
        {"type": "odd", "x": 1},
    ]
    assert sent(Message("user", content))["messages"][0]["content"] == [
        {"type": "image",
         "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "QUJD"}},
        {"type": "document",
         "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}},
        {"type": "document", "source": {"type": "text", "data": "x"}},
        text(BLANK),
        text('{"type":"odd","x":1}'),
    ]  # fmt: skip


TEXTS = st.text(st.characters(codec=None), max_size=5) | st.sampled_from(["", " "])
IDS = st.sampled_from(["c1", "functions.f:0", "x" * 50])
CALLS = st.lists(
    st.builds(ToolCall, IDS, st.sampled_from(["add", "", "a b"]), TEXTS | st.just({"a": 1})),
    max_size=2,
)
MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda t: Message("system", t), TEXTS),
        st.builds(lambda t: Message("user", t), TEXTS | st.none()),
        st.builds(lambda t, c: Message("assistant", t, c), TEXTS | st.none(), CALLS),
        st.builds(lambda t, i: Message("tool", t, tool_call_id=i), TEXTS, IDS),
    ),
    max_size=8,
)


@given(MESSAGES)
def test_any_repaired_history_has_the_strict_form(messages):
    check_requests(repair(messages))


# -- from the wire ----------------------------------------------------------------------------


def answer(*content: object, stop: object = "end_turn", **fields: object) -> dict:
    return {
        "type": "message",
        "model": "m-1",
        "content": list(content),
        "stop_reason": stop,
        **fields,
    }


def test_a_reply_with_thinking_and_calls():
    usage = {
        "input_tokens": 10, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2,
        "output_tokens": 7,
    }  # fmt: skip
    calls = [
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "a", "name": "g", "input": {}},
        {"type": "tool_use", "name": "h", "input": "odd"},
    ]
    reply = anthropic_reply(
        answer(THINKING, text("so"), *calls, stop="tool_use", usage=usage), ASK, "m"
    )
    message = reply.message
    assert message.text == "so"
    assert [c.arguments for c in message.tool_calls] == [{"x": 1}, {}, "odd"]
    assert len({c.id for c in message.tool_calls}) == 3
    assert message.extra["reasoning"] == "hm"
    assert list(message.extra["thinking"]) == [THINKING]
    assert reply.usage == Usage(17, 7, 5)
    assert (reply.finish_reason, reply.model) == ("tool_calls", "m-1")
    # What is kept goes out again as it came.
    again = anthropic_payload(ModelRequest((*ASK.messages, message)))["messages"][1]["content"]
    assert again[0] == THINKING


@pytest.mark.parametrize(
    ("data", "code", "retryable"),
    [
        ([], "corrupt", True),
        ({}, "corrupt", True),
        ({"content": "text"}, "corrupt", True),
        (answer(3), "corrupt", True),
        (answer({"text": "x"}), "corrupt", True),
        (answer(), "empty_reply", True),
        (answer(text("")), "empty_reply", True),
        (answer(THINKING), "empty_reply", True),
        (answer(stop="max_tokens"), "empty_reply", False),
        (answer(stop="refusal"), "refused", False),
    ],
)
def test_no_usable_reply_is_an_error(data, code, retryable):
    with pytest.raises(ModelError) as caught:
        anthropic_reply(data, ASK, "m")
    assert (caught.value.code, caught.value.retryable) == (code, retryable)


@pytest.mark.parametrize(
    ("stop", "finish"),
    [("end_turn", "stop"), ("max_tokens", "length"), ("refusal", "content_filter"), (None, "stop")],
)
def test_stop_reasons(stop, finish):
    reply = anthropic_reply(answer(text("x"), stop=stop), ASK, "m")
    assert reply.finish_reason == finish
    assert reply.usage.estimated


def block(index: int, kind: str, **fields: object) -> dict:
    return {
        "type": "content_block_start",
        "index": index,
        "content_block": {"type": kind, **fields},
    }


def delta(index: int, **fields: object) -> dict:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def test_a_stream_is_put_together():
    stream = MessageStream(ASK, "m")
    events = [
        {"type": "message_start", "message": {"model": "m-1", "usage": {"input_tokens": 9}}},
        block(0, "thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="h"),
        delta(0, type="thinking_delta", thinking="m"),
        delta(0, type="signature_delta", signature="sig"),
        {"type": "content_block_stop", "index": 0},
        {"type": "ping"},
        block(1, "text", text=""),
        delta(1, type="text_delta", text="Hel"),
        delta(1, type="text_delta", text="lo"),
        block(2, "tool_use", id="a", name="f", input={}),
        delta(2, type="input_json_delta", partial_json='{"x"'),
        delta(2, type="input_json_delta", partial_json=": 1}"),
        block(3, "tool_use", id="b", name="g", input={}),
        block(4, "tool_use", id="c", name="h", input={}),
        delta(4, type="input_json_delta", partial_json='{"cut'),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"},
         "usage": {"output_tokens": 4}},
        {"type": "new_kind_of_event"},
        {"type": "message_stop"},
    ]  # fmt: skip
    shown = "".join(stream.add(event) for event in events)
    reply = stream.reply()
    assert shown == reply.message.text == "Hello"
    assert [(c.id, c.arguments) for c in reply.message.tool_calls] == [
        ("a", {"x": 1}), ("b", {}), ("c", '{"cut'),
    ]  # fmt: skip
    assert list(reply.message.extra["thinking"]) == [THINKING]
    assert reply.usage == Usage(9, 4)
    assert stream.finished
    assert stream.nothing_follows


def test_a_stream_without_a_stop_reason_is_cut_off():
    stream = MessageStream(ASK, "m")
    stream.add(block(0, "text", text="half"))
    with pytest.raises(ModelError) as caught:
        stream.reply()
    assert (caught.value.code, caught.value.partial) == ("truncated", "half")


@pytest.mark.parametrize(
    ("event", "code", "retryable"),
    [
        ("x", "corrupt", True),
        ({}, "corrupt", True),
        (block(0, "text") | {"content_block": 3}, "corrupt", True),
        (delta(7, text="x"), "corrupt", True),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
         "rate_limited", True),
        ({"type": "error", "error": {"type": "api_error", "message": "x"}}, "server_error", True),
        ({"type": "error", "error": {"type": "invalid_request_error"}}, "bad_request", False),
    ],
)  # fmt: skip
def test_bad_events(event, code, retryable):
    with pytest.raises(ModelError) as caught:
        MessageStream(ASK, "m").add(event)
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
