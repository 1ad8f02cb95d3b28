"""`keepwell store …`: looking after a directory of conversations.

`info`, `list`, `show`, `verify`, `export` and `backup` only read, and work while a service owns the
directory. `compact`, `import` and `prune` need it for themselves (StoreInUse names the owner).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TextIO

from .actors.errors import InvalidValue
from .stores.backup import compact, must_exist, restore
from .stores.disk_engine import FORMAT, DiskEngine
from .stores.disk_store import DiskStore
from .stores.environment import page_bytes
from .stores.errors import DamagedStore
from .stores.integrity import damage
from .stores.lock_file import owner_of
from .stores.log import LazyLog
from .stores.record import ConversationInfo, Record
from .stores.retention import Retention, apply_retention
from .stores.token_counter import NO_COUNTER
from .stores.transfer import export, import_lines
from .stores.verify import verify
from .terminal import table

OK, FAILED = 0, 1


def add_parser(commands: Any) -> None:
    """Add `store` and its subcommands to the command line."""
    store = commands.add_parser(
        "store", help="look after a directory of conversations",
        description="Shows, checks, copies and compacts what a DiskStore keeps in a directory.")
    actions = store.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def action(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Any:
        parser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        parser.add_argument("directory", type=Path, metavar="DIR", help="the store's directory")
        parser.set_defaults(module=".store_commands", action=run)
        return parser

    for name, text, run in (("info", "print totals, size and owner", _info),
                            ("verify", "walk everything and report what is wrong", _verify),
                            ("compact", "rewrite the file without free pages", _compact)):
        action(name, text, run).add_argument("--json", action="store_true", help="print JSON")
    listing = action("list", "list conversations", _list)
    listing.add_argument("--prefix", type=id_text, default="", help="only ids that begin so")
    listing.add_argument("--after", type=id_text, metavar="ID", help="go on after this id")
    listing.add_argument("--limit", type=int, default=100, help="at most so many (default 100)")
    listing.add_argument("--json", action="store_true", help="print JSON Lines")
    show = action("show", "print the records of a conversation", _show)
    show.add_argument("conversation", type=id_text, metavar="ID")
    show.add_argument("--last", type=int, metavar="N", help="only the newest N messages")
    show.add_argument("--marks", action="store_true", help="pure marks, too")
    show.add_argument("--json", action="store_true", help="print JSON Lines")
    copy = action("backup", "copy the store, as it is now, into a new directory", _backup)
    copy.add_argument("target", type=Path, metavar="TARGET")
    back = action("restore", "make the store of a backup, in a new directory", _restore)
    back.add_argument("source", type=Path, metavar="BACKUP")
    out = action("export", "write conversations as JSON Lines", _export)
    out.add_argument("--prefix", type=id_text, default="", help="only ids that begin so")
    out.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")
    out.add_argument("--skip-damaged", action="store_true", help="leave out damaged records")
    into = action("import", "store what export wrote", _import)
    into.add_argument("input", type=Path, nargs="?", metavar="FILE",
                      help="default: standard input")
    prune = action("prune", "clear old conversations, whole ones", _prune)
    prune.add_argument("--max-age", type=float, metavar="DAYS", help="last used longer ago")
    prune.add_argument("--keep", type=int, metavar="N", help="all but the N used last")
    prune.add_argument("--prefix", type=id_text, default="", help="only ids that begin so")


def id_text(argument: str) -> str:
    """An id, or the beginning of one, as UTF-8 whatever the locale (F43)."""
    return os.fsencode(argument).decode("utf-8", "surrogateescape")


def run(args: argparse.Namespace) -> int:
    """Run a subcommand; returns the exit code."""
    action: Callable[[argparse.Namespace], int] = args.action
    return action(args)


@contextmanager
def _opened(args: argparse.Namespace, *, readonly: bool = True) -> Iterator[DiskEngine]:
    engine = DiskEngine(args.directory, readonly=readonly)
    try:
        yield engine
    finally:
        engine.close()


class _Progress:
    """A line on a terminal's standard error that counts, ten times a second at most."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._shown = 0.0
        self._live = sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if self._live and now - self._shown > 0.1:
            self._shown = now
            print(f"\r{done:,} {self._unit}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _print_json(item: Any) -> None:
    print(json.dumps(item, ensure_ascii=False, default=str))


def _info(args: argparse.Namespace) -> int:
    with _opened(args) as engine:
        totals = {"conversations": 0, "messages": 0, "tokens": 0}
        for info in _all(engine, ""):
            totals["conversations"] += 1
            totals["messages"] += info.count
            totals["tokens"] += info.tokens
        figures = {"directory": engine.path, "format": FORMAT, **totals,
                   **page_bytes(engine.environment), "owner": owner_of(engine.path)}
    if args.json:
        _print_json(figures)
    else:
        for name, value in figures.items():
            text = f"{value:,}" if isinstance(value, int) and name not in ("owner", "format") \
                else "nobody" if value is None else value
            print(f"{name.replace('_', ' '):14} {text}")
    return OK


def _all(engine: DiskEngine, prefix: str) -> Iterator[ConversationInfo]:
    after: str | None = None
    while page := engine.conversations(prefix=prefix, after=after, limit=1000):
        yield from page
        after = page[-1].conversation_id


def _list(args: argparse.Namespace) -> int:
    with _opened(args) as engine:
        found: list[ConversationInfo] = []
        after = args.after
        while len(found) < args.limit:
            page = engine.conversations(prefix=args.prefix, after=after,
                                        limit=min(args.limit - len(found), 1000))
            if not page:
                break
            found += page
            after = page[-1].conversation_id
    if args.json:
        for info in found:
            _print_json({"conversation": info.conversation_id, "messages": info.count,
                         "tokens": info.tokens, "cursor": info.cursor, "epoch": info.epoch,
                         "created": _iso(info.created), "updated": _iso(info.updated)})
    else:
        rows = [[_safe(info.conversation_id), f"{info.count:,}", f"{info.tokens:,}",
                 (_iso(info.updated) or "")[:19]] for info in found]
        print(table(["conversation", "messages", "tokens", "updated (UTC)"], rows,
                    numbers=(1, 2)))
    return OK


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _safe(text: str) -> str:
    """A text of a user's on the terminal: one line, no escapes."""
    return text if text.isprintable() else repr(text)


def _show(args: argparse.Namespace) -> int:
    with _opened(args) as engine:
        log = LazyLog.of(engine, lambda: engine, args.conversation, args.last, None, args.marks)
        if not log.cursor:
            print(f"keepwell: there is no conversation {args.conversation!r}", file=sys.stderr)
            return FAILED
        for record in log:
            if args.json:
                _print_json(_as_json(record))
            else:
                print(_line(record))
    return OK


def _as_json(record: Record) -> dict[str, Any]:
    return {"seq": record.seq, "time": record.time.isoformat(), "turn_id": record.turn_id,
            "tokens": record.tokens, "mark": record.mark,
            "message": None if record.message is None else record.message.to_dict()}


def _line(record: Record) -> str:
    head = f"{record.seq:>6}  {record.time.isoformat()[:19]}  "
    message = record.message
    if message is None:
        return f"{head}{'(mark)':9}  {_safe(str(dict(record.mark or {})))}"
    text = message.content if isinstance(message.content, str) else \
        "" if message.content is None else f"[{len(message.content)} parts] {message.text}"
    calls = "".join(f" {call.name}({_short(call.arguments)})" for call in message.tool_calls)
    return f"{head}{message.role:9}  {_short(text)}{calls}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    line = " ".join(text.split())
    line = line if len(line) <= 200 else line[:199] + "…"
    return line if line.isprintable() else repr(line)


def _verify(args: argparse.Namespace) -> int:
    progress = _Progress("records")
    must_exist(args.directory)
    if owner_of(args.directory) is None:  # else the file changes under the walk
        why = damage(args.directory, whole=True)
        if why:
            raise DamagedStore(str(args.directory), why)
    with _opened(args) as engine:
        report = verify(engine, progress)
    progress.end()
    figures = {name: getattr(report, name) for name in
               ("conversations", "records", "messages", "tokens", "bytes", "append_ids")}
    if args.json:
        _print_json({**figures, "problems": [str(problem) for problem in report.problems]})
    else:
        print(", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in figures.items()))
        for problem in report.problems:
            print(f"  {problem}")
        print("sound" if not report.problems else f"{len(report.problems)} problems")
    return FAILED if report.problems else OK


def _compact(args: argparse.Namespace) -> int:
    sizes = compact(args.directory)
    if args.json:
        _print_json({"before": sizes.before, "after": sizes.after})
    else:
        print(f"{sizes.before:,} bytes before, {sizes.after:,} after")
    return OK


def _backup(args: argparse.Namespace) -> int:
    print(f"{restore(args.directory, args.target):,} bytes in {args.target}")
    return OK


def _restore(args: argparse.Namespace) -> int:
    print(f"{restore(args.source, args.directory):,} bytes in {args.directory}")
    return OK


@contextmanager
def _file(path: Path | None, mode: Literal["r", "x"], standard: TextIO) -> Iterator[TextIO]:
    if path is None:
        yield standard
        return
    try:
        file = path.open(mode, encoding="utf-8")
    except OSError as problem:
        raise InvalidValue(
            f"{str(path)!r} cannot be opened: {problem.strerror}. Give another file."
        ) from problem
    with file:
        yield file


def _export(args: argparse.Namespace) -> int:
    left_out: list[DamagedStore] = []
    progress = _Progress("lines")
    try:
        with _opened(args) as engine, _file(args.output, "x", sys.stdout) as out:
            skip = left_out.append if args.skip_damaged else None
            for count, line in enumerate(export(engine, prefix=args.prefix, skip=skip), 1):
                out.write(line)
                progress(count)
    finally:
        progress.end()
    for problem in left_out:
        print(f"keepwell: left out: {problem}", file=sys.stderr)
    return FAILED if left_out else OK


def _import(args: argparse.Namespace) -> int:
    progress = _Progress("records")
    try:
        with _file(args.input, "r", sys.stdin) as lines, _opened(args, readonly=False) as engine:
            done = import_lines(engine, lines, progress)
            engine.settle()
    finally:
        progress.end()
    print(f"{done.conversations:,} conversations, {done.records:,} records")
    return OK


def _prune(args: argparse.Namespace) -> int:
    age = None if args.max_age is None else timedelta(days=args.max_age)
    retention = Retention(age, args.keep)
    must_exist(args.directory)

    async def prune() -> int:
        store = await DiskStore(args.directory, counter=NO_COUNTER).spawn()
        try:
            return await apply_retention(store, retention, prefix=args.prefix)
        finally:
            await store.stop()

    print(f"{asyncio.run(prune()):,} conversations cleared")
    return OK
