"""The words of texts, and the index of them: it follows the log, and survives whatever happens."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepwell.actors import failpoint
from keepwell.memory import search_index
from keepwell.memory.search_index import FILE, FullTextSearchMissing, SearchIndex
from keepwell.memory.search_terms import MAX_QUERY_TERMS, match_expression, search_terms
from keepwell.stores import MemoryStore, NoCounter, StaleEpoch


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore(counter=NoCounter()).start()
    yield store
    store.stop().get()


def say(store: MemoryStore, conversation_id: str, *texts: str) -> Any:
    """The log after these user messages."""
    store.add(conversation_id, [{"role": "user", "content": text} for text in texts]).get()
    return store.read(conversation_id).get()


def found(index: SearchIndex, log: Any, text: str, upto: int = 1_000) -> list[int]:
    hits = index.search("c", log.epoch, text, upto=upto, limit=10)
    assert all(hit.score > 0 for hit in hits)
    return sorted(hit.place for hit in hits)


# -- terms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "terms"), [
    ("", []), ("?!, …", []), ("___", []), ("Rex's dog", ["rex", "s", "dog"]),
    ("snake_case x2", ["snake", "case", "x2"]), ("STRASSE Straße", ["strasse", "strasse"]),
    ("e\u0301te\u0301 été", ["été", "été"]), ("ﬁne ①", ["fine", "1"]),
    ("我的狗叫Rex", ["我的", "的狗", "狗叫", "rex"]), ("茶", ["茶"]),
    ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
    ("\ud800x\0y", ["x", "y"]), ("naïve-café", ["naïve", "café"]),
])  # fmt: skip
def test_the_terms_of_a_text(text: str, terms: list[str]) -> None:
    assert list(search_terms(text)) == terms


def test_a_pasted_page_is_searched_by_its_first_words() -> None:
    expression = match_expression(" ".join(f"w{n}" for n in range(1_000)) + " w0")
    assert expression is not None and expression.count(" OR ") == MAX_QUERY_TERMS - 1


SYNTAX = ['"', "'", "*", "(", ")", "AND", "OR", "NOT", "NEAR", ":", "^", "-", "+", "terms:", "{",
          "}", "dog", "\0", "\ud800", "狗", ";", "--", "%", "\\", " "]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(SYNTAX), max_size=12).map("".join),
                 st.lists(st.sampled_from(SYNTAX), max_size=12).map(" ".join)))  # fmt: skip
def test_a_text_is_never_syntax(text: str) -> None:
    """Whatever a user writes, the query is its words: it finds what has one of them, no other."""
    index = _index_of_three()
    hits = {hit.place for hit in index.search("c", 0, text, upto=3, limit=10)}
    words = set(search_terms(text))
    assert hits == {place for place, word in enumerate(("dog", "near", "狗")) if word in words}


_shared: list[SearchIndex] = []


def _index_of_three() -> SearchIndex:
    if not _shared:
        store = MemoryStore(counter=NoCounter()).start()
        index = SearchIndex(None)
        index.catch_up("c", say(store, "c", "dog", "near", "狗"), 10)
        store.stop().get()
        _shared.append(index)
    return _shared[0]


# -- following the log ----------------------------------------------------------------------------


def test_it_follows_the_log_and_indexes_nothing_twice(store: MemoryStore) -> None:
    index = SearchIndex(None)
    log = say(store, "c", "the dog is Rex", "tea or coffee?")
    assert index.catch_up("c", log, 1) == 1
    assert found(index, log, "dog") == [0] and found(index, log, "tea") == []
    for _ in range(3):
        assert index.catch_up("c", log, 10) == 0
    later = say(store, "c", "dogs are fine")
    assert index.catch_up("c", later, 10) == 0
    assert index.catch_up("c", log, 10) == 0, "an older view of the log changes nothing"
    assert found(index, later, "dog") == [0, 2]
    assert found(index, later, "dog", upto=2) == [0]
    (mark,) = index.watermarks()
    assert (mark.conversation_id, mark.indexed) == ("c", 3)


def test_conversations_are_apart(store: MemoryStore) -> None:
    index = SearchIndex(None)
    ids = ["c", "C", "c\0", "c'; DROP TABLE messages; --", "é", "e\u0301", "x" * 5_000]
    for number, name in enumerate(ids):
        index.catch_up(name, say(store, name, f"dog w{number}"), 10)
    for number, name in enumerate(ids):
        assert [h.place for h in index.search(name, 0, f"w{number}", upto=9, limit=9)] == [0]
        assert index.search(name, 0, f"w{number + 1}", upto=9, limit=9) == ()
    assert {mark.conversation_id for mark in index.watermarks()} == set(ids)
    index.forget("c")
    index.forget("never seen")
    assert index.search("c", 0, "dog", upto=9, limit=9) == ()
    assert len(index.search("C", 0, "dog", upto=9, limit=9)) == 1


def test_a_clear_is_followed(store: MemoryStore) -> None:
    index = SearchIndex(None)
    old = say(store, "c", "the dog is Rex", "secret")
    index.catch_up("c", old, 10)
    store.clear("c").get()
    new = say(store, "c", "a cat", "another", "third")
    with pytest.raises(StaleEpoch):
        SearchIndex(None).catch_up("c", old, 10)
    assert found(index, new, "dog") == [], "nothing of another epoch is found"
    assert index.catch_up("c", new, 10) == 0
    assert found(index, new, "dog secret") == [] and found(index, new, "cat") == [0]
    assert index.catch_up("c", old, 10) == 0, "an old log does not bring back what was cleared"
    assert found(index, new, "cat") == [0]
    rows = index._db.execute("SELECT count(*) FROM messages").fetchone()[0]
    assert rows == 3


def test_a_log_that_was_written_anew_is_indexed_anew(store: MemoryStore) -> None:
    """As after a backup was restored: the same epoch, other records."""
    index = SearchIndex(None)
    index.catch_up("c", say(store, "c", "the dog is Rex", "tea"), 10)
    other = MemoryStore(counter=NoCounter()).start()
    restored = say(other, "c", "a cat", "another", "third")
    assert index.catch_up("c", restored, 10) == 0
    assert found(index, restored, "dog tea") == [] and found(index, restored, "cat") == [0]
    other.stop().get()


def test_what_is_indexed(store: MemoryStore) -> None:
    index = SearchIndex(None)
    call = {"id": "1", "name": "look_up", "arguments": {"city": "Lisbon"}}
    store.add("c", [
        {"role": "system", "content": "always shown"}, {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny \ud800", "tool_call_id": "1"},
        {"role": "user", "content": [{"type": "text", "text": "parts"}]},
        {"role": "user", "content": "x" * 20_000 + " beyond"},
    ]).get()  # fmt: skip
    log = store.read("c").get()
    index.catch_up("c", log, 100)
    assert found(index, log, "always shown beyond") == []
    assert found(index, log, "lisbon") == [2] and found(index, log, "look up") == [2]
    assert found(index, log, "sunny") == [3] and found(index, log, "parts") == [4]


# -- the file -------------------------------------------------------------------------------------


def test_the_file_is_the_owners_only(tmp_path: Path, store: MemoryStore) -> None:
    index = SearchIndex(tmp_path / "a" / "index")
    index.catch_up("c", say(store, "c", "dog"), 10)
    assert stat.S_IMODE((tmp_path / "a" / "index").stat().st_mode) == 0o700
    for file in (tmp_path / "a" / "index").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    index.close()


@pytest.mark.parametrize(
    "damage", ["missing", "garbled", "cut", "empty", "other format", "foreign"]
)
def test_a_damaged_index_is_made_again(tmp_path: Path, store: MemoryStore, damage: str) -> None:
    index = SearchIndex(tmp_path)
    log = say(store, "c", *(f"dog number {n} {'x' * 200}" for n in range(200)))
    assert index.catch_up("c", log, 1_000) == 0
    index.close()
    file = tmp_path / FILE
    size = file.stat().st_size
    if damage == "missing":
        file.unlink()
    elif damage == "garbled":
        file.write_bytes(b"\xa5" * size)
    elif damage == "cut":
        os.truncate(file, size // 2)
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        db = sqlite3.connect(file)
        db.execute("PRAGMA user_version = 99" if damage == "other format"
                   else "DROP TABLE conversations")  # fmt: skip
        db.commit()
        db.close()
    try:
        index = SearchIndex(tmp_path)
        index.catch_up("c", log, 1_000)
        found(index, log, "dog")
    except sqlite3.Error as error:
        assert search_index.is_damage(error)
        index.rebuild()
    assert index.catch_up("c", log, 1_000) == 0
    assert len(index.search("c", 0, "dog", upto=200, limit=500)) == 200
    index.close()


def test_a_step_is_whole_or_absent(tmp_path: Path, store: MemoryStore) -> None:
    index = SearchIndex(tmp_path)
    log = say(store, "c", *(f"dog {n}" for n in range(1_200)))
    for point, indexed in (("recall.commit.before", 500), ("recall.commit.after", 1_000)):
        action = failpoint.on_hit(1 if point.endswith("after") else 2, failpoint.raise_error)
        with failpoint.active({point: action}), pytest.raises(failpoint.FailpointError):
            index.catch_up("c", log, 10_000)
        assert index.watermarks()[0].indexed == indexed
    index.close()
    index = SearchIndex(tmp_path)
    assert index.catch_up("c", log, 10_000) == 0
    assert len(index.search("c", 0, "dog", upto=2_000, limit=5_000)) == 1_200
    index.close()


def test_without_full_text_search_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> Any:
            if "fts5" in sql:
                raise sqlite3.OperationalError("no such module: fts5")
            return super().execute(sql, *args)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Without))
    with pytest.raises(FullTextSearchMissing, match=r"FTS5.*use a Python whose sqlite3"):
        SearchIndex(None)
