"""Token counters: exact, offline, linear, and never raising on what users write."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
import time

import pytest
import tiktoken
import tiktoken_ext.openai_public
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwell.actors.errors import InvalidValue
from keepwell.memory import token_counter as module
from keepwell.memory.token_counter import (
    VOCABULARIES,
    ApproxCounter,
    TiktokenCounter,
    VocabularyError,
    approx_token_count,
    load_encoding,
    token_counter,
)
from keepwell.memory.turn_text import MEDIA_TOKENS
from keepwell.stores.message import Message, ToolCall
from keepwell.stores.token_counter import TokenCounter

COUNTER = TiktokenCounter()


@pytest.mark.parametrize("name", VOCABULARIES)
def test_pattern_special_tokens_and_hash_are_tiktokens(name, monkeypatch):
    """Compared with tiktoken's own definition, its download replaced."""
    seen = {}

    def load(url: str, expected_hash: str) -> dict[bytes, int]:
        seen["hash"] = expected_hash
        return {}

    monkeypatch.setattr(tiktoken_ext.openai_public, "load_tiktoken_bpe", load)
    theirs = tiktoken_ext.openai_public.ENCODING_CONSTRUCTORS[name]()
    ours = VOCABULARIES[name]
    assert ours.pattern == theirs["pat_str"]
    assert ours.special_tokens == theirs["special_tokens"]
    assert ours.sha256 == seen["hash"]


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        # From tiktoken's own README and tests.
        ("cl100k_base", "hello world", [15339, 1917]),
        ("cl100k_base", "rer", [38149]),
        ("cl100k_base", "today\n \n", [31213, 27907]),
        ("o200k_base", "hello world", [24912, 2375]),
    ],
)
def test_known_ids(name, text, ids):
    assert load_encoding(name).encode_ordinary(text) == ids
    assert token_counter(name).count_text(text) == len(ids)


def test_special_tokens_are_plain_text():
    """F18."""
    text = "say <|endoftext|> and <|endofprompt|>"
    assert COUNTER.count_text(text) > COUNTER.count_text("say and") + 4
    assert (
        load_encoding("o200k_base").decode(load_encoding("o200k_base").encode_ordinary(text))
        == text
    )


@settings(max_examples=60)
@given(st.text(st.characters(codec=None)))
def test_any_text_is_counted(text):
    """Lone surrogates too; no text has more tokens than bytes."""
    count = COUNTER.count_text(text)
    assert (count > 0) == bool(text)
    assert count <= len(text.encode("utf-8", "surrogatepass"))
    assert COUNTER(text) == count


def test_a_message_is_its_text_and_its_calls():
    call = ToolCall("c1", "add", {"城市": "北京", "n": [1, 2]})
    message = Message("assistant", "let me see", [call, ToolCall("c2", "now", "")])
    text = 'let me see\nadd\n{"城市":"北京","n":[1,2]}\nnow\n'
    assert COUNTER.count_message(message) == COUNTER.count_text(text)
    assert COUNTER.count_message(Message("user", None)) == 0
    assert ApproxCounter().count_message(message) == approx_token_count(text)


def _media(payload: object) -> list[dict[str, object]]:
    data_url = f"data:image/png;base64,{payload}"
    return [
        {"type": "image_url", "image_url": {"url": data_url}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": payload}},
        {"type": "image", "data": payload},
        {"type": "input_audio", "input_audio": {"data": payload, "format": "wav"}},
        {"type": "file", "file": {"file_data": data_url, "filename": "a.pdf"}},
        {"type": "document", "source": {"type": "base64", "data": payload}},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
        {"type": "image", "file_id": "file-1"},
    ]


@pytest.mark.parametrize("part", _media("QUJD" * 250_000), ids=lambda part: part["type"])
@pytest.mark.parametrize("counter", [COUNTER, ApproxCounter()], ids=lambda c: c.name)
def test_media_have_a_flat_price(part, counter):
    """F23: a megabyte of base64 is not text, and not nothing; the text beside it is counted."""
    text = "word " * 200
    image = counter.count_message(Message("user", [part]))
    both = counter.count_message(Message("user", [{"type": "text", "text": text}, part]))
    assert MEDIA_TOKENS <= image < MEDIA_TOKENS + 100
    assert image + 150 < both < image + 300


def test_bytes_and_text_documents():
    raw = Message("user", [{"type": "image", "data": b"x" * 1_000_000}])
    assert MEDIA_TOKENS <= COUNTER.count_message(raw) < MEDIA_TOKENS + 100
    text = "word " * 1_000
    document = Message("user", [{"type": "document", "source": {"type": "text", "data": text}}])
    assert COUNTER.count_message(document) > 1_000
    result = [{"type": "tool_result", "content": [{"type": "image", "data": "A" * 100_000}]}]
    assert MEDIA_TOKENS <= COUNTER.count_message(Message("user", result)) < MEDIA_TOKENS + 100


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("abcd", 1), ("abcde", 2), ("你好世界", 1), ("a" * 4001, 1001)]
)
def test_approximation(text, count):
    """F3."""
    assert approx_token_count(text) == count


def test_names():
    assert token_counter().name == "o200k_base"
    assert token_counter("approx").name == "approx"
    for counter in (token_counter(), token_counter("approx")):
        assert isinstance(counter, TokenCounter)
    with pytest.raises(InvalidValue, match="'gpt2'; known: o200k_base, cl100k_base"):
        token_counter("gpt2")


@pytest.mark.parametrize(
    "unit", ["word ", " ", "a", "0", "\n", "中", "QUJDREVG", "😀", "/*-+", "\ud83d"], ids=repr
)
def test_cost_is_linear(unit):
    """Ten times the text costs about ten times the CPU, whatever the text is made of."""

    def seconds(size: int) -> float:
        text = (unit * (size // len(unit) + 1))[:size]
        best = float("inf")
        for _ in range(3):
            start = time.thread_time()
            COUNTER.count_text(text)
            best = min(best, time.thread_time() - start)
        return best

    COUNTER.load()
    # Linear gives 8, quadratic 64; the margin is for timers on a busy machine.
    assert seconds(160_000) < 28 * seconds(20_000) + 0.002


CHILD = """
    import socket, sys
    def refuse(*args, **kwargs):
        raise AssertionError("no network may be tried")
    socket.socket.connect = refuse
    socket.getaddrinfo = refuse
    from keepwell.memory.token_counter import TiktokenCounter
    import threading
    counts = []
    def count(): counts.append(TiktokenCounter().count_text("hello world"))
    threads = [threading.Thread(target=count)
               for _ in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert counts == [2, 2, 2, 2], counts
    print("tiktoken" in sys.modules, len(counts))
"""


def test_the_first_count_needs_no_network_and_no_home(tmp_path):
    """F24."""
    env = {k: v for k, v in os.environ.items() if "TIKTOKEN" not in k and "CACHE" not in k}
    env |= {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_altered_or_missing_vocabulary_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_loaded", {})
    monkeypatch.setattr(module.importlib.resources, "files", lambda package: tmp_path)
    with pytest.raises(VocabularyError, match="pip install"):
        load_encoding("cl100k_base")
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "cl100k_base.tiktoken.gz"
    file.write_bytes(gzip.compress(b"IQ== 0\n"))
    with pytest.raises(VocabularyError, match="not the published one"):
        load_encoding("cl100k_base")
    file.write_bytes(b"torn")
    with pytest.raises(VocabularyError, match="cannot be read"):
        load_encoding("cl100k_base")


def test_tiktoken_is_used_as_it_is():
    encoding = load_encoding("o200k_base")
    assert isinstance(encoding, tiktoken.Encoding)
    assert load_encoding("o200k_base") is encoding
    sample = json.dumps({"a": ["text", 1.5]}) * 20
    assert encoding.decode(encoding.encode_ordinary(sample)) == sample
