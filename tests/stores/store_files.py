"""What tests of a store's files share: filling a store, what is in it, the bytes on disk."""

from pathlib import Path
from typing import Any

from keepwell.stores.disk_engine import DiskEngine
from keepwell.stores.request import Append
from keepwell.testing.store_contract import users

ROOT = Path(__file__).parents[2]


def fill(path: Path, records: int = 300, size: int = 50, **settings: Any) -> None:
    engine = DiskEngine(path, **settings)
    for i in range(records):
        engine.commit([Append(f"c{i % 7}", users(f"{i:06}" + "x" * size), append_id=f"k{i}")])
    engine.close()


def contents(path: Path, **settings: Any) -> dict[str, list[Any]]:
    engine = DiskEngine(path, **settings)
    try:
        return {
            info.conversation_id: [m.content for m in engine.get(info.conversation_id)]
            for info in engine.conversations(limit=1000)
        }
    finally:
        engine.close()


def snapshot(path: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name != "lock.mdb" and p.name != "keepwell.lock"
    }
