"""verify, backup, restore, compact, export, import, retention, and their commands."""

import asyncio
import io
import json
import os
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from keepwell.actors import failpoint as failpoints
from keepwell.actors.errors import InvalidValue
from keepwell.cli import main
from keepwell.stores import (
    AppendConflict,
    Appended,
    CursorConflict,
    DamagedStore,
    DiskStore,
    ForeignFormat,
    MemoryStore,
    NoCounter,
    StaleEpoch,
    StoreError,
    StoreInUse,
)
from keepwell.stores.backup import backup, compact, restore
from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.integrity import DATA
from keepwell.stores.record import NewRecord
from keepwell.stores.request import Append, Clear
from keepwell.stores.retention import Retention, apply_retention
from keepwell.stores.row import ROW_KEY
from keepwell.stores.transfer import InvalidExport, export, import_lines
from keepwell.stores.verify import check, verify
from keepwell.testing.store_contract import LOSSLESS, ODD_IDS, CharacterCounter, user, users


def filled(path: Path, records: int = 100) -> DiskEngine:
    engine = DiskEngine(path, durability="process")
    for i in range(records):
        engine.commit([Append(f"c{i % 3}", users(f"text {i}"), append_id=f"k{i}",
                              counter=CharacterCounter())])
    return engine


def contents(engine: DiskEngine) -> dict[str, list[Any]]:
    return {info.conversation_id: [m.to_dict() for m in engine.get(info.conversation_id)]
            for info in engine.conversations(limit=1000)}


# -- verify ---------------------------------------------------------------------------------------


def test_verify_counts_what_is_there(tmp_path: Path) -> None:
    engine = filled(tmp_path, 100)
    seen: list[int] = []
    report = verify(engine, seen.append)
    assert (report.conversations, report.records, report.messages) == (3, 100, 100)
    assert (report.tokens, seen[-1]) == (sum(len(f"text {i}") for i in range(100)), 100)
    assert not report.problems
    engine.settle()
    assert verify(engine).append_ids == 100
    engine.close()


@pytest.mark.parametrize("fault", ["gap", "last", "byte", "total"])
def test_verify_finds_what_is_wrong(tmp_path: Path, fault: str) -> None:
    engine = filled(tmp_path, 60)
    engine.settle()
    conversation, _ = engine.at("c1", 0)
    assert conversation is not None
    key = ROW_KEY.pack(conversation.number, 0, 20 if fault == "last" else 7)

    def spoil(txn: Any) -> bool:
        value = bytearray(txn.get(key, db=engine.tables.rows))
        if fault in ("gap", "last"):
            txn.delete(key, db=engine.tables.rows)
        else:
            value[-1 if fault == "byte" else 17] ^= 1
            txn.put(key, bytes(value), db=engine.tables.rows)
        return True

    engine.environment.write(spoil)
    problems = verify(engine).problems
    assert problems
    assert problems[0].conversation_id == "c1"
    assert problems[0].seq == (20 if fault == "last" else 7)
    with pytest.raises(DamagedStore):
        check(engine)
    engine.close()


# -- copies ---------------------------------------------------------------------------------------


def test_a_backup_beside_a_writer_is_one_moment_of_it(tmp_path: Path) -> None:
    engine = filled(tmp_path / "live")
    stop = threading.Event()
    committed = [0]

    def write() -> None:
        while not stop.is_set():
            engine.commit([Append("new", users(str(committed[0])))])
            committed[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while committed[0] < 5:
            pass
        for number in range(3):
            least = committed[0]
            backup(engine, tmp_path / f"copy{number}")
            most = committed[0] + 1
            copy = DiskEngine(tmp_path / f"copy{number}")
            assert not verify(copy).problems
            got = [m.content for m in copy.get("new")]
            assert got == [str(i) for i in range(len(got))]
            assert least <= len(got) <= most
            (answer,) = copy.commit([Append("c1", users("text 1"), append_id="k1")])
            assert answer.replayed  # append ids come along
            copy.close()
    finally:
        stop.set()
        writer.join()
        engine.close()


def test_restore_makes_the_same_store(tmp_path: Path) -> None:
    engine = filled(tmp_path / "live")
    expected = contents(engine)
    backup(engine, tmp_path / "copy")
    engine.close()
    restore(tmp_path / "copy", tmp_path / "again" / "deeper")
    again = DiskEngine(tmp_path / "again" / "deeper")
    assert contents(again) == expected
    again.close()
    assert (tmp_path / "again" / "deeper" / DATA).stat().st_mode & 0o777 == 0o600


def test_copies_never_overwrite(tmp_path: Path) -> None:
    engine = filled(tmp_path / "live", 10)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    with pytest.raises(StoreError, match="not empty"):
        backup(engine, tmp_path / "full")
    with pytest.raises(StoreError, match="not empty"):
        backup(engine, tmp_path / "live")
    engine.close()
    with pytest.raises(ForeignFormat):
        restore(tmp_path / "full", tmp_path / "new")
    assert os.listdir(tmp_path / "full") == ["mine"]


def test_compact_gives_free_pages_back(tmp_path: Path) -> None:
    engine = filled(tmp_path, 10)
    for i in range(50):
        engine.commit([Append("big", users("x" * 50_000 + str(i)))])
    engine.commit([Clear("big")])
    engine.settle()
    while engine.maintain():
        pass
    expected = contents(engine)
    with pytest.raises(StoreInUse):
        compact(tmp_path)
    engine.close()
    sizes = compact(tmp_path)
    assert sizes.after < sizes.before / 4
    engine = DiskEngine(tmp_path)
    assert contents(engine) == expected
    assert engine.info("big").epoch == 1
    engine.close()


def test_a_compact_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    engine = filled(tmp_path)
    expected = contents(engine)
    engine.close()
    with failpoints.active({"store.compact.copied": failpoints.raise_error}), \
            pytest.raises(StoreError):
        compact(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["data.mdb", "keepwell.lock", "lock.mdb"]
    engine = DiskEngine(tmp_path)
    assert contents(engine) == expected
    engine.close()


# -- export and import ----------------------------------------------------------------------------


def test_export_and_import_lose_nothing(tmp_path: Path) -> None:
    source = DiskEngine(tmp_path / "source", durability="process")
    for place, conversation_id in enumerate(ODD_IDS):
        message = LOSSLESS[place % len(LOSSLESS)]
        source.commit([Append(conversation_id, [
            NewRecord(message, "turn"), NewRecord(None, None, {"$odd": [1, {"$x": b"\x00"}]})],
            counter=CharacterCounter())])
        source.commit([Append(conversation_id, users("later"))])
    lines = list(export(source))
    for line in lines:
        json.loads(line)
        assert line.isascii()
    target = DiskEngine(tmp_path / "target", durability="process")
    for _ in range(2):  # running it again changes nothing
        done = import_lines(target, lines)
        assert (done.conversations, done.records) == (len(ODD_IDS), 3 * len(ODD_IDS))
    for conversation_id in ODD_IDS:
        ours, theirs = source.info(conversation_id), target.info(conversation_id)
        assert repr(ours) == repr(theirs)
        for one, other in zip(source.span(conversation_id, 0, 1, 3),
                              target.span(conversation_id, 0, 1, 3), strict=True):
            assert repr(one) == repr(other)
    assert not verify(target).problems
    target.settle()
    assert list(export(target)) == lines
    source.close()
    target.close()


def test_an_interrupted_import_goes_on(tmp_path: Path) -> None:
    source = filled(tmp_path / "source", 50)
    lines = list(export(source))
    target = DiskEngine(tmp_path / "target", durability="process")
    for cut in (20, 33):
        with pytest.raises(InvalidExport, match="cut short") as refused:
            import_lines(target, lines[:cut])
        assert refused.value.line == cut
    import_lines(target, lines)
    assert contents(target) == contents(source)
    target.commit([Append("d", users("mine"))])
    clash = list(export(target, prefix="d"))
    source.commit([Append("d", users("other"))])
    with pytest.raises(CursorConflict):
        import_lines(source, clash)
    source.close()
    target.close()


async def test_exactly_once_holds_across_export_and_import_cs15_16_17(tmp_path: Path) -> None:
    long_id = "long" * 100
    before: dict[tuple[str, str], Appended] = {}

    async def write(store: DiskStore) -> None:
        await store.add("d", users("old"), append_id="before")
        await store.clear("d")
        for conversation_id in ("c", "d"):
            for append_id, texts in (("one", "1"), (long_id, "two"), ("\ud83d\ude00", "x")):
                before[conversation_id, append_id] = await store.add(
                    conversation_id, users(*texts), append_id=append_id)
            await store.add(conversation_id, users("without"))
        await store.add("gone", users("g"), append_id="g")
        await store.clear("gone")
        await store.clear("gone")
        await store.add("keepwell:tmp:1", users("t"))
        await store.clear("keepwell:tmp:1")

    store = await DiskStore(tmp_path / "source", durability="process", counter=NoCounter()).spawn()
    await write(store)
    assert isinstance(store.port.engine, DiskEngine)
    lines = list(export(store.port.engine))  # all of it waits in the batch log
    await store.stop()
    moved = DiskEngine(tmp_path / "source", readonly=True)
    assert sorted(export(moved)) == sorted(lines)
    moved.close()
    assert not any("tmp" in line for line in lines)

    target = DiskEngine(tmp_path / "target", durability="process")
    for cut in range(2, len(lines), 3):
        with pytest.raises(InvalidExport):
            import_lines(target, lines[:cut])
    for _ in range(2):
        import_lines(target, lines)
    assert not verify(target).problems
    assert sorted(export(target)) == sorted(lines)
    target.settle()
    assert sorted(export(target)) == sorted(lines)
    target.close()

    copy = await DiskStore(tmp_path / "target", durability="process", counter=NoCounter()).spawn()
    try:
        for (conversation_id, append_id), first in before.items():
            texts = {"one": "1", long_id: "two"}.get(append_id, "x")
            again = await copy.add(conversation_id, users(*texts), append_id=append_id)
            assert again == Appended(first.first_seq, first.cursor, first.epoch, first.count, True)
            with pytest.raises(AppendConflict):
                await copy.add(conversation_id, users("other"), append_id=append_id)
        # Before the clear: a late retry writes nothing, and with the old epoch it is refused.
        assert (await copy.add("d", users("old"), append_id="before")).replayed
        with pytest.raises(StaleEpoch):
            await copy.add("gone", users("late"), epoch=1)
        assert (await copy.info("gone")).epoch == 2
        assert not (await copy.info("gone")).exists
        assert (await copy.add("gone", users("new"), epoch=2)).first_seq == 1
    finally:
        await copy.stop()


def test_an_import_keeps_an_id_only_with_all_of_its_records(tmp_path: Path) -> None:
    source = DiskEngine(tmp_path / "source", durability="process")
    source.commit([Append("c", users("1", "2", "3"), append_id="k")])
    lines = list(export(source))
    source.close()
    del lines[3]  # as --skip-damaged leaves a record out
    target = DiskEngine(tmp_path / "target", durability="process")
    import_lines(target, lines)
    assert [message.content for message in target.get("c")] == ["1", "3"]
    (answer,) = target.commit([Append("c", users("1", "2", "3"), append_id="k")])
    assert (answer.first_seq, answer.replayed) == (3, False)
    target.close()


def test_an_import_does_not_touch_what_a_conversation_holds_already(tmp_path: Path) -> None:
    source = filled(tmp_path / "source", 10)
    lines = list(export(source, prefix="c1"))
    source.close()
    target = DiskEngine(tmp_path / "target", durability="process")
    target.commit([Append("c1", users("mine"), append_id="k"), Clear("c1")])
    target.commit([Append("c1", users("mine"))])
    with pytest.raises(StaleEpoch):
        import_lines(target, lines)
    assert [message.content for message in target.get("c1")] == ["mine"]
    target.close()


def test_an_export_of_format_1_is_read(tmp_path: Path) -> None:
    source = filled(tmp_path / "source", 20)
    lines = [re.sub(r',"append":\{[^}]*\}|"epoch":0,', "", line) for line in export(source)]
    lines[0] = lines[0].replace("2", "1")
    del lines[-1]
    target = DiskEngine(tmp_path / "target", durability="process")
    import_lines(target, lines)
    assert contents(target) == contents(source)
    source.close()
    target.close()


HEAD = '{"keepwell":"conversations","format":2}\n'
RECORD = ('{"seq":1,"message":{"role":"user","content":"x"},"turn_id":null,"tokens":0,'
          '"counter":"none","time":"2026-01-01T00:00:00+00:00","mark":null}\n')


@pytest.mark.parametrize(("lines", "line"), [
    ([], 1), (["hello\n"], 1), (['{"a": 1}\n'], 1), (["[]\n"], 1),
    (['{"keepwell":"conversations","format":1}\n', '{"seq":1}\n'], 2),
    (['{"keepwell":"conversations","format":1}\n', '{"conversation":"c"}\n', '{"seq":1}\n'], 3),
    (['{"keepwell":"conversations","format":1}\n', '{"conversation":"c"}\n', "{tru\n"], 3),
    (['{"keepwell":"conversations","format":3}\n'], 1),
    ([HEAD, '{"conversation":"c","epoch":-1,"records":0}\n'], 2),
    ([HEAD, '{"conversation":"c","epoch":0,"records":1}\n', '{"append":{"id":"k"}}\n'], 3),
    ([HEAD, '{"conversation":"c","epoch":0,"records":1}\n',
      RECORD.replace("}\n", ',"append":{"id":"","records":1,"digest":"' + "0" * 32 + '"}}\n')], 3),
    ([HEAD, '{"conversation":"c","epoch":0,"records":1}\n',
      RECORD.replace("}\n", ',"append":{"id":"k","records":1,"digest":"00"}}\n')], 3)])
def test_what_is_no_export_is_refused_with_its_line(
    tmp_path: Path, lines: list[str], line: int
) -> None:
    engine = DiskEngine(tmp_path)
    with pytest.raises(InvalidExport) as refused:
        import_lines(engine, lines)
    assert refused.value.line == line
    assert engine.conversations() == ()
    engine.close()


def test_export_leaves_out_damaged_records_if_told_to_f08(tmp_path: Path) -> None:
    engine = filled(tmp_path, 30)
    engine.settle()
    engine.close()
    raw = (tmp_path / DATA).read_bytes()
    (tmp_path / DATA).write_bytes(raw.replace(b"text 10", b"texT 10"))
    engine = DiskEngine(tmp_path)
    with pytest.raises(DamagedStore):
        list(export(engine))
    left_out: list[DamagedStore] = []
    lines = list(export(engine, skip=left_out.append))
    assert [(d.conversation_id, d.seq) for d in left_out] == [("c1", 4)]
    assert len(lines) == 1 + 3 + 29 + 1
    engine.close()


# -- retention ------------------------------------------------------------------------------------


async def test_retention_by_age_and_count_fault_f10(tmp_path: Path) -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    engine = DiskEngine(tmp_path, durability="process")
    for age in range(10):
        request = Append(f"c{age}", users("question", "answer"), append_id="k")
        request.micros = int((now - timedelta(days=age)).timestamp() * 1e6)
        engine.commit([request])
    engine.close()
    store = await DiskStore(tmp_path, counter=NoCounter()).spawn()

    async def left() -> list[str]:
        return [info.conversation_id for info in await store.conversations()]

    assert await apply_retention(store, Retention(timedelta(days=100)), now=now) == 0
    assert await apply_retention(store, Retention(timedelta(days=7)), now=now) == 2
    assert await left() == [f"c{i}" for i in range(8)]
    assert await apply_retention(store, Retention(None, 5), now=now) == 3
    assert await apply_retention(store, Retention(timedelta(days=7), 4), now=now, prefix="c4") == 0
    assert await left() == [f"c{i}" for i in range(5)]
    assert [m.content for m in await store.get("c4")] == ["question", "answer"]
    assert (await store.info("c9")).epoch == 1
    assert await apply_retention(store, Retention(max_conversations=0), now=now) == 5
    assert await left() == []
    await store.stop()


async def test_retention_spares_what_is_used_meanwhile() -> None:
    store = await MemoryStore(counter=NoCounter()).spawn()
    await asyncio.gather(*(store.add(f"c{i}", users("x")) for i in range(5)))
    original = store.port.submit

    def submit(request: Any, timeout: float = 30) -> Any:
        if isinstance(request, Clear) and request.conversation_id == "c3":
            original(Append("c3", users("just now")))
        return original(request, timeout)

    store.port.submit = submit  # type: ignore[method-assign]  # lets a user come in between
    later = datetime.now(UTC) + timedelta(days=1)
    assert await apply_retention(store, Retention(timedelta(hours=1)), now=later) == 4
    assert [m.content for m in await store.get("c3")] == ["x", "just now"]
    await store.stop()


@pytest.mark.parametrize("bad", [{}, {"max_age": timedelta(-1)}, {"max_conversations": -1},
                                 {"max_conversations": True}])
def test_bad_retentions_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        Retention(**bad)


# -- commands -------------------------------------------------------------------------------------


def test_commands_read_while_a_service_owns_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import subprocess
    import sys

    script = ("import sys; from keepwell.stores.disk_engine import DiskEngine as E\n"
              "from keepwell.stores.request import Append\n"
              "e = E(sys.argv[1])\n"
              "e.commit([Append('c', [{'role': 'user', 'content': 'hi\\x1b[31m'}])])\n"
              "print('up', flush=True); sys.stdin.readline()")
    owner = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "d")], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    directory = str(tmp_path / "d")
    try:
        for command in (["info"], ["list"], ["verify"], ["show", "c"], ["export"],
                        ["backup", str(tmp_path / "copy")]):
            assert main(["store", command[0], directory, *command[1:]]) == 0
        out = capsys.readouterr().out
        assert f"{owner.pid}" in out
        assert "\x1b" not in out
        for command in (["compact"], ["import", os.devnull], ["prune", "--keep", "1"]):
            assert main(["store", command[0], directory, *command[1:]]) != 0
            error = capsys.readouterr().err
            assert str(owner.pid) in error
    finally:
        owner.communicate("\n", timeout=20)


def test_commands_write_json_and_move_stores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "d", 30).close()
    d = str(tmp_path / "d")

    def run(*command: str) -> str:
        assert main(["store", *command]) == 0
        return capsys.readouterr().out

    info = json.loads(run("info", d, "--json"))
    assert (info["conversations"], info["messages"], info["owner"]) == (3, 30, None)
    listed = [json.loads(line) for line in run("list", d, "--json", "--limit", "2").splitlines()]
    assert [item["conversation"] for item in listed] == ["c0", "c1"]
    lines = run("show", d, "c1", "--last", "2", "--json").splitlines()
    shown = [json.loads(line) for line in lines]
    assert [item["message"]["content"] for item in shown] == ["text 25", "text 28"]
    assert json.loads(run("verify", d, "--json"))["problems"] == []
    run("backup", d, str(tmp_path / "b"))
    run("restore", str(tmp_path / "r"), str(tmp_path / "b"))
    monkeypatch.setattr("sys.stdin", io.StringIO(run("export", str(tmp_path / "r"))))
    run("import", str(tmp_path / "i"))
    assert json.loads(run("compact", str(tmp_path / "i"), "--json"))["after"] > 0
    assert "2 conversations cleared" in run("prune", str(tmp_path / "i"), "--keep", "1")
    assert main(["store", "show", d, "nobody"]) == 1
    assert main(["store", "info", str(tmp_path / "missing")]) == 1
    assert user("x")["content"] == "x"


def test_a_file_that_cannot_be_opened_is_named_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "d", 3).close()
    kept, missing = tmp_path / "kept", tmp_path / "missing.jsonl"
    kept.write_text("mine")
    for command in (
        ["export", str(tmp_path / "d"), "--output", str(kept)],
        ["import", str(tmp_path / "new"), str(missing)],
    ):
        assert main(["store", *command]) == 2
        assert "Give another file." in capsys.readouterr().err
    assert kept.read_text() == "mine"
    assert not (tmp_path / "new").exists()
    assert main(["store", "export", str(tmp_path / "none"), "--output", str(missing)]) == 1
    assert not missing.exists()
