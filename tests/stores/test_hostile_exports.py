"""Files that no export wrote: refused with their line, and nothing of the line stored (CS-12)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors.errors import InvalidValue
from keepwell.cli import main
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.transfer import InvalidExport, export, import_lines
from keepwell.stores.verify import verify

DIGEST = "0" * 32
LINES: list[dict[str, Any]] = [
    {"keepwell": "conversations", "format": 2},
    {"conversation": "c", "epoch": 1, "records": 2},
    {"append": {"id": "old", "records": 1, "digest": DIGEST, "epoch": 0, "first_seq": 1}},
    {"seq": 1, "message": {"role": "user", "content": "a"}, "turn_id": None, "tokens": 1,
     "counter": "none", "time": "2026-01-01T00:00:00+00:00", "mark": {"k": 1},
     "append": {"id": "k", "records": 2, "digest": DIGEST}},
    {"seq": 2, "message": {"role": "user", "content": "b"}, "turn_id": None, "tokens": 1,
     "counter": "none", "time": "2026-01-01T00:00:00+00:00", "mark": None},
    {"end": True},
]  # fmt: skip


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


HOSTILE: list[tuple[int, tuple[str, ...], Any]] = [
    (1, ("epoch",), 2**32 - 1),  # it could never be cleared
    (1, ("epoch",), 2**64),
    (2, ("append", "id"), ""),
    (2, ("append", "id"), {"$bytes": "AAAA"}),
    (2, ("append", "id"), deep(900)),
    (2, ("append", "records"), 2**32),
    (2, ("append", "epoch"), -1),
    (2, ("append", "epoch"), True),
    (2, ("append", "first_seq"), 0),
    (3, ("append", "records"), 2**64),
    (3, ("message",), deep(900)),
    (3, ("mark",), {"k": deep(900)}),
    (3, ("tokens",), -1),
    (3, ("tokens",), 2**32),
    (3, ("tokens",), "1"),
    (3, ("time",), "0001-01-01T00:00:00+00:00"),
    (3, ("time",), "9999-12-31T23:59:59-23:59"),
    (4, ("seq",), "2"),
    (4, ("seq",), None),
    (4, ("seq",), 1),  # twice the same record
]


@pytest.mark.parametrize(
    ("place", "path", "value"), HOSTILE, ids=[f"{n}" for n in range(len(HOSTILE))]
)
def test_a_value_that_no_export_writes_is_refused_with_its_line_cs12(
    tmp_path: Path, place: int, path: tuple[str, ...], value: Any
) -> None:
    lines = [json.loads(json.dumps(item)) for item in LINES]
    target = lines[place]
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    engine = DiskEngine(tmp_path, durability="process")
    with pytest.raises(InvalidExport) as refused:
        import_lines(engine, [json.dumps(item) for item in lines])
    assert refused.value.line == place + 1
    # What was refused keeps nobody from importing the file as it should be.
    import_lines(engine, [json.dumps(item) for item in LINES])
    assert [record.seq for record in engine.span("c", 1, 1, 2)] == [1, 2]
    assert not verify(engine).problems
    engine.close()


def test_a_long_append_id_from_before_a_clear_is_known_by_its_hash_cs16(tmp_path: Path) -> None:
    lines = [json.loads(json.dumps(item)) for item in LINES]
    lines[2]["append"]["id"] = "i" * 1000
    engine = DiskEngine(tmp_path, durability="process")
    import_lines(engine, [json.dumps(item) for item in lines])
    (_, _, old, *_) = map(json.loads, export(engine))
    assert set(old["append"]["id"]) == {"$bytes"}
    engine.close()


def test_more_token_counters_than_a_store_knows_are_refused_by_a_typed_error(
    tmp_path: Path,
) -> None:
    items = [{**LINES[4], "seq": n, "counter": f"counter {n}"} for n in range(1, 300)]
    lines = [json.dumps(item) for item in (*LINES[:2], *items, LINES[-1])]
    engine = DiskEngine(tmp_path, durability="process")
    with pytest.raises(InvalidValue, match="255 token counters"):
        import_lines(engine, lines)
    assert not verify(engine).problems
    engine.close()


def test_a_file_that_is_no_text_is_refused_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00\x01" * 100)
    DiskEngine(tmp_path / "data").close()
    assert main(["store", "import", str(tmp_path / "data"), str(file)]) != 0
    assert "UTF-8" in capsys.readouterr().err
