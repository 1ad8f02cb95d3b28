"""`keepwell demo`: the main job, with a real store, a real crash and a real SIGKILL.

Everything that it claims is read back from the log, the supervision tree or the tools' ledger; a
claim that does not hold ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from . import demo_story as story
from .actors import failpoint, telemetry
from .agent.agent import Agent
from .agent.events import ModelEnded, TextDelta, ToolEnded, ToolStarted, TurnEnded
from .agent.result import TurnResult
from .agent.spec import AgentSpec
from .demo_child import TURN_ID
from .runtime import Runtime
from .terminal import Style, style_for

CHILD_SECONDS = 90.0
"""How long the other process may take to reach the middle of its turn; it loads a model."""


class _Stage:
    """Where the demo prints to, and what it has claimed."""

    def __init__(self, style: Style, quiet: bool, directory: Path) -> None:
        self.style = style
        # A directory may be used again: each run has a conversation and a ledger of its own.
        self.conversation_id = f"demo-{uuid.uuid4().hex[:8]}"
        self.data_dir = directory / "data"
        self.ledger = directory / f"{self.conversation_id}.jsonl"
        self.quiet = quiet
        self.failed: list[str] = []
        self.claims = 0

    def print(self, text: str = "", end: str = "\n") -> None:
        if not self.quiet:
            print(text, end=end, flush=True)

    def chapter(self, title: str) -> None:
        self.print(f"\n{self.style.bold(title)}")

    def event(self, text: str) -> None:
        self.print(f"  {self.style.dim('· ' + text)}")

    def claim(self, text: str, holds: bool, found: object = "") -> None:
        self.claims += 1
        mark = self.style.green("ok  ") if holds else self.style.red("FAIL")
        self.print(f"  {mark} {text}" + ("" if holds else f": found {found}"))
        if not holds:
            self.failed.append(f"{text}: found {found}")


def run(args: argparse.Namespace) -> int:
    """Tell the story; 0 if every claim held, else 1."""
    started = time.monotonic()
    with ExitStack() as stack:
        if args.data_dir is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keepwell-")))
        else:
            directory = args.data_dir
            directory.mkdir(parents=True, exist_ok=True)
        stage = _Stage(style_for(), args.json, directory)
        stack.enter_context(_quiet_reports())
        figures = asyncio.run(_tell(stage, args.model))
    figures["seconds"] = round(time.monotonic() - started, 1)
    figures["claims"], figures["claims_failed"] = stage.claims, len(stage.failed)
    if args.json:
        print(json.dumps(figures))
    else:
        line = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in figures.items())
        stage.print(f"\n{stage.style.bold(line)}")
    for failure in stage.failed:
        print(f"{style_for(sys.stderr).red('failed:')} {failure}", file=sys.stderr)
    return 1 if stage.failed else 0


async def _tell(stage: _Stage, wanted: str | None) -> dict[str, Any]:
    model, what = await asyncio.to_thread(story.choose_model, wanted)
    name = "scripted" if model.name == "scripted" else wanted or "local"
    note = story.ledger(stage.ledger)
    figures: dict[str, Any] = {}
    stage.print(f"{stage.style.bold('keepwell demo')}: agents may crash; conversations may not.")
    stage.print(f"  the model is {what}")
    try:
        async with Runtime(data_dir=stage.data_dir) as runtime:
            agent = await runtime.spawn(story.spec(model, note), stage.conversation_id)
            await _conversation(stage, runtime, agent)
            await _store_crash(stage, runtime, agent)
            known = [story.record_key(record) for record in await _log(stage, runtime)]
        known = list(dict.fromkeys([*known, *await _killed_process(stage, name)]))
        async with Runtime(data_dir=stage.data_dir) as runtime:
            await _resumed(stage, runtime, story.spec(model, note), known, figures)
    finally:
        close = getattr(model, "aclose", None)
        if close is not None:
            await close()
    return figures


# -- one: a conversation -----------------------------------------------------------------------


async def _conversation(stage: _Stage, runtime: Runtime, agent: Agent) -> None:
    stage.chapter("1. A conversation, each step on disk before it is shown")
    results = [await _turn(stage, agent, question) for question in story.QUESTIONS]
    stage.claim("every turn has ended", all(result.status == "completed" for result in results))
    records = await _log(stage, runtime)
    stage.claim(
        f"the log holds {len(records)} records, numbered without a gap",
        [record.seq for record in records] == list(range(1, len(records) + 1)),
        [record.seq for record in records],
    )
    ran = [step for result in results for step in result.steps if _ran(step)]
    effects = _effects(stage.ledger)
    stage.claim(
        f"{len(ran)} tool calls in the log, {len(effects)} side effects outside: the same",
        len(ran) == len(effects),
        f"{[step.name for step in ran]} and {effects}",
    )


def _ran(step: Any) -> bool:
    return step.kind == "tool" and step.error in (None, "interrupted")


async def _turn(stage: _Stage, agent: Agent, question: str) -> TurnResult:
    stage.print(f"  {stage.style.cyan('user')}       {question}")
    result: TurnResult | None = None
    speaking = False
    async for event in agent.stream(question):
        if isinstance(event, TextDelta):
            if not speaking:
                stage.print(f"  {stage.style.cyan('assistant')}  ", end="")
                speaking = True
            stage.print(event.text.replace("\n", " "), end="")
        elif isinstance(event, ModelEnded) and speaking:
            stage.print()
            speaking = False
        elif isinstance(event, ToolStarted):
            call = f"{event.name}({_shown(event.arguments)})"
            stage.print(f"  {stage.style.cyan('tool')}       {call}")
        elif isinstance(event, ToolEnded):
            stage.print(f"  {stage.style.cyan('result')}     {event.content[:100]}")
        elif isinstance(event, TurnEnded):
            result = event.result
    assert result is not None  # a stream ends with TurnEnded or raises
    return result


def _shown(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    items = arguments.items() if isinstance(arguments, Mapping) else ()
    return ", ".join(f"{key}={value!r}" for key, value in items)


# -- two: the store crashes --------------------------------------------------------------------


async def _store_crash(stage: _Stage, runtime: Runtime, agent: Agent) -> None:
    stage.chapter("2. The store crashes in the middle of an append")
    stage.print(await _indented(runtime))
    seen: list[str] = []
    loop = asyncio.get_running_loop()

    def watch(event: str, fields: Any) -> None:
        reason = fields.get("reason")
        line = event.removeprefix("keepwell.") + (f": {reason!r}" if reason is not None else "")
        seen.append(event)
        loop.call_soon_threadsafe(stage.event, line)

    def crash() -> None:
        raise OSError("the demo pulls the plug between write and flush")

    old = runtime.store.port.ref
    count = len(await _log(stage, runtime))
    points = {"store.commit.before_flush": failpoint.on_hit(2, crash)}
    with (
        telemetry.attach("keepwell.actor.crashed", watch),
        telemetry.attach("keepwell.supervisor.", watch),
        telemetry.attach("keepwell.store.opened", watch),
        failpoint.active(points) as hits,
    ):
        result = await _turn(stage, agent, story.CRASH_QUESTION)
        reached = hits.get("store.commit.before_flush", 0)
    stage.print(await _indented(runtime))
    stage.claim("the store actor crashed and another one serves", runtime.store.port.ref is not old)
    stage.claim("the failing append was the second of the turn", reached >= 2, reached)
    stage.claim("the answer arrived all the same", result.status == "completed", result.status)
    added = (await _log(stage, runtime))[count:]
    stage.claim(
        "every record of the turn is in the log once",
        len(added) == len({story.record_key(r) for r in added})
        and [r.message.to_dict() for r in added if r.message is not None]
        == [message.to_dict() for message in result.messages],
        [r.seq for r in added],
    )


async def _indented(runtime: Runtime) -> str:
    text = await story.settled_tree(runtime)
    return "\n".join("    " + line for line in text.splitlines())


@contextmanager
def _quiet_reports() -> Iterator[None]:
    """Keep what the library logs off the terminal: the story tells of it."""
    logger = logging.getLogger("keepwell")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


# -- three: the process dies -------------------------------------------------------------------


async def _killed_process(stage: _Stage, model: str) -> list[str]:
    """Let another process begin a turn, kill it, and return the records it had acknowledged."""
    stage.chapter("3. Another process takes over, and is killed in the middle of a turn")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"{__package__}.demo_child", str(stage.data_dir), str(stage.ledger),
        stage.conversation_id, model, stdout=asyncio.subprocess.PIPE, env=_environment(),
        limit=1 << 24,
    )  # fmt: skip
    assert process.stdout is not None
    acknowledged: dict[str, None] = {}
    where = None
    try:
        async with asyncio.timeout(CHILD_SECONDS):
            while line := await process.stdout.readline():
                said = json.loads(line)
                if "record" in said:
                    acknowledged[said["record"]] = None
                if "ready" in said:
                    where = said["ready"]
                    break
    except TimeoutError:
        pass
    stage.print(f"  {stage.style.cyan('user')}       {story.KILL_QUESTION}")
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
    code = await process.wait()
    stage.claim(
        f"process {process.pid} got SIGKILL {where or 'too early'}",
        where is not None and code == -signal.SIGKILL,
        f"exit code {code}",
    )
    return list(acknowledged)


def _environment() -> dict[str, str]:
    """The child's environment: it must find this very package, installed or in a checkout."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = filter(None, (root, os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


async def _resumed(
    stage: _Stage, runtime: Runtime, spec: AgentSpec, known: list[str], figures: dict[str, Any]
) -> None:
    stage.chapter("4. A new process opens the same directory")
    found = [story.record_key(record) for record in await _log(stage, runtime)]
    lost = [key for key in known if key not in set(found)]
    doubled = [key for key, count in Counter(found).items() if count > 1]
    stage.claim(f"all {len(known)} acknowledged records are there", not lost, lost)
    stage.claim("none is there twice", not doubled, doubled)
    found_open = [turn.turn_id for turn in await runtime.open_turns()]
    stage.claim("the unfinished turn is found on disk", TURN_ID in found_open, found_open)
    agent = await runtime.spawn(spec, stage.conversation_id)
    stage.event("the agent finds the unfinished turn in the log and goes on with it")
    result = await agent.run(story.KILL_QUESTION, turn_id=TURN_ID)
    for message in result.messages:
        if message.role == "tool":
            stage.print(f"  {stage.style.cyan('result')}     {str(message.content)[:100]}")
    stage.print(f"  {stage.style.cyan('assistant')}  {' '.join(result.text.split())}")
    stage.claim("the turn was resumed and has ended", result.status == "completed", result.status)
    records = await _log(stage, runtime)
    ends = sum(1 for r in records if r.turn_id == TURN_ID and (r.mark or {}).get("ended"))
    stage.claim("it ended exactly once", ends == 1, ends)
    effects = Counter(_effects(stage.ledger))
    stage.claim(
        "its tool, which may not be repeated, was not run again",
        effects["add 99 1"] <= 1,
        effects["add 99 1"],
    )
    again = await agent.run(story.KILL_QUESTION, turn_id=TURN_ID)
    stage.claim(
        "asked for again under the same turn id, it gives the same answer and adds nothing",
        again.text == result.text and len(await _log(stage, runtime)) == len(records),
    )
    await _turn(stage, agent, story.LAST_QUESTION)
    records = await _log(stage, runtime)
    seqs = [record.seq for record in records]
    stage.claim("the log has no gap", seqs == list(range(1, len(seqs) + 1)), seqs)
    turns = {record.turn_id for record in records if record.turn_id}
    figures.update(
        turns=len(turns), records=len(records), store_crashes=1, process_kills=1,
        records_lost=len(lost), records_doubled=len(doubled),
    )  # fmt: skip


async def _log(stage: _Stage, runtime: Runtime) -> list[Any]:
    return list(await runtime.store.read(stage.conversation_id, marks=True))


def _effects(ledger: Path) -> list[str]:
    if not ledger.exists():
        return []
    return [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]
